// The sentinel for Python: operators sentinel_* over screen/sentinel.h. Python counts steps and runs the model's
// linears; checks, answers, judgement and the share of time are the library's.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <memory>

#include "base/json.h"
#include "plugin/handles.h"
#include "screen/sentinel.h"
#include "site/torch_support.h"

namespace faultline::plugin {
namespace {

Handles<screen::Sentinel>& sentinels() {
  static auto* all = new Handles<screen::Sentinel>("sentinel");
  return *all;
}

int64_t op_sentinel_open(const std::string& device, int64_t seed, double share) {
  return site::translated([&] {
    screen::SentinelOptions options;
    options.device = at::Device(device), options.seed = static_cast<uint64_t>(seed), options.share = share;
    if (!options.device.is_cpu() && !options.device.is_cuda())
      throw UsageError("sentinel: wanted a model on cpu or cuda, it is on " + device);
    if (options.device.is_cuda() && !options.device.has_index()) options.device = at::Device(at::kCUDA, 0);
    auto made = std::make_shared<screen::Sentinel>(options);
    return sentinels().add(std::move(made));
  });
}

bool op_sentinel_step(int64_t handle) {
  return site::translated([&] { return sentinels().find(handle)->step(); });
}
// No elements: not now.
at::Tensor op_sentinel_question(int64_t handle, const std::string& name, const at::Tensor& weight) {
  return site::translated([&] {
    const at::Tensor x = sentinels().find(handle)->linear_question(name, weight);
    return x.defined() ? x : at::empty({0}, weight.options());
  });
}
void op_sentinel_answer(int64_t handle, const at::Tensor& output) {
  site::translated([&] { sentinels().find(handle)->linear_answer(output); });
}
std::string op_sentinel_verdict(int64_t handle) {
  return site::translated([&] { return to_json_text(sentinels().find(handle)->verdict()); });
}
void op_sentinel_close(int64_t handle) { sentinels().close(handle); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("sentinel_open(str device, int seed, float share) -> int", op_sentinel_open);
  m.def("sentinel_step(int sentinel) -> bool", op_sentinel_step);
  m.def("sentinel_question(int sentinel, str name, Tensor weight) -> Tensor", op_sentinel_question);
  m.def("sentinel_answer(int sentinel, Tensor output) -> ()", op_sentinel_answer);
  m.def("sentinel_verdict(int sentinel) -> str", op_sentinel_verdict);
  m.def("sentinel_close(int sentinel) -> ()", op_sentinel_close);
}

}  // namespace faultline::plugin
