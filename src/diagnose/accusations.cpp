#include "diagnose/accusations.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace faultline {
namespace {

int level_of(const std::string& operation) { return operation == "layer_output" ? 0 : operation == "module" ? 1 : 2; }

}  // namespace

bool Accusations::add(const Observation& observation, int64_t pass) {
  const PlanPause pause;
  ++relations_;
  elements_ += observation.observed.numel();
  std::optional<Judged> judged = judge(observation);
  const std::vector<at::Tensor>& again = observation.repetitions;
  if (!judged) {  // right at first, perhaps not later
    const auto other = std::find_if(again.begin(), again.end(),
                                    [&](const at::Tensor& one) { return !one.equal(observation.observed); });
    if (other == again.end()) return true;
    Observation later = observation;
    later.observed = *other;
    judged = judge(later);
    if (!judged) {  // within its bound, but not the same twice
      later.expected = observation.observed;
      later.tolerance = at::Tensor();
      later.relation = "repetition";
      judged = judge(later);
    }
    if (!judged) return true;
  }
  judged->evidence.pass = pass;
  Accused& accused = accused_[judged->place];
  Candidate& candidate = accused.candidate;
  if (candidate.evidence.empty()) {
    candidate.layer = place_of(judged->place).layer;
    candidate.place = judged->evidence.place;
    candidate.operation = observation.operation;
    candidate.certainty = Certainty::kExact;
    accused.level = level_of(observation.operation);
  }
  if (observation.tolerance.defined() && candidate.evidence.empty()) candidate.certainty = Certainty::kBound;
  if (!observation.tolerance.defined()) candidate.certainty = Certainty::kExact;
  candidate.score += static_cast<double>(judged->evidence.violations);
  candidate.intermittent |= pass > 0;
  candidate.evidence.push_back(std::move(judged->evidence));
  Kind kind = classify(observation, judged->first, judged->size);
  if (kind.name == "zero" && observation.relation == "tiny, not zero") kind.name = "deadzone";  // all of it was small
  Kind& sum = accused.kinds[kind.name];
  if (kind.weight >= sum.weight) sum.detail = kind.detail;
  sum.weight += kind.weight;
  sum.intermittent |= kind.intermittent;
  return false;
}

std::vector<Candidate> Accusations::candidates() const {
  std::map<int64_t, int> level;  // by layer: of the most particular place
  for (const auto& [place, accused] : accused_) {
    int& most = level.try_emplace(accused.candidate.layer, 0).first->second;
    most = std::max(most, accused.level);
  }
  std::vector<Candidate> all;
  for (const auto& [place, accused] : accused_) {
    if (accused.level < level.at(accused.candidate.layer)) continue;
    all.push_back(accused.candidate);
    const auto best = std::max_element(accused.kinds.begin(), accused.kinds.end(),
                                       [](const auto& a, const auto& b) { return a.second.weight < b.second.weight; });
    all.back().kind = best->first;
    all.back().detail = best->second.detail;
    all.back().intermittent |= best->second.intermittent && best->first != "noise" && best->first != "spike";
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  return all;
}

}  // namespace faultline
