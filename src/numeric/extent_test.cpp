// Exact places: resolved for a tensor's shape, they alone change, at every call and on every seed alike.
#include "numeric/extent.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "numeric/apply.h"
#include "numeric/arithmetic.h"
#include "numeric/evidence.h"

namespace faultline::numeric {
namespace extent_test {

using Places = std::set<std::pair<int64_t, int64_t>>;

Rule read(const std::string& text) { return parse_rule(text, RuleUse::kOnTensor); }

Places selected(const std::string& extent, int64_t rows, int64_t columns) {
  const Extent lowered = lower_extent(read("zero(" + extent + ")").extent, rows, columns);
  Places places;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      if (extent_selects(lowered, 1, row, column)) places.emplace(row, column);
  return places;
}

TEST(Extent, SelectsRowsColumnsElementsAndCoordinates) {
  EXPECT_EQ(selected("extent.rows=1", 3, 2), (Places{{1, 0}, {1, 1}}));
  EXPECT_EQ(selected("extent.rows='1-'", 3, 1), (Places{{1, 0}, {2, 0}}));
  EXPECT_EQ(selected("extent.rows=-1, extent.columns=[0, '2-3']", 3, 5), (Places{{2, 0}, {2, 2}, {2, 3}}));
  EXPECT_EQ(selected("extent.elements=['1-2', -1]", 2, 3), (Places{{0, 1}, {0, 2}, {1, 2}}));
  EXPECT_EQ(selected("extent.at=[[0, 1], [-1, -2]]", 4, 3), (Places{{0, 1}, {3, 1}}));
}

TEST(Extent, SelectsNothingOutsideOfTheTensor) {
  EXPECT_TRUE(selected("extent.rows=3", 3, 2).empty());
  EXPECT_TRUE(selected("extent.rows=-4", 3, 2).empty());
  EXPECT_TRUE(selected("extent.elements='6-9'", 3, 2).empty());
  EXPECT_TRUE(selected("extent.at=[[0, 2]]", 3, 2).empty()) << "not the first element of the next row";
  EXPECT_EQ(selected("extent.rows=[9, 0]", 1, 1), (Places{{0, 0}}));
}

TEST(Extent, BreaksAShareOfTheUnitsInside) {
  const Places all = selected("extent.fraction=0.5, extent.structure=channel", 4, 64);
  const Places some = selected("extent.fraction=0.5, extent.structure=channel, extent.rows=2", 4, 64);
  Places wanted;
  for (const auto& place : all)
    if (place.first == 2) wanted.insert(place);
  EXPECT_EQ(some, wanted);
  EXPECT_GT(some.size(), 10u);
}

TEST(Extent, ChangesTheseElementsAloneAndCountsThem) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor clean = at::ones({2, 3, 8}, type);
    for (const uint64_t seed : {1, 2}) {
      at::Tensor faulty = clean.clone(), again = clean.clone();
      const at::Tensor ledger = make_ledger(at::kCPU);
      const Rule rule = read("gain(strength=1, extent.rows=[1, -1], extent.columns='2-3')");
      const Identity identity{seed, "somewhere", 0};
      apply_(faulty, rule, identity, CallPoint{}, CallTensors{{}, ledger, {}, {}});
      apply_(again, rule, identity, CallPoint{});
      at::Tensor wanted = clean.clone();
      for (const int64_t row : {1, 5}) wanted.view({6, 8}).select(0, row).narrow(0, 2, 2).fill_(2);
      EXPECT_TRUE(at::equal(faulty, wanted));
      EXPECT_TRUE(at::equal(faulty, again));
      const at::Tensor columns = ledger_columns(ledger);
      const LedgerNumbers numbers = read_ledger(columns.const_data_ptr<double>());
      EXPECT_EQ(numbers.selected, 4);
      EXPECT_EQ(numbers.changed, 4);
    }
  }
}

TEST(Extent, SaysThatNoTensorHadThosePlaces) {
  at::Tensor x = at::ones({3, 4});
  const at::Tensor ledger = make_ledger(at::kCPU);
  const Rule rule = read("zero(extent.rows=7)");
  apply_(x, rule, Identity{}, CallPoint{}, CallTensors{{}, ledger, {}, {}});
  const at::Tensor columns = ledger_columns(ledger);
  const auto complaints = missing_evidence(rule, Dtype::kFloat32, read_ledger(columns.const_data_ptr<double>()));
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_EQ(complaints[0].code, ComplaintCode::kUnselected);
  EXPECT_NE(complaints[0].sentence.find("rows, columns or elements"), std::string::npos) << complaints[0].sentence;
  EXPECT_TRUE(at::equal(x, at::ones({3, 4})));
}

}  // namespace extent_test
}  // namespace faultline::numeric
