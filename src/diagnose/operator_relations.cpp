#include "diagnose/operator_relations.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/text.h"
#include "model/ops.h"
#include "site/boundary.h"

namespace faultline::diagnose {
namespace {

constexpr double kOctaves = 8;  // of the values of a row

}  // namespace

void OperatorProbe::run(Observation observation, const std::function<at::Tensor()>& call) {
  observation.observed = call();
  cost_.calls += 1 + repetitions_;
  for (int64_t i = 0; i < repetitions_; ++i) observation.repetitions.push_back(call());
  observe_(std::move(observation));
}

const at::Tensor& OperatorProbe::rows(int64_t columns) {
  at::Tensor& made = rows_[columns];
  if (made.defined()) return made;
  const PlanPause pause;
  return made = patterns(columns, kOctaves, seed_).to(model_.options().dtype()).to(model_.device());
}

void OperatorProbe::probe_linear(const model::Linear& linear) {
  const auto found = answers_.find(linear.place);
  if (found == answers_.end()) return;
  const KnownAnswers& known = found->second;
  const auto probe = [&](const char* relation, int64_t rows) {
    const auto first = [&](const at::Tensor& x) { return x.narrow(0, 0, rows); };
    run({relation, "linear", linear.place, first(known.expected), {}, first(known.tolerance), linear.parts},
        [&] { return linear(first(known.input)); });
    cost_.multiplications +=
        static_cast<double>(rows * (1 + repetitions_)) * static_cast<double>(linear.weight.numel());
  };
  probe("known answers", known.input.size(0));
  if (linear.weight.is_cuda()) probe("known answers of few rows", std::min<int64_t>(8, known.input.size(0)));
}

void OperatorProbe::probe_norm(const model::Norm& norm) {
  const auto found = answers_.find(norm.place);
  if (found == answers_.end()) return;
  const at::Tensor &x = found->second.input, &exact = found->second.expected, &tolerance = found->second.tolerance;
  run({"known answers", "norm", norm.place, exact, {}, tolerance}, [&] { return norm(x); });
  at::Tensor sum;
  run({"known answers after a sum", "norm", norm.place, exact, {}, tolerance}, [&] {
    model::ResidualStream stream(at::zeros_like(x));
    stream.add(x);
    const at::Tensor y = stream.normed(norm);
    sum = stream.sum();
    return y;
  });
  observe_({"x + 0 = x", "norm", norm.place, x, sum});
}

const KnownAnswers& OperatorProbe::activation_answers(int64_t inner) {
  KnownAnswers& made = activation_[inner];
  if (made.input.defined()) return made;
  const PlanPause pause;
  const at::Tensor& up = rows(inner);
  at::Tensor gate = at::full_like(up, kLarge);
  gate[0].fill_(0);
  gate[1].fill_(-kLarge);
  const int64_t last = up.size(0) - 1;
  gate[last].copy_(up[last - 1] * 6);
  const at::Tensor g = gate.to(at::kDouble);
  made.input = at::cat({gate, up}, 1);
  made.expected = g / (1 + (-g).exp()) * up.to(at::kDouble);
  made.tolerance = half_ulp(made.expected, up.scalar_type()) + made.expected.abs() * kFunctionError;
  made.tolerance.narrow(0, 2, last - 2).zero_();
  made.expected.narrow(0, 0, 2).zero_();
  made.tolerance.narrow(0, 0, 2).fill_(1e-30);
  return made;
}

void OperatorProbe::probe_activation(const model::Mlp& mlp) {
  const KnownAnswers& known = activation_answers(mlp.down.weight.size(1));
  run({"known answers", "activation", mlp.activation, known.expected, {}, known.tolerance}, [&] {
    const site::Scope scope(mlp.activation);
    return site::boundary(model::ops::swiglu(known.input), mlp.activation, site::Surface::kOutput);
  });
}

const OperatorProbe::OneKey& OperatorProbe::one_key(const model::Attention& attention) {
  const int64_t heads = attention.heads, kv_heads = attention.kv_heads, size = attention.head_size;
  OneKey& made = one_key_[heads * size];
  if (made.query.defined()) return made;
  const PlanPause pause;
  const at::Tensor& x = rows(heads * size);
  made.query = x.reshape({-1, heads, 1, size});
  // Tensor cores take fp32 apart into shorter numbers: a value that is short already comes back to the bit from them
  // too.
  made.value = x.flip(0).reshape({-1, heads, 1, size}).to(at::kBFloat16).to(x.scalar_type()).contiguous();
  made.values = made.value.reshape({-1, kv_heads, heads / kv_heads, size}).select(2, 0).unsqueeze(2).contiguous();
  made.keys = at::ones_like(made.values);
  made.lengths = at::ones({x.size(0)}, at::TensorOptions(at::kLong).device(x.device()));
  made.wanted = made.values.squeeze(2).repeat_interleave(heads / kv_heads, 1).reshape({x.size(0), heads * size});
  return made;
}

// Softmax over one key is 1: the value comes back to the bit.
void OperatorProbe::probe_attention(const model::Attention& attention) {
  const OneKey& one = one_key(attention);
  run({"one key", "attention", attention.place, flat(one.value), {}}, [&] {
    const site::Scope scope(attention.place);
    return flat(at::scaled_dot_product_attention(one.query, one.query, one.value, {}, 0.0, /*is_causal=*/true));
  });
  run({"one cached key", "attention", attention.place, one.wanted, {}}, [&] {
    const site::Scope scope(attention.place);
    return model::ops::attend_cached(one.query.reshape({one.query.size(0), -1}), one.keys, one.values, one.lengths,
                                     0.125);
  });
}

// Position 0 turns by no angle; yarn's factor is on what is rotated all the same.
void OperatorProbe::probe_rotary(const model::Attention& attention) {
  const bool apart = attention.query_norm.weight.defined();
  const int64_t heads = attention.heads + (apart ? 0 : attention.kv_heads);
  const model::AttentionContext context = model_.whole_rows(1, 1);
  const at::Tensor& x = rows((heads + (apart ? 0 : attention.kv_heads)) * attention.head_size);
  const at::Tensor positions = at::zeros({x.size(0)}, at::TensorOptions(at::kLong).device(x.device()));
  at::Tensor turned = x;
  if (const double factor = model_.config().rope_scaling.attention_factor; factor != 1) {
    const PlanPause pause;
    const int64_t size = heads * attention.head_size;
    const at::Tensor scaled = (x.narrow(1, 0, size).to(at::kFloat) * static_cast<double>(static_cast<float>(factor)));
    turned = at::cat({scaled.to(x.scalar_type()), x.narrow(1, size, x.size(1) - size)}, 1);
  }
  run({"position 0", "rotary", attention.place, turned, {}}, [&] {
    const site::Scope scope(attention.place);
    return model::ops::rotary(x, positions, context.rotary->cos, context.rotary->sin, heads);
  });
}

// A module is its parts, to the bit. Attention sees one key here, so that queries and keys do not matter; its operator
// is a part too, because on tensor cores an fp32 value does not come back from it to the bit.
void OperatorProbe::probe_modules(const model::Layer& layer, int64_t index) {
  const model::Attention& attention = layer.attention;
  const at::Tensor& x = rows(model_.config().hidden);
  const int64_t kv = attention.kv_heads * attention.head_size;
  for (const model::Linear* linear : linears_of(layer))  // the parts, and the module around them
    cost_.multiplications +=
        static_cast<double>(x.size(0) * (2 + repetitions_)) * static_cast<double>(linear->weight.numel());
  {
    const at::Tensor qkv = attention.qkv(x);
    const at::Tensor value = qkv.narrow(1, qkv.size(1) - kv, kv).reshape({x.size(0), attention.kv_heads, 1, -1});
    const at::Tensor values = value.repeat_interleave(attention.heads / attention.kv_heads, 1);
    const at::Tensor any = at::zeros_like(values);
    at::Tensor mixed;
    {
      const site::Scope scope(attention.place);
      mixed = at::scaled_dot_product_attention(any, any, values, {}, 0.0, /*is_causal=*/true);
    }
    const at::Tensor expected = attention.output(mixed.reshape({x.size(0), -1}));
    run({"the sum of its parts", "module", attention.place, expected, {}},
        [&] { return attention(x, model_.whole_rows(x.size(0), 1), index); });
  }
  const auto* mlp = std::get_if<model::Mlp>(&layer.mlp);
  if (mlp == nullptr) return;
  at::Tensor inner = mlp->gate_up(x);
  {
    const site::Scope scope(mlp->activation);
    inner = site::boundary(model::ops::swiglu(inner), mlp->activation, site::Surface::kOutput);
  }
  run({"the sum of its parts", "module", mlp->place, mlp->down(inner), {}}, [&] { return (*mlp)(x); });
}

void OperatorProbe::probe_layer(int64_t index, int64_t repetitions) {
  repetitions_ = repetitions;
  const model::Layer& layer = model_.layers()[static_cast<std::size_t>(index)];
  const site::Scope scope(layer.place);
  for (const model::Linear* linear : linears_of(layer))
    if (!linear->adapter.down.defined()) probe_linear(*linear);
  for (const model::Norm* norm : norms_of(layer)) probe_norm(*norm);
  if (layer.attention.rotates) probe_rotary(layer.attention);
  probe_attention(layer.attention);
  if (const auto* mlp = std::get_if<model::Mlp>(&layer.mlp)) probe_activation(*mlp);
  probe_modules(layer, index);
}

void OperatorProbe::probe_ends() {
  repetitions_ = 1;
  probe_norm(model_.final_norm());
  const at::Tensor tokens = at::arange(std::min<int64_t>(64, model_.config().vocabulary), at::TensorOptions(at::kLong));
  probe_linear(model_.head_linear());
  const double multiplier = model_.config().embedding_multiplier;
  const auto scaled = [&](const at::Tensor& x) { return multiplier == 1 ? x : at::mul(x, multiplier); };
  run({"a row of the table",
       "embedding",
       site::place_id("model.embed_tokens"),
       scaled(model_.embedding().narrow(0, 0, tokens.numel())),
       {}},
      [&] { return model_.embed(tokens.to(model_.device())); });
}

}  // namespace faultline::diagnose
