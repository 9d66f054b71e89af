#include "model/build.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/text.h"

namespace faultline::model {

WeightSource stored_weights(const Checkpoint& checkpoint, const std::function<void(double)>& progress) {
  auto done = std::make_shared<std::size_t>(0);
  const std::size_t total = checkpoint.names().size();
  return [&checkpoint, progress, done, total](const std::string& name, const std::vector<int64_t>& sizes,
                                              at::ScalarType dtype, const at::Device& device) {
    if (!checkpoint.contains(name))
      throw UsageError(
          fmt::format("{}: no tensor '{}', which its configuration asks for", checkpoint.path().string(), name));
    if (const auto found = checkpoint.sizes(name); found != sizes)
      throw UsageError(fmt::format("{}: tensor '{}' has shape ({}); the configuration asks for ({})",
                                   checkpoint.path().string(), name, fmt::join(found, ", "), fmt::join(sizes, ", ")));
    at::Tensor tensor = checkpoint.read(name, dtype).to(device);
    if (progress) progress(static_cast<double>(++*done) / static_cast<double>(total));
    return tensor;
  };
}

WeightSource random_weights(uint64_t seed, const at::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return [generator](const std::string& name, const std::vector<int64_t>& sizes, at::ScalarType dtype,
                     const at::Device& on) {
    const at::TensorOptions options = at::TensorOptions(dtype).device(on);
    if (sizes.size() == 1 && name.ends_with("norm.weight")) return at::ones(sizes, options);
    return at::randn(sizes, generator, options).mul_(0.02);
  };
}

at::Tensor Builder::weight(const std::string& name, const std::vector<int64_t>& sizes) const {
  return source(name, sizes, dtype, device);
}

Norm Builder::norm(const std::string& path, int64_t size) const {
  return {site::place_id(path), source(path + ".weight", {size}, at::kFloat, device), config.norm_epsilon};
}

Linear Builder::linear(const std::string& path, const std::vector<std::string>& names,
                       const std::vector<int64_t>& sizes, int64_t input, bool bias) const {
  Linear linear;
  linear.place = site::place_id(path);
  const std::string parent = path.substr(0, path.rfind('.') + 1);
  std::vector<at::Tensor> weights, biases;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string part = names.empty() ? path : parent + names[i];
    if (!names.empty()) linear.parts.push_back({site::place_id(part), sizes[i]});
    weights.push_back(weight(part + ".weight", {sizes[i], input}));
    if (bias) biases.push_back(weight(part + ".bias", {sizes[i]}));
  }
  linear.weight = weights.size() == 1 ? weights[0] : at::cat(weights);
  if (bias) linear.bias = biases.size() == 1 ? biases[0] : at::cat(biases);
  return linear;
}

Mlp Builder::mlp(const std::string& path, int64_t inner, bool bias) const {
  Mlp mlp;
  mlp.place = site::place_id(path);
  mlp.activation = site::place_id(path + ".act_fn");
  mlp.gate_up = linear(path + ".gate_up_proj", {"gate_proj", "up_proj"}, {inner, inner}, config.hidden, bias);
  mlp.down = linear(path + ".down_proj", {}, {config.hidden}, inner, bias);
  return mlp;
}

Moe Builder::moe(const std::string& path) const {
  Moe moe;
  moe.place = site::place_id(path);
  moe.router = linear(path + ".gate", {}, {config.moe.experts}, config.hidden, false);
  moe.experts_per_token = config.moe.experts_per_token;
  moe.normalise_weights = config.moe.normalise_weights;
  for (int64_t e = 0; e < config.moe.experts; ++e)
    moe.experts.push_back(mlp(fmt::format("{}.experts.{}", path, e), config.moe.expert_size));
  if (config.moe.shared_expert_size > 0) {
    moe.shared = mlp(path + ".shared_expert", config.moe.shared_expert_size);
    moe.shared_gate = linear(path + ".shared_expert_gate", {}, {1}, config.hidden, false);
  }
  return moe;
}

Layer Builder::layer(int64_t index) const {
  const std::string path = fmt::format("model.layers.{}", index), attention = path + ".self_attn";
  const int64_t query = config.heads * config.head_size, key = config.kv_heads * config.head_size;
  Layer layer;
  layer.place = site::place_id(path);
  layer.input_norm = norm(path + ".input_layernorm", config.hidden);
  layer.attention = {site::place_id(attention), config.heads, config.kv_heads, config.head_size, {}, {}, {}, {}};
  layer.attention.rotates = config.is_rotated_layer(index);
  layer.attention.scale = config.attention_multiplier > 0 ? config.attention_multiplier
                                                          : 1 / std::sqrt(static_cast<double>(config.head_size));
  layer.residual_multiplier = config.residual_multiplier;
  layer.attention.key_cache = site::place_id(attention + ".k_cache");
  layer.attention.value_cache = site::place_id(attention + ".v_cache");
  layer.attention.qkv = linear(attention + ".qkv_proj", {"q_proj", "k_proj", "v_proj"}, {query, key, key},
                               config.hidden, config.attention_bias);
  layer.attention.output = linear(attention + ".o_proj", {}, {config.hidden}, query, config.output_bias);
  if (config.query_key_norm) {
    layer.attention.query_norm = norm(attention + ".q_norm", config.head_size);
    layer.attention.key_norm = norm(attention + ".k_norm", config.head_size);
  }
  layer.post_attention_norm = norm(path + ".post_attention_layernorm", config.hidden);
  if (config.is_sparse_layer(index)) {
    layer.mlp = moe(path + ".mlp");
  } else {
    layer.mlp = mlp(path + ".mlp", config.inner, config.mlp_bias);
  }
  return layer;
}

std::string weights_fingerprint(CausalLm& model) {
  uint64_t hash = 0;
  for (const CausalLm::Parameter& parameter : model.parameters()) {
    const at::Tensor bytes = parameter.tensor->detach().cpu().contiguous();
    hash = mix64(hash, hash64(parameter.name));
    hash = mix64(hash, hash64({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()}));
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace faultline::model
