#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <set>

#include "base/error.h"
#include "tap/replacement.h"
#include "tap/substitution.h"

namespace faultline::tap {
namespace {

using numeric::ApproximatedFunction;

at::ScalarType scalar_type(numeric::Dtype dtype) {
  return dtype == numeric::Dtype::kBFloat16  ? at::kBFloat16
         : dtype == numeric::Dtype::kFloat16 ? at::kHalf
                                             : at::kFloat;
}

// part(first, last): the exact-enough (fp32) sum of one chunk.
at::Tensor accumulate(const numeric::Rule& rule, int64_t length,
                      const std::function<at::Tensor(int64_t, int64_t)>& part) {
  const numeric::AccumulateSpec& spec = rule.what.accumulate;
  const at::ScalarType type = scalar_type(spec.accumulator);
  const int64_t chunks = (length + spec.chunk - 1) / spec.chunk;
  if (spec.drop && *spec.drop >= chunks)
    throw UsageError(fmt::format("rule '{}': drop {} is out of range; a sum of {} in chunks of {} has chunks 0 to {}",
                                 rule.name, *spec.drop, length, spec.chunk, chunks - 1));
  std::vector<at::Tensor> parts;
  for (int64_t c = 0; c < chunks; ++c) {
    if (spec.drop && c == *spec.drop) continue;
    parts.push_back(part(c * spec.chunk, std::min(length, (c + 1) * spec.chunk)).to(type));
  }
  if (parts.empty()) return at::zeros_like(part(0, length));
  if (spec.order == numeric::SumOrder::kTree) {
    for (; parts.size() > 1;) {
      std::vector<at::Tensor> next;
      for (std::size_t i = 0; i + 1 < parts.size(); i += 2)
        next.push_back((parts[i].to(at::kFloat) + parts[i + 1].to(at::kFloat)).to(type));
      if (parts.size() % 2 == 1) next.push_back(parts.back());
      parts = std::move(next);
    }
    return parts[0].to(at::kFloat);
  }
  if (spec.order == numeric::SumOrder::kReverse) std::reverse(parts.begin(), parts.end());
  at::Tensor sum = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) sum = (sum.to(at::kFloat) + parts[i].to(at::kFloat)).to(type);
  return sum.to(at::kFloat);
}

}  // namespace

at::Tensor accumulated_product(const numeric::Rule& rule, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.to(at::kFloat), right = b.to(at::kFloat);
  const int64_t axis = right.dim() == 1 ? 0 : -2;
  return accumulate(rule, left.size(-1), [&](int64_t first, int64_t last) {
    return at::matmul(left.narrow(-1, first, last - first), right.narrow(axis, first, last - first));
  });
}

at::Tensor accumulated_sum(const numeric::Rule& rule, const at::Tensor& x, int64_t dim, bool keep) {
  const at::Tensor wide = x.to(at::kFloat);
  return accumulate(rule, x.size(dim),
                    [&](int64_t first, int64_t last) { return wide.narrow(dim, first, last - first).sum(dim, keep); });
}

