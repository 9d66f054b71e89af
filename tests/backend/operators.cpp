// Operators of the test backend's own, in a namespace of its own: a fused norm, activation and gate such as
// accelerators bring along; and, under torch_npu's names, the ones that vLLM-Ascend calls, with its first arguments.
// Their formulas are written out on the CPU. On the device the same kernel runs on shadows.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "host.h"
#include "streams.h"

namespace toy {
namespace {

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = wide.square().mean(-1, true).add(epsilon).rsqrt();
  return {(wide * scale).to(x.scalar_type()) * weight, scale};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& scale) {
  const at::Tensor wide = x.to(at::kFloat), g = gradient.to(at::kFloat), normed = wide * scale;
  const at::Tensor weighted = g * weight.to(at::kFloat);
  const at::Tensor dx = (weighted - normed * (weighted * normed).mean(-1, true)) * scale;
  return {dx.to(x.scalar_type()), (g * normed).flatten(0, -2).sum(0).to(weight.scalar_type())};
}

at::Tensor swiglu(const at::Tensor& x, int64_t dim) {
  const auto halves = x.chunk(2, dim);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor gate(const at::Tensor& x, const at::Tensor& by) { return x * by; }

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& a, const at::Tensor& b,
                                                            const at::Tensor& weight, double epsilon) {
  const at::Tensor sum = a + b;
  auto [y, scale] = rms_norm(sum, weight, epsilon);
  return {y, scale, sum};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fusion_attention(const at::Tensor& q, const at::Tensor& k,
                                                                const at::Tensor& v, int64_t, double scale) {
  const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false, {}, scale);
  return {out, logsumexp, logsumexp};
}

void set_defect_named(const std::string& name) {
  TORCH_CHECK_VALUE(name == "none" || name == "no_shifts" || name == "flushed" || name == "imprecise", name);
  set_defect(name == "no_shifts"   ? Defect::kNoShifts
             : name == "flushed"   ? Defect::kFlushed
             : name == "imprecise" ? Defect::kImprecise
                                   : Defect::kNone);
}

// For collectives over the host: the same bytes as a tensor of the CPU; and what they do, told to the watch.
at::Tensor host_view(const at::Tensor& x) { return Shadows().of(x); }
void use(const at::Tensor& x, bool writes, const std::string& who) { touches(who, x, writes); }

TORCH_LIBRARY(toy, m) {
  m.def("fused_rms_norm(Tensor x, Tensor weight, float epsilon) -> (Tensor, Tensor)");
  m.def("fused_rms_norm_backward(Tensor gradient, Tensor x, Tensor weight, Tensor scale) -> (Tensor, Tensor)");
  m.def("fused_swiglu(Tensor x, int dim=-1) -> Tensor");
  m.def("gate(Tensor x, Tensor by) -> Tensor");
  m.def("set_defect(str name) -> ()", set_defect_named);
  m.def("calls_on_host() -> int", calls_on_host);
  m.def("watch_streams(bool on) -> ()", watch_streams);
  m.def("races() -> str[]", races);
  m.def("host_view(Tensor x) -> Tensor", host_view);
  m.def("use(Tensor x, bool writes, str who) -> ()", use);
}
TORCH_LIBRARY_IMPL(toy, CPU, m) {
  m.impl("fused_rms_norm", rms_norm);
  m.impl("fused_rms_norm_backward", rms_norm_backward);
  m.impl("fused_swiglu", swiglu);
  m.impl("gate", gate);
}

TORCH_LIBRARY(npu, m) {
  m.def("npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)");
  m.def("npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)");
  m.def("npu_swiglu(Tensor self, int dim=-1) -> Tensor");
  m.def(
      "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, float scale=1.0) -> (Tensor, Tensor, "
      "Tensor)");
}
TORCH_LIBRARY_IMPL(npu, CPU, m) {
  m.impl("npu_rms_norm", rms_norm);
  m.impl("npu_add_rms_norm", add_rms_norm);
  m.impl("npu_swiglu", swiglu);
  m.impl("npu_fusion_attention", fusion_attention);
}

}  // namespace
}  // namespace toy
