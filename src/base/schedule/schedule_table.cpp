// The table of schedules: their names, formulas, parameters and ranges, and the check that enforces those ranges. They
// stand together so that what `faultline explain` promises and what check() refuses cannot drift apart.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/schedule/schedule.h"
#include "base/text.h"

namespace faultline {
namespace {

constexpr int64_t kMaxStages = 10'000;
constexpr int64_t kMaxLayer = 100'000;

// Functions rather than globals, so that a registration that runs before main() finds them.
ScheduleParameter start_above_zero() {
  return {"sigma_start", "float", "0.05", "> 0", "strength of the first noisy step"};
}
ScheduleParameter end_below_start() {
  return {"sigma_end", "float", "0.0005", "> 0, at most sigma_start", "strength of the last steps"};
}
ScheduleParameter any_start() { return {"sigma_start", "float", "0.05", ">= 0", "strength at step 0"}; }
ScheduleParameter any_end() {
  return {"sigma_end", "float", "0.0005", ">= 0, not both ends 0", "strength at the last step"};
}
ScheduleParameter multipliers() {
  return {"layer_multipliers", "list of float", "[]", ">= 0 each, not all 0",
          "factor per layer, as many as layers; [] is 1 everywhere"};
}
ScheduleParameter elsewhere() {
  return {"elsewhere", "float", "1", ">= 0", "factor where no layer or zone applies (the final norm)"};
}

ScheduleParameter zones(std::string default_value) {
  return {"zones", "list of {first_layer, last_layer, early, late}", std::move(default_value),
          "at least one, disjoint; factors >= 0", "factors for ranges of layers, ends included, counted from 0"};
}
ScheduleParameter late_from() {
  return {"late_from", "float", "0.5", "> 0 and < 1", "fraction of the run at which a zone's `late` factor begins"};
}
// Every kind but `zones` takes its factors from a list with one for each layer, or from zones.
std::vector<ScheduleParameter> with_factors(std::vector<ScheduleParameter> parameters) {
  for (ScheduleParameter (*factor)() : {multipliers, +[] { return zones("[]"); }, late_from, elsewhere})
    parameters.push_back(factor());
  return parameters;
}

ScheduleInfo global_decay_info() {
  return {ScheduleKind::kGlobalDecay, "global_decay",
          "K intervals of total/K steps: first 0, then sigma_start*(sigma_end/sigma_start)^(i/(K-2)), i = 0..K-2",
          with_factors(
              {start_above_zero(),
               end_below_start(),
               {"num_stages", "int", "10", "1..10000",
                "K; 2 is a silent interval and one level, 1 is constant; a run of fewer steps than K has K = steps"}}),
          "{kind: global_decay, sigma_start: 0.05, sigma_end: 0.0005, num_stages: 10}"};
}

ScheduleInfo epoch_aware_info() {
  return {ScheduleKind::kEpochAware, "epoch_aware", "epoch e in S intervals: b_e*(b_{e+1}/b_e)^(i/(S-1)), i = 0..S-1",
          with_factors({start_above_zero(),
                        end_below_start(),
                        {"epochs", "int", "2", "1..10000", "epochs in the run; boundaries are then geometric"},
                        {"boundaries", "list of float", "[]", "> 0 each, not increasing, at least 2",
                         "strengths b_0..b_E, instead of sigma_start, sigma_end and epochs"},
                        {"stages_per_epoch", "int", "5", "1..10000", "S; an epoch of fewer steps than S has S = steps"},
                        {"warmup_interval", "bool", "false", "true or false",
                         "the first of the S intervals is silent; the others have i/(S-2), i = 0..S-2"}}),
          "{kind: epoch_aware, boundaries: [0.05, 0.01, 0.0005], stages_per_epoch: 5, warmup_interval: true}"};
}

ScheduleInfo constant_info() {
  return {ScheduleKind::kConstant, "constant", "sigma_start at every step", with_factors({start_above_zero()}),
          "{kind: constant, sigma_start: 0.01}"};
}

ScheduleInfo linear_info() {
  return {ScheduleKind::kLinear, "linear", "sigma_start + (sigma_end - sigma_start)*step/(total-1)",
          with_factors({any_start(), any_end()}), "{kind: linear, sigma_start: 0.05, sigma_end: 0}"};
}

ScheduleInfo cosine_info() {
  return {ScheduleKind::kCosine, "cosine", "sigma_end + (sigma_start - sigma_end)*(1 + cos(pi*step/(total-1)))/2",
          with_factors({any_start(), any_end()}), "{kind: cosine, sigma_start: 0.05, sigma_end: 0.0005}"};
}

ScheduleInfo zones_info() {
  return {ScheduleKind::kZones,
          "zones",
          "sigma_start times the zone's `early` factor before step late_from*total, its `late` factor from then on",
          {start_above_zero(), zones("none"), late_from(), elsewhere()},
          "{kind: zones, sigma_start: 0.05, zones: [{first_layer: 10, last_layer: 19, early: 1.5, late: 0.5}], "
          "late_from: 0.5, elsewhere: 1}"};
}

[[noreturn]] void refuse(std::string_view name, double value, std::string_view range) {
  throw UsageError(fmt::format("{} must be finite and {}; got {}", name, range, value));
}

void check_positive(std::string_view name, double value) {
  if (!(std::isfinite(value) && value > 0)) refuse(name, value, "> 0");
}

void check_not_negative(std::string_view name, double value) {
  if (!(std::isfinite(value) && value >= 0)) refuse(name, value, ">= 0");
}

void check_count(std::string_view name, int64_t value) {
  if (value >= 1 && value <= kMaxStages) return;
  throw UsageError(fmt::format("{} must be in 1..{}; got {}", name, kMaxStages, value));
}

void check_falling_ends(const ScheduleSpec& spec) {
  check_positive("sigma_start", spec.sigma_start);
  check_positive("sigma_end", spec.sigma_end);
  if (spec.sigma_end > spec.sigma_start) {
    throw UsageError(
        fmt::format("sigma_end must be at most sigma_start ({}) in a decay; got {}; 'linear' and 'cosine' may rise",
                    spec.sigma_start, spec.sigma_end));
  }
}

void check_any_ends(const ScheduleSpec& spec) {
  check_not_negative("sigma_start", spec.sigma_start);
  check_not_negative("sigma_end", spec.sigma_end);
  if (spec.sigma_start == 0 && spec.sigma_end == 0) {
    throw UsageError(
        "sigma_start and sigma_end are both 0: this schedule never makes noise; for a clean arm leave it out");
  }
}

void check_epochs(const ScheduleSpec& spec) {
  check_count("stages_per_epoch", spec.stages_per_epoch);
  if (spec.boundaries.empty()) {
    check_count("epochs", spec.epochs);
    return check_falling_ends(spec);
  }
  if (spec.boundaries.size() < 2)
    throw UsageError("boundaries must have at least 2 values, one more than epochs; got 1");
  check_count("boundaries, in epochs,", static_cast<int64_t>(spec.boundaries.size()) - 1);
  for (size_t i = 0; i < spec.boundaries.size(); ++i) {
    check_positive(fmt::format("boundaries[{}]", i), spec.boundaries[i]);
    if (i > 0 && spec.boundaries[i] > spec.boundaries[i - 1]) {
      throw UsageError(fmt::format("boundaries[{}] must be at most boundaries[{}] ({}); got {}", i, i - 1,
                                   spec.boundaries[i - 1], spec.boundaries[i]));
    }
  }
}

void check_zone(const ScheduleSpec& spec, size_t index) {
  const LayerZone& zone = spec.zones[index];
  if (zone.first_layer < 0 || zone.last_layer < zone.first_layer || zone.last_layer > kMaxLayer) {
    throw UsageError(fmt::format("zones[{}] must have 0 <= first_layer <= last_layer; got {}..{}", index,
                                 zone.first_layer, zone.last_layer));
  }
  check_not_negative(fmt::format("zones[{}].early", index), zone.early);
  check_not_negative(fmt::format("zones[{}].late", index), zone.late);
  for (size_t other = 0; other < index; ++other) {
    if (zone.first_layer <= spec.zones[other].last_layer && spec.zones[other].first_layer <= zone.last_layer) {
      throw UsageError(fmt::format("zones[{}] and zones[{}] overlap; a layer may be in one zone only", other, index));
    }
  }
}

void check_zones(const ScheduleSpec& spec) {
  if (!(spec.late_from > 0 && spec.late_from < 1)) refuse("late_from", spec.late_from, "> 0 and < 1");
  bool audible = spec.elsewhere > 0;
  for (size_t i = 0; i < spec.zones.size(); ++i) {
    check_zone(spec, i);
    audible = audible || spec.zones[i].early > 0 || spec.zones[i].late > 0;
  }
  if (!audible)
    throw UsageError("zones: every factor is 0: this schedule never makes noise; for a clean arm leave it out");
}

void check_factors(const ScheduleSpec& spec) {
  check_not_negative("elsewhere", spec.elsewhere);
  if (!spec.zones.empty()) check_zones(spec);
  if (spec.layer_multipliers.empty()) return;
  if (!spec.zones.empty() || spec.kind == ScheduleKind::kZones)
    throw UsageError("layer_multipliers and zones both say what a layer's factor is; give one of them");
  for (size_t i = 0; i < spec.layer_multipliers.size(); ++i) {
    check_not_negative(fmt::format("layer_multipliers[{}]", i), spec.layer_multipliers[i]);
  }
  if (std::ranges::none_of(spec.layer_multipliers, [](double factor) { return factor > 0; })) {
    throw UsageError("layer_multipliers are all 0: no layer gets noise; for a clean arm leave the schedule out");
  }
}

}  // namespace

std::span<const ScheduleInfo> schedule_infos() {
  static const std::vector<ScheduleInfo> infos = {global_decay_info(), epoch_aware_info(), constant_info(),
                                                  linear_info(),       cosine_info(),      zones_info()};
  return infos;
}

std::string_view schedule_name(ScheduleKind kind) {
  for (const ScheduleInfo& info : schedule_infos()) {
    if (info.kind == kind) return info.name;
  }
  FL_ASSERT(false);
  return "";
}

ScheduleKind schedule_kind(std::string_view name) {
  std::vector<std::string> known;
  for (const ScheduleInfo& info : schedule_infos()) {
    if (info.name == name) return info.kind;
    known.push_back(info.name);
  }
  throw UsageError(fmt::format("no schedule is called '{}'; there are {}{}", name, fmt::join(known, ", "),
                               did_you_mean(name, known)));
}

void check(const ScheduleSpec& spec) {
  check_factors(spec);
  switch (spec.kind) {
    case ScheduleKind::kGlobalDecay: check_count("num_stages", spec.num_stages); return check_falling_ends(spec);
    case ScheduleKind::kEpochAware: return check_epochs(spec);
    case ScheduleKind::kConstant: return check_positive("sigma_start", spec.sigma_start);
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine: return check_any_ends(spec);
    case ScheduleKind::kZones:
      if (spec.zones.empty()) throw UsageError("zones must name at least one range of layers; for none use 'constant'");
      return check_positive("sigma_start", spec.sigma_start);
  }
  FL_ASSERT(false);
}

}  // namespace faultline
