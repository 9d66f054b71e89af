#include "lab/countable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "model/product.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"

namespace faultline {

void refuse_operators_chosen_by_rows(const Plan& plan, const c10::Device& device, bool scores) {
  if (!product_depends_on_rows(device)) return;
  constexpr std::array<const char*, 3> kProducts = {"faultline::few_rows_linear", "aten::mm", "aten::addmm"};
  PhaseSet with_gradients;  // there torch's product is used for any number of rows
  for (const Phase phase : {Phase::kActorForward, Phase::kActorBackward, Phase::kRecompute})
    with_gradients.set(static_cast<std::size_t>(phase), phase != Phase::kActorForward || !scores);
  for (const auto& rule : plan.rules()) {
    const std::string& pattern = rule->rule.where->operator_pattern;
    if (pattern.empty() || (rule->phases & ~with_gradients).none()) continue;
    std::set<std::string> meant;
    for (const std::string& name : operators_of(*rule)) meant.insert(std::string(base_name(name)));
    const auto count =
        std::count_if(kProducts.begin(), kProducts.end(), [&](auto name) { return meant.contains(name); });
    if (count == 0 || count == std::ssize(kProducts)) continue;
    throw UsageError(fmt::format(
        "rule '{}': operator '{}' means only some of the operators that compute a product on {} ({}); which of "
        "them runs depends on the number of rows, so its calls could not be counted on; name the family: "
        "operator: matmul",
        rule->rule.name, pattern, device.str(), fmt::join(kProducts, ", ")));
  }
}

void refuse_rules_without_a_step(const Plan& plan) {
  const int64_t steps = plan.settings().total_steps;
  const std::string run = fmt::format("the run has {} step{}", steps, steps == 1 ? "" : "s");
  for (const auto& rule : plan.rules()) {
    const LifetimeSpec& lifetime = rule->rule.lifetime;
    if (lifetime.kind == Lifetime::kWindow && lifetime.from >= steps)
      throw UsageError(fmt::format("rule '{}': its window opens at step {}, counted from 0, and {}: it would never act",
                                   rule->rule.name, lifetime.from, run));
    if (!rule->rule.schedule) continue;
    int64_t silent = 0;
    while (silent < steps && strength_at(*rule->rule.schedule, silent, steps) == 0) ++silent;
    if (silent == steps)
      throw UsageError(fmt::format("rule '{}': its schedule is 0 all the time: {}", rule->rule.name, run));
  }
}

}  // namespace faultline
