// The arithmetic of schedules. Interval boundaries come from integer division (interval = step * stages / total), so
// they are the published switch steps exactly, whatever the rounding of floating point.
//
// Note [Short schedules]
// A decay with a warm-up interval needs three intervals: one silent, two levels. With fewer it degrades in one way
// only: the intervals of a span of L steps are S = min(stages, L), and
//   S >= 3  silent, then S-1 levels from the first strength to the last;
//   S == 2  silent, then the first strength;
//   S == 1  the first strength from its first step on; a span of one step is therefore never silent.
// An epoch that gets no step at all (total < epochs) is skipped. schedule_note() says when any of this happens.
#include "base/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace faultline {
namespace {

constexpr int64_t kMaxSteps = 1'000'000'000'000;  // step * stages stays below 2^63

// Geometric interpolation, exact at both ends and never outside of them.
double geometric(double first, double last, double fraction) {
  if (fraction <= 0) return first;
  if (fraction >= 1) return last;
  const double between = std::exp(std::log(first) + fraction * (std::log(last) - std::log(first)));
  return std::clamp(between, std::min(first, last), std::max(first, last));
}

// Strength within one span of `length` steps; see Note [Short schedules].
double staged(double first, double last, int64_t stages, bool silent_first, int64_t step, int64_t length) {
  const int64_t count = std::min(stages, length);
  const int64_t interval = step * count / length;
  if (count == 1) return first;
  if (silent_first && interval == 0) return 0.0;
  const int64_t level = silent_first ? interval - 1 : interval;
  const int64_t last_level = silent_first ? count - 2 : count - 1;
  return last_level == 0 ? first : geometric(first, last, static_cast<double>(level) / static_cast<double>(last_level));
}

int64_t epoch_count(const ScheduleSpec& spec) {
  return spec.boundaries.empty() ? spec.epochs : static_cast<int64_t>(spec.boundaries.size()) - 1;
}

double epoch_boundary(const ScheduleSpec& spec, int64_t index) {
  if (!spec.boundaries.empty()) return spec.boundaries[static_cast<size_t>(index)];
  return geometric(spec.sigma_start, spec.sigma_end, static_cast<double>(index) / static_cast<double>(spec.epochs));
}

int64_t first_step_of(int64_t part, int64_t parts, int64_t total) { return (part * total + parts - 1) / parts; }

double epoch_aware_strength(const ScheduleSpec& spec, int64_t step, int64_t total) {
  const int64_t epochs = epoch_count(spec);
  const int64_t epoch = step * epochs / total;
  const int64_t begin = first_step_of(epoch, epochs, total);
  const int64_t length = first_step_of(epoch + 1, epochs, total) - begin;
  return staged(epoch_boundary(spec, epoch), epoch_boundary(spec, epoch + 1), spec.stages_per_epoch,
                spec.warmup_interval, step - begin, length);
}

// 0 at the first step, 1 at the last; 0 where there is only one.
double progress(int64_t step, int64_t total) {
  return total == 1 ? 0.0 : static_cast<double>(step) / static_cast<double>(total - 1);
}

double cosine_strength(const ScheduleSpec& spec, double fraction) {
  const double weight = 0.5 * (1 + std::cos(std::numbers::pi * fraction));
  return std::lerp(spec.sigma_end, spec.sigma_start, weight);  // exact at both ends
}

int64_t first_late_step(const ScheduleSpec& spec, int64_t total) {
  constexpr double kSlack = 1e-9;  // 0.07 * 100 is 7.000000000000001 and means step 7
  return static_cast<int64_t>(std::ceil(spec.late_from * static_cast<double>(total) * (1 - kSlack)));
}

int64_t checked_step(int64_t step, int64_t total) {
  if (total < 1 || total > kMaxSteps) {
    throw UsageError(fmt::format("total_steps must be in 1..{}; got {}", kMaxSteps, total));
  }
  if (step < 0) throw UsageError(fmt::format("step must be 0 or more; got {}", step));
  return std::min(step, total - 1);
}

double zone_multiplier(const ScheduleSpec& spec, int64_t layer, int64_t layer_count, bool late) {
  double multiplier = spec.elsewhere;
  for (const LayerZone& zone : spec.zones) {
    if (zone.last_layer >= layer_count) {
      throw UsageError(fmt::format("zones: layers {}..{} reach beyond the model, whose layers are 0..{}",
                                   zone.first_layer, zone.last_layer, layer_count - 1));
    }
    if (layer >= zone.first_layer && layer <= zone.last_layer) multiplier = late ? zone.late : zone.early;
  }
  return multiplier;
}

std::string staged_note(std::string_view parameter, int64_t stages, bool silent_first, int64_t length) {
  const int64_t count = std::min(stages, length);
  const std::string cause = length < stages
                                ? fmt::format("{} is {} but there are {} steps for it, so ", parameter, stages, length)
                                : fmt::format("{} is {}, so ", parameter, stages);
  if (count == 1) return cause + "the first strength holds from the first step, without a silent interval or a decay";
  if (count == 2 && silent_first) return cause + "a silent interval is followed by the first strength, without a decay";
  return length < stages ? cause + fmt::format("{} intervals are used", count) : "";
}

std::string epoch_note(const ScheduleSpec& spec, int64_t total) {
  const int64_t epochs = epoch_count(spec);
  if (total < epochs)
    return fmt::format("{} epochs but {} steps, so {} epochs have no step", epochs, total, epochs - total);
  return staged_note("stages_per_epoch", spec.stages_per_epoch, spec.warmup_interval, total / epochs);
}

}  // namespace

