// Torch's elementwise operators, sums and softmax: run again in fp64 on what they were given. They compute in fp32 and
// round once, so what may differ is half an ulp of the result and fp32's own share.
#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "diagnose/range.h"
#include "diagnose/recomputation.h"

namespace faultline::diagnose {
namespace {

enum class Arithmetic { kExact, kRounded, kFunction, kAngle, kSum, kSoftmax, kLogSoftmax };

std::optional<Arithmetic> arithmetic_of(std::string_view name) {
  static const std::map<std::string_view, Arithmetic> known = {{"aten::neg", Arithmetic::kExact},
                                                               {"aten::abs", Arithmetic::kExact},
                                                               {"aten::relu", Arithmetic::kExact},
                                                               {"aten::where", Arithmetic::kExact},
                                                               {"aten::masked_fill", Arithmetic::kExact},
                                                               {"aten::maximum", Arithmetic::kExact},
                                                               {"aten::minimum", Arithmetic::kExact},
                                                               {"aten::amax", Arithmetic::kExact},
                                                               {"aten::clamp_min", Arithmetic::kExact},
                                                               {"aten::add", Arithmetic::kRounded},
                                                               {"aten::sub", Arithmetic::kRounded},
                                                               {"aten::rsub", Arithmetic::kRounded},
                                                               {"aten::mul", Arithmetic::kRounded},
                                                               {"aten::div", Arithmetic::kRounded},
                                                               {"aten::pow", Arithmetic::kFunction},
                                                               {"aten::square", Arithmetic::kFunction},
                                                               {"aten::sqrt", Arithmetic::kFunction},
                                                               {"aten::rsqrt", Arithmetic::kFunction},
                                                               {"aten::reciprocal", Arithmetic::kFunction},
                                                               {"aten::exp", Arithmetic::kFunction},
                                                               {"aten::silu", Arithmetic::kFunction},
                                                               {"aten::sigmoid", Arithmetic::kFunction},
                                                               {"aten::tanh", Arithmetic::kFunction},
                                                               {"aten::gelu", Arithmetic::kFunction},
                                                               {"aten::cos", Arithmetic::kAngle},
                                                               {"aten::sin", Arithmetic::kAngle},
                                                               {"aten::sum", Arithmetic::kSum},
                                                               {"aten::mean", Arithmetic::kSum},
                                                               {"aten::_softmax", Arithmetic::kSoftmax},
                                                               {"aten::_log_softmax", Arithmetic::kLogSoftmax}};
  if (name.ends_with('_')) name.remove_suffix(1);  // in place
  const auto found = known.find(name);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

// Of a softmax's rows: the distance of each element to its row's largest, which fp32 rounds before exp sees it.
at::Tensor distances(const at::Tensor& x, int64_t dimension) {
  const at::Tensor largest = x.amax(dimension, true);
  return (x - largest).abs().nan_to_num(0, 0, 0);
}

}  // namespace

at::Tensor Recomputation::run_wide(const RecordedCall& call, bool of_sizes) const {
  torch::jit::Stack stack;
  const auto& arguments = call.op->schema().arguments();
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    if (value.isTensor() && value.toTensor().defined()) {
      at::Tensor tensor = value.toTensor().to(device);
      if (tensor.is_floating_point()) tensor = tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
      stack.emplace_back(of_sizes && tensor.is_floating_point() ? tensor.abs() : tensor);
    } else if (arguments[i].name() == "dtype" && value.isInt()) {
      stack.emplace_back(static_cast<int64_t>(at::kDouble));
    } else {
      stack.push_back(arguments[i].name() == "half_to_float" ? c10::IValue(false) : value);
    }
  }
  call.op->callBoxed(stack);
  return stack.at(0).toTensor();
}

bool Recomputation::check_elementwise(const RecordedCall& call, std::vector<Observation>& observations) const {
  const std::optional<Arithmetic> arithmetic = arithmetic_of(call.name);
  if (!arithmetic || !call.arguments.at(0).isTensor()) return false;
  const at::Tensor exact = run_wide(call);
  const at::ScalarType dtype = call.results[0].scalar_type();
  if (!exact.is_floating_point() || exact.sizes() != call.results[0].sizes()) return false;
  if (*arithmetic == Arithmetic::kExact) {
    observations.push_back(compare("elementwise", call, 0, exact.to(dtype), {}));
    return true;
  }
  const at::Tensor x = wide(call.tensor(0)), size = exact.abs();
  at::Tensor tolerance = half_ulp(exact, dtype) * 1.001 + kFlushed, intermediate;
  switch (*arithmetic) {
    case Arithmetic::kRounded: {
      tolerance = tolerance + size * 0x1p-22;
      const int64_t alpha = argument_index(call, "alpha");  // multiplied first, and rounded in fp32
      if (alpha >= 0 && !call.arguments[static_cast<std::size_t>(alpha)].toScalar().equal(1))
        tolerance = tolerance + (x.abs() + (exact - x).abs()) * 0x1p-22;
      break;
    }
    case Arithmetic::kFunction: {
      tolerance = tolerance + size * kFunctionError + x.abs().clamp_max(kAccumulatorLimit) * 0x1p-120;
      if (call.name.starts_with("aten::gelu")) tolerance = tolerance + x.abs() * kFunctionError;  // 1 + erf cancels
      break;
    }
    case Arithmetic::kAngle: tolerance = tolerance + kFunctionError; break;
    case Arithmetic::kSum: {
      intermediate = run_wide(call, /*of_sizes=*/true);
      const double count = static_cast<double>(x.numel()) / static_cast<double>(std::max<int64_t>(1, exact.numel()));
      tolerance = tolerance + intermediate * (2 * std::sqrt(count) * 0x1p-24) + size * 0x1p-22;
      if (call.name == "aten::mean") intermediate = intermediate * count;
      break;
    }
    default: {
      const int64_t dimension = call.arguments.at(1).toInt();
      const at::Tensor far = distances(x, dimension);
      const double terms = std::sqrt(static_cast<double>(x.size(dimension))) * 0x1p-24;
      tolerance = *arithmetic == Arithmetic::kSoftmax
                      ? tolerance + size * (kFunctionError + terms + far * 0x1p-22)
                      : tolerance + (far + 1 + std::log(static_cast<double>(x.size(dimension)))) * kFunctionError;
    }
  }
  const char* operation = *arithmetic == Arithmetic::kSoftmax || *arithmetic == Arithmetic::kLogSoftmax ? "softmax"
                          : call.name.starts_with("aten::silu") || call.name.starts_with("aten::gelu")  ? "activation"
                                                                                                        : "elementwise";
  observations.push_back(compare_in_range(operation, call, 0, exact, flat(tolerance), intermediate));
  return true;
}

}  // namespace faultline::diagnose
