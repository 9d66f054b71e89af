#include "cli/interruption.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>

namespace faultline::cli {
namespace {

// A handler may neither allocate nor read a string that changes: it takes the older of two buffers or the newer.
std::array<std::array<char, 1024>, 2> interruption_buffers;
std::atomic<const char*> interruption_text{nullptr};

void say_and_end(int signal) {
  if (const char* text = interruption_text.load()) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) {  // nobody to tell
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void on_interrupt_say(const std::string& text) {
  static std::size_t next = 0;
  std::array<char, 1024>& buffer = interruption_buffers[next ^= 1];
  const std::string whole = "\ninterrupted; " + text + "\n";
  const std::size_t size = std::min(whole.size(), buffer.size() - 1);
  std::memcpy(buffer.data(), whole.data(), size);
  buffer[size] = 0;
  interruption_text.store(text.empty() ? nullptr : buffer.data());
  std::signal(SIGINT, say_and_end);
}

}  // namespace faultline::cli
