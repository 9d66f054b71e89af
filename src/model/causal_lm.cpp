#include "model/causal_lm.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include "base/error.h"
#include "model/build.h"
#include "site/boundary.h"

namespace faultline::model {
namespace {

// A GPU says itself what it does not hold.
const ModelConfig& fitting_config(const Checkpoint& checkpoint, at::ScalarType dtype, const at::Device& device) {
  if (device.is_cpu()) refuse_what_does_not_fit(checkpoint, dtype, available_memory());
  return checkpoint.config();
}

}  // namespace

at::Tensor Layer::update(const at::Tensor& half) const {
  return residual_multiplier == 1 ? half : at::mul(half, residual_multiplier);
}

CausalLm::CausalLm(const Checkpoint& checkpoint, at::ScalarType dtype, const at::Device& device,
                   const std::function<void(double)>& progress)
    : CausalLm(fitting_config(checkpoint, dtype, device), stored_weights(checkpoint, progress), dtype, device) {}

CausalLm::CausalLm(const ModelConfig& config, uint64_t seed, at::ScalarType dtype, const at::Device& device)
    : CausalLm(config, random_weights(seed, device), dtype, device) {}

CausalLm::CausalLm(const ModelConfig& config, const WeightSource& source, at::ScalarType dtype,
                   const at::Device& device)
    : config_(config), root_(site::place_id("model")), embedding_place_(site::place_id("model.embed_tokens")) {
  const Builder build{config, source, dtype, device};
  embedding_ = build.weight("model.embed_tokens.weight", {config.vocabulary, config.hidden});
  for (int64_t i = 0; i < config.layers; ++i) layers_.push_back(build.layer(i));
  final_norm_ = build.norm("model.norm", config.hidden);
  if (config.tied_output) {
    head_.place = site::place_id("lm_head");
    head_.weight = embedding_;
  } else {
    head_ = build.linear("lm_head", {}, {config.vocabulary}, config.hidden, /*bias=*/false);
  }
  for (const Parameter& parameter : parameters()) site::register_parameter(*parameter.tensor, parameter.place);
  if (config.tied_output) site::register_parameter(embedding_, head_.place);
}

at::Tensor CausalLm::forward(const at::Tensor& tokens, const AttentionContext& context, site::ForwardKind kind) const {
  const site::ForwardScope root(root_, kind);
  ResidualStream stream(embed(tokens));
  for (int64_t i = 0; i < config_.layers; ++i) {
    const site::Scope scope(layers_[static_cast<std::size_t>(i)].place);
    run_layer(i, stream, context);
  }
  return stream.normed(final_norm_);
}

at::Tensor CausalLm::embed(const at::Tensor& tokens) const {
  const site::Scope scope(embedding_place_);
  const at::Tensor x = site::boundary(at::embedding(embedding_, tokens), embedding_place_, site::Surface::kOutput);
  return config_.embedding_multiplier == 1 ? x : at::mul(x, config_.embedding_multiplier);
}

void CausalLm::run_layer(int64_t index, ResidualStream& stream, const AttentionContext& context) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  if (site::boundary_is_wanted(layer.place, site::Surface::kInput))
    stream.sum() = site::boundary(stream.sum(), layer.place, site::Surface::kInput);
  stream.add(layer.update(layer.attention(stream.normed(layer.input_norm), context, index)));
  const at::Tensor normed = stream.normed(layer.post_attention_norm);
  stream.add(layer.update(std::visit([&](const auto& mlp) { return mlp(normed); }, layer.mlp)));
  if (site::boundary_is_wanted(layer.place, site::Surface::kOutput))
    stream.sum() = site::boundary(stream.sum(), layer.place, site::Surface::kOutput);
}

at::Tensor CausalLm::run_layer(int64_t index, const at::Tensor& x, int64_t rows) const {
  const site::Scope scope(layers_[static_cast<std::size_t>(index)].place);
  ResidualStream stream(x);
  run_layer(index, stream, whole_rows(rows, x.size(0) / rows));
  return stream.sum();
}

AttentionContext CausalLm::whole_rows(int64_t rows, int64_t length) const {
  if (config_.exact_context > 0 && length > config_.exact_context)
    throw UsageError(fmt::format(
        "a sequence has {} tokens; this model is computed here up to {}, behind which it has a sliding window "
        "or a growing rope; shorten it, or run the model in transformers",
        length, config_.exact_context));
  ensure_positions(length);
  AttentionContext context;
  context.positions = at::arange(length, at::TensorOptions(at::kLong).device(device())).repeat({rows});
  context.rows = rows;
  context.rotary = &rotary_;
  return context;
}

at::Tensor CausalLm::forward_rows(const at::Tensor& tokens, site::ForwardKind kind) const {
  return forward(tokens.reshape(-1), whole_rows(tokens.size(0), tokens.size(1)), kind);
}

at::Tensor CausalLm::hidden_states(const at::Tensor& tokens) const {
  return forward_rows(tokens, site::ForwardKind::kWhole);
}
at::Tensor CausalLm::body(const at::Tensor& tokens) const { return forward_rows(tokens, site::ForwardKind::kBody); }

at::Tensor CausalLm::logits(const at::Tensor& hidden) const {
  const at::Tensor logits = head_(hidden);
  return config_.logits_divisor == 1 ? logits : at::div(logits, config_.logits_divisor);
}
at::Tensor CausalLm::head(const at::Tensor& hidden) const {
  const site::ForwardScope root(root_, site::ForwardKind::kHead);
  return logits(hidden);
}

