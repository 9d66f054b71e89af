#include "record/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

namespace faultline::record {
namespace comparison_test {

RecordComparison compared(const Json& was, const Json& is, const ComparisonOptions& options = {}) {
  RecordComparison result;
  compare("record", was, is, options, result);
  return result;
}

TEST(RecordComparison, FindsNothingBetweenEqualRecords) {
  const Json record = {{"rows", {{{"accuracy", 0.5}}, {{"accuracy", 0.25}}}}, {"name", "x"}, {"none", nullptr}};
  const RecordComparison result = compared(record, record);
  EXPECT_TRUE(result.equal());
  EXPECT_EQ(result.values, 4U);
}

TEST(RecordComparison, NamesThePathAndBothValues) {
  const RecordComparison result = compared({{"rows", {{{"accuracy", 0.5}}}}}, {{"rows", {{{"accuracy", 0.75}}}}});
  ASSERT_EQ(result.differences.size(), 1U);
  EXPECT_EQ(result.differences[0].path, "record/rows/0/accuracy");
  EXPECT_EQ(result.differences[0].was, "0.5");
  EXPECT_EQ(result.differences[0].is, "0.75");
}

TEST(RecordComparison, SeesTheLastBit) {
  const double next = std::nextafter(0.1, 1.0);
  EXPECT_FALSE(compared(0.1, next).equal());
  EXPECT_TRUE(compared(0.1, next, {.tolerance = 1e-12}).equal());
  EXPECT_EQ(compared(0.1, next, {.tolerance = 1e-12}).within, 1U);
  EXPECT_FALSE(compared(0.1, 0.2, {.tolerance = 1e-12}).equal());
}

TEST(RecordComparison, KeepsLargeIntegersApart) {
  EXPECT_FALSE(compared(uint64_t{1} << 60, (uint64_t{1} << 60) + 1).equal());
  EXPECT_FALSE(compared(uint64_t{1} << 60, (uint64_t{1} << 60) + 1, {.tolerance = 1e-3}).equal())
      << "equal as doubles: no tolerance applies";
}

TEST(RecordComparison, SeesMissingAddedAndReorderedThings) {
  EXPECT_FALSE(compared({{"a", 1}}, Json::object()).equal());
  EXPECT_FALSE(compared(Json::object(), {{"a", 1}}).equal());
  EXPECT_FALSE(compared({1, 2}, {2, 1}).equal());
  EXPECT_FALSE(compared({1, 2}, Json::array({1})).equal());
  EXPECT_FALSE(compared("1", 1).equal());
}

TEST(RecordComparison, LeavesOutWhatItIsToldTo) {
  const Json was = {{"seconds", 1.5}, {"deep", {{"seconds", 2}, {"value", 3}}}};
  const Json is = {{"seconds", 9}, {"deep", {{"value", 3}}}};
  EXPECT_TRUE(compared(was, is, {.ignored = {"seconds"}}).equal());
  EXPECT_FALSE(compared(was, is).equal());
}

TEST(RecordComparison, CountsMoreThanItKeeps) {
  Json was = Json::array(), is = Json::array();
  for (int i = 0; i < 200; ++i) was.push_back(i), is.push_back(i + 1);
  const RecordComparison result = compared(was, is);
  EXPECT_EQ(result.different, 200U);
  EXPECT_EQ(result.differences.size(), kMostDifferences);
}

}  // namespace comparison_test
}  // namespace faultline::record
