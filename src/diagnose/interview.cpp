#include "diagnose/interview.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace faultline::diagnose {
Interview::Interview(std::map<std::string, ModuleFacts> modules, InterviewOptions options)
    : modules_(std::move(modules)), options_(std::move(options)) {
  std::map<int64_t, std::string> layers;
  for (const auto& [path, facts] : modules_) {
    if (site::role_of_path(path) == "layer") layers[site::layer_of_path(path)] = path;
    if (facts.weight.defined() && facts.weight.is_floating_point()) dtype_ = facts.weight.scalar_type();
  }
  for (const auto& [index, path] : layers) layers_.push_back(path);
  if (layers_.empty())
    throw UsageError("no decoder layers are found: modules called layers.0, layers.1, … (or h.0, blocks.0) are wanted");
  if (options_.tokens.dim() != 2 || options_.tokens.size(0) != 1 || options_.tokens.numel() == 0)
    throw UsageError("tokens: one row of at least one token is wanted, (1, T)");
  for (const auto& [path, facts] : modules_) {
    if (site::layer_of_path(path) < 0) continue;
    biases_ |= facts.bias.defined();
    if (facts.type == "linear") layer_weights_ += static_cast<double>(facts.weight.numel());
  }
  note_limits();
}

const ModuleFacts* Interview::find(const std::string& path) const {
  const auto found = modules_.find(path);
  return found == modules_.end() ? nullptr : &found->second;
}

void Interview::note_limits() {
  if (dtype_ == at::kHalf)
    not_tested_.push_back("fp16 has no range for the relation infinity: gains and offsets of a layer's output");
  if (biases_)
    not_tested_.push_back("modules with biases: g(0) is not 0, so absolute faults of a layer's output are not tested");
  std::set<std::string> unknown;
  for (const auto& [path, facts] : modules_) {
    if (facts.type == "other" && site::layer_of_path(path) >= 0 && facts.weight.defined())
      unknown.insert(facts.class_name);
    if (facts.weight.defined() && !facts.weight.isfinite().all().item<bool>())
      not_tested_.push_back(path + ": its weights are not finite");
  }
  for (const std::string& name : unknown) not_tested_.push_back("modules of class " + name + ": no known answers");
  if (options_.head_size == 0) not_tested_.push_back("attention: the size of a head is not known");
}

void Interview::add(Probe probe, std::function<void(const Answers&)> judge) {
  steps_.push_back({std::move(probe), std::move(judge)});
}

void Interview::observe(Observation observation) {
  accusations_.add(std::move(observation), pass_);
  accusations_.settle();
}

void Interview::begin_pass() {
  layer_ = 0;
  Probe probe{Probe::Call::kModel, "", options_.tokens, 1, {}};
  for (const std::string& layer : layers_) probe.records.push_back({layer, false});
  const std::string table = [&] {
    for (const auto& [path, facts] : modules_)
      if (facts.type == "embedding") return path;
    return std::string();
  }();
  if (!table.empty()) probe.records.push_back({table, true});
  add(std::move(probe), [this, table](const Answers& answers) {
    inputs_.assign(answers[0].begin() + 1, answers[0].begin() + 1 + std::ssize(layers_));
    if (table.empty()) return;
    const PlanPause pause;
    const at::Tensor rows =
        modules_.at(table).weight.index_select(0, options_.tokens.reshape(-1).to(modules_.at(table).weight.device()));
    observe({"rows of the table", "embedding", site::place_id(table), rows, answers[0].back().reshape(rows.sizes())});
  });
}

void Interview::add_layer(int64_t index) {
  const std::string& layer = layers_[static_cast<std::size_t>(index)];
  const at::Tensor& x = inputs_[static_cast<std::size_t>(index)];
  for (const auto& [path, facts] : modules_)
    if (path.starts_with(layer + ".") && facts.weight.defined() && !facts.weight.isfinite().all().item<bool>()) return;
  add_whole_layer(layer, x);
  for (const auto& [path, facts] : modules_) {
    if (!path.starts_with(layer + ".")) continue;
    if (facts.type == "linear") add_linear(path, facts);
    if (facts.type == "rms_norm") add_norm(path, facts);
    if (facts.type == "silu") add_activation(path);
    if (path == layer + ".self_attn") add_attention(path, x);
    if (path == layer + ".mlp") add_mlp(path);
  }
}

