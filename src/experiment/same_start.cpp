#include "experiment/same_start.h"

#include <fmt/format.h>

#include "experiment/start.h"

namespace faultline {

std::string SameStart::note(const TrialKey& key, const Node& recipe, const std::string& weights) {
  const std::optional<std::string> steps = start_identity(recipe);
  if (!steps) return "";
  const Begun& first = first_.try_emplace(*steps, Begun{key, weights}).first->second;
  if (first.weights == weights) return "";
  return fmt::format(
      "arm '{}' began seed {} with other weights than arm '{}' (digests {:.16} and {:.16}): the supervised steps that "
      "the arms of a seed share were trained twice, with different results; run all arms of a seed in one folder on "
      "one "
      "kind of machine (--seeds)",
      key.cell, key.index, first.key.cell, weights, first.weights);
}

std::string SameStart::note(const Trial& trial, const Node& recipe) {
  const std::string weights = trial.outcome.value("curves", Json::object()).value("start_weights", std::string());
  if (!weights.empty()) return note(trial.key, recipe, weights);
  if (trial.status != TrialStatus::kPass || !start_identity(recipe)) return "";
  return fmt::format(
      "the record of arm '{}', seed {} does not say which weights it began with (start_weights), so nothing shows that "
      "the arms of the seed began alike; run it again",
      trial.key.cell, trial.key.index);
}

}  // namespace faultline
