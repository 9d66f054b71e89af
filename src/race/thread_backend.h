// Collectives between the threads of one process: a c10d::Backend whose ranks meet in shared memory, so that the
// reproducer, its checks and its overlap run on a laptop, and on one GPU, where NCCL refuses two ranks. Every rank
// pulls its own result from its peers' inputs. A call returns once all ranks have come to it (a meeting of host
// threads, not a synchronisation with the device); wait() returns once all have taken their data, so that inputs may be
// reused. On a GPU both are ordered on the ranks' streams by events. Ranks that do not come, or come with another
// operation than most, are named; who is to blame for that is judged elsewhere (standing.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace faultline::race {

// Thrown on every rank that is left waiting; `ranks` are those that did not come, or not with what most called.
class CollectiveFailure : public std::runtime_error {
 public:
  enum class Reason { kTimeout, kMismatch, kEnded, kOther };
  CollectiveFailure(Reason reason, std::vector<int> ranks, const std::string& sentence)
      : std::runtime_error(sentence), reason_(reason), ranks_(std::move(ranks)) {}
  Reason reason() const { return reason_; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Reason reason_;
  std::vector<int> ranks_;
};

// What the ranks of a run share. A mismatch, a rank that has ended, or a timeout, in which nobody came anywhere, fails
// all of their groups.
class ThreadWorld {
 public:
  // `first_failure` is called once, before any rank learns of the failure.
  ThreadWorld(int ranks, std::chrono::milliseconds timeout, std::function<void()> first_failure = {});
  ~ThreadWorld();
  int ranks() const;

  c10::intrusive_ptr<c10d::Backend> backend(int rank, int group = 0);  // each rank's thread asks once
  void leave(int rank, const std::string& why);                        // a rank that ends early: its peers fail at once

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace faultline::race
