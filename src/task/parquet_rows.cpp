#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/error.h"
#include "base/machine.h"
#include "task/gsm8k.h"
#include "task/parquet/interface.h"

namespace faultline::task {
namespace {

struct ParquetModule {
  decltype(&faultline_parquet_rows) rows = nullptr;
  std::string complaint;  // why it is not here
};

ParquetModule load_module() {
  ParquetModule module;
  const auto path = library_folder() / "libfaultline_parquet.so";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    module.complaint = "libfaultline_parquet.so was not built";
    return module;
  }
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    module.complaint = ::dlerror();
    return module;
  }
  module.rows = reinterpret_cast<decltype(module.rows)>(::dlsym(handle, "faultline_parquet_rows"));
  FL_ASSERT(module.rows != nullptr);
  return module;
}

constexpr unsigned kPatienceSeconds = 300;

void write_all(int descriptor, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) ::_exit(1);
    bytes += written, size -= static_cast<std::size_t>(written);
  }
}

// The child's answer: 'r' and the rows, or 'c' and a complaint.
[[noreturn]] void read_as_child(const ParquetModule& module, const std::filesystem::path& file,
                                const std::vector<const char*>& names, int descriptor) {
  ::alarm(kPatienceSeconds);
  char* text = nullptr;
  std::size_t size = 0;
  const int failed = module.rows(file.c_str(), names.data(), names.size(), &text, &size);
  write_all(descriptor, failed == 0 && text != nullptr ? "r" : "c", 1);
  if (text != nullptr) write_all(descriptor, text, size);
  ::_exit(0);
}

std::string read_all(int descriptor) {
  std::string answer;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return answer;
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

std::string parquet_rows(const std::filesystem::path& file, const std::vector<std::string>& columns) {
  static const ParquetModule module = load_module();
  if (module.rows == nullptr) {
    throw UsageError(fmt::format("{}: parquet cannot be read here ({}); convert to .jsonl or build with pyarrow",
                                 file.string(), module.complaint));
  }
  std::vector<const char*> names;
  for (const std::string& column : columns) names.push_back(column.c_str());
  // In a process of its own: Arrow writes past its memory on some damaged files.
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw RuntimeFailure("no pipe for reading parquet");
  const pid_t child = ::fork();
  if (child < 0) throw RuntimeFailure("no process for reading parquet");
  if (child == 0) read_as_child(module, file, names, ends[1]);
  ::close(ends[1]);
  const std::string answer = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || answer.empty())
    throw UsageError(fmt::format("{}: is damaged: its reader broke off{}", file.string(),
                                 WIFSIGNALED(status) ? fmt::format(" (signal {})", WTERMSIG(status)) : ""));
  if (answer[0] != 'r') throw UsageError(fmt::format("{}: {}", file.string(), answer.substr(1)));
  return answer.substr(1);
}

}  // namespace faultline::task
