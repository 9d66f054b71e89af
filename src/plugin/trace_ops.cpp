// Traces from Python: operators over diagnose/compare/trace.h. A forward is entered and left by the thread that runs
// it; its operators are recorded in between.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/json.h"
#include "diagnose/compare/divergence.h"
#include "diagnose/compare/probe_text.h"
#include "diagnose/compare/trace.h"
#include "plugin/handles.h"
#include "site/torch_support.h"

namespace faultline::plugin {
namespace {

Handles<diagnose::TraceWriter>& traces() {
  static auto* all = new Handles<diagnose::TraceWriter>("trace");
  return *all;
}

thread_local std::unique_ptr<diagnose::Recording> recording;

// options: {"detail", "most_bytes", "most_forwards", "header"}; names: of the weights. packed, originals: what products
// are given in place of a weight, and the weight as it was.
int64_t op_trace_open(const std::string& folder, const std::string& options, at::TensorList weights,
                      at::ArrayRef<std::string> names, at::TensorList packed, at::TensorList originals) {
  return site::translated([&] {
    const Json given = parse_json_text(options, "options");
    diagnose::TraceOptions how;
    try {
      how.detail = diagnose::detail_by_name(given.at("detail").get<std::string>());
      how.most_bytes = given.at("most_bytes").get<int64_t>(),
      how.most_forwards = given.at("most_forwards").get<int64_t>();
      how.header = given.at("header");
    } catch (const Json::exception& error) {
      throw UsageError(std::string("options of a trace: ") + error.what());
    }
    FL_ASSERT(names.size() == weights.size());
    for (std::size_t i = 0; i < names.size(); ++i) how.weights.push_back({names[i], weights[i].detach()});
    FL_ASSERT(packed.size() == originals.size());
    for (std::size_t i = 0; i < packed.size(); ++i) how.packed.push_back({packed[i], originals[i].detach()});
    auto writer = std::make_shared<diagnose::TraceWriter>(folder, std::move(how));
    return traces().add(std::move(writer));
  });
}

// false: enough was recorded, or this thread records already.
bool op_trace_enter(int64_t handle, const std::string& kind, const std::optional<at::Tensor>& tokens,
                    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& positions) {
  return site::translated([&] {
    if (recording) return false;
    const auto writer = traces().find(handle);
    const auto given = [](const std::optional<at::Tensor>& x) { return x ? x->detach() : at::Tensor(); };
    if (!writer->begin_forward(kind, given(tokens), given(mask), given(positions))) return false;
    recording = std::make_unique<diagnose::Recording>(*writer);
    return true;
  });
}

// What runs apart from the model's forward and belongs to it: vLLM's logits, of so many of its rows from the first one
// on.
bool op_trace_go_on(int64_t handle, int64_t first_row, int64_t rows) {
  return site::translated([&] {
    if (recording) return false;
    const auto writer = traces().find(handle);
    if (!writer->go_on_with_forward(first_row, rows)) return false;
    recording = std::make_unique<diagnose::Recording>(*writer);
    return true;
  });
}

void op_trace_leave(int64_t handle) {
  site::translated([&] {
    recording.reset();
    traces().find(handle)->end_forward();
  });
}

int64_t op_trace_close(int64_t handle) {
  return site::translated([&] {
    const auto writer = traces().find(handle);
    writer->finish();
    traces().close(handle);
    return writer->calls();
  });
}

// The comparison as JSON.
std::string op_trace_compare(const std::string& a, const std::string& b) {
  return site::translated([&] {
    const diagnose::Trace first = diagnose::read_trace(a), second = diagnose::read_trace(b);
    return to_json_text(diagnose::to_json(diagnose::compare_traces(first, second), first, second));
  });
}

std::string op_trace_probe() { return diagnose::kProbeText; }
std::string op_trace_tokens_digest(at::IntArrayRef tokens) { return diagnose::tokens_digest(tokens.vec()); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def(
      "trace_open(str folder, str options, Tensor[] weights, str[] names, Tensor[] packed, Tensor[] originals) -> int",
      op_trace_open);
  m.def("trace_enter(int trace, str kind, Tensor? tokens, Tensor? mask, Tensor? positions) -> bool", op_trace_enter);
  m.def("trace_go_on(int trace, int first_row, int rows) -> bool", op_trace_go_on);
  m.def("trace_leave(int trace) -> ()", op_trace_leave);
  m.def("trace_close(int trace) -> int", op_trace_close);
  m.def("trace_compare(str a, str b) -> str", op_trace_compare);
  m.def("trace_probe() -> str", op_trace_probe);
  m.def("trace_tokens_digest(int[] tokens) -> str", op_trace_tokens_digest);
}

}  // namespace faultline::plugin
