// Processes that train one model together: each holds all weights, samples its share of the prompts and learns from its
// share of the micro-batches; gradients are added in the order of the ranks, so that every process makes the same
// update to the bit.
//
// Note [Shards]: what is computed together decides how it rounds and which random numbers its faults draw. So the
// recipe says into how many shards a step is cut, not the number of processes: a shard's rollout and a micro-batch are
// computed alike, whichever process does it and however many there are. Only the order in which gradients are added
// differs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace faultline::train {

struct Replicas {
  int64_t rank = 0, ranks = 1;
  // Equal shapes on all ranks -> (ranks, …): on the CPU what was there; what was on a GPU there or on the CPU.
  std::function<at::Tensor(const at::Tensor&)> gather;

  bool alone() const { return ranks == 1; }
  bool is_first() const { return rank == 0; }
  // Whether this process does piece i of n; contiguous shares.
  bool owns(std::size_t i, std::size_t n) const {
    return static_cast<int64_t>(i) * ranks / static_cast<int64_t>(n) == rank;
  }
};

// What all ranks together have, added in the order of the ranks; on x's device and of its type. x itself where alone.
at::Tensor summed(const Replicas& replicas, const at::Tensor& x);
std::vector<std::string> gathered(const Replicas& replicas, const std::string& own);  // texts of all ranks, in order
void sum_in_place(const Replicas& replicas, at::Tensor& flat);                        // a long vector, piece by piece

}  // namespace faultline::train