namespace {

bool is_torch_product(const std::string& base) {
  return base == "aten::mm" || base == "aten::bmm" || base == "aten::mv";
}

// beta * self + alpha * (a @ b)
bool is_sum_with_product(const std::string& base) {
  static const std::set<std::string> names = {"aten::addmm",    "aten::addmm_", "aten::baddbmm",
                                              "aten::baddbmm_", "aten::addmv",  "aten::addmv_"};
  return names.contains(base);
}

at::Tensor replace_accumulation(const numeric::Rule& rule, const std::string& base,
                                c10::ArrayRef<c10::IValue> arguments, std::string& why) {
  const auto tensor = [&](std::size_t i) { return arguments[i].toTensor(); };
  if (is_torch_product(base)) return accumulated_product(rule, tensor(0), tensor(1)).to(tensor(0).scalar_type());
  if (is_sum_with_product(base)) {
    at::Tensor sum = accumulated_product(rule, tensor(1), tensor(2));
    const double beta = arguments[3].toScalar().toDouble(), alpha = arguments[4].toScalar().toDouble();
    sum = sum * alpha;
    if (beta != 0) sum = sum + tensor(0).to(at::kFloat) * beta;
    return sum.to(tensor(1).scalar_type());
  }
  if ((base == "aten::sum" || base == "aten::mean") && arguments.size() >= 3 && arguments[1].isIntList() &&
      arguments[1].toIntVector().size() == 1) {
    const int64_t dim = arguments[1].toIntVector()[0];
    at::Tensor sum = accumulated_sum(rule, tensor(0), dim, arguments[2].toBool());
    if (base == "aten::mean") sum = sum / static_cast<double>(tensor(0).size(dim));
    return sum.to(arguments.size() > 3 && arguments[3].isInt() ? static_cast<at::ScalarType>(arguments[3].toInt())
                                                               : tensor(0).scalar_type());
  }
  why = "accumulate replaces sums over one dimension, with the dimensions given";
  return {};
}

struct Curve {
  double low, high;
  std::function<double(double)> exact;
};

Curve curve_of(ApproximatedFunction function) {
  switch (function) {
    case ApproximatedFunction::kSilu: return {-8, 8, [](double x) { return x / (1 + std::exp(-x)); }};
    case ApproximatedFunction::kGelu:
      return {-8, 8, [](double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }};
    case ApproximatedFunction::kSigmoid: return {-8, 8, [](double x) { return 1 / (1 + std::exp(-x)); }};
    case ApproximatedFunction::kTanh: return {-4, 4, [](double x) { return std::tanh(x); }};
    case ApproximatedFunction::kExp: return {-16, 0, [](double x) { return std::exp(x); }};
    case ApproximatedFunction::kRsqrt: return {1, 4, [](double x) { return 1 / std::sqrt(x); }};
  }
  FL_ASSERT(!"unknown function");
}

at::Tensor evaluate_numbers(const numeric::ApproximateSpec& spec, const Curve& curve, const at::Tensor& given) {
  const at::Tensor x = given.clamp(curve.low, curve.high);
  if (spec.method == numeric::ApproximationMethod::kPolynomial) {
    // Chebyshev interpolation, evaluated by Clenshaw's recurrence.
    const int64_t nodes = spec.size + 1;
    std::vector<double> coefficient(static_cast<std::size_t>(nodes));
    for (int64_t k = 0; k < nodes; ++k) {
      double sum = 0;
      for (int64_t j = 0; j < nodes; ++j) {
        const double angle = std::numbers::pi * (static_cast<double>(j) + 0.5) / static_cast<double>(nodes);
        sum += curve.exact(curve.low + (curve.high - curve.low) * (std::cos(angle) + 1) / 2) *
               std::cos(static_cast<double>(k) * angle);
      }
      coefficient[static_cast<std::size_t>(k)] = sum * (k == 0 ? 1.0 : 2.0) / static_cast<double>(nodes);
    }
    const at::Tensor t = (x - curve.low) * (2 / (curve.high - curve.low)) - 1;
    at::Tensor one = at::zeros_like(t), two = at::zeros_like(t);
    for (int64_t k = spec.size; k > 0; --k) {
      const at::Tensor next = t * one * 2 - two + coefficient[static_cast<std::size_t>(k)];
      two = one, one = next;
    }
    return t * one - two + coefficient[0];
  }
  std::vector<float> knots(static_cast<std::size_t>(spec.size));
  for (int64_t i = 0; i < spec.size; ++i)
    knots[static_cast<std::size_t>(i)] = static_cast<float>(curve.exact(
        curve.low + (curve.high - curve.low) * static_cast<double>(i) / static_cast<double>(spec.size - 1)));
  const at::Tensor table = at::tensor(knots).to(x.device());
  const at::Tensor place = (x - curve.low) * (static_cast<double>(spec.size - 1) / (curve.high - curve.low));
  if (spec.method == numeric::ApproximationMethod::kTable) return table.take(place.round().to(at::kLong));
  const at::Tensor below = place.floor().clamp_max(static_cast<double>(spec.size - 2));
  const at::Tensor left = table.take(below.to(at::kLong)), right = table.take(below.to(at::kLong) + 1);
  return left + (right - left) * (place - below);
}

// f~ on [low, high]; outside, the nearest end's value; a NaN has no place in a table and stays.
at::Tensor evaluate(const numeric::ApproximateSpec& spec, const Curve& curve, const at::Tensor& given) {
  const at::Tensor number = at::nan_to_num(given, curve.low, curve.high, curve.low);
  return at::where(given.isnan(), given, evaluate_numbers(spec, curve, number));
}

// Of torch's operators, which one is the function; exp is that of the softmax.
std::string operator_of(ApproximatedFunction function) {
  static constexpr const char* kNames[] = {"silu", "gelu", "sigmoid", "tanh", "_softmax", "rsqrt"};
  return fmt::format("aten::{}", kNames[static_cast<std::size_t>(function)]);
}

}  // namespace

