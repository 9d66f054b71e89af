#include "diagnose/compare/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "diagnose/observation.h"
#include "diagnose/recomputation.h"

namespace faultline::diagnose {
namespace {

at::Tensor taken(const at::Tensor& x, int64_t dimension, const std::vector<int64_t>& numbers) {
  return x.index_select(dimension, index_of(numbers, x.device()));
}

int64_t row_count(const at::Tensor& x) { return x.dim() == 0 ? 1 : x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

Sampled sampled_product(RecordedCall call, const ProductArguments& product, const RowChoice& choice,
                        const std::vector<int64_t>& columns, const at::Tensor& weight) {
  const at::Tensor x = flat(call.tensor(product.x));
  const std::vector<int64_t> rows = rows_of(x.size(0), choice);
  call.arguments[product.x] = taken(x, 0, rows);
  call.arguments[product.weight] =
      weight.defined() ? weight : taken(call.tensor(product.weight), product.transposed ? 1 : 0, columns);
  if (product.scales >= 0) {  // one a tensor, or of rows and columns
    const auto scale = [&](int64_t behind) -> c10::IValue& {
      return call.arguments[static_cast<std::size_t>(product.scales + behind)];
    };
    if (scale(0).toTensor().numel() > 1) scale(0) = taken(scale(0).toTensor(), 0, rows);
    if (scale(1).toTensor().numel() > 1) scale(1) = taken(scale(1).toTensor(), 1, columns);
  }
  if (product.bias >= 0) {
    c10::IValue& bias = call.arguments[static_cast<std::size_t>(product.bias)];
    if (bias.isTensor() && bias.toTensor().defined() && bias.toTensor().numel() > 1)
      bias = bias.toTensor().dim() == 1 ? taken(bias.toTensor(), 0, columns)
                                        : taken(taken(flat(bias.toTensor()), 0, rows), 1, columns);
  }
  call.results = {taken(taken(flat(call.results[0]), 0, rows), 1, columns)};
  return {std::move(call), {{"kind", "product"}, {"rows", rows}, {"columns", columns}}};
}

// Every tensor is cut into the same rows; a vector as long as a row belongs to all of them.
std::optional<Sampled> sampled_rows(RecordedCall call, const RowChoice& choice, bool broadcasts) {
  const at::Tensor& y = call.results[0];
  const int64_t count = row_count(y);
  if (y.dim() < 1 || count < 1) return std::nullopt;
  const std::vector<int64_t> rows = rows_of(count, choice);
  for (c10::IValue& value : call.arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    at::Tensor x = value.toTensor();
    if (x.dim() == 0) continue;
    if (broadcasts) {  // a column of factors stays one
      std::vector<int64_t> sizes = y.sizes().vec();
      if (static_cast<int64_t>(sizes.size()) < x.dim()) return std::nullopt;
      sizes.back() = x.size(-1);
      x = x.expand(sizes);
    } else if (x.dim() == 1 && count != 1) {
      continue;
    }
    if (row_count(x) != count) return std::nullopt;
    value = taken(flat(x), 0, rows);
  }
  for (at::Tensor& result : call.results) {
    if (result.dim() < 1 || row_count(result) != count) return std::nullopt;
    result = taken(flat(result), 0, rows);
  }
  return Sampled{std::move(call), {{"kind", "rows"}, {"rows", rows}}};
}

// The table of angles keeps the positions that are taken.
Sampled sampled_rotary(RecordedCall call, const RowChoice& choice) {
  const std::vector<int64_t> rows = rows_of(call.tensor(0).size(0), choice);
  const at::Tensor positions = taken(call.tensor(1), 0, rows);
  call.arguments[0] = taken(call.tensor(0), 0, rows);
  for (const std::size_t table : {2, 3}) call.arguments[table] = call.tensor(table).index_select(0, positions);
  call.arguments[1] = at::arange(positions.numel(), positions.options());
  call.results = {taken(call.results[0], 0, rows)};
  return {std::move(call), {{"kind", "rows"}, {"rows", rows}}};
}

Sampled sampled_turned(RecordedCall call, const RowChoice& choice) {
  const at::Tensor positions = call.tensor(0).reshape(-1);
  const std::vector<int64_t> rows = rows_of(positions.numel(), choice);
  const at::Tensor chosen = taken(positions, 0, rows);
  call.arguments[0] = at::arange(chosen.numel(), chosen.options());
  call.arguments[4] = call.tensor(4).index_select(0, chosen);
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    call.arguments[1 + i] = taken(call.tensor(1 + i).reshape({positions.numel(), -1}), 0, rows);
    call.results[i] = taken(call.results[i].reshape({positions.numel(), -1}), 0, rows);
  }
  return {std::move(call), {{"kind", "rows"}, {"rows", rows}}};
}

Sampled sampled_look_up(RecordedCall call, const RowChoice& choice) {
  const std::vector<int64_t> rows = rows_of(call.tensor(1).numel(), choice);
  const at::Tensor chosen = taken(call.tensor(1).reshape(-1), 0, rows).to(call.tensor(0).device());
  call.arguments[0] = call.tensor(0).index_select(0, chosen);
  call.arguments[1] = at::arange(chosen.numel(), chosen.options());
  if (call.arguments.size() > 2 && call.arguments[2].isInt()) call.arguments[2] = int64_t{-1};  // padding_idx
  call.results = {taken(flat(call.results[0]), 0, rows)};
  return {std::move(call), {{"kind", "rows"}, {"rows", rows}}};
}

at::Tensor head_of(const at::Tensor& x, int64_t batch, int64_t head) {
  return x.narrow(0, x.size(0) == 1 ? 0 : batch, 1).narrow(1, x.size(1) == 1 ? 0 : head, 1);
}

// The first head of the first sequence and the last of the last.
std::optional<Sampled> sampled_heads(RecordedCall call) {
  const at::Tensor q = call.tensor(0);
  if (q.dim() != 4) return std::nullopt;
  const int64_t group = std::max<int64_t>(1, q.size(1) / std::max<int64_t>(1, call.tensor(1).size(1)));
  const std::vector<std::pair<int64_t, int64_t>> heads = {{0, 0}, {q.size(0) - 1, q.size(1) - 1}};
  const auto joined = [&](const at::Tensor& x, int64_t share) {
    return at::cat(
        {head_of(x, heads[0].first, heads[0].second / share), head_of(x, heads[1].first, heads[1].second / share)}, 0);
  };
  for (const std::size_t i : {0, 1, 2}) call.arguments[i] = joined(call.tensor(i), i == 0 ? 1 : group);
  for (std::size_t i = 3; i < call.arguments.size(); ++i) {
    c10::IValue& value = call.arguments[i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (value.toTensor().dim() != 4) return std::nullopt;
    value = joined(value.toTensor(), 1);
  }
  call.results = {joined(call.results[0], 1)};
  return Sampled{std::move(call), {{"kind", "heads"}, {"heads", heads}}};
}

std::optional<Sampled> sampled_matrices(RecordedCall call) {
  const std::vector<int64_t> which = evenly(call.results[0].size(0), 2);
  for (const std::size_t i : {0, 1}) call.arguments[i] = taken(call.tensor(i), 0, which);
  call.results = {taken(call.results[0], 0, which)};
  return Sampled{std::move(call), {{"kind", "matrices"}, {"matrices", which}}};
}

// Rows of what is joined along the last dimension are joined rows.
std::optional<Sampled> sampled_join(RecordedCall call, const RowChoice& choice) {
  const at::Tensor& y = call.results[0];
  const int64_t dimension = call.arguments.at(1).toInt(), count = row_count(y);
  if (y.dim() < 1 || count < 1 || (dimension != -1 && dimension != y.dim() - 1)) return std::nullopt;
  const std::vector<int64_t> rows = rows_of(count, choice);
  c10::List<at::Tensor> parts;
  for (const at::Tensor& part : call.arguments[0].toTensorVector()) {
    if (part.dim() != y.dim()) return std::nullopt;
    parts.push_back(taken(flat(part), 0, rows));
  }
  call.arguments[0] = parts, call.arguments[1] = int64_t{-1};
  call.results = {taken(flat(y), 0, rows)};
  return Sampled{std::move(call), {{"kind", "rows"}, {"rows", rows}}};
}

bool all_single(const RecordedCall& call) {
  for (const c10::IValue& value : call.arguments)
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() != 1) return false;
  return call.results[0].numel() == 1;
}

bool reduces_last(const RecordedCall& call) {
  const int64_t last = call.tensor(0).dim() - 1;
  const c10::IValue& dimension = call.arguments.at(1);
  if (dimension.isInt()) return dimension.toInt() == -1 || dimension.toInt() == last;
  return dimension.isIntList() && dimension.toIntVector().size() == 1 &&
         (dimension.toIntVector()[0] == -1 || dimension.toIntVector()[0] == last) && call.arguments.at(2).isBool() &&
         call.arguments.at(2).toBool();
}

bool by_rows(const std::string& name) {
  static const std::set<std::string> names = {
      "faultline::rms_norm", "faultline::add_rms_norm", "faultline::swiglu",    "_C::rms_norm",
      "_C::silu_and_mul",    "_C::fused_add_rms_norm",  "aten::_fused_rms_norm"};
  return names.contains(name);
}

bool elementwise(std::string name) {
  if (name.ends_with('_')) name.pop_back();
  static const std::set<std::string> names = {
      "aten::neg", "aten::abs",  "aten::relu",  "aten::add",     "aten::sub",     "aten::rsub",
      "aten::mul", "aten::div",  "aten::pow",   "aten::sqrt",    "aten::rsqrt",   "aten::reciprocal",
      "aten::exp", "aten::silu", "aten::gelu",  "aten::tanh",    "aten::sigmoid", "aten::cos",
      "aten::sin", "boundary",   "aten::clone", "aten::_to_copy"};
  return names.contains(name);
}

}  // namespace

at::Tensor index_of(const std::vector<int64_t>& numbers, const at::Device& device) {
  constexpr std::size_t kMostKept = 256;
  thread_local std::map<std::pair<std::string, std::vector<int64_t>>, at::Tensor> kept;
  if (device.is_cpu()) return at::tensor(numbers, at::kLong);
  const std::pair key(device.str(), numbers);
  if (const auto found = kept.find(key); found != kept.end()) return found->second;
  if (kept.size() == kMostKept) kept.clear();
  return kept[key] = at::tensor(numbers, at::kLong).to(device);
}

std::vector<int64_t> evenly(int64_t count, int64_t most) {
  std::vector<int64_t> all(static_cast<std::size_t>(std::min(count, most)));
  if (count <= most) {
    std::iota(all.begin(), all.end(), 0);
  } else {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i) * (count - 1) / (most - 1);
  }
  return all;
}

