#include "diagnose/recomputation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "diagnose/known_answers.h"
#include "diagnose/range.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

bool is_view(const RecordedCall& call) {
  if (!call.op) return false;
  const auto& returns = call.op->schema().returns();
  return !returns.empty() && returns[0].alias_info() != nullptr;
}

std::string operation_of(const site::Place& place) {
  if (place.role == "layer") return "layer_output";
  if (place.role == "rmsnorm") return "norm";
  if (place.role == "embedding") return "embedding";
  if (place.role == "act_fn") return "activation";
  return place.path.ends_with("_proj") || place.role == "lm_head" || place.role == "router" ? "linear" : "module";
}

bool reads_numbers(const RecordedCall& call) {
  std::vector<at::Tensor> given;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, given);
  return std::any_of(given.begin(), given.end(), [](const at::Tensor& x) { return x.is_floating_point(); });
}

at::Tensor optional_tensor(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

at::Tensor optional_argument(const RecordedCall& call, std::string_view name) {
  const int64_t index = argument_index(call, name);
  return index < 0 ? at::Tensor() : optional_tensor(call.arguments[static_cast<std::size_t>(index)]);
}

// Where a norm's arguments stand; -1: it has none. Kernels of vLLM write the result into their first argument and round
// once more, before they multiply by the weight.
struct NormArguments {
  std::size_t x, weight, epsilon;
  int64_t residual = -1;
  bool rounds_twice = false;
};
std::optional<NormArguments> norm_arguments(const std::string& name) {
  if (name == "faultline::rms_norm") return NormArguments{0, 1, 2};
  if (name == "faultline::add_rms_norm") return NormArguments{0, 2, 3, 1};
  if (name == "aten::_fused_rms_norm") return NormArguments{0, 2, 3};
  if (name == "_C::rms_norm") return NormArguments{1, 2, 3, -1, true};
  if (name == "_C::fused_add_rms_norm") return NormArguments{0, 2, 3, 1, true};
  return std::nullopt;
}

}  // namespace

std::optional<ProductArguments> product_arguments(const RecordedCall& call) {
  if (call.name == "aten::mm") return ProductArguments{0, 1, true};
  if (call.name == "aten::addmm") return ProductArguments{1, 2, true, 0};
  if (call.name == "aten::_scaled_mm") return ProductArguments{0, 1, true, 4, 2};
  if (call.name == "faultline::few_rows_linear") return ProductArguments{0, 1, false, 2};
  if (call.name == "_C::onednn_mm") return ProductArguments{1, 3, false, 2};  // into its first argument
  if (call.name == "_C::weight_packed_linear")                                // later ones write into their first
    return call.arguments.size() == 4 ? ProductArguments{0, 1, false, 2} : ProductArguments{1, 2, false, 3};
  return std::nullopt;
}

bool is_paged_attention(std::string_view name) {
  return name == "_C::cpu_attention_with_kv_cache" || name == "_vllm_fa3_C::fwd" || name == "_vllm_fa2_C::varlen_fwd";
}

int64_t argument_index(const RecordedCall& call, std::string_view name) {
  if (!call.op) return -1;
  const auto& arguments = call.op->schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name) return static_cast<int64_t>(i);
  return -1;
}

Recomputation::Kept Recomputation::wide_weight(const at::Tensor& weight) {
  for (const Kept& one : kept_)
    if (one.weight.data_ptr() == weight.data_ptr() && one.weight.sizes() == weight.sizes()) return one;
  const at::Tensor all = wide(weight);
  const Kept made{weight, all, all.norm(2, 1)};
  if (keep_weights) kept_.push_back(made);
  return made;
}

Observation Recomputation::compare(const char* operation, const RecordedCall& call, std::size_t result,
                                   const at::Tensor& exact, const at::Tensor& tolerance) const {
  return {"recomputed " + call.name,
          operation,
          call.place,
          flat(exact),
          flat(call.results.at(result).to(device)),
          tolerance.defined() ? flat(tolerance) : at::Tensor()};
}

Observation Recomputation::compare_in_range(const char* operation, const RecordedCall& call, std::size_t result,
                                            const at::Tensor& exact, const at::Tensor& tolerance,
                                            const at::Tensor& intermediate) const {
  Observation observation = compare(operation, call, result, exact, tolerance);
  take_out_of_range(observation, intermediate.defined() ? flat(intermediate.expand_as(exact)) : intermediate);
  return observation;
}

