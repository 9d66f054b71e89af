// A store of torch's would listen on every interface of the machine. Where all its clients are here, it is given a
// socket that only they can reach.
#pragma once

#include <cstdint>
#include <string>

namespace faultline::race {

// Listens on a loopback address: "localhost", "::1" or 127.…; a port of 0 is replaced by a free one. The socket, which
// belongs to the store that gets it. RuntimeFailure: the port is taken.
int listen_on_loopback(const std::string& address, uint16_t& port);

}  // namespace faultline::race
