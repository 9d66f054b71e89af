#include "model/decode_batch.h"

#include <ATen/ops/isin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "model/ops.h"

namespace faultline::model {

DecodeBatch::DecodeBatch(const CausalLm& model, int64_t slots, int64_t context, int64_t budget,
                         const std::vector<int64_t>& end_tokens)
    : cache(model.config(), slots, context, model.options()) {
  const auto int64 = at::TensorOptions(at::kLong).device(model.device());
  const auto fp32 = int64.dtype(at::kFloat);
  token = at::zeros({slots}, int64);
  length = at::zeros({slots}, int64);
  count = at::zeros({slots}, int64);
  limit = at::zeros({slots}, int64);
  active = at::zeros({slots}, int64.dtype(at::kBool));
  key = at::zeros({slots}, int64);
  top_k = at::zeros({slots}, int64);
  temperature = at::zeros({slots}, fp32);
  top_p = at::zeros({slots}, fp32);
  tokens = at::zeros({slots, budget}, int64);
  log_probabilities = at::zeros({slots, budget}, fp32);
  ends = at::tensor(end_tokens, at::kLong).to(model.device());
}

void DecodeBatch::start(const std::vector<Start>& starts) {
  std::vector<int64_t> slots, last, lengths, limits, keys, ks;
  std::vector<float> temperatures, ps;
  for (const Start& s : starts) {
    slots.push_back(s.slot), last.push_back(s.last_token), lengths.push_back(s.length),
        limits.push_back(s.max_new_tokens);
    keys.push_back(static_cast<int64_t>(s.key)), ks.push_back(s.sampling.top_k);
    temperatures.push_back(static_cast<float>(s.sampling.temperature));
    ps.push_back(static_cast<float>(s.sampling.top_p));
  }
  const at::Device device = token.device();
  const at::Tensor where = at::tensor(slots, at::kLong).to(device);
  const auto put = [&](at::Tensor& field, const auto& values) {
    field.index_copy_(0, where, at::tensor(values, field.scalar_type()).to(device));
  };
  put(token, last), put(length, lengths), put(limit, limits), put(key, keys), put(top_k, ks);
  put(temperature, temperatures), put(top_p, ps);
  count.index_fill_(0, where, 0);
  active.index_fill_(0, where, true);
}

void DecodeBatch::step(const CausalLm& model) {
  const at::Tensor position = at::where(active, length, -1);
  const at::Tensor logits = model.decode(token, position, cache);
  const auto [next, log_probability] = ops::sample(logits, temperature, top_k, top_p, key, count);
  const at::Tensor at_count = count.clamp_max(tokens.size(1) - 1).unsqueeze(1);
  // A row that has ended keeps what it has.
  tokens.scatter_(1, at_count, at::where(active.unsqueeze(1), next.unsqueeze(1), tokens.gather(1, at_count)));
  log_probabilities.scatter_(
      1, at_count, at::where(active.unsqueeze(1), log_probability.unsqueeze(1), log_probabilities.gather(1, at_count)));
  count.add_(active);
  length.add_(active);
  token.copy_(next);
  active.logical_and_(count < limit);
  if (ends.numel() > 0) active.logical_and_((next.unsqueeze(1) != ends).all(1));
}

void DecodeBatch::move_slot(int64_t from, int64_t to, int64_t positions) {
  cache.move_row(from, to, positions);
  for (at::Tensor* field :
       {&token, &length, &count, &limit, &active, &key, &top_k, &temperature, &top_p, &tokens, &log_probabilities})
    field->select(0, to).copy_(field->select(0, from));
}

DecodeBatch DecodeBatch::narrowed(int64_t slots) const {
  DecodeBatch part;
  part.cache.rows = slots;
  part.cache.context = cache.context;
  for (const KvCache::Layer& layer : cache.layers)
    part.cache.layers.push_back({layer.keys.narrow(0, 0, slots), layer.values.narrow(0, 0, slots)});
  const auto first = [&](const at::Tensor& field) { return field.narrow(0, 0, slots); };
  part.token = first(token), part.length = first(length), part.count = first(count), part.limit = first(limit);
  part.active = first(active), part.key = first(key), part.top_k = first(top_k);
  part.temperature = first(temperature), part.top_p = first(top_p);
  part.tokens = first(tokens), part.log_probabilities = first(log_probabilities);
  part.ends = ends;
  return part;
}

}  // namespace faultline::model
