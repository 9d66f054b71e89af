// The recipe section `aqn:`: a schedule by its name with its parameters beside it, where the noise goes and in which
// unit.
#pragma once

#include "aqn/norm_noise.h"
#include "base/config/config.h"
#include "numeric/rule.h"

namespace faultline::aqn {

void register_aqn_section();  // of the recipe's schema; once

AqnSpec read_aqn(const Node& aqn);  // validated; reads the verdict's file where one is named

// AQN on activations: noise on the output of decoder layers or of matrix products while the policy samples. It is a
// rule of the plan like any fault, in phase rollout alone and with the noise's schedule as its strength, so it is
// drawn, counted and proven by the same kernels, and its order among the faults of a site is the plan's order: before a
// dead zone it lifts signals over the threshold, behind it it cannot (docs/lessons.md 59).

inline constexpr const char* kNoiseRule = "aqn";  // the rule's name

numeric::Rule noise_rule(const AqnSpec& spec);
int64_t strongest_step(const AqnSpec& spec, int64_t layer_count, int64_t total_steps);  // for checks before step 1

// The faults with the noise before or after them. UsageError where a fault has the noise's name already.
std::vector<numeric::Rule> with_noise(const AqnSpec& spec, std::vector<numeric::Rule> faults);

}  // namespace faultline::aqn
