// The name of this machine, as files and other processes are told it.
#pragma once

#include <string>

namespace faultline {

std::string host_name();  // "unknown" where it has none

}  // namespace faultline