std::vector<int64_t> rows_of(int64_t count, const RowChoice& choice) {
  return count == choice.token_rows && !choice.of_them.empty() ? choice.of_them : evenly(count, kSampledRows);
}

std::optional<int64_t> product_columns(const RecordedCall& call) {
  const auto product = product_arguments(call);
  if (!product || call.tensor(product->weight).dim() != 2) return std::nullopt;
  return call.tensor(product->weight).size(product->transposed ? 1 : 0);
}

std::optional<Sampled> sampled(const RecordedCall& call, const RowChoice& choice, const std::vector<int64_t>& columns,
                               const at::Tensor& weight) {
  if (call.results.empty() || !call.results[0].is_floating_point() || call.results[0].numel() == 0) return {};
  if (const auto product = product_arguments(call); product && call.tensor(product->weight).dim() == 2)
    return sampled_product(call, *product, choice, columns, weight);
  if (call.name == "faultline::rotary") return sampled_rotary(call, choice);
  if (call.name == "_C::rotary_embedding") return sampled_turned(call, choice);
  if (call.name == "aten::embedding") return sampled_look_up(call, choice);
  if (call.name == "aten::bmm") return sampled_matrices(call);
  if (call.name.starts_with("aten::_scaled_dot_product_")) {
    RecordedCall first = call;
    first.results.resize(1);  // the others serve a backward
    return sampled_heads(std::move(first));
  }
  if (by_rows(call.name)) {
    RecordedCall own = call;
    if (call.name == "aten::_fused_rms_norm") {
      own.results.resize(1);
      return sampled_rows(std::move(own), choice, false);
    }
    if (call.name.starts_with("_C::") && !call.name.ends_with("fused_add_rms_norm"))
      own.arguments[0] = own.results[0];  // it was empty before
    return sampled_rows(std::move(own), choice, false);
  }
  const bool reduction = call.name == "aten::mean" || call.name == "aten::sum" || call.name == "aten::_softmax" ||
                         call.name == "aten::_log_softmax";
  if (reduction && call.arguments.size() > 1 && reduces_last(call)) return sampled_rows(call, choice, false);
  if (call.name == "aten::cat") return sampled_join(call, choice);
  if (elementwise(call.name) && all_single(call)) return Sampled{call, nullptr};
  if (elementwise(call.name) && call.results.size() == 1) return sampled_rows(call, choice, true);
  return {};
}

}  // namespace faultline::diagnose
