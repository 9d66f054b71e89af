// The ledger's sums in ATen's operators. A wave is as many tiles as there are segments, so that each of its tiles
// belongs to another segment and a wave's elements go to the lanes one to one. A chunk is some tiles of one wave, or
// some whole waves: then everything that has no order is added at once, and only the lanes take wave after wave. At the
// end lanes are added by the trees of ledger.h, all sums side by side, segments as exact integers.
#pragma once

#include <memory>
#include <vector>

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

class Evidence {
 public:
  Evidence(const Traversal& traversal, Dtype dtype, const at::Device& device);
  // Tiles of segments [segment, segment + per_wave), of one wave or of several. `starts`: of the first wave.
  void add(const ChunkEvidence& chunk, int64_t segment, int64_t per_wave, bool starts, Pool& pool);

  // Which of the elements (fp32, `elements` of the traversal) are in the strength sample, a sixty-fourth of the tensor
  // that is taken before and after the pass: groups of 256.
  const at::Tensor& sampled_groups() const { return sample_->groups; }
  // x, y: (groups, 256), fp32; selected: bool likewise, or undefined.
  void add_sample(const at::Tensor& x, const at::Tensor& y, const at::Tensor& selected);

  // Adds everything to a ledger, where `acts` (int64 scalar, 0 or 1) says so. `armed` likewise counts the call.
  void finish(const at::Tensor& ledger, int64_t elements, const at::Tensor& armed, const at::Tensor& acts);

 private:
  // Where the sample's groups go. Groups that share their lanes are turns apart, in the order of their waves.
  struct Sample {
    at::Tensor groups, lanes, segments;  // int64, on the device; lanes: of 32
    std::vector<int64_t> first_of_turn;
  };
  static std::shared_ptr<const Sample> sample_of(const Traversal& traversal, const at::Device& device);

  Traversal traversal_;
  Dtype dtype_;
  at::Tensor absolute_;  // |e|: (segments, 2048), fp32
  at::Tensor squares_;   // e^2 and x^2: (2, segments, 2048), fp32
  at::Tensor relative_;  // (segments, 256)
  at::Tensor max_;       // (segments)
  at::Tensor counts_;    // (kPartialCounts, segments), int64
  std::shared_ptr<const Sample> sample_;
};

}  // namespace faultline::numeric::portable
