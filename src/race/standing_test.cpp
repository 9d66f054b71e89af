#include "race/standing.h"

#include <gtest/gtest.h>

#include "race/patience.h"

namespace faultline::race {
namespace standing_test {

using State = Standing::State;

Standing standing(State state, uint64_t reached, uint64_t left_out = 0) {
  return {state, reached, reached - left_out, "iteration 1, layer 2, all_gather"};
}

TEST(Blame, WhoWaitsInStepIsNeverBlamed) {
  for (const State other : {State::kWorking, State::kFailed, State::kSilent}) {
    const std::vector<Standing> standings = {standing(State::kWaiting, 61), standing(State::kWaiting, 61),
                                             standing(other, 60), standing(State::kWaiting, 60)};
    EXPECT_EQ(to_blame(standings), std::vector<int>{2}) << state_name(other);
  }
  EXPECT_TRUE(to_blame({standing(State::kWaiting, 61), standing(State::kWaiting, 60)}).empty());
}

TEST(Blame, WhoLeftOutACollectiveIsBlamedWhereverItStandsAndWhateverItMadeOfTheOthers) {
  for (const State own : {State::kWorking, State::kWaiting, State::kFailed, State::kDone})
    for (const State others : {State::kWorking, State::kWaiting, State::kFailed, State::kSilent})
      for (const uint64_t reached : {60, 62, 65}) {
        EXPECT_EQ(to_blame({standing(others, 62), standing(own, reached, 1), standing(others, 62)}),
                  std::vector<int>{1});
        EXPECT_EQ(to_blame({standing(others, 62), standing(own, reached, 1)}), std::vector<int>{1});
      }
  const std::vector<Standing> all_did = {standing(State::kWaiting, 62, 1), standing(State::kWorking, 62, 1)};
  EXPECT_EQ(to_blame(all_did), std::vector<int>{1}) << "it is the same program, and rank 1 does not come";
}

TEST(Blame, OfSeveralThatWorkThoseThatCameLeastFar) {
  EXPECT_EQ(to_blame({standing(State::kWaiting, 61), standing(State::kWorking, 61), standing(State::kWorking, 60),
                      standing(State::kWorking, 60)}),
            (std::vector<int>{2, 3}));
}

TEST(Blame, WhoIsStillInACallThatOthersHaveReturnedFromIsHeldUpByItsTransport) {
  EXPECT_EQ(to_blame({standing(State::kWaiting, 61), standing(State::kCalling, 61), standing(State::kWaiting, 61)}),
            std::vector<int>{1});
  EXPECT_TRUE(to_blame({standing(State::kCalling, 61), standing(State::kCalling, 61)}).empty())
      << "a call that waits for all says nothing";
  EXPECT_TRUE(to_blame({standing(State::kCalling, 61), standing(State::kWaiting, 60)}).empty())
      << "it waits in an earlier one";
  EXPECT_EQ(to_blame({standing(State::kCalling, 61), standing(State::kWorking, 60), standing(State::kWaiting, 61)}),
            std::vector<int>{1})
      << "who does not come is to blame first";
}

TEST(Blame, TheOnlyRankIsItsOwn) { EXPECT_EQ(to_blame({standing(State::kWaiting, 5)}), std::vector<int>{0}); }

TEST(Standing, IsTheSameAfterJson) {
  const Standing before = standing(State::kSilent, 62, 3);
  const Standing after = standing_from_json(to_json(before));
  EXPECT_EQ(after.state, before.state);
  EXPECT_EQ(after.left_out(), 3u);
  EXPECT_EQ(after.text(), before.text());
  EXPECT_ANY_THROW(
      standing_from_json({{"state", "asleep"}, {"reached", 1}, {"called", 1}, {"place", ""}, {"iteration", 0}}));
}

TEST(Patience, CountsOnlyTheTimeInWhichItCouldLook) {
  using std::chrono::seconds;
  Patience patience(10, seconds(1));
  Patience::Clock::time_point now = Patience::Clock::now();
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(patience.over(now += seconds(1)));
  EXPECT_FALSE(patience.over(now += seconds(3600))) << "the process was stopped for an hour, and so were the others";
  EXPECT_TRUE(patience.over(now += seconds(2)));
  patience.restart();
  EXPECT_FALSE(patience.over());
}

}  // namespace standing_test
}  // namespace faultline::race
