// Schedules: how strong a noise is at a training step, as pure functions of (specification, step, total). Nothing here
// keeps state, so the trainer, the sampler in another process and a resumed run agree by construction; and the same
// function that is printed is the one applied (a published result came from a look-up that read 0.05 in the log and 0
// in the model). No schedule is ever NaN or off by accident: see Note [Short schedules].
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/schema.h"

namespace faultline {

enum class ScheduleKind { kGlobalDecay, kEpochAware, kConstant, kLinear, kCosine, kZones };

// Layers first_layer..last_layer, both included, counted from 0.
struct LayerZone {
  int64_t first_layer = 0;
  int64_t last_layer = 0;
  double early = 1.0;  // multiplier before the late phase begins
  double late = 1.0;   // multiplier from then on
};

// Which kind reads which parameter is in schedule_infos(); a recipe that sets one its kind does not read is refused
// there. Sigma is the standard deviation of the noise, in the units the reader of the schedule documents.
struct ScheduleSpec {
  ScheduleKind kind = ScheduleKind::kGlobalDecay;
  double sigma_start = 0.05;
  double sigma_end = 0.0005;
  int64_t num_stages = 10;                // global_decay: intervals, the first of them without noise
  int64_t epochs = 2;                     // epoch_aware: epochs in the whole run, where boundaries is empty
  std::vector<double> boundaries;         // epoch_aware: epochs + 1 strengths; empty: geometric, sigma_start..sigma_end
  int64_t stages_per_epoch = 5;           // epoch_aware: intervals of an epoch
  bool warmup_interval = false;           // epoch_aware: the first interval of each epoch has no noise
  std::vector<LayerZone> zones;           // disjoint ranges of layers with factors of their own
  double late_from = 0.5;                 // fraction of the run after which a zone's `late` holds
  std::vector<double> layer_multipliers;  // in place of zones: one per layer; empty: 1 everywhere
  double elsewhere = 1.0;                 // multiplier of what neither a zone nor the list covers (the final norm)
};

struct ScheduleParameter {
  std::string name;
  std::string type;
  std::string default_value;
  std::string range;
  std::string meaning;
};

struct ScheduleInfo {
  ScheduleKind kind;
  std::string name;
  std::string formula;
  std::vector<ScheduleParameter> parameters;
  std::string example;  // YAML, flow style
};

// Layer index of a parameter that belongs to no layer (the final norm).
inline constexpr int64_t kNoLayer = -1;

// What `faultline list schedules` and `faultline explain` print, one entry per kind.
std::span<const ScheduleInfo> schedule_infos();

std::string_view schedule_name(ScheduleKind kind);
ScheduleKind schedule_kind(std::string_view name);  // UsageError with the nearest name

// Throws UsageError naming the parameter, its value and its range. strength_at and layer_multiplier check too.
void check(const ScheduleSpec& spec);

// Strength at a step counted from 0. A step at or after the total keeps the last strength; a negative one is an error.
double strength_at(const ScheduleSpec& spec, int64_t step, int64_t total_steps);

// Factor on the strength for one layer (0..layer_count-1, or kNoLayer).
double layer_multiplier(const ScheduleSpec& spec, int64_t layer, int64_t layer_count, int64_t step,
                        int64_t total_steps);

// Whether a run of so many steps meets more than one strength, or more than one factor of a layer.
bool changes_over(const ScheduleSpec& spec, int64_t total_steps);

// A sentence to print before step 0 when the run is too short for the schedule as written (or it has fewer stages than
// it needs to decay); "" otherwise.
std::string schedule_note(const ScheduleSpec& spec, int64_t total_steps);

// `schedule:` — the schedules of base/schedule/schedule.h as a section of a rule and as part of aqn's.

Schema schedule_schema();
// The same with the kind under another key and with more fields beside the schedule's own.
Schema schedule_schema(const std::string& tag, const std::function<Schema(const Schema&)>& extended);
ScheduleSpec read_schedule(const Node& schedule);  // validated

}  // namespace faultline
