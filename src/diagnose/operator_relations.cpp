#include "diagnose/operator_relations.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "base/text.h"
#include "model/ops.h"
#include "site/boundary.h"

namespace faultline {
namespace {

constexpr int64_t kPatternRows = 12;
constexpr double kFunctionError = 0x1p-20;  // of fp32 functions and short sums, relative; 8 ulps of fp32
constexpr double kLarge = 128;              // silu(128) = 128 and silu(-128) = 0 in fp32

at::Tensor flat(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace

void OperatorProbe::run(Observation observation, const std::function<at::Tensor()>& call) const {
  observation.observed = call();
  cost.calls += 1 + repetitions;
  for (int64_t i = 0; i < repetitions; ++i) observation.repetitions.push_back(call());
  observe(observation);
}

// Signs at random; half of the rows with all magnitudes nearly equal, so that each element is the largest; the others
// spread over so many powers of two, so that small ones are there to be lost.
at::Tensor OperatorProbe::patterns(int64_t columns, double octaves) const {
  at::Generator random = at::detail::createCPUGenerator(mix64(seed, static_cast<uint64_t>(columns)));
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor sign = at::randint(0, 2, {kPatternRows, columns}, random, options) * 2 - 1;
  const at::Tensor uniform = at::rand({kPatternRows, columns}, random, options);
  const at::Tensor is_level = at::arange(kPatternRows, options).lt(kPatternRows / 2).unsqueeze(1);
  const at::Tensor magnitude = at::where(is_level, 1 + uniform / 64, at::exp2(-octaves * uniform));
  return (sign * magnitude).to(model.options().dtype()).to(model.device());
}

void OperatorProbe::probe_linear(const Linear& linear) const {
  const auto found = answers.find(linear.place);
  if (found == answers.end()) return;
  const KnownAnswers& known = found->second;
  const auto probe = [&](const char* relation, int64_t rows) {
    const auto first = [&](const at::Tensor& x) { return x.narrow(0, 0, rows); };
    run({relation, "linear", linear.place, first(known.expected), {}, first(known.tolerance), linear.parts},
        [&] { return linear(first(known.input)); });
    cost.multiplications += static_cast<double>(rows * (1 + repetitions)) * static_cast<double>(linear.weight.numel());
  };
  probe("known answers", known.input.size(0));
  if (linear.weight.is_cuda()) probe("known answers of few rows", std::min<int64_t>(8, known.input.size(0)));
}

void OperatorProbe::probe_norm(const Norm& norm) const {
  at::Tensor x, exact, tolerance, scaled;
  {
    const PlanPause pause;
    const at::Tensor weight = norm.weight.to(at::kDouble);
    const at::Tensor level = 1 / weight.abs().clamp_min(1e-2 * weight.abs().mean() + 1e-30);
    x = patterns(weight.numel(), 8);
    const int64_t half = x.size(0) / 2;
    x = at::cat({(x.narrow(0, 0, half).to(at::kDouble) * level / level.mean()).to(x.scalar_type()),
                 x.narrow(0, half, x.size(0) - half)});
    const at::Tensor wide = x.to(at::kDouble);
    exact = wide * weight / (wide.square().mean(-1, true) + norm.epsilon).sqrt();
    tolerance = half_ulp(exact, x.scalar_type()) + exact.abs() * kFunctionError;
  }
  run({"known answers", "norm", norm.place, exact, {}, tolerance}, [&] { return norm(x); });
  at::Tensor sum;
  run({"known answers after a sum", "norm", norm.place, exact, {}, tolerance}, [&] {
    ResidualStream stream(at::zeros_like(x));
    stream.add(x);
    const at::Tensor y = stream.normed(norm);
    sum = stream.sum();
    return y;
  });
  observe({"x + 0 = x", "norm", norm.place, x, sum});
}

void OperatorProbe::probe_activation(const Mlp& mlp) const {
  const int64_t inner = mlp.down.weight.size(1);
  at::Tensor both, exact, tolerance;
  {
    const PlanPause pause;
    const at::Tensor up = patterns(inner, 8);
    at::Tensor gate = at::full_like(up, kLarge);
    gate[0].fill_(0);
    gate[1].fill_(-kLarge);
    const int64_t last = up.size(0) - 1;
    gate[last].copy_(up[last - 1] * 6);
    both = at::cat({gate, up}, 1);
    const at::Tensor g = gate.to(at::kDouble);
    exact = g / (1 + (-g).exp()) * up.to(at::kDouble);
    tolerance = half_ulp(exact, up.scalar_type()) + exact.abs() * kFunctionError;
    tolerance.narrow(0, 2, last - 2).zero_();
    exact.narrow(0, 0, 2).zero_();
    tolerance.narrow(0, 0, 2).fill_(1e-30);
  }
  run({"known answers", "activation", mlp.activation, exact, {}, tolerance}, [&] {
    const Scope scope(mlp.activation);
    return boundary(ops::swiglu(both), mlp.activation, Surface::kOutput);
  });
}

// Softmax over one key is 1: the value comes back to the bit.
void OperatorProbe::probe_attention(const Attention& attention) const {
  const int64_t heads = attention.heads, kv_heads = attention.kv_heads, size = attention.head_size;
  at::Tensor value, query, keys, values, lengths, wanted;
  {
    const PlanPause pause;
    const at::Tensor x = patterns(heads * size, 8);
    query = x.reshape({-1, heads, 1, size});
    value = x.flip(0).reshape({-1, heads, 1, size}).contiguous();
    values = value.reshape({-1, kv_heads, heads / kv_heads, size}).select(2, 0).unsqueeze(2).contiguous();
    keys = at::ones_like(values);
    lengths = at::ones({x.size(0)}, at::TensorOptions(at::kLong).device(x.device()));
    wanted = values.squeeze(2).repeat_interleave(heads / kv_heads, 1).reshape({x.size(0), heads * size});
  }
  run({"one key", "attention", attention.place, flat(value), {}}, [&] {
    const Scope scope(attention.place);
    return flat(at::scaled_dot_product_attention(query, query, value, {}, 0.0, /*is_causal=*/true));
  });
  run({"one cached key", "attention", attention.place, wanted, {}}, [&] {
    const Scope scope(attention.place);
    return ops::attend_cached(flat(query.reshape({-1, heads * size})), keys, values, lengths, 0.125);
  });
}

// Position 0 turns by no angle.
void OperatorProbe::probe_rotary(const Attention& attention) const {
  const bool apart = attention.query_norm.weight.defined();
  const int64_t heads = attention.heads + (apart ? 0 : attention.kv_heads);
  at::Tensor x, positions;
  const Sight sight = model.whole_rows(1, 1);
  {
    const PlanPause pause;
    x = patterns((heads + (apart ? 0 : attention.kv_heads)) * attention.head_size, 8);
    positions = at::zeros({x.size(0)}, at::TensorOptions(at::kLong).device(x.device()));
  }
  run({"position 0", "rotary", attention.place, x, {}}, [&] {
    const Scope scope(attention.place);
    return ops::rotary(x, positions, sight.rotary->cos, sight.rotary->sin, heads);
  });
}

// A module is its parts, to the bit, where the attention sees one key.
void OperatorProbe::probe_modules(const Layer& layer, int64_t index) const {
  const Attention& attention = layer.attention;
  const at::Tensor x = patterns(model.config().hidden, 8);
  const int64_t kv = attention.kv_heads * attention.head_size;
  for (const Linear* linear : linears_of(layer))  // the parts, and the module around them
    cost.multiplications +=
        static_cast<double>(x.size(0) * (2 + repetitions)) * static_cast<double>(linear->weight.numel());
  {
    const at::Tensor qkv = attention.qkv(x);
    const at::Tensor value = qkv.narrow(1, qkv.size(1) - kv, kv).reshape({x.size(0), attention.kv_heads, -1});
    const at::Tensor mixed = value.repeat_interleave(attention.heads / attention.kv_heads, 1);
    const at::Tensor expected = attention.output(mixed.reshape({x.size(0), -1}));
    run({"the sum of its parts", "module", attention.place, expected, {}},
        [&] { return attention(x, model.whole_rows(x.size(0), 1), index); });
  }
  const auto* mlp = std::get_if<Mlp>(&layer.mlp);
  if (mlp == nullptr) return;
  at::Tensor inner = mlp->gate_up(x);
  {
    const Scope scope(mlp->activation);
    inner = boundary(ops::swiglu(inner), mlp->activation, Surface::kOutput);
  }
  run({"the sum of its parts", "module", mlp->place, mlp->down(inner), {}}, [&] { return (*mlp)(x); });
}

void OperatorProbe::probe_layer(int64_t index) const {
  const Layer& layer = model.layers()[static_cast<std::size_t>(index)];
  const Scope scope(layer.place);
  for (const Linear* linear : linears_of(layer))
    if (!linear->adapter.down.defined()) probe_linear(*linear);
  for (const Norm* norm :
       {&layer.input_norm, &layer.post_attention_norm, &layer.attention.query_norm, &layer.attention.key_norm})
    if (norm->weight.defined()) probe_norm(*norm);
  probe_rotary(layer.attention);
  probe_attention(layer.attention);
  if (const auto* mlp = std::get_if<Mlp>(&layer.mlp)) probe_activation(*mlp);
  probe_modules(layer, index);
}

void OperatorProbe::probe_ends() const {
  probe_norm(model.final_norm());
  const at::Tensor tokens = at::arange(std::min<int64_t>(64, model.config().vocabulary), at::TensorOptions(at::kLong));
  const Linear& head = model.head_linear();
  if (!model.config().tied_output) return;
  run({"a row of the table", "embedding", place_id("model.embed_tokens"), head.weight.narrow(0, 0, tokens.numel()), {}},
      [&] { return model.embed(tokens.to(model.device())); });
}

}  // namespace faultline
