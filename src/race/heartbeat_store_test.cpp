#include "race/heartbeat_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace faultline::race {
namespace {

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

TEST(BeatPublisher, PublishesWhereTheRankIs) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Heartbeat heartbeat;
  heartbeat.set(5, 7, "all_gather");
  const BeatPublisher publisher(store, 1, heartbeat, 1e9, [] { ADD_FAILURE() << "nothing is stuck"; });
  while (!read_beats(*store, 2)[1].present) nap();
  const PublishedBeat beat = read_beats(*store, 2)[1];
  EXPECT_EQ(beat.beats, 1u);
  EXPECT_EQ(beat.place, "iteration 5, layer 7, all_gather, 0 collectives");
  EXPECT_FALSE(read_beats(*store, 2)[0].present);
}

// The rank may come back while it is being called stuck; what it takes apart then must not be in use.
TEST(BeatPublisher, OutlivesTheThreadThatCallsItsRankStuck) {
  std::atomic<bool> called{false}, returned{false}, gone{false};
  Heartbeat heartbeat;
  {
    const BeatPublisher publisher(c10::make_intrusive<c10d::HashStore>(), 0, heartbeat, 0, [&] {
      called = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      EXPECT_FALSE(gone);
      returned = true;
    });
    while (!called) nap();
  }
  gone = true;
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace faultline::race
