#include "model/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "model/ops.h"
#include "model/product.h"
#include "site/boundary.h"

namespace faultline::model {
namespace {

// Llama 3: long waves are slowed by the factor, short ones kept, those between blended.
at::Tensor llama3_frequencies(const at::Tensor& frequencies, const RopeScaling& scaling) {
  const double original = static_cast<double>(scaling.original_context);
  const at::Tensor wave = 2 * M_PI / frequencies;
  const at::Tensor slow = frequencies / scaling.factor;
  const at::Tensor smooth =
      (original / wave - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor);
  const at::Tensor blended = (1 - smooth) * slow + smooth * frequencies;
  const at::Tensor is_long = wave > original / scaling.low_frequency_factor;
  const at::Tensor is_short = wave < original / scaling.high_frequency_factor;
  return at::where(is_long, slow, at::where(is_short, frequencies, blended));
}

// Yarn: fast dimensions turn as before, slow ones slower by the factor, those between blended by their number.
at::Tensor yarn_frequencies(const at::Tensor& frequencies, const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto size = static_cast<double>(config.head_size), original = static_cast<double>(scaling.original_context);
  const auto dimension_of = [&](double turns) {
    return size * std::log(original / (turns * 2 * M_PI)) / (2 * std::log(config.rope_theta));
  };
  double low = dimension_of(scaling.high_frequency_factor), high = dimension_of(scaling.low_frequency_factor);
  if (scaling.whole_dimensions) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(frequencies.size(0), frequencies.options()) - low) / (high - low)).clamp(0, 1);
  return frequencies / scaling.factor * ramp + frequencies * (1 - ramp);
}

struct Projected {
  at::Tensor query, key, value;  // (N, heads * head size), views of one tensor where that is possible
};

Projected project(const Attention& attention, const at::Tensor& x, const AttentionContext& context) {
  const int64_t query = attention.heads * attention.head_size, key = attention.kv_heads * attention.head_size;
  const bool normed = attention.query_norm.weight.defined();
  const auto rotated = [&](const at::Tensor& states, int64_t heads) {
    if (!attention.rotates) return states;
    return ops::rotary(states, context.positions, context.rotary->cos, context.rotary->sin, heads);
  };
  at::Tensor qkv = attention.qkv(x);
  if (!normed) qkv = rotated(qkv, attention.heads + attention.kv_heads);
  // Not narrow() three times: the gradient of a split is one tensor, that of each piece a tensor of zeros to be added.
  const std::vector<at::Tensor> parts = qkv.split_with_sizes({query, key, key}, 1);
  if (!normed) return {parts[0], parts[1], parts[2]};
  const auto normed_and_rotated = [&](const at::Tensor& states, int64_t heads, const Norm& norm) {
    return rotated(norm(states.reshape({-1, heads, attention.head_size})).reshape({-1, states.size(1)}), heads);
  };
  return {normed_and_rotated(parts[0], attention.heads, attention.query_norm),
          normed_and_rotated(parts[1], attention.kv_heads, attention.key_norm), parts[2]};
}

// On Arm torch's attention for bf16 multiplies element by element (oneDNN's reference), several times slower than the
// same in fp32, and elsewhere where bf16 has no instructions (Note [bf16 products without bf16 instructions]). So it
// runs in fp32 there, and its result is rounded once.
bool attends_in_fp32(const at::Tensor& states) {
#if defined(__aarch64__)
  constexpr bool kAlways = true;
#else
  constexpr bool kAlways = false;
#endif
  return states.is_cpu() && states.scalar_type() == at::kBFloat16 && (kAlways || multiplies_bf16_slowly());
}

// Of torch's attention only the flash kernel knows groups of heads without copies; the others would be worse than ours.
bool shares_heads(const at::Tensor& states, int64_t head_size) {
  return states.is_cuda() && states.element_size() == 2 && head_size <= 256;
}