void CausalLm::prefill(const at::Tensor& tokens, const at::Tensor& lengths, const at::Tensor& rows,
                       KvCache& cache) const {
  const int64_t count = tokens.size(0), length = tokens.size(1);
  ensure_positions(cache.context);
  AttentionContext context;
  const at::Tensor positions = at::arange(length, tokens.options()).expand({count, length});
  context.positions = positions.reshape(-1).contiguous();
  context.rows = count;
  context.cache = &cache;
  context.cache_rows = rows.unsqueeze(1).expand({count, length}).reshape(-1).contiguous();
  context.cache_positions = at::where(positions < lengths.unsqueeze(1), positions, -1).reshape(-1).contiguous();
  context.rotary = &rotary_;
  forward(tokens.reshape(-1), context, site::ForwardKind::kPrefill);
}

at::Tensor CausalLm::decode(const at::Tensor& tokens, const at::Tensor& positions, KvCache& cache) const {
  ensure_positions(cache.context);
  AttentionContext context;
  context.positions = positions.clamp_min(0);
  context.lengths = positions + 1;
  context.cache = &cache;
  context.cache_rows = at::arange(tokens.size(0), tokens.options());
  context.cache_positions = positions;
  context.rotary = &rotary_;
  return logits(forward(tokens, context, site::ForwardKind::kDecode));
}

void CausalLm::ensure_positions(int64_t positions) const {
  if (rotary_.cos.defined() && rotary_.cos.size(0) >= positions) return;
  int64_t enough = 256;
  while (enough < positions) enough *= 2;
  rotary_ = make_rotary_table(config_, enough, device());
}

namespace {

void add_linear(std::vector<CausalLm::Parameter>& all, Linear& linear) {
  if (!linear.weight.defined()) return;
  const std::string& path = site::place_of(linear.place).path;
  all.push_back({path + ".weight", &linear.weight, linear.place});
  if (linear.bias.defined()) all.push_back({path + ".bias", &linear.bias, linear.place});
}

void add_norm(std::vector<CausalLm::Parameter>& all, Norm& norm) {
  if (norm.weight.defined()) all.push_back({site::place_of(norm.place).path + ".weight", &norm.weight, norm.place});
}

void add_mlp(std::vector<CausalLm::Parameter>& all, Mlp& mlp) {
  add_linear(all, mlp.gate_up);
  add_linear(all, mlp.down);
}

}  // namespace

std::vector<CausalLm::Parameter> CausalLm::parameters() {
  std::vector<Parameter> all = {{"model.embed_tokens.weight", &embedding_, embedding_place_}};
  for (Layer& layer : layers_) {
    add_norm(all, layer.input_norm);
    add_linear(all, layer.attention.qkv);
    add_norm(all, layer.attention.query_norm);
    add_norm(all, layer.attention.key_norm);
    add_linear(all, layer.attention.output);
    add_norm(all, layer.post_attention_norm);
    if (auto* mlp = std::get_if<Mlp>(&layer.mlp)) {
      add_mlp(all, *mlp);
      continue;
    }
    Moe& moe = std::get<Moe>(layer.mlp);
    add_linear(all, moe.router);
    for (Mlp& expert : moe.experts) add_mlp(all, expert);
    add_mlp(all, moe.shared);
    add_linear(all, moe.shared_gate);
  }
  add_norm(all, final_norm_);
  if (!config_.tied_output) add_linear(all, head_);
  return all;
}

std::vector<Linear*> CausalLm::linears() {
  std::vector<Linear*> all;
  const auto add = [&](Linear& linear) {
    if (linear.weight.defined()) all.push_back(&linear);
  };
  const auto add_both = [&](Mlp& mlp) { add(mlp.gate_up), add(mlp.down); };
  for (Layer& layer : layers_) {
    add(layer.attention.qkv), add(layer.attention.output);
    if (auto* mlp = std::get_if<Mlp>(&layer.mlp)) {
      add_both(*mlp);
      continue;
    }
    Moe& moe = std::get<Moe>(layer.mlp);
    add(moe.router);
    for (Mlp& expert : moe.experts) add_both(expert);
    add_both(moe.shared), add(moe.shared_gate);
  }
  return all;
}

std::vector<std::string> CausalLm::module_paths() {
  std::vector<std::string> paths = {"model", "lm_head"};
  for (const Layer& layer : layers_) {
    for (const site::PlaceId place :
         {layer.place, layer.attention.place, layer.attention.key_cache, layer.attention.value_cache})
      paths.push_back(site::place_of(place).path);
    for (const Linear::Part& part : layer.attention.qkv.parts) paths.push_back(site::place_of(part.place).path);
    if (const auto* mlp = std::get_if<Mlp>(&layer.mlp)) {
      for (const site::PlaceId place : {mlp->place, mlp->activation}) paths.push_back(site::place_of(place).path);
      for (const Linear::Part& part : mlp->gate_up.parts) paths.push_back(site::place_of(part.place).path);
    } else {
      paths.push_back(site::place_of(std::get<Moe>(layer.mlp).place).path);
    }
  }
  for (const Parameter& parameter : parameters()) paths.push_back(site::place_of(parameter.place).path);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

std::size_t CausalLm::norm_count() const {
  const bool query_key = config_.query_key_norm;
  return layers_.size() * (query_key ? 4 : 2) + 1;
}

}  // namespace faultline::model
