// Recording and comparing from Python, where a backend of torch is loaded by importing it and models are Hugging
// Face's: operators recording_* and compare_trace over diagnose/compare.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/json.h"
#include "diagnose/compare/compare.h"
#include "site/torch_support.h"

namespace faultline::plugin {
namespace {

void op_begin() {
  site::translated([] { diagnose::begin_recording(); });
}

// -> calls that were written. An empty path: the run failed, nothing is kept.
int64_t op_end(const std::string& path) {
  return site::translated([&]() -> int64_t {
    const std::vector<diagnose::RecordedCall> calls = diagnose::end_recording();
    return path.empty() ? 0 : diagnose::write_trace(path, calls);
  });
}

at::ScalarType type_of_most(const std::vector<diagnose::RecordedCall>& calls) {
  for (const diagnose::RecordedCall& call : calls) {
    if (call.results[0].scalar_type() != at::kFloat) return call.results[0].scalar_type();
  }
  return at::kFloat;
}

// `second`: a trace, or empty: then each call of the first is made again on `device`, in `dtype` or, without one, in
// its own. `out`: a folder for profiles and recipe, or empty.
std::string op_compare(const std::string& first, const std::string& second, const at::Device& device,
                       std::optional<at::ScalarType> dtype, const std::string& out, const std::string& model) {
  return site::translated([&] {
    const std::vector<diagnose::RecordedCall> calls = diagnose::read_trace(first);
    if (!second.empty() && !out.empty())
      throw UsageError("two traces make no profiles, since nothing is made again: give a device as the second");
    const at::ScalarType own = type_of_most(calls);
    const diagnose::Comparison comparison = second.empty()
                                                ? diagnose::compare_sides(calls, {device, dtype.value_or(own)})
                                                : diagnose::compare_traces(calls, diagnose::read_trace(second));
    if (!out.empty()) diagnose::write_profiles(out, comparison, {first, device.str(), model, own});
    return to_json_text(diagnose::to_json(comparison));
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("recording_begin() -> ()", op_begin);
  m.def("recording_end(str path) -> int", op_end);
  m.def("compare_trace(str first, str second, Device device, ScalarType? dtype, str out, str model) -> str",
        op_compare);
}

}  // namespace faultline::plugin