void Recomputation::check_product(const RecordedCall& call, const ProductArguments& where,
                                  std::vector<Observation>& observations) {
  at::Tensor stored = call.tensor(where.weight);
  if (where.transposed && stored.dim() == 2) stored = stored.t();
  const at::Tensor given = wide(flat(call.tensor(where.x)));
  const Kept w = wide_weight(stored);
  at::Tensor exact = given.mm(w.wide.t());
  if (where.bias >= 0)
    if (const at::Tensor bias = optional_tensor(call.arguments.at(static_cast<std::size_t>(where.bias)));
        bias.defined())
      exact = exact + wide(bias);
  const at::Tensor& y = call.results[0];
  const ProductBound bound = product_bound(given, w.norms, exact, y.scalar_type(), call.machine.value_or(y.device()));
  observations.push_back(compare_in_range("linear", call, 0, exact, bound.tolerance, bound.sizes));
}

void Recomputation::check_matrices(const RecordedCall& call, std::vector<Observation>& observations) const {
  const at::Tensor a = wide(call.tensor(0)), b = wide(call.tensor(1)), exact = a.bmm(b);  // (B, R, N)
  const at::Tensor& y = call.results[0];
  const ProductBound bound = product_bound(a, b.norm(2, 1), exact, y.scalar_type(), call.machine.value_or(y.device()));
  observations.push_back(compare_in_range("product", call, 0, exact, flat(bound.tolerance), bound.sizes));
}

// fp8 tensor cores keep about 14 bits of a sum, and promote it now and then.
void Recomputation::check_scaled_product(const RecordedCall& call, std::vector<Observation>& observations) const {
  const at::Tensor a = wide(call.tensor(0)) * wide(call.tensor(2)), b = wide(call.tensor(1)) * wide(call.tensor(3));
  at::Tensor exact = a.mm(b);
  if (const at::Tensor bias = optional_argument(call, "bias"); bias.defined()) exact = exact + wide(bias);
  const at::Tensor sizes = a.norm(2, 1).unsqueeze(1) * b.norm(2, 0).unsqueeze(0);
  const double root = std::sqrt(static_cast<double>(a.size(1)));
  const at::Tensor tolerance = half_ulp(exact, call.results[0].scalar_type()) + sizes * (root * 0x1p-13);
  observations.push_back(compare_in_range("linear", call, 0, exact, tolerance, sizes));
}

void Recomputation::check_norm(const RecordedCall& call, std::vector<Observation>& observations) const {
  const NormArguments where = *norm_arguments(call.name);
  const at::ScalarType dtype = call.results[0].scalar_type();
  at::Tensor x = wide(call.tensor(where.x));
  if (where.residual >= 0) {
    const at::Tensor exact = x + wide(call.tensor(static_cast<std::size_t>(where.residual)));
    const at::Tensor bound = half_ulp(exact, dtype) * 1.001;
    observations.push_back(compare_in_range("norm", call, 1, exact, bound));
    const at::Tensor seen = wide(call.results[1]);  // a tie may have been rounded either way
    x = at::where((seen - exact).abs().le(bound), seen, exact.to(dtype).to(at::kDouble));
  }
  const at::Tensor given = optional_tensor(call.arguments.at(where.weight));
  const at::Tensor weight = given.defined() ? wide(given) : at::ones({x.size(-1)}, x.options());
  const c10::IValue& said = call.arguments.at(where.epsilon);
  const double epsilon = said.isNone() ? 0x1p-23 : said.toDouble();
  const at::Tensor squares = x.square().sum(-1, true);
  const at::Tensor exact = x * weight / (squares / static_cast<double>(x.size(-1)) + epsilon).sqrt();
  at::Tensor tolerance = half_ulp(exact, dtype) + exact.abs() * kFunctionError + (1 + weight.abs()) * kFlushed;
  if (where.rounds_twice) tolerance = tolerance + half_ulp(exact, dtype) * 2;
  observations.push_back(compare_in_range("norm", call, 0, exact, tolerance, squares));
}

