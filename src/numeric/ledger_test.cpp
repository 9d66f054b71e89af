// The ledger's exact sums and the verdict drawn from them.
#include "numeric/ledger.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "numeric/evidence.h"
#include "numeric/rule.h"

namespace faultline::numeric {
namespace ledger_test {

double round_trip(const std::vector<double>& values) {
  std::vector<SegmentPartial> partials;
  for (const double value : values) {
    SegmentPartial partial{};
    partial.sum[kPartialSquaredError] = value;
    partials.push_back(partial);
  }
  std::vector<uint64_t> words(kLedgerWords);
  add_to_ledger(partials, 1, words.data());
  double columns[kLedgerColumns];
  decode_ledger(words.data(), columns);
  return columns[kSumSquaredError];
}

TEST(Ledger, AddsExactly) {
  for (const double value : {0.0, 1.0, 0.1, static_cast<double>(3.5e-40f), 1.7e38, 0x1p-149, 0x1.fffffffffffffp+100})
    EXPECT_EQ(round_trip({value}), value);
  EXPECT_EQ(round_trip({1e30, 1.0, 1e-30}), 1e30 + 1.0 + 1e-30);
  EXPECT_EQ(round_trip(std::vector<double>(1000, 0.1)), 1000 * 0.1);
}

TEST(Ledger, DoesNotDependOnTheOrderOfSegments) {
  std::mt19937_64 random(5);
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i)
    values.push_back(
        std::ldexp(1.0 + std::generate_canonical<double, 53>(random), static_cast<int>(random() % 200) - 100));
  const double first = round_trip(values);
  std::shuffle(values.begin(), values.end(), random);
  EXPECT_EQ(round_trip(values), first);
}

TEST(Ledger, SaysInfiniteWhenASumLeavesItsRange) {
  EXPECT_TRUE(std::isinf(round_trip({1e300})));
  EXPECT_TRUE(std::isinf(round_trip({INFINITY, 1.0})));
  EXPECT_EQ(round_trip({1e-300}), 0.0);
}

LedgerNumbers honest() {
  LedgerNumbers n;
  n.calls = n.active_calls = 1;
  n.elements = n.selected = n.nonzero = 1 << 20;
  n.changed = 1e6;
  n.sampled = 16384;
  n.relative_rms = 0.05;
  return n;
}

TEST(Evidence, AcceptsAnHonestLedger) {
  EXPECT_TRUE(
      missing_evidence(parse_rule("relative_gaussian(strength=0.05)", RuleUse::kOnTensor), Dtype::kFloat32, honest())
          .empty());
}

TEST(Evidence, ComplainsAboutAFaultThatNeverHappened) {
  const Rule rule = parse_rule("relative_gaussian(strength=0.05)", RuleUse::kOnTensor);
  const auto expect = [&](ComplaintCode code, auto change) {
    LedgerNumbers n = honest();
    change(n);
    const auto reasons = missing_evidence(rule, Dtype::kFloat32, n);
    ASSERT_EQ(reasons.size(), 1u);
    EXPECT_EQ(reasons[0].code, code) << reasons[0].sentence;
    EXPECT_EQ(reasons[0].rule, rule.name);
    EXPECT_EQ(reasons[0].place, "");
  };
  using enum ComplaintCode;
  expect(kNeverFired, [](LedgerNumbers& n) { n.calls = n.active_calls = 0; });
  expect(kAsleep, [](LedgerNumbers& n) { n.active_calls = 0; });
  expect(kUnselected, [](LedgerNumbers& n) { n.selected = n.changed = 0; });
  expect(kUnchanged, [](LedgerNumbers& n) { n.changed = 0; });
  expect(kStrength, [](LedgerNumbers& n) { n.relative_rms = 0.06; });
  expect(kStrength, [](LedgerNumbers& n) { n.relative_rms = 0.04; });
}

TEST(Evidence, HoldsAnInvisibleFaultToItsWord) {
  const Rule rule = parse_rule("relative_gaussian(strength=1e-5, rule.expect=invisible)", RuleUse::kOnTensor);
  LedgerNumbers n = honest();
  const auto reasons = missing_evidence(rule, Dtype::kBFloat16, n);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].code, ComplaintCode::kVisible);
  n.changed = 0;
  EXPECT_TRUE(missing_evidence(rule, Dtype::kBFloat16, n).empty());
}

TEST(Evidence, CountsFlippedElementsExactly) {
  const Rule rule = parse_rule("bitflip(bit=3, count=7)", RuleUse::kOnTensor);
  LedgerNumbers n = honest();
  n.changed = 7;
  EXPECT_TRUE(missing_evidence(rule, Dtype::kBFloat16, n).empty());
  n.changed = 6;
  const auto reasons = missing_evidence(rule, Dtype::kBFloat16, n);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].code, ComplaintCode::kFlips);
}

}  // namespace ledger_test
}  // namespace faultline::numeric