double strength_at(const ScheduleSpec& spec, int64_t step, int64_t total_steps) {
  check(spec);
  const int64_t at = checked_step(step, total_steps);
  switch (spec.kind) {
    case ScheduleKind::kGlobalDecay:
      return staged(spec.sigma_start, spec.sigma_end, spec.num_stages, true, at, total_steps);
    case ScheduleKind::kEpochAware: return epoch_aware_strength(spec, at, total_steps);
    case ScheduleKind::kConstant:
    case ScheduleKind::kZones: return spec.sigma_start;
    case ScheduleKind::kLinear: return std::lerp(spec.sigma_start, spec.sigma_end, progress(at, total_steps));
    case ScheduleKind::kCosine: return cosine_strength(spec, progress(at, total_steps));
  }
  FL_ASSERT(false);
  return 0;
}

double layer_multiplier(const ScheduleSpec& spec, int64_t layer, int64_t layer_count, int64_t step,
                        int64_t total_steps) {
  check(spec);
  const int64_t at = checked_step(step, total_steps);
  if (layer_count < 1) throw UsageError(fmt::format("layer_count must be 1 or more; got {}", layer_count));
  if (layer < kNoLayer || layer >= layer_count) {
    throw UsageError(
        fmt::format("layer must be in 0..{}, or {} for no layer; got {}", layer_count - 1, kNoLayer, layer));
  }
  if (!spec.zones.empty()) return zone_multiplier(spec, layer, layer_count, at >= first_late_step(spec, total_steps));
  const auto listed = static_cast<int64_t>(spec.layer_multipliers.size());
  if (listed == 0) return layer == kNoLayer ? spec.elsewhere : 1.0;
  if (listed != layer_count) {
    throw UsageError(fmt::format("layer_multipliers has {} values; the model has {} layers", listed, layer_count));
  }
  return layer == kNoLayer ? spec.elsewhere : spec.layer_multipliers[static_cast<size_t>(layer)];
}

bool changes_over(const ScheduleSpec& spec, int64_t total_steps) {
  check(spec);
  checked_step(0, total_steps);
  const int64_t late = first_late_step(spec, total_steps);
  if (late > 0 && late < total_steps &&
      std::any_of(spec.zones.begin(), spec.zones.end(), [](const LayerZone& zone) { return zone.early != zone.late; }))
    return true;
  if (spec.kind == ScheduleKind::kConstant || spec.kind == ScheduleKind::kZones) return false;
  const double first = strength_at(spec, 0, total_steps);
  for (int64_t step = 1; step < total_steps; ++step)
    if (strength_at(spec, step, total_steps) != first) return true;
  return false;
}

std::string schedule_note(const ScheduleSpec& spec, int64_t total_steps) {
  check(spec);
  checked_step(0, total_steps);
  switch (spec.kind) {
    case ScheduleKind::kGlobalDecay: return staged_note("num_stages", spec.num_stages, true, total_steps);
    case ScheduleKind::kEpochAware: return epoch_note(spec, total_steps);
    case ScheduleKind::kConstant: return "";
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      return total_steps == 1 ? "one step only, so sigma_start holds and sigma_end is not reached" : "";
    case ScheduleKind::kZones:
      return first_late_step(spec, total_steps) >= total_steps ? "the run ends before the late phase begins" : "";
  }
  FL_ASSERT(false);
  return "";
}

}  // namespace faultline
