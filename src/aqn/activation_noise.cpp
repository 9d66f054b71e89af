#include "aqn/activation_noise.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace faultline {
namespace {

Node rollout_only() {
  Node phases = Node::map();
  phases.set("rollout", true);
  for (const char* phase : {"actor_forward", "actor_backward", "ref", "critic", "diagnose", "race"})
    phases.set(phase, false);
  phases.set("eval", "clean");
  return phases;
}

const char* kind_of(AqnScale scale) {
  return scale == AqnScale::kAbsolute   ? "absolute_gaussian"
         : scale == AqnScale::kRelative ? "relative_gaussian"
                                        : "scaled_gaussian";
}

}  // namespace

Rule noise_rule(const AqnSpec& spec) {
  FL_ASSERT(spec.sites != AqnSites::kNormWeight);
  Node what = Node::map(), where = Node::map(), map = Node::map();
  what.set("kind", kind_of(spec.scale));
  what.set("strength",
           spec.schedule.sigma_start > 0 ? spec.schedule.sigma_start : 1);  // the schedule's takes its place
  if (spec.sites == AqnSites::kLayerOutput) {
    where.set("module", "layer_output");
    where.set("surface", "output");
  } else {
    where.set("operator", "matmul");
  }
  map.set("name", kNoiseRule);
  map.set("where", where);
  map.set("what", what);
  map.set("phases", rollout_only());
  Rule rule = read_rule(validate(map, rule_schema(RuleUse::kInPlan)));
  rule.where->layers = spec.layers;
  rule.schedule = spec.schedule;
  return rule;
}

int64_t strongest_step(const AqnSpec& spec, int64_t layer_count, int64_t total_steps) {
  check_noise_layers(spec.layers, layer_count);
  std::vector<int64_t> layers;
  for (const LayerRange& range : spec.layers)
    for (int64_t layer = range.first; layer <= range.last; ++layer) layers.push_back(layer);
  if (spec.layers.empty()) {
    for (int64_t layer = 0; layer < layer_count; ++layer) layers.push_back(layer);
    if (spec.sites == AqnSites::kMatmulOutput) layers.push_back(kNoLayer);  // the output head
  }
  return strongest_step(spec.schedule, layers, layer_count, total_steps);
}

std::vector<Rule> with_noise(const AqnSpec& spec, std::vector<Rule> faults) {
  if (std::any_of(faults.begin(), faults.end(), [](const Rule& fault) { return fault.name == kNoiseRule; }))
    throw UsageError("faults: the name 'aqn' is the noise's own; give the fault another one");
  faults.insert(spec.after_faults ? faults.end() : faults.begin(), noise_rule(spec));
  return faults;
}

}  // namespace faultline
