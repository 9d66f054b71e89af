// Schedules: the published switch steps and values to the digit; every step of every small run finite, in range and
// monotone; short runs and one or two stages as Note [Short schedules] says; nonsense refused by name.
#include "base/schedule/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace faultline {
namespace schedule_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ScheduleSpec of_kind(ScheduleKind kind) {
  ScheduleSpec spec;
  spec.kind = kind;
  if (kind == ScheduleKind::kZones) spec.zones = {{10, 19, 1.5, 0.5}};
  return spec;
}

std::vector<int64_t> switch_steps(const ScheduleSpec& spec, int64_t total) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step < total; ++step) {
    if (strength_at(spec, step, total) != strength_at(spec, step - 1, total)) steps.push_back(step);
  }
  return steps;
}

// Finite, inside [sigma_end, sigma_start] or silent, and not rising except from silence.
void expect_sound(const ScheduleSpec& spec, int64_t total, const std::string& label) {
  double last_noisy = kInfinity;
  bool ever_noisy = false;
  for (int64_t step = 0; step < total; ++step) {
    const double strength = strength_at(spec, step, total);
    ASSERT_TRUE(std::isfinite(strength)) << label << " step " << step;
    if (strength == 0) continue;
    ever_noisy = true;
    ASSERT_GE(strength, spec.sigma_end) << label << " step " << step;
    ASSERT_LE(strength, std::min(spec.sigma_start, last_noisy)) << label << " step " << step;
    last_noisy = strength;
  }
  ASSERT_TRUE(ever_noisy) << label << " is silently off";
}

TEST(GlobalDecay, SwitchesAtThePublishedSteps) {
  EXPECT_EQ(switch_steps(ScheduleSpec{}, 116), (std::vector<int64_t>{12, 24, 35, 47, 58, 70, 82, 93, 105}));
}

TEST(GlobalDecay, HasThePublishedValues) {
  const double values[] = {0, .05, .028117, .015811, .008891, .005, .002812, .001581, .000889, .0005};
  const int64_t steps[] = {0, 12, 24, 35, 47, 58, 70, 82, 93, 105};
  for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(strength_at({}, steps[i], 116), values[i], 5.01e-7) << i;
  EXPECT_EQ(strength_at({}, 11, 116), 0.0);
  EXPECT_EQ(strength_at({}, 12, 116), 0.05);
  EXPECT_EQ(strength_at({}, 115, 116), 0.0005);
}

TEST(GlobalDecay, IsSoundAtEveryStepOfEverySmallRun) {
  ScheduleSpec spec;
  for (spec.num_stages = 1; spec.num_stages <= 12; ++spec.num_stages) {
    for (int64_t total = 1; total <= 40; ++total) {
      expect_sound(spec, total, "stages " + std::to_string(spec.num_stages) + " total " + std::to_string(total));
      const bool decays = std::min(spec.num_stages, total) >= 3;
      EXPECT_EQ(strength_at(spec, total - 1, total), decays ? spec.sigma_end : spec.sigma_start);
      EXPECT_EQ(strength_at(spec, 0, total), std::min(spec.num_stages, total) == 1 ? spec.sigma_start : 0.0);
    }
  }
}

TEST(GlobalDecay, WithOneStageIsConstantAndWithTwoHasOneLevel) {
  ScheduleSpec spec;
  spec.num_stages = 1;
  for (int64_t step = 0; step < 9; ++step) EXPECT_EQ(strength_at(spec, step, 9), 0.05);
  spec.num_stages = 2;
  for (int64_t step = 0; step < 9; ++step) EXPECT_EQ(strength_at(spec, step, 9), step < 5 ? 0.0 : 0.05);
}

