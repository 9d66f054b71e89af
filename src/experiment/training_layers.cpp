#include "experiment/training_layers.h"

#include <cmath>

namespace faultline {

Json LayerErrors::since_last(Plan& plan) {
  std::map<int64_t, Sums> now;
  for (const Plan::Evidence& evidence : plan.read_evidence()) {
    const LedgerNumbers& numbers = evidence.numbers;
    if (!numbers.relative_rms || !std::isfinite(*numbers.relative_rms)) continue;
    Sums& sums = now[place_of(evidence.row->place).layer];
    sums.squares += *numbers.relative_rms * *numbers.relative_rms * numbers.sampled;
    sums.sampled += numbers.sampled;
  }
  Json errors = Json::object();
  for (const auto& [layer, sums] : now) {
    const Sums& old = before_[layer];
    if (sums.sampled <= old.sampled) continue;
    const double squares = std::max(0.0, sums.squares - old.squares);
    errors[std::to_string(layer)] = std::sqrt(squares / (sums.sampled - old.sampled));
  }
  before_ = std::move(now);
  return errors;
}

}  // namespace faultline