void Recomputation::check_sum(const RecordedCall& call, std::vector<Observation>& observations) const {
  const double alpha = call.arguments.size() > 2 ? call.arguments[2].toScalar().toDouble() : 1;
  const at::Tensor a = wide(call.tensor(0)), b = wide(call.tensor(1)) * alpha, exact = a + b;
  const bool rounds_more = alpha != 1 || b.dim() == 0;  // a number is rounded to fp32 first
  const at::Tensor tolerance =
      half_ulp(exact, call.results[0].scalar_type()) * 1.001 + (rounds_more ? 0x1p-23 : 0) * (a.abs() + b.abs());
  observations.push_back(compare_in_range("add", call, 0, exact, tolerance));
}

void Recomputation::check_activation(const RecordedCall& call, std::vector<Observation>& observations) const {
  const bool writes = call.name == "_C::silu_and_mul";  // into its first argument, and rounds once more on the way
  const at::Tensor both = wide(call.tensor(writes ? 1 : 0));
  const int64_t inner = both.size(-1) / 2;
  const at::Tensor gate = both.narrow(-1, 0, inner), up = both.narrow(-1, inner, inner);
  const at::Tensor exact = gate / (1 + (-gate).exp()) * up;
  // exp overflows fp32 below -88 and what is left is less than 2^-120 of the gate
  const at::Tensor tolerance = half_ulp(exact, call.results[0].scalar_type()) * (writes ? 3 : 1) +
                               exact.abs() * kFunctionError + (gate * up).abs() * 0x1p-120 + (1 + up.abs()) * kFlushed;
  observations.push_back(compare_in_range("activation", call, 0, exact, tolerance));
}

void Recomputation::check_rotary(const RecordedCall& call, std::vector<Observation>& observations) const {
  const at::Tensor x = wide(call.tensor(0)), positions = call.tensor(1).to(device);
  const int64_t heads = call.arguments.at(4).toInt();
  const at::Tensor cos = wide(call.tensor(2)).index_select(0, positions).unsqueeze(1);  // (N, 1, D / 2)
  const at::Tensor sin = wide(call.tensor(3)).index_select(0, positions).unsqueeze(1);
  const int64_t half = cos.size(2), turned = heads * half * 2;
  const at::Tensor by_head = x.narrow(1, 0, turned).reshape({-1, heads, 2 * half});
  const at::Tensor a = by_head.narrow(2, 0, half), b = by_head.narrow(2, half, half);
  const at::Tensor rest = x.narrow(1, turned, x.size(1) - turned);
  const auto joined = [&](const at::Tensor& first, const at::Tensor& second, const at::Tensor& tail) {
    return at::cat({at::cat({first, second}, 2).reshape({-1, turned}), tail}, 1);
  };
  const at::Tensor exact = joined(a * cos - b * sin, b * cos + a * sin, rest);
  const at::Tensor size = joined(a.abs() + b.abs(), a.abs() + b.abs(), at::zeros_like(rest));
  const at::Tensor tolerance = half_ulp(exact, call.results[0].scalar_type()) * 1.001 + size * 0x1p-22 + kFlushed;
  observations.push_back(compare_in_range("rotary", call, 0, exact, tolerance, size));
}

