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
  std::string host;
  Standing standing;
};

class BeatPublisher {
 public:
  // From threads of the publisher's; the destructor waits for them, so they may use what outlives it.
  struct Calls {
    std::function<void()> stuck = {};  // once, when nothing has moved for `limit` seconds: it ends the process, or
                                       // returns because the rank moves after all
    std::function<void()> interrupted = {};  // the launcher says so
    std::function<void()> store_gone = {};
  };
  // The destructor publishes that the rank leaves. `host`: where it runs.
  BeatPublisher(c10::intrusive_ptr<c10d::Store> store, int rank, std::string host, const Heartbeat& heartbeat,
                double limit, Calls calls);
  BeatPublisher(const BeatPublisher&) = delete;
  BeatPublisher& operator=(const BeatPublisher&) = delete;
  ~BeatPublisher();

 private:
  void publish_until_stopped();
  bool publish(bool leaves);  // false: the store is gone, and with it whoever would read this

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::string host_;
  const Heartbeat& heartbeat_;
  Patience patience_;
  Calls calls_;
  uint64_t publication_ = 0, seen_ = 0;
  std::atomic<bool> stop_{false};
  std::thread stuck_thread_;  // belongs to thread_ until that has ended
  std::thread thread_;
};

void publish_interruption(c10d::Store& store);  // to all ranks

std::vector<PublishedBeat> read_beats(c10d::Store& store, int ranks);

// Who still gives signs of life, from when this is made on. A rank that publishes nothing in several periods of the
// publisher is silent, unless it has left.
class LivenessCheck {
 public:
  LivenessCheck(c10::intrusive_ptr<c10d::Store> store, int ranks);
  std::vector<Standing> standings() const;  // as they are now
  bool reported_again(int rank);            // since this was asked before
  std::string host(int rank) const;         // "" of one that has never reported

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<PublishedBeat> first_, last_;
};

}  // namespace faultline::race
