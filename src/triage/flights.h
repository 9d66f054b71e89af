// Trials that are running, each in a thread that waits for its executor. Results are taken one at a time, by the one
// thread that keeps the record: no trial's end waits for another's.
#pragma once

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "triage/trial.h"

namespace faultline::triage {

struct Flight {
  TrialRequest request;
  std::filesystem::path folder;
  double started = 0;
};

class Flights {
 public:
  Flights() = default;
  ~Flights();  // waits for those that still run
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  int count() const { return count_; }
  void start(Flight flight, Executor& executor);
  std::pair<Flight, TrialResult> wait();  // the next that ends; rethrows what its executor threw

 private:
  using Threads = std::list<std::jthread>;
  struct Landed {
    Threads::iterator thread;
    Flight flight;
    TrialResult result;
    std::exception_ptr failure;
  };
  int count_ = 0;
  std::mutex mutex_;
  std::condition_variable landed_one_;
  std::vector<Landed> landed_;
  Threads threads_;  // last: they end before what they use goes
};

}  // namespace faultline::triage