at::Tensor approximated(const numeric::ApproximateSpec& spec, const at::Tensor& input) {
  const Curve curve = curve_of(spec.function);
  const at::Tensor x = input.to(at::kFloat);
  at::Tensor inside = evaluate(spec, curve, x);
  switch (spec.function) {
    case ApproximatedFunction::kSilu:
    case ApproximatedFunction::kGelu:  // beyond the table: x, or nothing
      return at::where(x > curve.high, x, at::where(x < curve.low, at::zeros_like(x), inside));
    case ApproximatedFunction::kRsqrt: {
      // x = m * 4^e, m in [1, 4): rsqrt(x) = rsqrt(m) * 2^-e
      const at::Tensor e = x.log2().div(2).floor();
      const at::Tensor m = x * (e * -2).exp2();
      return evaluate(spec, curve, m) * (-e).exp2();
    }
    default: return inside;
  }
}

namespace {

at::Tensor replace_function(const numeric::Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  const numeric::ApproximateSpec& spec = rule.what.approximate;
  const at::Tensor x = arguments[0].toTensor();
  if (spec.function != ApproximatedFunction::kExp) return approximated(spec, x).to(x.scalar_type());
  const int64_t dim = arguments[1].toInt();
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor e = approximated(spec, wide - wide.amax(dim, true));
  const bool to_float = arguments.size() > 2 && arguments[2].toBool();
  return (e / e.sum(dim, true)).to(to_float ? at::kFloat : x.scalar_type());
}

}  // namespace

std::string why_not_replaced(const numeric::Rule& rule, const std::string& base) {
  if (replaces_own_operator(rule, base)) return "";
  if (rule.what.kind == numeric::FaultKind::kAccumulate) {
    if (is_torch_product(base) || is_sum_with_product(base) || base == "aten::sum" || base == "aten::mean") return "";
    return fmt::format(
        "accumulate replaces matrix products, sums, means, and the sums inside our norms and attention, "
        "not {}",
        base);
  }
  const ApproximatedFunction function = rule.what.approximate.function;
  const std::string name = operator_of(function);
  if (base == name || base == name + "_") return "";
  const char* ours = function == ApproximatedFunction::kSilu    ? " and the silu of faultline::swiglu"
                     : function == ApproximatedFunction::kRsqrt ? " and the root of faultline::rms_norm"
                     : function == ApproximatedFunction::kExp   ? " and the softmax of fused attention"
                                                                : "";
  return fmt::format("approximate replaces {}{}, not {}", name, ours, base);
}

at::Tensor compute_replacement(const numeric::Rule& rule, const std::string& base, c10::ArrayRef<c10::IValue> arguments,
                               std::string& why) {
  const at::NoGradGuard no_grad;
  why = why_not_replaced(rule, base);
  if (!why.empty()) return {};
  if (replaces_own_operator(rule, base)) return replace_own_operator(rule, base, arguments, why);
  return rule.what.kind == numeric::FaultKind::kAccumulate ? replace_accumulation(rule, base, arguments, why)
                                                           : replace_function(rule, arguments);
}

}  // namespace faultline::tap
