// Calls of a trace made again from Python, where a backend of torch is loaded by importing it: operator compare_trace
// over diagnose/compare.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/json.h"
#include "diagnose/compare/compare.h"
#include "site/torch_support.h"

namespace faultline::plugin {
namespace {

// Each call of the trace is made again on `device`, in `dtype` or, without one, in its own. `out`: a folder for
// profiles and recipe, or empty.
std::string op_compare(const std::string& trace, const at::Device& device, std::optional<at::ScalarType> dtype,
                       const std::string& out, const std::string& model) {
  return site::translated([&] {
    const diagnose::StoredCalls stored = diagnose::stored_calls(trace);
    const diagnose::Comparison comparison =
        diagnose::compare_sides(stored.calls, {device, dtype.value_or(stored.dtype)});
    if (!out.empty()) diagnose::write_profiles(out, comparison, {trace, device.str(), model, stored.dtype});
    return to_json_text(diagnose::to_json(comparison));
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("compare_trace(str trace, Device device, ScalarType? dtype, str out, str model) -> str", op_compare);
}

}  // namespace faultline::plugin
