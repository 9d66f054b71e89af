#include "race/heartbeat_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace faultline::race {
namespace heartbeat_store_test {

void sleep_briefly() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

TEST(BeatPublisher, PublishesWhereTheRankIs) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Heartbeat heartbeat;
  heartbeat.reach(5, 7, "all_gather", true);
  const BeatPublisher publisher(store, 1, "n3", heartbeat, 1e9, {.stuck = [] { ADD_FAILURE() << "nothing is stuck"; }});
  while (!read_beats(*store, 2)[1].present) sleep_briefly();
  const PublishedBeat beat = read_beats(*store, 2)[1];
  EXPECT_EQ(beat.beats, 1u);
  EXPECT_EQ(beat.host, "n3");
  EXPECT_EQ(beat.standing.state, Standing::State::kWaiting);
  EXPECT_EQ(beat.standing.text(), "iteration 5, layer 7, all_gather, 1 collectives");
  EXPECT_FALSE(read_beats(*store, 2)[0].present);
}

// The rank may come back while it is being called stuck; what it takes apart then must not be in use.
TEST(BeatPublisher, OutlivesTheThreadThatCallsItsRankStuck) {
  std::atomic<bool> called{false}, returned{false}, gone{false};
  Heartbeat heartbeat;
  {
    const BeatPublisher publisher(c10::make_intrusive<c10d::HashStore>(), 0, "", heartbeat, 0, {.stuck = [&] {
                                    called = true;
                                    std::this_thread::sleep_for(std::chrono::milliseconds(
                                        500));  // long enough for a destructor that does not wait
                                    EXPECT_FALSE(gone);
                                    returned = true;
                                  }});
    while (!called) sleep_briefly();
  }
  gone = true;
  EXPECT_TRUE(returned);
}

TEST(LivenessCheck, TellsWhoIsSilentFromWhoHasLeft) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  Heartbeat heartbeat;
  heartbeat.wait(1, 2, "all_gather");
  {
    const BeatPublisher leaves(store, 0, "", heartbeat, 1e9, {});
  }
  const BeatPublisher lives(store, 1, "", heartbeat, 1e9, {});
  while (!read_beats(*store, 4)[1].present) sleep_briefly();
  store->set("beat/2", store->get_to_str("beat/1"));  // killed after this one; rank 3 never came
  LivenessCheck signs(store, 4);
  while (!signs.reported_again(1)) sleep_briefly();
  EXPECT_FALSE(signs.reported_again(2));
  using State = Standing::State;
  std::vector<State> states;
  for (const Standing& standing : signs.standings()) states.push_back(standing.state);
  EXPECT_EQ(states, (std::vector<State>{State::kWaiting, State::kWaiting, State::kSilent, State::kSilent}));
}

}  // namespace heartbeat_store_test
}  // namespace faultline::race
