// The ledger's sums in ATen's operators. A wave is as many tiles as there are segments, so that each of its tiles
// belongs to another segment and a wave's elements go to the lanes one to one; lanes are then added by the trees of
// ledger.h, segments as exact integers.
#pragma once

#include "numeric/ledger.h"
#include "numeric/portable/values.h"

namespace faultline::numeric::portable {

// What a chunk of whole tiles contributes. Flat; where a chunk ends within a tile, zeros follow.
struct ChunkEvidence {
  at::Tensor x, y;       // fp32, before and after
  at::Tensor changed;    // bool
  at::Tensor selected;   // bool; undefined: all of `existing`
  at::Tensor saturated;  // bool; undefined: none
  int64_t existing = 0;  // elements, where `selected` is undefined
};

// The strength sample: a sixty-fourth of the tensor, taken before and after the pass.
struct Sample {
  at::Tensor groups;  // int64, ascending
  at::Tensor before;  // (groups, 256), fp32
};

class Evidence {
 public:
  Evidence(const Traversal& traversal, Dtype dtype, const at::Device& device);
  // Tiles of segments [segment, segment + tiles of the chunk).
  void add(const ChunkEvidence& chunk, int64_t segment, Pool& pool);

  // Which of the elements (fp32, `elements` of the traversal) are in the sample, and their values: (groups, 256).
  const at::Tensor& sampled_groups() const { return groups_; }
  // x, y: (groups, 256), fp32; selected: bool likewise, or undefined.
  void add_sample(const at::Tensor& x, const at::Tensor& y, const at::Tensor& selected);

  // Adds everything to a ledger, where `acts` (int64 scalar, 0 or 1) says so. `armed` likewise counts the call.
  void finish(const at::Tensor& ledger, int64_t elements, const at::Tensor& armed, const at::Tensor& acts);

 private:
  Traversal traversal_;
  Dtype dtype_;
  at::Tensor lanes_[3];  // |e|, e^2, x^2: (segments, 2048), fp32
  at::Tensor relative_;  // (segments, 256)
  at::Tensor max_;       // (segments)
  at::Tensor counts_;    // (segments, kPartialCounts), fp64: exact up to 2^53
  at::Tensor groups_;
  std::vector<int64_t> first_group_of_wave_;
};

}  // namespace faultline::numeric::portable
