// Progress of a long loop, on stderr. On a terminal one line is redrawn, at most ten times a second; in a log file a
// whole line appears every ten seconds or ten per cent, so a log stays short and a hung run is visible. A guard: when
// it is destroyed, also by an exception, the line is ended and what follows starts on a fresh one. Clock and output are
// parameters, so the tests neither sleep nor need a terminal. The first batch is slow (memory, caches, threads), so the
// time that is left is told only when more than it is done, and from what came after it as soon as that is as much.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <string>

namespace faultline {

struct ProgressOptions {
  std::string unit = "step";
  int64_t already_done = 0;  // of the total, in an earlier run: shown, but not part of the rate
  int64_t batch = 1;         // so many are worked on at once: the first of them come late, and all together
  bool quiet = false;        // nothing is written at all

  std::ostream* out = nullptr;         // std::cerr
  std::function<double()> clock = {};  // seconds, monotonic
  std::optional<bool> terminal = {};   // whether stderr is one (and TERM is not "dumb")
  std::function<int()> width = {};     // columns of stderr's terminal, asked at every redraw; 80 if unknown
  std::optional<bool> unicode = {};    // whether the locale's encoding is UTF-8; else the bar is of '#'
};

class Progress {
 public:
  // A total of 0 is unknown: count, time and rate are shown, without per cent, bar and ETA.
  Progress(std::string description, int64_t total, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Thread-safe, all three.
  void advance(int64_t count = 1);
  void set_postfix(std::string text);  // e.g. "reward 0.61"; drawn with the next redraw
  void finish();                       // draws the last state and ends the line; the destructor does it too

 private:
  void draw_if_due();
  void draw(const char* ending);
  std::string line(double now) const;
  std::string statistics(double now) const;
  std::string time_left(double now) const;

  const std::string description_;
  const int64_t total_;
  const ProgressOptions options_;
  const int exceptions_at_start_;
  std::mutex mutex_;
  // Below: guarded by mutex_.
  std::string postfix_;
  int64_t done_;
  double started_ = 0;
  double last_drawn_ = 0;
  int64_t last_tenth_ = 0;
  int64_t begun_done_ = -1;  // what was done, and when, as the first batch was over; -1: it is not
  double begun_at_ = 0;
  bool finished_ = false;
};

}  // namespace faultline
