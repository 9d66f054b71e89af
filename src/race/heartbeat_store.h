// Heartbeats through the store that ranks meet at: a thread publishes this rank's place several times a second and
// notices when its own main thread has not moved for too long. Its clock readings are compared only with each other.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "race/rank_loop.h"

namespace c10d {
class Store;
}

namespace faultline::race {

struct PublishedBeat {
  bool present = false;
  uint64_t publication = 0;  // grows while the process lives
  uint64_t beats = 0;        // grows while the rank moves
  std::string place;
};

class BeatPublisher {
 public:
  // `stuck` is called once, from a thread of its own, when nothing has moved for `limit` seconds: it ends the process,
  // or returns because the rank moves after all. The destructor waits for it, so it may use what outlives the
  // publisher.
  BeatPublisher(c10::intrusive_ptr<c10d::Store> store, int rank, const Heartbeat& heartbeat, double limit,
                std::function<void()> stuck);
  BeatPublisher(const BeatPublisher&) = delete;
  BeatPublisher& operator=(const BeatPublisher&) = delete;
  ~BeatPublisher();

 private:
  void publish_until_stopped();

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  const Heartbeat& heartbeat_;
  double limit_;
  std::function<void()> stuck_;
  std::atomic<bool> stop_{false};
  std::thread stuck_thread_;  // belongs to thread_ until that has ended
  std::thread thread_;
};

std::vector<PublishedBeat> read_beats(c10d::Store& store, int ranks);

// Who to blame, from two readings some seconds apart: those that stopped publishing; else those that are not
// where most are; else those that moved least.
std::vector<int> blamed_by_beats(const std::vector<PublishedBeat>& before, const std::vector<PublishedBeat>& after,
                                 int self);

}  // namespace faultline::race
