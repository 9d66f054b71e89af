#include "record/host_name.h"

#include <unistd.h>

namespace faultline {

std::string host_name() {
  char name[256] = "unknown";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace faultline