// vLLM's: queries and keys in place; the table holds cosines and sines of a position in one row. Products with them are
// rounded where a kernel computes in the type of its tensors.
void Recomputation::check_turned(const RecordedCall& call, std::vector<Observation>& observations) const {
  const at::Tensor table = wide(call.tensor(4)).index_select(0, call.tensor(0).reshape(-1).to(device, at::kLong));
  const int64_t head = call.arguments.at(3).toInt(), half = table.size(1) / 2, turned = 2 * half;
  const bool is_neox = call.arguments.at(5).toBool();  // else neighbours are turned
  const at::Tensor cos = table.narrow(1, 0, half).unsqueeze(1), sin = table.narrow(1, half, half).unsqueeze(1);
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    const at::Tensor& given = call.tensor(1 + i);
    const at::Tensor x = wide(given).reshape({table.size(0), -1, head});  // (N, heads, D)
    const at::Tensor pairs = x.narrow(2, 0, turned);
    const at::Tensor a = is_neox ? pairs.narrow(2, 0, half) : pairs.slice(2, 0, turned, 2);
    const at::Tensor b = is_neox ? pairs.narrow(2, half, half) : pairs.slice(2, 1, turned, 2);
    const auto joined = [&](const at::Tensor& first, const at::Tensor& second, const at::Tensor& rest) {
      const at::Tensor both = is_neox ? at::cat({first, second}, 2) : at::stack({first, second}, 3).flatten(2);
      return at::cat({both, rest}, 2).reshape(given.sizes());
    };
    const at::Tensor rest = x.narrow(2, turned, head - turned), none = at::zeros_like(rest);
    const at::Tensor exact = joined(a * cos - b * sin, b * cos + a * sin, rest);
    const at::ScalarType dtype = call.results[i].scalar_type();
    const auto rounded = [&](const at::Tensor& y) { return half_ulp(y, dtype); };
    const at::Tensor steps = joined(rounded(a * cos) + rounded(b * sin), rounded(b * cos) + rounded(a * sin), none);
    const at::Tensor size = joined(a.abs() + b.abs(), a.abs() + b.abs(), none);
    // a wide table is rounded first
    const double table_share = call.tensor(4).scalar_type() == dtype ? 0 : std::ldexp(1.0, -mantissa_bits(dtype) - 1);
    const at::Tensor tolerance = half_ulp(exact, dtype) * 1.001 + steps + size * (table_share + 0x1p-22) + kFlushed;
    observations.push_back(compare_in_range("rotary", call, i, exact, tolerance, size));
  }
}