// Whole rows: causal attention within each.
at::Tensor attend_rows(const Attention& attention, const Projected& projected, int64_t rows) {
  const at::ScalarType type = projected.query.scalar_type();
  const at::ScalarType inside = attends_in_fp32(projected.query) ? at::kFloat : type;
  const auto by_head = [&](const at::Tensor& states, int64_t heads) {
    return states.reshape({rows, -1, heads, attention.head_size}).transpose(1, 2).to(inside);
  };
  const int64_t group = attention.heads / attention.kv_heads;
  const bool in_kernel = group > 1 && shares_heads(projected.query, attention.head_size);
  const auto shared = [&](const at::Tensor& states) {  // each key/value head serves a group of query heads
    const at::Tensor split = by_head(states, attention.kv_heads);
    return group == 1 || in_kernel ? split : split.repeat_interleave(group, 1);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(by_head(projected.query, attention.heads),
                                                            shared(projected.key), shared(projected.value), {}, 0.0,
                                                            /*is_causal=*/true, attention.scale, in_kernel);
  return mixed.transpose(1, 2).reshape({-1, attention.heads * attention.head_size}).to(type);
}

}  // namespace

RotaryTable make_rotary_table(const ModelConfig& config, int64_t positions, const at::Device& device) {
  const auto fp32 = at::TensorOptions(at::kFloat);
  const at::Tensor exponents = at::arange(0, config.head_size, 2, fp32) / static_cast<double>(config.head_size);
  at::Tensor frequencies = 1.0 / at::pow(config.rope_theta, exponents);
  if (config.rope_scaling.kind == RopeScaling::Kind::kLinear) frequencies = frequencies / config.rope_scaling.factor;
  if (config.rope_scaling.kind == RopeScaling::Kind::kLlama3)
    frequencies = llama3_frequencies(frequencies, config.rope_scaling);
  if (config.rope_scaling.kind == RopeScaling::Kind::kYarn) frequencies = yarn_frequencies(frequencies, config);
  const auto factor = static_cast<float>(config.rope_scaling.attention_factor);
  // Not by at::cos: the ends of its vectors round differently, and a table must not depend on its size.
  at::Tensor cos = at::empty({positions, frequencies.size(0)}, fp32), sin = at::empty_like(cos);
  frequencies = frequencies.contiguous();
  const float* frequency = frequencies.const_data_ptr<float>();
  for (int64_t i = 0, at = 0; i < positions; ++i) {
    for (int64_t j = 0; j < frequencies.size(0); ++j, ++at) {
      const auto angle = static_cast<double>(static_cast<float>(i) * frequency[j]);
      cos.mutable_data_ptr<float>()[at] = static_cast<float>(std::cos(angle)) * factor;
      sin.mutable_data_ptr<float>()[at] = static_cast<float>(std::sin(angle)) * factor;
    }
  }
  return {cos.to(device), sin.to(device)};
}

at::Tensor Attention::operator()(const at::Tensor& x, const AttentionContext& context, int64_t layer) const {
  const site::Scope scope(place);
  const Projected projected = project(*this, site::boundary(x, place, site::Surface::kInput), context);
  if (context.cache != nullptr) {
    KvCache::Layer& kept = context.cache->layers[static_cast<std::size_t>(layer)];
    ops::store_kv_(kept.keys, kept.values, site::boundary(projected.key, key_cache, site::Surface::kInput),
                   site::boundary(projected.value, value_cache, site::Surface::kInput), context.cache_rows,
                   context.cache_positions);
  }
  at::Tensor mixed;
  if (context.lengths.defined()) {
    const KvCache::Layer& kept = context.cache->layers[static_cast<std::size_t>(layer)];
    mixed = ops::attend_cached(projected.query, kept.keys, kept.values, context.lengths, scale);
  } else {
    mixed = attend_rows(*this, projected, context.rows);
  }
  return site::boundary(output(mixed), place, site::Surface::kOutput);
}

}  // namespace faultline::model
