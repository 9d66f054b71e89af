// Kernel launches from Python: a window of them begun and ended by operators, answers as JSON
// (python/faultline/launches.py).
#include <ATen/ATen.h>
#include <torch/library.h>

#include <nlohmann/json.hpp>

#include "tap/launches.h"

namespace faultline {
namespace {

// -> "": begun; else {"reason", "why"}
std::string op_launches_begin(bool scopes) {
  const std::optional<LaunchesAbsent> absent = begin_launches(scopes);
  if (!absent) return "";
  return nlohmann::ordered_json{{"reason", std::string(name_of(absent->reason))}, {"why", absent->why}}.dump();
}

std::string op_launches_end(bool listed) { return to_json(end_launches(), listed).dump(); }

// The family of a kernel by its name as CUPTI gives it, and whether it is a part of another one's work.
std::tuple<std::string, bool> op_launch_family(const std::string& name) {
  const LaunchKind kind = classify_kernel(demangled_kernel(name.c_str()));
  return {std::string(name_of(kind.family)), kind.part};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("launches_begin(bool scopes) -> str", op_launches_begin);
  m.def("launches_end(bool listed) -> str", op_launches_end);
  m.def("launch_family(str name) -> (str, bool)", op_launch_family);
}

}  // namespace faultline
