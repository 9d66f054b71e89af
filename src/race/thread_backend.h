// Collectives between the threads of one process: a c10d::Backend whose ranks meet in shared memory, so that the
// reproducer, its checks and its overlap run on a laptop, and on one GPU, where NCCL refuses two ranks. Every rank
// pulls its own result from its peers' inputs. A call returns once all ranks have come to it (a meeting of host
// threads, not a synchronisation with the device); wait() returns once all have taken their data, so that inputs may be
// reused. On a GPU both are ordered on the ranks' streams by events. A rank that does not come within the timeout, or
// comes with another operation, is named.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace faultline::race {

// Thrown on every rank that is left waiting; `ranks` are the ones to blame.
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

// What the ranks of one group share. A timeout or mismatch fails the whole group, as with other backends.
class ThreadWorld {
 public:
  ThreadWorld(int ranks, std::chrono::milliseconds timeout);
  ~ThreadWorld();
  int ranks() const;

  c10::intrusive_ptr<c10d::Backend> backend(int rank);  // each rank's thread asks once
  void leave(int rank, const std::string& why);         // a rank that ends early: its peers fail at once

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace faultline::race
