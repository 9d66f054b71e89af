// Faults that share nothing with the screen and our taps: another thread, on a stream of its own, that flips a bit of
// memory once or holds it; and torch's copy operator in other hands. Each keeps its own notes of what it did, and holds
// what the screen found against them.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "screen/drill.h"
#include "screen/worker.h"

namespace torch {
class Library;
}

namespace faultline::screen {

// One bit of memory under test or of an operand. Call between() between the batches of a worker of so many rounds.
class Outside {
 public:
  enum class Kind { kMemoryOnce, kMemoryHeld, kOperandOnce };
  Outside(WorkList& list, const at::Device& device, Kind kind, uint64_t seed, int64_t rounds);
  ~Outside();  // the other thread ends; an operand is as it was
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  void between();
  Trial judged(const WorkerResult& result) const;

 private:
  void choose(uint64_t seed);
  void flip() const;
  void hold();

  at::Device device_;
  Kind kind_;
  Check* check_ = nullptr;
  std::size_t part_ = 0;  // the chunk or the operand
  int64_t element_ = 0, mask_ = 0;
  at::Tensor word_;  // as an integer
  bool held_at_ = false;
  int64_t boundary_ = 0, boundaries_ = 0;  // when it strikes; how many there were
  bool struck_ = false;
  std::atomic<bool> end_{false};
  std::atomic<int64_t> held_{0};  // how often the bit was put where it is held
  std::thread thread_;
};

// While it lives, copies into the buffers of the list's chains are spoilt at this rate.
class SpoiltCopies {
 public:
  SpoiltCopies(const WorkList& list, const at::Device& device, bool lose, double rate, uint64_t seed);
  ~SpoiltCopies();
  SpoiltCopies(const SpoiltCopies&) = delete;
  SpoiltCopies& operator=(const SpoiltCopies&) = delete;

  Trial judged(const WorkerResult& result) const;
  at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking);

 private:
  struct Launch {  // of a chain, in which something was spoilt
    std::string check, stage;
    int64_t first_element = 0, elements = 0;
  };
  struct Buffer {
    std::string check, stage;
    bool first = false;
  };
  void spoil(const at::Tensor& to, const at::Tensor& kept, int64_t element) const;

  const WorkList& list_;
  bool lose_, inside_ = false, fresh_ = false;
  double rate_;
  uint64_t seed_, copies_ = 0;
  std::map<const void*, Buffer> buffers_;
  std::vector<Launch> launches_;
  std::vector<std::unique_ptr<torch::Library>> kernels_;
};

}  // namespace faultline::screen
