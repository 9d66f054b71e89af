#include "cluster/membership.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/files/file.h"

namespace faultline::cluster {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t integer_variable(const char* name, int64_t min, int64_t max) {
  const std::string text = variable(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min || value > max)
    throw UsageError(fmt::format("{}='{}': wanted an integer from {} to {}; the launcher (torchrun, srun) sets it",
                                 name, text, min, max));
  return value;
}

void listen_on(int socket, const sockaddr* address, socklen_t size, const std::string& text) {
  const int yes = 1;  // a port whose last connections are still closing is free
  if (socket < 0 || ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket, address, size) != 0 || ::listen(socket, SOMAXCONN) != 0)
    throw RuntimeFailure(fmt::format("no port on {} for the ranks' store: {}", text, std::strerror(errno)));
}

}  // namespace

std::optional<Membership> membership_from_environment() {
  if (variable("RANK").empty()) return std::nullopt;
  Membership m;
  m.ranks = static_cast<int>(integer_variable("WORLD_SIZE", 1, 256));
  m.rank = static_cast<int>(integer_variable("RANK", 0, m.ranks - 1));
  m.local_ranks = variable("LOCAL_WORLD_SIZE").empty()
                      ? m.ranks
                      : static_cast<int>(integer_variable("LOCAL_WORLD_SIZE", 1, m.ranks));
  if (!variable("LOCAL_RANK").empty()) m.local_rank = static_cast<int>(integer_variable("LOCAL_RANK", 0, m.ranks - 1));
  m.address = variable("MASTER_ADDR");
  if (m.address.empty())
    throw UsageError("RANK is set but MASTER_ADDR is not; the launcher (torchrun, srun) sets both, or unset RANK");
  m.port = static_cast<uint16_t>(integer_variable("MASTER_PORT", 1, 65535));
  m.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  m.generation = variable("TORCHELASTIC_RESTART_COUNT").empty() ? "0" : variable("TORCHELASTIC_RESTART_COUNT");
  return m;
}

Membership joined_membership(const std::string& place) {
  struct Names {
    const char *rank, *ranks, *local_rank, *local_ranks;
  };
  constexpr std::array kLaunchers = {
      Names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
      Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      Names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      Names{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};
  const auto set = std::find_if(kLaunchers.begin(), kLaunchers.end(),
                                [](const Names& names) { return !variable(names.rank).empty(); });
  if (set == kLaunchers.end())
    throw UsageError(
        "--join: no launcher says which rank this is (RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID)");
  Membership m;
  m.ranks = static_cast<int>(integer_variable(set->ranks, 1, 256));
  m.rank = static_cast<int>(integer_variable(set->rank, 0, m.ranks - 1));
  if (!variable(set->local_rank).empty())
    m.local_rank = static_cast<int>(integer_variable(set->local_rank, 0, m.ranks - 1));
  m.local_ranks =
      variable(set->local_ranks).empty() ? m.ranks : static_cast<int>(integer_variable(set->local_ranks, 1, m.ranks));
  const size_t colon = place.rfind(':');
  const std::string port = colon == std::string::npos ? "" : place.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), m.port);
  if (error != std::errc{} || end != port.data() + port.size() || m.port == 0 || colon == 0)
    throw UsageError(fmt::format("--join: wanted ADDRESS:PORT, got '{}'", place));
  m.address = place.substr(0, colon);
  m.agent_store = true;
  m.generation = "0";
  return m;
}

std::string address_towards(const std::string& host) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_INET, wanted.ai_socktype = SOCK_DGRAM;
  const std::string name = host.substr(host.find('@') + 1);  // ssh's user@host; npos + 1: the whole
  if (const int error = ::getaddrinfo(name.c_str(), "9", &wanted, &found); error != 0)
    throw UsageError(fmt::format("host '{}': {}; give this machine's address for the ranks with --address", name,
                                 ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> keep(found, &::freeaddrinfo);
  // Connecting a datagram socket sends nothing; it only chooses the route.
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t size = sizeof own;
  char text[INET_ADDRSTRLEN] = "";
  if (::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text) == nullptr)
    throw UsageError(fmt::format("no way to host '{}': {}", name, std::strerror(errno)));
  return text;
}

std::string gloo_address(const Membership& m) {
  if (m.on_loopback()) return "127.0.0.1";
  return variable("GLOO_SOCKET_IFNAME").empty() ? address_towards(m.address) : "";
}

int listen_at(const std::string& address, uint16_t& port) {
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
  if (address == "localhost")
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else if (::inet_pton(AF_INET, address.c_str(), &place.sin_addr) != 1)
    throw UsageError(fmt::format("'{}' is no IPv4 address of this machine", address));
  socklen_t size = sizeof place;
  listen_on(socket.get(), reinterpret_cast<sockaddr*>(&place), size, address);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&place), &size) == 0) port = ntohs(place.sin_port);
  return socket.release();
}

c10::intrusive_ptr<c10d::Store> open_store(const Membership& m, double timeout) {
  c10d::TCPStoreOptions options;
  options.port = m.port;
  options.isServer = m.rank == 0 && !m.agent_store;
  if (options.isServer && m.on_loopback()) options.masterListenFd = listen_at(m.address, options.port);
  options.numWorkers = static_cast<size_t>(m.ranks);
  options.waitWorkers = !m.agent_store;
  options.multiTenant = true;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
  return c10::make_intrusive<c10d::PrefixStore>("faultline/" + m.generation,
                                                c10::make_intrusive<c10d::TCPStore>(m.address, options));
}

}  // namespace faultline::cluster