void Recomputation::check_attention(const RecordedCall& call, std::vector<Observation>& observations) const {
  const at::Tensor q = wide(call.tensor(0));                 // (B, H, T, D)
  const auto for_each_head = [&](const at::Tensor& given) {  // a kernel may share a key/value head among a group
    const at::Tensor states = wide(given);
    return states.size(1) == q.size(1) ? states : states.repeat_interleave(q.size(1) / states.size(1), 1);
  };
  const at::Tensor k = for_each_head(call.tensor(1)), v = for_each_head(call.tensor(2));
  const bool is_paged = is_paged_attention(call.name);  // {q, k, v, mask, scale}
  const int64_t causal = is_paged ? -1 : argument_index(call, "is_causal");
  const int64_t scaled = is_paged ? 4 : argument_index(call, "scale");
  const double size = static_cast<double>(q.size(-1));
  double scale = 1 / std::sqrt(size);
  if (scaled >= 0 && !call.arguments[static_cast<std::size_t>(scaled)].isNone())
    scale = call.arguments[static_cast<std::size_t>(scaled)].toDouble();
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * scale;
  const bool is_causal = causal >= 0 && call.arguments[static_cast<std::size_t>(causal)].toBool();
  if (is_causal) {
    const at::Tensor hidden = at::ones({q.size(2), k.size(2)}, scores.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  for (const char* name : {"attn_mask", "attn_bias"}) {
    const at::Tensor mask = is_paged ? call.tensor(3) : optional_argument(call, name);
    if (!mask.defined()) continue;
    if (mask.scalar_type() == at::kBool)
      scores = scores.masked_fill(mask.to(device).logical_not(), -std::numeric_limits<double>::infinity());
    else
      scores = scores + wide(mask);
    if (is_paged) break;
  }
  const at::Tensor chances = at::softmax(scores, -1);
  const at::Tensor exact = at::matmul(chances, v), weight = at::matmul(chances, v.abs());
  const at::ScalarType dtype = call.results[0].scalar_type();
  const double unit = std::ldexp(1.0, -mantissa_bits(dtype) - 1);
  // The largest key that a query sees: (B, H, T, 1), or 1 for T.
  const at::Tensor lengths = k.norm(2, -1);
  const at::Tensor largest = is_causal && q.size(2) == k.size(2) ? std::get<0>(lengths.cummax(-1)).unsqueeze(-1)
                                                                 : lengths.amax(-1, true).unsqueeze(-1);
  const at::Tensor score = q.norm(2, -1, true) * largest, score_error = score * (scale * std::sqrt(size) * 0x1p-23);
  // Chances and their sum are rounded, relative to the largest of their row, which is exp(0): a single key's is exact.
  const at::Tensor single = chances.amax(-1, true).eq(1);  // (B, H, T, 1)
  const at::Tensor rounded = at::where(single, at::zeros_like(weight), weight * (2 * unit));
  // In fp16 a chance far below the row's largest is subnormal and loses what lies below 2^-24, whatever its own size.
  // It counts where the likely keys have small values, as a sink has.
  const at::Tensor seen = at::matmul(scores.isfinite().to(at::kDouble), v.abs());
  const at::Tensor lost = seen * chances.amax(-1, true) * (dtype == at::kHalf ? 0x1p-24 : kFlushed);
  // Scores that are wrong by at most d make each chance wrong by at most a factor of exp(2 d).
  const at::Tensor tolerance =
      half_ulp(exact, dtype) + rounded + lost + weight * (kFunctionError + at::expm1(2 * score_error));
  const at::Tensor decided =
      score.masked_fill(score_error.gt(kMostScoreError), std::numeric_limits<double>::infinity());
  observations.push_back(compare_in_range("attention", call, 0, exact, tolerance, at::maximum(decided, seen)));
}

bool Recomputation::check_movement(const RecordedCall& call, std::vector<Observation>& observations) const {
  static const std::set<std::string_view> movements = {
      "aten::clone",  "aten::cat",   "aten::index_select",      "aten::embedding", "aten::repeat",
      "aten::gather", "aten::stack", "aten::repeat_interleave", "aten::_to_copy",  "aten::_unsafe_view"};
  if (!movements.contains(call.name)) return false;
  std::vector<at::Tensor> given;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, given);
  const bool casts = call.name == "aten::_to_copy";  // rounds once, to nearest, on every device
  for (const at::Tensor& tensor : given)
    if (!casts && tensor.is_floating_point() && tensor.scalar_type() != call.results[0].scalar_type()) return false;
  torch::jit::Stack stack;
  for (const c10::IValue& value : call.arguments) {
    if (value.isTensor() && value.toTensor().defined())
      stack.emplace_back(value.toTensor().to(device));
    else if (value.isTensorList()) {
      c10::List<at::Tensor> moved;
      for (const at::Tensor& tensor : value.toTensorVector()) moved.push_back(tensor.to(device));
      stack.emplace_back(moved);
    } else {
      stack.push_back(value.isDevice() ? c10::IValue(device) : value);
    }
  }
  call.op->callBoxed(stack);
  observations.push_back(
      compare(call.name == "aten::embedding" ? "embedding" : "copy", call, 0, stack.at(0).toTensor(), {}));
  return true;
}

Checked Recomputation::check(const RecordedCall& call, std::vector<Observation>& observations) {
  if (call.results.empty() || !call.results[0].is_floating_point() || call.results[0].numel() == 0)
    return Checked::kNothingToCheck;
  if (call.is_boundary()) {
    observations.push_back({"handed on unchanged", operation_of(site::place_of(call.place)), call.place,
                            flat(call.tensor(0).to(device)), flat(call.results[0].to(device))});
    return Checked::kYes;
  }
  if (!reads_numbers(call)) return Checked::kNothingToCheck;  // makes a tensor, or counts
  const std::string& name = call.name;
  if (name == "aten::_scaled_mm") {
    check_scaled_product(call, observations);
  } else if (const auto product = product_arguments(call)) {
    check_product(call, *product, observations);
  } else if (name == "aten::bmm") {
    check_matrices(call, observations);
  } else if (norm_arguments(name)) {
    check_norm(call, observations);
  } else if (name == "faultline::swiglu" || name == "_C::silu_and_mul") {
    check_activation(call, observations);
  } else if (name == "faultline::rotary") {
    check_rotary(call, observations);
  } else if (name == "_C::rotary_embedding") {
    check_turned(call, observations);
  } else if (name.starts_with("aten::_scaled_dot_product_") || (is_paged_attention(name) && !call.op)) {
    check_attention(call, observations);
  } else if (name == "aten::add" && call.arguments.at(1).isTensor() && call.tensor(1).defined()) {
    check_sum(call, observations);
  } else if (is_view(call)) {
    return Checked::kNothingToCheck;
  } else if (!call.op || (!check_movement(call, observations) && !check_elementwise(call, observations))) {
    return Checked::kNoReference;
  }
  return Checked::kYes;
}

}  // namespace faultline::diagnose
