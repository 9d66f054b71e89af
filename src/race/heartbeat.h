// Where one rank is, written by its loop and readable from other threads at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "race/standing.h"

namespace faultline::race {

class Heartbeat {
 public:
  void work(int64_t iteration, int64_t layer, const char* operation);
  void wait(int64_t iteration, int64_t layer, const char* operation);
  // Comes to a collective, and waits in it unless the rank leaves it out.
  void reach(int64_t iteration, int64_t layer, const char* collective, bool calls);
  void call();   // is in the call that starts the collective it has come to, which need not wait for the others
  void go_on();  // waits no more; the place is the same
  void fail();
  void finish();

  Standing standing() const;
  uint64_t beats() const;       // grows with every operation
  double seconds_here() const;  // since the last of the above

 private:
  void move(Standing::State state);  // the mutex is held
  void move_to(int64_t iteration, int64_t layer, const char* operation);

  mutable std::mutex mutex_;
  Standing::State state_ = Standing::State::kWorking;
  int64_t iteration_ = 0, layer_ = -1;
  const char* operation_ = "start";
  uint64_t beats_ = 0, reached_ = 0, called_ = 0;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace faultline::race
