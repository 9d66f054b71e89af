// LD_PRELOAD for tests/bench_screen.py on a GPU: some of a process's cudaMemcpyAsync lose a piece. It knows nothing of
// Faultline and Faultline nothing of it. A copy is eligible when it moves exactly FAULTLINE_COPY_BYTES bytes and is of
// the kind FAULTLINE_COPY_KIND (1: to the device, 3: on it). After the first FAULTLINE_COPY_AFTER of them every
// FAULTLINE_COPY_EVERY-th leaves 64 bytes as they were, and a line is written down. (torch copies within the memory of
// a CPU by loops of its own, which nothing can stand between: there the drill takes torch's copy operator.)
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kPiece = 64;

unsigned long number(const char* name, unsigned long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
}

// Where the piece begins that this copy loses; nothing: it is left alone.
bool strikes(size_t bytes, size_t& at) {
  static const unsigned long size = number("FAULTLINE_COPY_BYTES", 0), every = number("FAULTLINE_COPY_EVERY", 0),
                             after = number("FAULTLINE_COPY_AFTER", 0);
  static std::atomic<unsigned long> eligible{0};
  if (every == 0 || bytes != size || size < 4 * kPiece) return false;
  const unsigned long count = ++eligible;
  if (count <= after || (count - after) % every != 0) return false;
  at = (count * 2654435761ul) % (bytes / kPiece - 1) * kPiece;
  if (const char* path = std::getenv("FAULTLINE_COPY_LOG")) {
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    char line[64];
    const int length = std::snprintf(line, sizeof line, "%lu %zu\n", count, at);
    if (write(file, line, static_cast<size_t>(length)) < 0) std::abort();
    close(file);
  }
  return true;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  static auto* const copy = real<int(void*, const void*, size_t, int, void*)>("cudaMemcpyAsync");
  static const int wanted = static_cast<int>(number("FAULTLINE_COPY_KIND", 1));
  size_t at = 0;
  if (kind != wanted || !strikes(bytes, at)) return copy(to, from, bytes, kind, stream);
  const int failed = copy(to, from, at, kind, stream);
  const size_t next = at + kPiece;
  return failed != 0
             ? failed
             : copy(static_cast<char*>(to) + next, static_cast<const char*>(from) + next, bytes - next, kind, stream);
}
