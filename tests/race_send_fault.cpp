// LD_PRELOAD for tests/race_outside_test.py: flips one bit of the payload of some messages that a process sends over a
// socket, and writes down each one. It knows nothing of Faultline and Faultline nothing of it. A message is eligible
// when one write carries at least FAULTLINE_SEND_BYTES of payload; every FAULTLINE_SEND_EVERY-th of them is damaged, on
// a copy.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

std::atomic<unsigned long> eligible{0};

unsigned long number(const char* name, unsigned long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
}

bool is_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

// True where this message is to be damaged; `bytes` is the payload's length.
bool strikes(int fd, size_t bytes, unsigned long& count) {
  static const unsigned long least = number("FAULTLINE_SEND_BYTES", 0), every = number("FAULTLINE_SEND_EVERY", 0),
                             most = number("FAULTLINE_SEND_MOST", 1000000);
  static std::atomic<unsigned long> struck{0};
  if (every == 0 || bytes < least || !is_socket(fd)) return false;
  count = ++eligible;
  return count % every == 0 && ++struck <= most;
}

void note(size_t bytes, size_t at, unsigned long count) {
  const char* path = std::getenv("FAULTLINE_SEND_LOG");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  char line[128];
  const int length = std::snprintf(line, sizeof line, "%d %zu %zu %lu %s\n", getpid(), bytes, at, count,
                                   std::getenv("RANK") ? std::getenv("RANK") : "-");
  if (write(file, line, static_cast<size_t>(length)) < 0) std::abort();
  close(file);
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

size_t place_of(unsigned long count, size_t bytes) { return (count * 2654435761ul) % bytes; }

}  // namespace

extern "C" ssize_t send(int fd, const void* data, size_t size, int flags) {
  static const auto original = real<ssize_t (*)(int, const void*, size_t, int)>("send");
  unsigned long count = 0;
  if (!strikes(fd, size, count)) return original(fd, data, size, flags);
  std::vector<char> copy(static_cast<const char*>(data), static_cast<const char*>(data) + size);
  const size_t at = place_of(count, size);
  copy[at] = static_cast<char>(copy[at] ^ (1 << (count % 8)));
  const ssize_t sent = original(fd, copy.data(), size, flags);
  if (sent > static_cast<ssize_t>(at)) note(size, at, count);  // a short write may have left the damaged byte out
  return sent;
}

extern "C" ssize_t writev(int fd, const struct iovec* parts, int count_of_parts) {
  static const auto original = real<ssize_t (*)(int, const struct iovec*, int)>("writev");
  const struct iovec& last = parts[count_of_parts - 1];  // a header goes before the payload
  unsigned long count = 0;
  if (!strikes(fd, last.iov_len, count)) return original(fd, parts, count_of_parts);
  std::vector<char> copy(static_cast<const char*>(last.iov_base),
                         static_cast<const char*>(last.iov_base) + last.iov_len);
  const size_t at = place_of(count, last.iov_len);
  copy[at] = static_cast<char>(copy[at] ^ (1 << (count % 8)));
  std::vector<struct iovec> changed(parts, parts + count_of_parts);
  changed.back().iov_base = copy.data();
  const ssize_t sent = original(fd, changed.data(), count_of_parts);
  size_t before = 0;
  for (int i = 0; i + 1 < count_of_parts; ++i) before += parts[i].iov_len;
  if (sent > static_cast<ssize_t>(before + at)) note(last.iov_len, at, count);
  return sent;
}

extern "C" ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  static const auto original = real<ssize_t (*)(int, const struct msghdr*, int)>("sendmsg");
  if (message->msg_iovlen == 0) return original(fd, message, flags);
  const struct iovec& last = message->msg_iov[message->msg_iovlen - 1];
  unsigned long count = 0;
  if (!strikes(fd, last.iov_len, count)) return original(fd, message, flags);
  std::vector<char> copy(static_cast<const char*>(last.iov_base),
                         static_cast<const char*>(last.iov_base) + last.iov_len);
  const size_t at = place_of(count, last.iov_len);
  copy[at] = static_cast<char>(copy[at] ^ (1 << (count % 8)));
  std::vector<struct iovec> changed(message->msg_iov, message->msg_iov + message->msg_iovlen);
  changed.back().iov_base = copy.data();
  struct msghdr other = *message;
  other.msg_iov = changed.data();
  const ssize_t sent = original(fd, &other, flags);
  size_t before = 0;
  for (size_t i = 0; i + 1 < message->msg_iovlen; ++i) before += message->msg_iov[i].iov_len;
  if (sent > static_cast<ssize_t>(before + at)) note(last.iov_len, at, count);
  return sent;
}