TEST(GlobalDecay, OfARunShorterThanItsStagesUsesOneIntervalPerStep) {
  EXPECT_EQ(strength_at({}, 0, 1), 0.05);  // lesson 2: (step 0, total 1) must not be the silent interval
  EXPECT_EQ(strength_at({}, 0, 4), 0.0);
  EXPECT_EQ(strength_at({}, 1, 4), 0.05);
  EXPECT_NEAR(strength_at({}, 2, 4), 0.005, 1e-15);
  EXPECT_EQ(strength_at({}, 3, 4), 0.0005);
  EXPECT_NE(schedule_note({}, 4), "");
  EXPECT_NE(schedule_note({}, 1).find("from the first step"), std::string::npos);
  EXPECT_EQ(schedule_note({}, 10), "");
}

TEST(GlobalDecay, SaysWhenItHasTooFewStagesToDecay) {
  ScheduleSpec spec;
  spec.num_stages = 2;
  EXPECT_NE(schedule_note(spec, 116).find("without a decay"), std::string::npos);
  spec.num_stages = 3;
  EXPECT_EQ(schedule_note(spec, 116), "");
}

TEST(GlobalDecay, SurvivesExtremeRatios) {
  ScheduleSpec spec;
  spec.sigma_start = 1e300;
  spec.sigma_end = 1e-300;
  EXPECT_NEAR(strength_at(spec, 58, 116), 1.0, 1e-10);
}

TEST(EpochAware, DecaysFromBoundaryToBoundaryInEachEpoch) {
  ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware);
  spec.boundaries = {0.05, 0.01, 0.0005};
  EXPECT_EQ(switch_steps(spec, 20), (std::vector<int64_t>{2, 4, 6, 8, 12, 14, 16, 18}));  // 8 -> 10 keeps 0.01
  EXPECT_EQ(strength_at(spec, 0, 20), 0.05);
  EXPECT_NEAR(strength_at(spec, 4, 20), std::sqrt(0.05 * 0.01), 1e-15);
  EXPECT_EQ(strength_at(spec, 9, 20), 0.01);
  EXPECT_EQ(strength_at(spec, 10, 20), 0.01);
  EXPECT_EQ(strength_at(spec, 19, 20), 0.0005);
}

TEST(EpochAware, HasGeometricBoundariesByDefault) {
  const ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware);
  EXPECT_NEAR(strength_at(spec, 58, 116), 0.005, 1e-15);
  EXPECT_NEAR(strength_at(spec, 57, 116), 0.005, 1e-15);
}

TEST(EpochAware, WarmsUpInEachEpochWhenAsked) {
  ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware);
  spec.warmup_interval = true;
  for (const int64_t step : {0, 1, 10, 11}) EXPECT_EQ(strength_at(spec, step, 20), 0.0) << step;
  EXPECT_EQ(strength_at(spec, 2, 20), 0.05);
  EXPECT_NEAR(strength_at(spec, 9, 20), 0.005, 1e-15);
  EXPECT_NEAR(strength_at(spec, 12, 20), 0.005, 1e-15);
}

TEST(EpochAware, OfOneEpochWithWarmUpIsGlobalDecay) {
  ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware), global;
  spec.warmup_interval = true;
  spec.epochs = 1;
  for (int64_t stages = 1; stages <= 12; ++stages) {
    spec.stages_per_epoch = global.num_stages = stages;
    for (int64_t step = 0; step < 37; ++step) EXPECT_EQ(strength_at(spec, step, 37), strength_at(global, step, 37));
  }
}

TEST(EpochAware, IsSoundAtEveryStepOfEverySmallRun) {
  ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware);
  for (const bool warmup : {false, true}) {
    spec.warmup_interval = warmup;
    for (spec.epochs = 1; spec.epochs <= 5; ++spec.epochs) {
      for (spec.stages_per_epoch = 1; spec.stages_per_epoch <= 12; ++spec.stages_per_epoch) {
        for (int64_t total = 1; total <= 40; ++total) {
          expect_sound(spec, total, "epochs " + std::to_string(spec.epochs) + " total " + std::to_string(total));
        }
      }
    }
  }
}

