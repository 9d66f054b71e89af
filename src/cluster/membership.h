// Where the processes of a job stand and how they find each other: which rank this one is, by the variables that
// torchrun, srun (by its script) and our own launcher set, and the store through which they meet.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace faultline::cluster {

struct Membership {
  int rank = 0;
  int ranks = 1;
  int local_ranks = 1;            // that share this machine's cores; unknown: all
  std::optional<int> local_rank;  // among them; also the rank's GPU
  std::string address;
  uint16_t port = 0;
  bool agent_store = false;  // somebody else serves the store: torchrun's agent, or our launcher
  std::string generation;    // of torchrun's restarts

  bool on_loopback() const { return address == "localhost" || address == "::1" || address.starts_with("127."); }
};

// From the environment; nullopt where RANK is not set. UsageError where the variables contradict each other.
std::optional<Membership> membership_from_environment();

// Of a process that our launcher has started, perhaps through another one, for a store at "address:port": its rank is
// what RANK says, else what Open MPI, another MPI or Slurm says.
Membership joined_membership(const std::string& place);

// The address of this machine on the way to a host. UsageError where the host is unknown.
std::string address_towards(const std::string& host);
// Where this rank's process group listens: "" leaves it to GLOO_SOCKET_IFNAME, where that is set.
std::string gloo_address(const Membership& membership);

// Where the ranks of a job find each other; seconds: how long to wait for them.
c10::intrusive_ptr<c10d::Store> open_store(const Membership& membership, double timeout);

// A store of torch's would listen on every interface of the machine. It is given a socket instead that listens at one
// address alone: a loopback one where all its clients are here.

// Listens at an address of this machine or at "localhost"; a port of 0 is replaced by a free one. The socket, which
// belongs to the store that gets it. RuntimeFailure: the port is taken, or the address is not ours.
int listen_at(const std::string& address, uint16_t& port);

}  // namespace faultline::cluster
