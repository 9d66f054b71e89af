// Attribution over all combinations: the three axes of reference, the sixteen sets of wrong keys, and what follows from
// a fault elsewhere.
#include "race/attribution.h"

#include <gtest/gtest.h>

namespace faultline::race {
namespace attribution_test {

constexpr int kRanks = 4;
constexpr int64_t kLayers = 5;
constexpr uint64_t kRight = 100, kWrong = 666;

Config shared() {
  Config config;
  config.mode = Mode::kFsdp;
  config.compute_type = ComputeType::kTransformer;
  config.num_layers = kLayers;
  config.shared_layer_weights = true;
  return config;
}

std::vector<RankRecord> clean() {
  std::vector<RankRecord> ranks(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    for (int64_t l = 0; l < kLayers; ++l) {
      LayerRecord& layer = ranks[static_cast<size_t>(r)].layers.emplace_back();
      const uint64_t shard = kRight + static_cast<uint64_t>(r);
      layer.keys = {shard, kRight, kRight, kRight};
      layer.expected_input = shard;
      layer.sent.assign(kRanks, shard);
      for (uint64_t from = 0; from < kRanks; ++from) layer.received.push_back(kRight + from);
      layer.keys[static_cast<size_t>(Key::kCommOutput)] = combined_digest(layer.received);
    }
  }
  return ranks;
}

uint64_t& value(std::vector<RankRecord>& ranks, int rank, int64_t layer, Key key) {
  return ranks[static_cast<size_t>(rank)].layers[static_cast<size_t>(layer)].keys[static_cast<size_t>(key)];
}

Reference known(const Config& config) {
  Reference reference;
  (void)judge(config, clean(), reference);
  return reference;
}

TEST(Axes, ACleanTableIsSilentAndBecomesTheReference) {
  Reference reference;
  EXPECT_TRUE(judge(shared(), clean(), reference).empty());
  EXPECT_EQ(reference.find(Key::kComputeOutput, 4), kRight);
  EXPECT_FALSE(reference.find(Key::kCommOutput, 4));  // patterns change with the iteration
}

TEST(Axes, LayerZeroIsNotTheReference) {  // lesson 46
  auto ranks = clean();
  value(ranks, 2, 0, Key::kComputeOutput) = kWrong;
  Reference none;
  const auto found = judge(shared(), ranks, none);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].layer, 0);
}

TEST(Axes, WrongInTheSameWayEverywhereIsFoundByTheOtherIterations) {  // lesson 47
  auto ranks = clean();
  for (int r = 0; r < kRanks; ++r)
    for (int64_t l = 0; l < kLayers; ++l) value(ranks, r, l, Key::kComputeOutput) = kWrong;
  Reference none, before = known(shared());
  EXPECT_TRUE(judge(shared(), ranks, none).empty());  // nothing in the iteration itself can tell
  const auto found = judge(shared(), ranks, before);
  EXPECT_EQ(found.size(), static_cast<size_t>(kRanks * kLayers));
  EXPECT_EQ(found[0].scope, Scope::kEverywhere);
}

TEST(Axes, ATieIsAmbiguous) {
  Config config = shared();
  config.shared_layer_weights = false;  // two ranks, no layers to ask, no iteration before
  auto ranks = clean();
  ranks.resize(2);
  for (RankRecord& rank : ranks)
    for (LayerRecord& layer : rank.layers) {
      layer.sent.resize(2);
      layer.received.resize(2);
      layer.keys[static_cast<size_t>(Key::kCommOutput)] = combined_digest(layer.received);
    }
  value(ranks, 1, 3, Key::kComputeOutput) = kWrong;
  Reference none;
  const auto found = judge(config, ranks, none);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].ambiguous && found[1].ambiguous);
  const auto events = attribute(config, ranks, found);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].cause, Cause::kAmbiguous);
}

// Each of the eight combinations of (layers, ranks, iterations), made by the fault that shows it.
struct AxesCase {
  const char* name;
  bool all_layers, all_ranks, since_reference;
  Vote layers, rank_vote, iterations;
  Scope scope;
  size_t cells;
};

class AllAxes : public ::testing::TestWithParam<AxesCase> {};

TEST_P(AllAxes, AreTold) {
  const AxesCase& c = GetParam();
  auto ranks = clean();
  for (int r = 0; r < kRanks; ++r)
    for (int64_t l = 0; l < kLayers; ++l)
      if ((c.all_layers || l == 3) && (c.all_ranks || r == 2)) value(ranks, r, l, Key::kComputeOutput) = kWrong;
  Reference reference = known(shared());
  if (c.since_reference) {  // the fault was there from the first iteration on
    reference = Reference();
    (void)judge(shared(), ranks, reference);
  }
  const auto found = judge(shared(), ranks, reference);
  ASSERT_EQ(found.size(), c.cells);
  if (found.empty()) return;
  EXPECT_EQ(found[0].axes.layers, c.layers);
  EXPECT_EQ(found[0].axes.ranks, c.rank_vote);
  EXPECT_EQ(found[0].axes.iterations, c.iterations);
  EXPECT_EQ(found[0].scope, c.scope);
}