void Interview::add_ends() {
  for (const auto& [path, facts] : modules_) {
    if (site::layer_of_path(path) >= 0 || (facts.weight.defined() && !facts.weight.isfinite().all().item<bool>()))
      continue;
    if (facts.type == "linear") add_linear(path, facts);
    if (facts.type == "rms_norm") add_norm(path, facts);
  }
}

std::optional<Probe> Interview::next() {
  FL_ASSERT(!asked_.has_value());
  const at::NoGradGuard no_gradients;
  while (steps_.empty()) {
    if (broken_off_) return std::nullopt;
    if (inputs_.empty()) {
      begin_pass();
    } else if (layer_ < std::ssize(layers_)) {
      add_layer(layer_++);
      if (layer_ == std::ssize(layers_)) add_ends();
    } else {
      if (++pass_ >= options_.passes || accusations_.any()) return std::nullopt;
      inputs_.clear();
    }
  }
  asked_ = std::move(steps_.front());
  steps_.pop_front();
  calls_ += asked_->probe.times;
  return asked_->probe;
}

void Interview::answer(const std::vector<at::Tensor>& tensors) {
  if (!asked_) throw UsageError("no probe is waiting for an answer");
  const Step step = std::move(*asked_);
  asked_.reset();
  const std::size_t each = 1 + step.probe.records.size();
  if (tensors.size() != each * static_cast<std::size_t>(step.probe.times))
    throw UsageError(fmt::format("the probe of '{}' wants {} tensors, {} came", step.probe.module,
                                 each * static_cast<std::size_t>(step.probe.times), tensors.size()));
  const at::NoGradGuard no_gradients;
  Answers answers;
  for (std::size_t i = 0; i < tensors.size(); i += each) {
    answers.emplace_back();
    for (std::size_t j = i; j < i + each; ++j) answers.back().push_back(tensors[j].detach());
  }
  step.judge(answers);
}

void Interview::fail(const std::string& sentence) {
  const std::string module = asked_ ? asked_->probe.module : "";
  asked_.reset();
  steps_.clear();
  broken_off_ = true;
  not_tested_.push_back(fmt::format("the machine failed in the middle, at '{}'; what was not asked by then: {}",
                                    module.empty() ? "the model" : module, sentence));
}

Diagnosis Interview::verdict() const {
  Diagnosis diagnosis;
  diagnosis.method = "self";
  diagnosis.candidates = accusations_.candidates();
  diagnosis.not_tested = not_tested_;
  diagnosis.relations = accusations_.relations();
  diagnosis.elements = accusations_.elements();
  diagnosis.untested = accusations_.untested();
  diagnosis.passes = std::max<int64_t>(1, pass_);
  diagnosis.operator_calls = calls_;
  diagnosis.broken_off = broken_off_;
  const auto tokens = static_cast<double>(options_.tokens.numel());
  diagnosis.layer_forwards = 1 + layer_rows_ / tokens / static_cast<double>(layers_.size());
  diagnosis.forwards = diagnosis.layer_forwards + operator_products_ / std::max(1.0, layer_weights_ * tokens);
  diagnosis.not_excluded = {"faults of the rotation, and of a softmax over more than one key, that repeat themselves"};
  if (!diagnosis.fault_found())
    diagnosis.not_excluded.push_back(fmt::format("a fault that acts in less than {:.2g} of the calls (95 %)",
                                                 1 - std::pow(0.05, 1.0 / static_cast<double>(2 * diagnosis.passes))));
  say_untested(diagnosis);
  diagnosis.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return diagnosis;
}

}  // namespace faultline::diagnose
