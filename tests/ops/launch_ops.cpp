// What a kernel does, by its name, for tests/launches_test.py.
#include <torch/library.h>

#include "tap/launches.h"

namespace faultline {
namespace {

// The family of a kernel by its name as CUPTI gives it, and whether it is a part of another one's work.
std::tuple<std::string, bool> op_launch_family(const std::string& name) {
  const tap::LaunchKind kind = tap::classify_kernel(tap::demangled_kernel(name.c_str()));
  return {std::string(tap::name_of(kind.family)), kind.part};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline_testing, m) { m.def("launch_family(str name) -> (str, bool)", op_launch_family); }

}  // namespace faultline
