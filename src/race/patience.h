// A time limit for one who looks again and again. Only time in which this process could look counts: one that was
// stopped, or starved by other work, finds that those it waits for stood still as well, and gives them the rest of the
// limit.
#pragma once

#include <algorithm>
#include <chrono>

namespace faultline::race {

inline constexpr auto kLook = std::chrono::milliseconds(20);  // between two looks

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // `period`: between two looks; one that comes late counts for two periods at most.
  Patience(double seconds, Clock::duration period) : limit_(seconds), most_(2 * seconds_of(period)) {}

  void restart() { used_ = 0, looked_ = Clock::now(); }
  bool over(Clock::time_point now = Clock::now()) {
    used_ += std::min(seconds_of(now - looked_), most_);
    looked_ = now;
    return used_ > limit_;
  }

 private:
  static double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  double limit_, most_, used_ = 0;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace faultline::race
