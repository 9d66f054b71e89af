#include "race/loopback.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "record/file_descriptor.h"

namespace faultline::race {
namespace {

void listen_on(int socket, const sockaddr* address, socklen_t size, const std::string& text) {
  const int yes = 1;  // a port whose last connections are still closing is free
  if (socket < 0 || ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket, address, size) != 0 || ::listen(socket, SOMAXCONN) != 0)
    throw RuntimeFailure(fmt::format("no port on {} for the ranks' store: {}", text, std::strerror(errno)));
}

}  // namespace

int listen_on_loopback(const std::string& address, uint16_t& port) {
  if (address == "::1") {
    FileDescriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 place{};
    place.sin6_family = AF_INET6, place.sin6_addr = in6addr_loopback, place.sin6_port = htons(port);
    socklen_t size = sizeof place;
    listen_on(socket.get(), reinterpret_cast<sockaddr*>(&place), size, address);
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&place), &size) == 0) port = ntohs(place.sin6_port);
    return socket.release();
  }
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET, place.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &place.sin_addr) != 1) place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  listen_on(socket.get(), reinterpret_cast<sockaddr*>(&place), size, address);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&place), &size) == 0) port = ntohs(place.sin_port);
  return socket.release();
}

}  // namespace faultline::race
