// An interposed disk (LD_PRELOAD) that dies, fills up or errs at a chosen moment: at the Nth call that changes
// something below one folder. Counting calls instead of seconds makes a moment repeatable and reaches the ones between
// two writes that a timer seldom hits.
//
//   FAULTLINE_CRASH_FOLDER  only what lies below it is counted
//   FAULTLINE_CRASH_AT      N, from 1; 0: nothing happens, calls are only counted
//   FAULTLINE_CRASH_HOW     kill: SIGKILL before the call; torn: half of the write, then SIGKILL; term: SIGTERM before
//   it;
//                           stop: SIGSTOP before it; enospc: this and all later writes fail; eio: this call fails
//   FAULTLINE_CRASH_COUNT   a file that gets the number of calls when the process ends
//   FAULTLINE_CRASH_STRUCK  a file that is there as soon as something has happened
//
// Trials and ranks that the process starts are left alone: they are other machines' business.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<long> calls{0};
long at_call = 0;
char folder[4096] = "";
char how[16] = "";

__attribute__((constructor)) void configure() {
  const char* where = getenv("FAULTLINE_CRASH_FOLDER");
  if (where == nullptr) return;
  char words[4096] = "";
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t size = file < 0 ? 0 : read(file, words, sizeof words - 1);
  if (file >= 0) close(file);
  for (ssize_t i = 0; i < size; i += static_cast<ssize_t>(strlen(words + i)) + 1)
    if (strcmp(words + i, "--trial") == 0 || strcmp(words + i, "--join") == 0) return;
  const char* number = getenv("FAULTLINE_CRASH_AT");
  const char* kind = getenv("FAULTLINE_CRASH_HOW");
  at_call = number == nullptr ? 0 : atol(number);
  snprintf(how, sizeof how, "%s", kind == nullptr ? "" : kind);
  snprintf(folder, sizeof folder, "%s", where);
}

__attribute__((destructor)) void report() {
  const char* file = getenv("FAULTLINE_CRASH_COUNT");
  if (file == nullptr || folder[0] == '\0') return;
  const int out = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) return;
  char text[32];
  const int size = snprintf(text, sizeof text, "%ld\n", calls.load());
  syscall(SYS_write, out, text, static_cast<size_t>(size));
  close(out);
}

bool below(const char* path) {
  const size_t size = strlen(folder);
  return size > 0 && path != nullptr && strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == '\0');
}

bool below(int descriptor) {
  if (folder[0] == '\0') return false;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return false;
  path[size] = '\0';
  return below(path);
}

void strike() {
  const char* file = getenv("FAULTLINE_CRASH_STRUCK");
  if (file == nullptr) return;
  const long out = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (out >= 0) syscall(SYS_close, out);
}

enum class Fate { kGoOn, kTorn, kFail };

// Counts the call; may not return. kFail has set errno.
Fate fate_of(bool is_write) {
  const long number = ++calls;
  if (at_call == 0 || number < at_call) return Fate::kGoOn;
  if (strcmp(how, "enospc") == 0) {
    if (!is_write) return Fate::kGoOn;
    strike();
    errno = ENOSPC;
    return Fate::kFail;
  }
  if (number > at_call) return Fate::kGoOn;
  strike();
  if (strcmp(how, "eio") == 0) {
    errno = EIO;
    return Fate::kFail;
  }
  if (strcmp(how, "torn") == 0 && is_write) return Fate::kTorn;
  kill(getpid(), strcmp(how, "term") == 0 ? SIGTERM : strcmp(how, "stop") == 0 ? SIGSTOP : SIGKILL);
  return Fate::kGoOn;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace

// The program ends by this one, without destructors.
extern "C" [[noreturn]] void _Exit(int status) noexcept {
  report();
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  static auto* real = next<ssize_t(int, const void*, size_t)>("write");
  if (!below(file)) return real(file, bytes, size);
  const Fate fate = fate_of(true);
  if (fate == Fate::kFail) return -1;
  if (fate == Fate::kTorn) (void)real(file, bytes, size / 2), die();
  return real(file, bytes, size);
}

static ssize_t pwrite_either(const char* name, int file, const void* bytes, size_t size, off_t offset) {
  auto* real = next<ssize_t(int, const void*, size_t, off_t)>(name);
  if (!below(file)) return real(file, bytes, size, offset);
  const Fate fate = fate_of(true);
  if (fate == Fate::kFail) return -1;
  if (fate == Fate::kTorn) (void)real(file, bytes, size / 2, offset), die();
  return real(file, bytes, size, offset);
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  return pwrite_either("pwrite", file, bytes, size, offset);
}
ssize_t pwrite64(int file, const void* bytes, size_t size, off_t offset) {
  return pwrite_either("pwrite64", file, bytes, size, offset);
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  static auto* real = next<ssize_t(int, const struct iovec*, int)>("writev");
  if (!below(file)) return real(file, parts, count);
  const Fate fate = fate_of(true);
  if (fate == Fate::kFail) return -1;
  if (fate == Fate::kTorn) (void)real(file, parts, 1), die();
  return real(file, parts, count);
}

int fsync(int file) {
  static auto* real = next<int(int)>("fsync");
  return below(file) && fate_of(false) == Fate::kFail ? -1 : real(file);
}

int fdatasync(int file) {
  static auto* real = next<int(int)>("fdatasync");
  return below(file) && fate_of(false) == Fate::kFail ? -1 : real(file);
}

int ftruncate(int file, off_t size) {
  static auto* real = next<int(int, off_t)>("ftruncate");
  return below(file) && fate_of(false) == Fate::kFail ? -1 : real(file, size);
}

int ftruncate64(int file, off_t size) {
  static auto* real = next<int(int, off_t)>("ftruncate64");
  return below(file) && fate_of(false) == Fate::kFail ? -1 : real(file, size);
}

int rename(const char* from, const char* to) {
  static auto* real = next<int(const char*, const char*)>("rename");
  return below(to) && fate_of(false) == Fate::kFail ? -1 : real(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  static auto* real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return below(to) && fate_of(false) == Fate::kFail ? -1 : real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) {
  static auto* real = next<int(const char*, mode_t)>("mkdir");
  return below(path) && fate_of(false) == Fate::kFail ? -1 : real(path, mode);
}

int unlink(const char* path) {
  static auto* real = next<int(const char*)>("unlink");
  return below(path) && fate_of(false) == Fate::kFail ? -1 : real(path);
}

}  // extern "C"
