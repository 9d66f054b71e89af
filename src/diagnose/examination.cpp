#include "diagnose/examination.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "diagnose/methods.h"
#include "tap/plan.h"

namespace faultline::diagnose {

Examiner::Examiner(const model::CausalLm& model, const at::Device& reference, uint64_t seed, bool keep)
    : model_(model), device_(reference), seed_(seed) {
  reference_.device = reference;
  reference_.keep_weights = keep;
}

const std::map<site::PlaceId, KnownAnswers>& Examiner::answers() {
  if (answers_.empty()) {
    const PlanPause pause;
    answers_ = known_answers(model_, seed_, device_);
  }
  return answers_;
}

Diagnosis Examiner::run(const Examination& examination) {
  const at::Tensor tokens = examination.tokens.to(model_.device());
  if (examination.method == "self")
    return diagnose_self(model_, answers(), {tokens, examination.seed, examination.passes, true});
  if (examination.method == "shadow") return diagnose_shadow(model_, reference_, {tokens, examination.passes});
  if (examination.method == "classic")
    return diagnose_classic(model_, {tokens, examination.seed, !examination.whole_forwards});
  static const std::vector<std::string> methods = {"classic", "self", "shadow"};
  throw UsageError(
      fmt::format("there is no method '{}'{}", examination.method, did_you_mean(examination.method, methods)));
}

namespace {

// "model.layers.7", "matmul at model.layers.7.mlp.up_proj", "down_proj at 30 places".
std::string place_words(const site::Selector& where, const std::set<site::PlaceId>& places) {
  const std::string& pattern = where.operator_pattern.empty() ? where.module_pattern : where.operator_pattern;
  if (places.size() != 1) return fmt::format("{} at {} places", pattern, places.size());
  const std::string& path = site::place_of(*places.begin()).path;
  if (where.operator_pattern.empty()) return path;
  return path.empty() ? pattern : fmt::format("{} at {}", pattern, path);
}

}  // namespace

Planted planted_by(tap::Plan& plan) {
  Planted planted;
  const std::vector<tap::Plan::Evidence> all = plan.read_evidence();
  for (const auto& rule : plan.rules()) {
    const site::Selector& where = *rule->rule.where;
    Planted::Rule one{rule->rule.name, std::string(site::surface_name(where.surface)), "", 0, 0};
    std::set<site::PlaceId> places;
    for (const auto& [row, numbers] : all) {
      if (row->rule != rule.get()) continue;
      places.insert(row->place);
      one.calls += static_cast<int64_t>(numbers.active_calls), one.changed += static_cast<int64_t>(numbers.changed);
    }
    one.place = place_words(where, places);
    planted.rules.push_back(std::move(one));
  }
  for (const tap::Plan::Evidence& evidence : all) {
    planted.calls += static_cast<int64_t>(evidence.numbers.active_calls);
    planted.changed += static_cast<int64_t>(evidence.numbers.changed);
    planted.largest_error = std::max(planted.largest_error, evidence.numbers.max_abs_error);
    planted.mean_error = std::max(planted.mean_error, evidence.numbers.mean_abs_error);
  }
  return planted;
}

Json to_json(const Planted& planted) {
  Json rules = Json::array();
  for (const Planted::Rule& rule : planted.rules)
    rules.push_back({{"rule", rule.name},
                     {"surface", rule.surface},
                     {"place", rule.place},
                     {"calls", rule.calls},
                     {"changed", rule.changed}});
  return {{"calls", planted.calls}, {"changed", planted.changed}, {"rules", rules}};
}

}  // namespace faultline::diagnose
