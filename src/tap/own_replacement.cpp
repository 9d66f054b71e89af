#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "tap/replacement.h"

namespace faultline::tap {
namespace {

using numeric::ApproximatedFunction;

bool accumulates(const numeric::Rule& rule) { return rule.what.kind == numeric::FaultKind::kAccumulate; }

bool approximates(const numeric::Rule& rule, ApproximatedFunction function) {
  return !accumulates(rule) && rule.what.approximate.function == function;
}

bool is_norm(const std::string& base) { return base == "faultline::rms_norm" || base == "faultline::add_rms_norm"; }

bool is_attention(const std::string& base) {
  return base == "faultline::attend_cached" || base == "aten::_scaled_dot_product_flash_attention_for_cpu" ||
         base == "aten::_scaled_dot_product_flash_attention";
}

at::Tensor any_product(const numeric::Rule& rule, const at::Tensor& a, const at::Tensor& b) {
  return accumulates(rule) ? accumulated_product(rule, a, b) : at::matmul(a.to(at::kFloat), b.to(at::kFloat));
}

at::Tensor replace_linear(const numeric::Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor x = arguments[0].toTensor();
  at::Tensor sum = accumulated_product(rule, x, arguments[1].toTensor().t());
  if (arguments[2].isTensor()) sum = sum + arguments[2].toTensor().to(at::kFloat);
  return sum.to(x.scalar_type());
}

// x * rsqrt(mean of squares + epsilon) * weight: the sum or the root as the rule says.
at::Tensor replace_norm(const numeric::Rule& rule, const std::string& base, c10::ArrayRef<c10::IValue> arguments) {
  at::Tensor x = arguments[0].toTensor();
  const bool after_sum = base == "faultline::add_rms_norm";
  if (after_sum) x = at::add(x, arguments[1].toTensor());
  const at::Tensor weight = arguments[after_sum ? 2 : 1].toTensor(), wide = x.to(at::kFloat), squares = wide.square();
  const at::Tensor sum = accumulates(rule) ? accumulated_sum(rule, squares, -1, true) : squares.sum(-1, true);
  const at::Tensor inside = sum / static_cast<double>(x.size(-1)) + arguments[after_sum ? 3 : 2].toDouble();
  const at::Tensor scale = accumulates(rule) ? inside.rsqrt() : approximated(rule.what.approximate, inside);
  return (wide * scale * weight).to(x.scalar_type());
}

at::Tensor replace_swiglu(const numeric::Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor both = arguments[0].toTensor();
  const std::vector<at::Tensor> halves = both.chunk(2, -1);
  return (approximated(rule.what.approximate, halves[0]) * halves[1].to(at::kFloat)).to(both.scalar_type());
}

// query: (…, T, D), keys and values: (…, S, D), hidden: where a query does not look, broadcast to (…, T, S).
at::Tensor attend(const numeric::Rule& rule, const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                  const at::Tensor& hidden, double scale) {
  const at::Tensor scores = (any_product(rule, query, keys.transpose(-1, -2)) * scale)
                                .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor below =  // a row that sees nothing has no largest score
      (scores - scores.amax(-1, true)).masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor chances =
      (accumulates(rule) ? below.exp() : approximated(rule.what.approximate, below)).masked_fill(hidden, 0);
  return any_product(rule, chances, values) / chances.sum(-1, true);
}

at::Tensor replace_attention(const numeric::Rule& rule, const std::string& base, c10::ArrayRef<c10::IValue> arguments,
                             std::string& why) {
  const at::Tensor query = arguments[0].toTensor();  // (B, H, T, D)
  const bool for_cpu = base.ends_with("_for_cpu");
  if (arguments[3].toDouble() != 0 || (for_cpu && arguments[5].isTensor() && arguments[5].toTensor().defined())) {
    why = "attention with dropout or a mask of its own is not replaced, only causal and full attention";
    return {};
  }
  const auto of_heads = [&](const at::Tensor& states) {  // a kernel may share a key/value head among a group
    const int64_t group = query.size(1) / states.size(1);
    return group == 1 ? states : states.repeat_interleave(group, 1);
  };
  const at::Tensor keys = of_heads(arguments[1].toTensor()), values = of_heads(arguments[2].toTensor());
  at::Tensor hidden = at::zeros({query.size(2), keys.size(2)}, query.options().dtype(at::kBool));
  if (arguments[4].toBool()) hidden = at::ones_like(hidden).triu(1);
  const double scale =
      arguments[6].isNone() ? 1 / std::sqrt(static_cast<double>(query.size(3))) : arguments[6].toDouble();
  return attend(rule, query, keys, values, hidden, scale).to(query.scalar_type());
}

at::Tensor replace_cached_attention(const numeric::Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor query = arguments[0].toTensor(), cache = arguments[1].toTensor();  // (N, H * D), (B, heads, S, D)
  const int64_t rows = query.size(0), heads = cache.size(1), length = cache.size(2);
  const at::Tensor position = at::arange(length, at::TensorOptions(at::kLong).device(query.device()));
  const at::Tensor empty = position.ge(arguments[3].toTensor().reshape({rows, 1, 1, 1}));  // (N, 1, 1, S)
  const auto filled = [&](const at::Tensor& states) {
    return states.narrow(0, 0, rows).masked_fill(empty.transpose(-1, -2), 0);
  };
  const at::Tensor mixed = attend(rule, query.reshape({rows, heads, -1, cache.size(3)}), filled(cache),
                                  filled(arguments[2].toTensor()), empty, arguments[4].toDouble());
  const at::Tensor idle = arguments[3].toTensor().eq(0).unsqueeze(1);
  return mixed.reshape(query.sizes()).masked_fill(idle, 0).to(query.scalar_type());
}

}  // namespace

bool replaces_own_operator(const numeric::Rule& rule, const std::string& base) {
  if (base == "faultline::few_rows_linear") return accumulates(rule);
  if (is_norm(base)) return accumulates(rule) || approximates(rule, ApproximatedFunction::kRsqrt);
  if (base == "faultline::swiglu") return approximates(rule, ApproximatedFunction::kSilu);
  return is_attention(base) && (accumulates(rule) || approximates(rule, ApproximatedFunction::kExp));
}

at::Tensor replace_own_operator(const numeric::Rule& rule, const std::string& base,
                                c10::ArrayRef<c10::IValue> arguments, std::string& why) {
  FL_ASSERT(replaces_own_operator(rule, base));
  if (base == "faultline::few_rows_linear") return replace_linear(rule, arguments);
  if (is_norm(base)) return replace_norm(rule, base, arguments);
  if (base == "faultline::swiglu") return replace_swiglu(rule, arguments);
  if (base == "faultline::attend_cached") return replace_cached_attention(rule, arguments);
  return replace_attention(rule, base, arguments, why);
}

}  // namespace faultline::tap
