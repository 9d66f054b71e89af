// Kernel launches from Python: a window of them begun and ended by operators, answers as JSON
// (python/faultline/launches.py).
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/json.h"
#include "tap/launches.h"

namespace faultline::plugin {
namespace {

// -> "": begun; else {"reason", "why"}
std::string op_launches_begin(bool scopes) {
  const std::optional<tap::LaunchesAbsent> absent = tap::begin_launches(scopes);
  if (!absent) return "";
  return Json{{"reason", std::string(tap::name_of(absent->reason))}, {"why", absent->why}}.dump();
}

std::string op_launches_end(bool listed) { return tap::to_json(tap::end_launches(), listed).dump(); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("launches_begin(bool scopes) -> str", op_launches_begin);
  m.def("launches_end(bool listed) -> str", op_launches_end);
}

}  // namespace faultline::plugin
