#include "experiment/comparable.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "experiment/start.h"

namespace faultline::experiment {

std::string SameStart::note(const record::TrialKey& key, const Node& recipe, const std::string& weights) {
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

std::string SameStart::note(const record::Trial& trial, const Node& recipe) {
  const std::string weights = trial.outcome.value("curves", Json::object()).value("start_weights", std::string());
  if (!weights.empty()) return note(trial.key, recipe, weights);
  if (trial.status != record::TrialStatus::kPass || !start_identity(recipe)) return "";
  return fmt::format(
      "the record of arm '{}', seed {} does not say which weights it began with (start_weights), so nothing shows that "
      "the arms of the seed began alike; run it again",
      trial.key.cell, trial.key.index);
}

namespace {

struct Shared {
  const char *section, *key;  // key "": the whole section
  const char* why;
};

constexpr Shared kShared[] = {
    {"model", "", "arms of one experiment train one model"},
    {"task", "", "arms are judged on the same task"},
    {"train", "validation_problems", "arms are judged on the same problems"},
    {"train", "validation_draws", "arms are judged with as many draws of the noise"},
    {"train", "sft", "arms begin with the same supervised steps"},
};

const Node* find(const Node& recipe, const Shared& shared) {
  const Node* section = recipe.find(shared.section);
  return section == nullptr || *shared.key == 0 ? section : section->find(shared.key);
}

bool equal(const Node* one, const Node* other) {
  return one == nullptr || other == nullptr ? one == other : *one == *other;
}

// The first seeds between them take every value of by_seed.
int64_t seeds_to_look_at(const ExperimentSpec& spec) {
  std::size_t most = 1;
  for (const Arm& arm : spec.arms)
    for (const auto& [key, values] : arm.by_seed) most = std::max(most, values.size());
  return static_cast<int64_t>(most);
}

}  // namespace

void check_arms_are_judged_alike(const Node& recipe, const ExperimentSpec& spec) {
  const Arm& control = spec.control.empty() ? spec.arms.front() : spec.arm(spec.control);
  for (int64_t seed = 0; seed < seeds_to_look_at(spec); ++seed) {
    const Node theirs = arm_recipe(recipe, control, seed);
    for (const Arm& arm : spec.arms) {
      const Node ours = arm_recipe(recipe, arm, seed);
      for (const Shared& one : kShared)
        if (!equal(find(ours, one), find(theirs, one)))
          throw UsageError(fmt::format(
              "arm '{}': {}{}{} differs from that of '{}', but {}; change it for all arms, or make two experiments",
              arm.name, one.section, *one.key == 0 ? "" : ".", one.key, control.name, one.why));
    }
  }
}

}  // namespace faultline::experiment
