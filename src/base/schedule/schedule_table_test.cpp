// The table of schedules: what it documents is what a specification has, and check() refuses what it excludes, naming
// the parameter and the value.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/schedule/schedule.h"

namespace faultline {
namespace schedule_table_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ScheduleSpec of_kind(ScheduleKind kind) {
  ScheduleSpec spec;
  spec.kind = kind;
  if (kind == ScheduleKind::kZones) spec.zones = {{10, 19, 1.5, 0.5}};
  return spec;
}

std::string refusal(const ScheduleSpec& spec) {
  try {
    check(spec);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ScheduleTable, DescribesEveryKindWithAnExampleThatNamesIt) {
  EXPECT_EQ(schedule_infos().size(), 6u);
  for (const ScheduleInfo& info : schedule_infos()) {
    EXPECT_EQ(schedule_kind(info.name), info.kind);
    EXPECT_EQ(schedule_name(info.kind), info.name);
    EXPECT_EQ(info.example.find("{kind: " + info.name), 0u) << info.example;
    EXPECT_EQ(refusal(of_kind(info.kind)), "accepted") << info.name;
    EXPECT_FALSE(info.formula.empty());
  }
}

TEST(ScheduleTable, AnswersAnUnknownNameWithTheNearest) {
  try {
    schedule_kind("global-decay");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'global_decay'?"), std::string::npos) << error.what();
  }
}

TEST(ScheduleCheck, RefusesStrengthsThatAreNotNumbersOrNotPositive) {
  for (const ScheduleInfo& info : schedule_infos()) {
    for (const double bad : {kNan, kInfinity, -kInfinity, -0.05}) {
      ScheduleSpec spec = of_kind(info.kind);
      spec.sigma_start = bad;
      EXPECT_EQ(refusal(spec).find("sigma_start must be finite"), 0u) << info.name << " " << refusal(spec);
      EXPECT_THROW(strength_at(spec, 0, 1), UsageError);
      spec = of_kind(info.kind);
      spec.elsewhere = bad;
      EXPECT_EQ(refusal(spec).find("elsewhere must be finite"), 0u) << info.name << " " << refusal(spec);
    }
  }
}

TEST(ScheduleCheck, RefusesEndsThatWouldBeNanOrSilent) {
  for (const ScheduleKind kind : {ScheduleKind::kGlobalDecay, ScheduleKind::kEpochAware}) {
    ScheduleSpec spec = of_kind(kind);
    spec.sigma_end = 0;
    EXPECT_EQ(refusal(spec), "sigma_end must be finite and > 0; got 0");
    spec.sigma_end = 0.06;
    EXPECT_NE(refusal(spec).find("sigma_end must be at most sigma_start (0.05)"), std::string::npos);
  }
  ScheduleSpec linear = of_kind(ScheduleKind::kLinear);
  linear.sigma_end = 0;
  EXPECT_EQ(refusal(linear), "accepted");
  linear.sigma_start = 0;
  EXPECT_NE(refusal(linear).find("never makes noise"), std::string::npos);
}

TEST(ScheduleCheck, RefusesCountsOutOfRange) {
  for (const int64_t bad : {int64_t{0}, int64_t{-3}, int64_t{10'001}, std::numeric_limits<int64_t>::max()}) {
    ScheduleSpec spec;
    spec.num_stages = bad;
    EXPECT_EQ(refusal(spec), "num_stages must be in 1..10000; got " + std::to_string(bad));
    spec = of_kind(ScheduleKind::kEpochAware);
    spec.stages_per_epoch = bad;
    EXPECT_EQ(refusal(spec), "stages_per_epoch must be in 1..10000; got " + std::to_string(bad));
    spec = of_kind(ScheduleKind::kEpochAware);
    spec.epochs = bad;
    EXPECT_EQ(refusal(spec), "epochs must be in 1..10000; got " + std::to_string(bad));
  }
}

TEST(ScheduleCheck, RefusesBoundariesThatDoNotFall) {
  ScheduleSpec spec = of_kind(ScheduleKind::kEpochAware);
  spec.boundaries = {0.05};
  EXPECT_NE(refusal(spec).find("at least 2"), std::string::npos);
  spec.boundaries = {0.05, 0.06};
  EXPECT_EQ(refusal(spec), "boundaries[1] must be at most boundaries[0] (0.05); got 0.06");
  spec.boundaries = {0.05, kNan, 0.01};
  EXPECT_EQ(refusal(spec).find("boundaries[1] must be finite"), 0u);
  spec.boundaries = {0.05, 0.05};
  EXPECT_EQ(refusal(spec), "accepted");
}

TEST(ScheduleCheck, RefusesZonesThatOverlapRunBackwardsOrAreAllSilent) {
  ScheduleSpec spec = of_kind(ScheduleKind::kZones);
  spec.zones = {{0, 5, 1, 1}, {5, 9, 1, 1}};
  EXPECT_NE(refusal(spec).find("zones[0] and zones[1] overlap"), std::string::npos);
  spec.zones = {{5, 9, 1, 1}, {0, 20, 1, 1}};
  EXPECT_NE(refusal(spec).find("zones[0] and zones[1] overlap"), std::string::npos);
  spec.zones = {{10, 12, 1, 1}, {0, 9, 1, 1}, {13, 13, 1, 1}};
  EXPECT_EQ(refusal(spec), "accepted");
  spec.zones = {{5, 4, 1, 1}};
  EXPECT_NE(refusal(spec).find("got 5..4"), std::string::npos);
  spec.zones = {{0, 5, 1, kNan}};
  EXPECT_EQ(refusal(spec).find("zones[0].late must be finite"), 0u);
  spec.zones = {{0, 5, 0, 0}};
  EXPECT_EQ(refusal(spec), "accepted");
  spec.elsewhere = 0;
  EXPECT_NE(refusal(spec).find("never makes noise"), std::string::npos);
  spec.zones.clear();
  EXPECT_NE(refusal(spec).find("at least one range"), std::string::npos);
}

TEST(ScheduleCheck, RefusesALatePhaseOutsideTheRun) {
  for (const double bad : {0.0, 1.0, -0.1, kNan}) {
    ScheduleSpec spec = of_kind(ScheduleKind::kZones);
    spec.late_from = bad;
    EXPECT_EQ(refusal(spec).find("late_from must be finite and > 0 and < 1"), 0u) << bad;
  }
}

TEST(ScheduleCheck, RefusesLayerMultipliersThatDoNothing) {
  ScheduleSpec spec;
  spec.layer_multipliers = {0, 0};
  EXPECT_NE(refusal(spec).find("all 0"), std::string::npos);
  spec.layer_multipliers = {1, -1};
  EXPECT_EQ(refusal(spec).find("layer_multipliers[1] must be finite and >= 0; got -1"), 0u);
  spec = of_kind(ScheduleKind::kZones);
  spec.layer_multipliers = {1};
  EXPECT_NE(refusal(spec).find("give one of them"), std::string::npos);
}

}  // namespace schedule_table_test
}  // namespace faultline