TEST(EpochAware, SkipsEpochsWithoutAStepAndSaysSo) {
  ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware);
  spec.epochs = 3;
  EXPECT_EQ(strength_at(spec, 0, 1), 0.05);
  EXPECT_EQ(schedule_note(spec, 2), "3 epochs but 2 steps, so 1 epochs have no step");
  EXPECT_EQ(schedule_note(spec, 15), "");
}

TEST(Constant, IsTheSameAtEveryStep) {
  for (int64_t step = 0; step < 40; ++step) EXPECT_EQ(strength_at(of_kind(ScheduleKind::kConstant), step, 7), 0.05);
}

TEST(LinearAndCosine, ReachBothEndsExactlyAndFallBetween) {
  for (const ScheduleKind kind : {ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    for (int64_t total = 1; total <= 40; ++total) {
      expect_sound(of_kind(kind), total, "total " + std::to_string(total));
      EXPECT_EQ(strength_at(of_kind(kind), 0, total), 0.05);
      EXPECT_EQ(strength_at(of_kind(kind), total - 1, total), total == 1 ? 0.05 : 0.0005);
    }
  }
  EXPECT_NE(schedule_note(of_kind(ScheduleKind::kLinear), 1), "");
}

TEST(LinearAndCosine, DifferAtTheQuarterAndAgreeInTheMiddle) {
  ScheduleSpec linear = of_kind(ScheduleKind::kLinear), cosine = of_kind(ScheduleKind::kCosine);
  linear.sigma_start = cosine.sigma_start = 1;
  linear.sigma_end = cosine.sigma_end = 0;
  EXPECT_NEAR(strength_at(linear, 1, 5), 0.75, 1e-15);
  EXPECT_NEAR(strength_at(cosine, 1, 5), (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(strength_at(linear, 2, 5), strength_at(cosine, 2, 5), 1e-15);
}

TEST(Linear, MayRise) {
  ScheduleSpec spec = of_kind(ScheduleKind::kLinear);
  spec.sigma_start = 0;
  EXPECT_LT(strength_at(spec, 1, 4), strength_at(spec, 2, 4));
}

TEST(Schedule, KeepsItsLastStrengthAfterTheEndAndRefusesNegativeSteps) {
  for (const ScheduleInfo& info : schedule_infos()) {
    const ScheduleSpec spec = of_kind(info.kind);
    EXPECT_EQ(strength_at(spec, 116, 116), strength_at(spec, 115, 116)) << info.name;
    EXPECT_EQ(strength_at(spec, int64_t{1} << 62, 116), strength_at(spec, 115, 116)) << info.name;
    EXPECT_THROW(strength_at(spec, -1, 116), UsageError) << info.name;
    EXPECT_THROW(strength_at(spec, 0, 0), UsageError) << info.name;
  }
}

TEST(Zones, GiveFactorsToEveryKindOfSchedule) {
  ScheduleSpec decay = of_kind(ScheduleKind::kGlobalDecay);
  const double strength = strength_at(decay, 60, 100);
  decay.zones = {{2, 4, 1.0, 0.5}};
  decay.elsewhere = 3;
  EXPECT_EQ(strength_at(decay, 60, 100), strength) << "zones are factors of layers, the strength is the schedule's";
  EXPECT_EQ(layer_multiplier(decay, 3, 6, 49, 100), 1.0);
  EXPECT_EQ(layer_multiplier(decay, 3, 6, 50, 100), 0.5);
  EXPECT_EQ(layer_multiplier(decay, 5, 6, 50, 100), 3.0);
  EXPECT_EQ(layer_multiplier(decay, kNoLayer, 6, 50, 100), 3.0);
  ScheduleSpec constant = of_kind(ScheduleKind::kConstant);
  EXPECT_FALSE(changes_over(constant, 100));
  constant.zones = {{2, 4, 1.0, 0.5}};
  EXPECT_TRUE(changes_over(constant, 100));
  constant.layer_multipliers = {1, 1, 1, 1, 1, 1};
  EXPECT_THROW(check(constant), UsageError) << "two answers to one question";
}

TEST(Schedule, KnowsWhetherARunOfSomeLengthMeetsMoreThanOneStrength) {
  for (const int64_t total : {1, 2, 3, 116, 1000}) {
    for (const ScheduleKind kind : {ScheduleKind::kGlobalDecay, ScheduleKind::kEpochAware, ScheduleKind::kConstant,
                                    ScheduleKind::kLinear, ScheduleKind::kCosine}) {
      const ScheduleSpec spec = of_kind(kind);
      EXPECT_EQ(changes_over(spec, total), !switch_steps(spec, total).empty()) << schedule_name(kind) << " " << total;
    }
  }
  ScheduleSpec zones = of_kind(ScheduleKind::kZones);
  EXPECT_TRUE(changes_over(zones, 2));
  EXPECT_FALSE(changes_over(zones, 1)) << "the late phase never begins";
  zones.zones[0].late = zones.zones[0].early;
  EXPECT_FALSE(changes_over(zones, 100));
  ScheduleSpec flat = of_kind(ScheduleKind::kLinear);
  flat.sigma_end = flat.sigma_start;
  EXPECT_FALSE(changes_over(flat, 100));
}

TEST(Zones, ChangeTheirMultiplierAtTheLatePhase) {
  const ScheduleSpec spec = of_kind(ScheduleKind::kZones);
  EXPECT_EQ(layer_multiplier(spec, 10, 30, 49, 100), 1.5);
  EXPECT_EQ(layer_multiplier(spec, 19, 30, 50, 100), 0.5);
  EXPECT_EQ(layer_multiplier(spec, 9, 30, 0, 100), 1.0);
  EXPECT_EQ(layer_multiplier(spec, 20, 30, 0, 100), 1.0);
  EXPECT_EQ(layer_multiplier(spec, kNoLayer, 30, 99, 100), 1.0);
  EXPECT_EQ(strength_at(spec, 99, 100), 0.05);
}

TEST(Zones, BeginTheLatePhaseAtTheWrittenFraction) {
  ScheduleSpec spec = of_kind(ScheduleKind::kZones);
  spec.late_from = 0.07;  // 0.07 * 100 is 7.000000000000001
  EXPECT_EQ(layer_multiplier(spec, 10, 30, 6, 100), 1.5);
  EXPECT_EQ(layer_multiplier(spec, 10, 30, 7, 100), 0.5);
  EXPECT_NE(schedule_note(spec, 1), "");
  EXPECT_EQ(schedule_note(spec, 100), "");
}

TEST(Zones, RefuseLayersTheModelDoesNotHave) {
  EXPECT_THROW(layer_multiplier(of_kind(ScheduleKind::kZones), 3, 19, 0, 1), UsageError);
  EXPECT_NO_THROW(layer_multiplier(of_kind(ScheduleKind::kZones), 3, 20, 0, 1));
}

TEST(LayerMultipliers, ApplyToTheirLayerAndMustMatchTheModel) {
  ScheduleSpec spec;
  spec.layer_multipliers = {0, 2, 0};
  spec.elsewhere = 0;
  EXPECT_EQ(layer_multiplier(spec, 1, 3, 0, 1), 2.0);
  EXPECT_EQ(layer_multiplier(spec, 2, 3, 0, 1), 0.0);
  EXPECT_EQ(layer_multiplier(spec, kNoLayer, 3, 0, 1), 0.0);
  EXPECT_THROW(layer_multiplier(spec, 1, 4, 0, 1), UsageError);
  EXPECT_THROW(layer_multiplier(spec, 3, 3, 0, 1), UsageError);
  EXPECT_THROW(layer_multiplier(spec, -2, 3, 0, 1), UsageError);
  EXPECT_EQ(layer_multiplier(ScheduleSpec{}, 5, 30, 0, 1), 1.0);
}

}  // namespace schedule_test
}  // namespace faultline
