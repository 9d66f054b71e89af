#include "diagnose/accusations.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace faultline::diagnose {
namespace {

constexpr int64_t kMostWaiting = int64_t{1} << 21;  // elements
constexpr int kOperatorLevel = 2;
constexpr const char* kSwallowed = "tiny, not zero";

int level_of(const std::string& operation) {
  return operation == "layer_output" ? 0 : operation == "module" ? 1 : kOperatorLevel;
}

}  // namespace

void Accusations::add(Observation observation, int64_t pass) {
  waiting_elements_ += observation.observed.numel();
  waiting_.push_back(std::move(observation)), waiting_passes_.push_back(pass);
  if (waiting_elements_ > kMostWaiting) settle();
}

void Accusations::note_kept(const Observation& observation, const Glance& seen) { count(observation, seen); }

void Accusations::note_untested(site::PlaceId place, int64_t elements) {
  Untested& layer = by_layer_[site::place_of(place).layer];
  layer.elements += elements, layer.of += elements;
}

// A relation of which nothing could be judged is none.
void Accusations::count(const Observation& observation, const Glance& seen) {
  const int64_t elements = observation.observed.numel(), judged = elements - seen.untested;
  relations_ += judged > 0;
  elements_ += judged;
  Untested& layer = by_layer_[site::place_of(observation.place).layer];
  layer.elements += seen.untested, layer.of += elements;
}

std::vector<Untested> Accusations::untested() const {
  std::vector<Untested> all;
  for (const auto& [index, layer] : by_layer_)
    if (layer.elements > 0) all.push_back({index, layer.elements, layer.of});
  return all;
}

void Accusations::settle() {
  if (waiting_.empty()) return;
  const PlanPause pause;
  const std::vector<Observation> observations = std::exchange(waiting_, {});
  const std::vector<int64_t> passes = std::exchange(waiting_passes_, {});
  waiting_elements_ = 0;
  const std::vector<Glance> seen = glance(observations);
  for (std::size_t i = 0; i < observations.size(); ++i) {
    count(observations[i], seen[i]);
    if (seen[i].suspect) accuse(observations[i], passes[i]);
  }
}

void Accusations::settle_what_can_be() {
  try {
    settle();
  } catch (const c10::Error&) {  // lost with the device
  }
}

bool Accusations::any() {
  settle();
  return !accused_.empty();
}

void Accusations::accuse(const Observation& observation, int64_t pass) {
  std::optional<Judged> judged = judge(observation);
  if (!judged) {  // right at first, perhaps not later
    const std::vector<at::Tensor>& again = observation.repetitions;
    const auto other = std::find_if(again.begin(), again.end(),
                                    [&](const at::Tensor& one) { return !one.equal(observation.observed); });
    if (other == again.end()) return;
    Observation later = observation;
    later.observed = *other;
    judged = judge(later);
    if (!judged) {  // within its bound, but not the same twice
      later.expected = observation.observed;
      later.tolerance = at::Tensor();
      later.relation = kRepetition;
      judged = judge(later);
    }
    if (!judged) return;
  }
  judged->evidence.pass = pass;
  Accused& accused = accused_[judged->place];
  Candidate& candidate = accused.candidate;
  const int level = level_of(observation.operation);
  if (candidate.evidence.empty()) {
    candidate.layer = site::place_of(judged->place).layer;
    candidate.place = judged->evidence.place;
    candidate.certainty = Certainty::kExact;
  }
  if (level > accused.level) {
    candidate.operation = observation.operation;
    accused.level = level;
    accused.kinds.clear();
  }
  if (observation.tolerance.defined() && candidate.evidence.empty()) candidate.certainty = Certainty::kBound;
  if (!observation.tolerance.defined()) candidate.certainty = Certainty::kExact;
  candidate.score += static_cast<double>(judged->evidence.violations);
  candidate.intermittent |= pass > 0;
  candidate.evidence.push_back(std::move(judged->evidence));
  Kind kind = classify(observation, judged->first, judged->size);
  const bool swallowed = observation.relation == kSwallowed;
  if (kind.name == "zero" && swallowed) kind.name = "deadzone";  // all of it was small
  accused.comes_and_goes |= pass > 0 || kind.intermittent || kind.fresh || observation.relation == kRepetition ||
                            (kind.name == "unexplained" && !kind.repeats) || kind.name == "spike";
  if (level < accused.level) return;  // a module blurs what its operator does
  Named& named = accused.kinds[kind.name];
  if (kind.weight >= named.heaviest.weight) named.heaviest = kind;
  named.weight += kind.weight;
  named.intermittent |= kind.intermittent;
  if (!swallowed) named.zone.add(kind.zone);  // there the sizes are of what went in, not of what should have come out
}

const Zone& Accusations::zone_of(const Named& named) {
  return named.zone.relative.lost > 0 ? named.zone : named.heaviest.zone;
}

std::vector<int64_t> Accusations::layers_to_search() {
  settle();
  struct Layer {
    bool comes_and_goes = false, operator_caught = false;
  };
  std::map<int64_t, Layer> layers;
  for (const auto& [place, accused] : accused_) {
    Layer& layer = layers[accused.candidate.layer];
    layer.comes_and_goes |= accused.comes_and_goes;
    layer.operator_caught |= accused.level >= kOperatorLevel;
  }
  std::vector<int64_t> found;
  for (const auto& [index, layer] : layers)
    if (index >= 0 && layer.comes_and_goes && !layer.operator_caught) found.push_back(index);
  return found;
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
    auto best = std::max_element(accused.kinds.begin(), accused.kinds.end(),
                                 [](const auto& a, const auto& b) { return a.second.weight < b.second.weight; });
    // Relations that asked once could not tell that it was noise.
    if (const auto noise = accused.kinds.find("noise"); best->first == "unexplained" && noise != accused.kinds.end())
      best = noise;
    all.back().kind = best->first;
    all.back().detail = best->first == "deadzone" ? zone_of(best->second).words() : best->second.heaviest.detail;
    all.back().intermittent |= best->second.intermittent && best->first != "noise" && best->first != "spike";
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  return all;
}

}  // namespace faultline::diagnose
