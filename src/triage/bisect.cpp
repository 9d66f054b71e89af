#include "triage/bisect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/stats/stats.h"

namespace faultline::triage {
namespace {

constexpr size_t kMostMitigations = 10;

// Trials of one set, until the first failure or `wanted` valid ones. A set whose trials only end in errors does not
// stop anything.
BisectStep try_set(const std::vector<std::string>& names, int64_t wanted, bool until_failure, const BisectTrial& trial,
                   BisectResult& result, int64_t most) {
  BisectStep step;
  step.mitigations = names;
  while (step.trials < wanted && result.trials < most) {
    ++result.trials;
    const TrialVerdict verdict = trial(names, step.trials + step.errors);
    if (verdict == TrialVerdict::kError) {
      if (++step.errors > wanted) break;
      continue;
    }
    ++step.trials;
    step.failures += verdict == TrialVerdict::kFail;
    if (until_failure && step.failures > 0) break;
  }
  step.stops = step.failures == 0 && step.trials >= wanted;
  return step;
}

std::string set_text(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, " + ")); }

}  // namespace

std::vector<std::vector<std::string>> subsets_by_size(const std::vector<std::string>& names) {
  std::vector<uint32_t> masks;
  for (uint32_t mask = 1; mask < (1u << names.size()); ++mask) masks.push_back(mask);
  std::stable_sort(masks.begin(), masks.end(),
                   [](uint32_t a, uint32_t b) { return std::popcount(a) < std::popcount(b); });
  std::vector<std::vector<std::string>> subsets;
  for (const uint32_t mask : masks) {
    std::vector<std::string>& subset = subsets.emplace_back();
    for (size_t i = 0; i < names.size(); ++i)
      if ((mask >> i & 1u) != 0) subset.push_back(names[i]);
  }
  return subsets;
}

BisectResult bisect(const BisectOptions& options, const BisectTrial& trial) {
  if (options.mitigations.empty() || options.mitigations.size() > kMostMitigations)
    throw UsageError(
        fmt::format("bisect wants 1 to {} mitigations, got {}", kMostMitigations, options.mitigations.size()));
  BisectResult result;
  const auto say = [&](const std::string& sentence) {
    if (options.say) options.say(sentence);
  };
  result.steps.push_back(try_set({}, options.baseline_trials, false, trial, result, options.max_trials));
  const BisectStep baseline = result.steps.back();
  if (baseline.failures == 0) {
    result.sentence = fmt::format("the baseline did not fail in {} trials ({} errors): there is nothing to search for",
                                  baseline.trials, baseline.errors);
    return result;
  }
  result.reproduced = true;
  result.baseline_low = clopper_pearson_lower(baseline.failures, baseline.trials);
  const auto sets = subsets_by_size(options.mitigations);
  const double each = options.error / static_cast<double>(sets.size());  // Bonferroni over all sets that may be tried
  result.trials_each = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(std::log(each) / std::log1p(-std::min(0.999, result.baseline_low)))));
  say(fmt::format("baseline: {}/{} fail, rate at least {:.1f} %; {} clean trials in a row show that a set stops it",
                  baseline.failures, baseline.trials, 100 * result.baseline_low, result.trials_each));
  for (const auto& set : sets) {
    result.steps.push_back(try_set(set, result.trials_each, true, trial, result, options.max_trials));
    const BisectStep& step = result.steps.back();
    say(fmt::format("{}: {} in {} trials{}", set_text(set),
                    step.stops          ? "no failure"
                    : step.failures > 0 ? "a failure"
                                        : "undecided",
                    step.trials, step.errors > 0 ? fmt::format(", {} errors", step.errors) : ""));
    if (step.stops) {
      result.found = true;
      result.mitigations = set;
      result.sentence = fmt::format(
          "{} stops the failure: 0 of {} trials where the baseline fails in at least {:.1f} %; the chance that this "
          "search names a set that does not is at most {:.1f} %",
          set_text(set), step.trials, 100 * result.baseline_low, 100 * options.error);
      return result;
    }
    if (result.trials >= options.max_trials) {
      result.sentence = fmt::format("undecided after {} trials; raise --max-trials", result.trials);
      return result;
    }
  }
  result.sentence = "no set of these mitigations stops the failure";
  return result;
}

}  // namespace faultline::triage
