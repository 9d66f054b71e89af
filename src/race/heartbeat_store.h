// Heartbeats through the store that ranks meet at: a thread publishes where this rank stands several times a second and
// notices when its own main thread has not moved for too long. Clocks of different machines are never compared.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "race/heartbeat.h"
#include "race/patience.h"

namespace c10d {
class Store;
}

namespace faultline::race {

struct PublishedBeat {
  bool present = false;
  uint64_t publication = 0;  // grows while the process lives
  uint64_t beats = 0;        // grows while the rank moves
  bool left = false;         // the last one: the rank has said what it had to say
  Standing standing;
};

class BeatPublisher {
 public:
  // `stuck` is called once, from a thread of its own, when nothing has moved for `limit` seconds: it ends the process,
  // or returns because the rank moves after all. The destructor waits for it, so it may use what outlives the
  // publisher, and publishes that the rank leaves.
  BeatPublisher(c10::intrusive_ptr<c10d::Store> store, int rank, const Heartbeat& heartbeat, double limit,
                std::function<void()> stuck);
  BeatPublisher(const BeatPublisher&) = delete;
  BeatPublisher& operator=(const BeatPublisher&) = delete;
  ~BeatPublisher();

 private:
  void publish_until_stopped();
  bool publish(bool leaves);  // false: the store is gone, and with it whoever would read this

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  const Heartbeat& heartbeat_;
  Patience patience_;
  std::function<void()> stuck_;
  uint64_t publication_ = 0, seen_ = 0;
  std::atomic<bool> stop_{false};
  std::thread stuck_thread_;  // belongs to thread_ until that has ended
  std::thread thread_;
};

std::vector<PublishedBeat> read_beats(c10d::Store& store, int ranks);

// Who still gives signs of life, from when this is made on. A rank that publishes nothing in several periods of the
// publisher is silent, unless it has left.
class SignsOfLife {
 public:
  SignsOfLife(c10::intrusive_ptr<c10d::Store> store, int ranks);
  std::vector<Standing> standings() const;  // as they are now
  bool spoke_again(int rank);               // since this was asked before

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<PublishedBeat> first_, last_;
};

}  // namespace faultline::race