constexpr Vote kYes = Vote::kDeviates, kNo = Vote::kAgrees;
INSTANTIATE_TEST_SUITE_P(
    Combinations, AllAxes,
    ::testing::Values(AxesCase{"cell", false, false, false, kYes, kYes, kYes, Scope::kCell, 1},
                      AxesCase{"cell_always", false, false, true, kYes, kYes, kYes, Scope::kCell, 1},
                      AxesCase{"rank", true, false, false, kNo, kYes, kYes, Scope::kRank, 5},
                      AxesCase{"rank_always", true, false, true, kNo, kYes, kYes, Scope::kRank, 5},
                      AxesCase{"layer", false, true, false, kYes, kNo, kYes, Scope::kLayer, 4},
                      AxesCase{"layer_always", false, true, true, kYes, kNo, kYes, Scope::kLayer, 4},
                      AxesCase{"everywhere", true, true, false, kNo, kNo, kYes, Scope::kEverywhere, 20},
                      // Only a golden could tell: by itself it is indistinguishable from right.
                      AxesCase{"everywhere_always", true, true, true, kNo, kNo, kNo, Scope::kCell, 0}),
    [](const auto& info) { return info.param.name; });

TEST(Axes, ATieDoesNotBlameARankWhoseElementsAreRight) {
  Config config = shared();
  config.mode = Mode::kDdp;
  config.shared_layer_weights = false;
  auto ranks = clean();
  ranks.resize(2);
  value(ranks, 1, 3, Key::kCommOutput) = kWrong;
  ranks[1].layers[3].failed_checks = 1u << static_cast<unsigned>(Check::kReduceOutput);
  Reference none;
  const auto found = judge(config, ranks, none);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

TEST(CauseOf, AllSixteenSetsOfKeys) {
  constexpr Cause n = Cause::kNone, m = Cause::kLocalMemory, c = Cause::kCollective, r = Cause::kReferenceBuffer,
                  x = Cause::kCompute, a = Cause::kAmbiguous;
  // bits: comm_input 1, comm_output 2, compute_input 4, compute_output 8
  const std::array<Cause, 16> apart = {n, m, c, m, r, a, a, a, x, a, a, a, r, a, a, a};
  const std::array<Cause, 16> consuming = {n, m, c, m, r, a, a, a, x, a, c, m, r, a, a, a};
  for (KeyMask wrong = 0; wrong < 16; ++wrong) {
    EXPECT_EQ(cause_of(wrong, false), apart[wrong]) << wrong;
    EXPECT_EQ(cause_of(wrong, true), consuming[wrong]) << wrong;
  }
}

std::vector<Event> events_of(const Config& config, const std::vector<RankRecord>& ranks) {
  Reference reference = known(config);
  return attribute(config, ranks, judge(config, ranks, reference));
}

TEST(Attribution, AWrongShardIsOneEventAndItsSpreadAConsequence) {
  auto ranks = clean();
  value(ranks, 1, 2, Key::kCommInput) = kWrong;
  for (RankRecord& rank : ranks) {
    ranks[1].layers[2].sent.assign(kRanks, kWrong);
    rank.layers[2].received[1] = kWrong;
    rank.layers[2].keys[static_cast<size_t>(Key::kCommOutput)] = kWrong;
  }
  const auto events = events_of(shared(), ranks);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].cause, Cause::kLocalMemory);
  EXPECT_EQ(events[0].rank, 1);
  EXPECT_EQ(events[0].layer, 2);
  EXPECT_EQ(events[0].consequences, kRanks - 1) << "the other ranks received it";
}

TEST(Attribution, ACollectiveIsBlamedWithTheSource) {
  auto ranks = clean();
  ranks[3].layers[4].received[1] = kWrong;
  value(ranks, 3, 4, Key::kCommOutput) = kWrong;
  const auto events = events_of(shared(), ranks);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].cause, Cause::kCollective);
  EXPECT_EQ(events[0].sources, std::vector<int>{1});
}

TEST(Attribution, AReferenceBufferThatStaysWrongIsOneEvent) {
  auto ranks = clean();
  for (int64_t l = 1; l < kLayers; ++l)
    value(ranks, 0, l, Key::kComputeInput) = value(ranks, 0, l, Key::kComputeOutput) = kWrong;
  for (LayerRecord& layer : ranks[0].layers) layer.gradient = kWrong;
  for (size_t r = 1; r < kRanks; ++r)
    for (LayerRecord& layer : ranks[r].layers) layer.gradient = kRight;
  const auto events = events_of(shared(), ranks);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].cause, Cause::kReferenceBuffer);
  EXPECT_EQ(events[0].layer, 1);
}

TEST(Attribution, PatternsAloneAreEnough) {
  Config config = shared();
  config.digest.fill(DigestTiming::kOff);
  std::vector<RankRecord> ranks(kRanks);
  for (RankRecord& rank : ranks) {
    rank.layers.resize(kLayers);
    for (LayerRecord& layer : rank.layers) layer.sent.assign(kRanks, 0), layer.received.assign(kRanks, 0);
  }
  ranks[2].layers[1].failed_checks = 1u << static_cast<unsigned>(Check::kGatherBackward);
  ranks[2].layers[1].failed_sources = 1u << 3;
  ranks[0].layers[4].failed_checks = 1u << static_cast<unsigned>(Check::kReduceOutput);
  Reference none;
  const auto events = attribute(config, ranks, judge(config, ranks, none));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].cause, Cause::kCollective);
  EXPECT_EQ(events[0].sources, std::vector<int>{3});
  EXPECT_EQ(events[1].operation, "reduce_scatter");
}

TEST(Table, SurvivesTheExchange) {
  auto ranks = clean();
  ranks[1].h2d_failed = true;
  ranks[1].layers[2].failed_checks = 5;
  const auto words = pack(ranks[1], kRanks);
  const RankRecord again = unpack(words.data(), kLayers, kRanks);
  EXPECT_EQ(pack(again, kRanks), words);
  EXPECT_TRUE(again.h2d_failed);
}

}  // namespace attribution_test
}  // namespace faultline::race
