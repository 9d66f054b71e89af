#include "experiment/arms_alike.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace faultline {
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

}  // namespace faultline
