// Every fault kind on a chunk of elements: the formulas of arithmetic.h, in the same operations and order.
#pragma once

#include <optional>

#include "numeric/portable/deviates.h"

namespace faultline::numeric::portable {

struct FaultChunk {
  at::Tensor before, after;  // bits of the dtype, flat
  at::Tensor x;              // fp32 values of `before`
  at::Tensor selected;       // bool; undefined: all
};

// What is the same for all chunks of a call.
class FaultCall {
 public:
  // `x`: flat and contiguous. `reference`: fp32, one a row, a column or the tensor; `replacement`: like x.
  FaultCall(const FaultArguments& arguments, const DeviceControl& control, const at::Tensor& x,
            const at::Tensor& reference, const at::Tensor& replacement, const at::Tensor& row_keys,
            const ProfileTable* profile);
  // Elements [first, first + count), first a multiple of a tile. `acts`: int32 scalar of all ones where the fault acts,
  // or undefined: it does.
  FaultChunk chunk(int64_t first, int64_t count, const at::Tensor& acts, Pool& pool) const;
  // The mask of elements anywhere (int64 indices), or undefined: all.
  at::Tensor selected(const at::Tensor& elements) const;

 private:
  struct Place {
    at::Tensor row, column;
  };
  Place place_of(const at::Tensor& elements) const;
  at::Tensor words(int64_t first, int64_t count, const Place& place, uint32_t stream, Pool& pool) const;
  at::Tensor deviates(int64_t first, int64_t count, const Place& place, Pool& pool) const;
  at::Tensor keyed_words_of(const Place& place, uint32_t stream, int64_t per_block, Pool& pool) const;
  at::Tensor reference_of(const Place& place) const;
  at::Tensor value(const at::Tensor& x, int64_t first, const Place& place, Pool& pool) const;
  at::Tensor profile_error(const at::Tensor& words, Pool& pool) const;
  at::Tensor noisy(const at::Tensor& g, const at::Tensor& x, Pool& pool) const;
  at::Tensor after_value(const FaultChunk& chunk, int64_t first, const Place& place, const at::Tensor& acts,
                         Pool& pool) const;
  at::Tensor after_bits(const FaultChunk& chunk, int64_t first, const at::Tensor& acts, Pool& pool) const;
  at::Tensor flips_at_rate(int64_t first, int64_t count, Pool& pool) const;

  const FaultArguments& a_;
  DeviceControl control_;
  at::Tensor x_;
  at::Tensor reference_, replacement_, row_keys_;
  at::Tensor scale_;
  RoundKeys keys_, row_round_keys_;
  std::optional<Deviates> deviates_;
  at::Tensor probability_, error_;  // a profile's knots
  const ProfileTable* profile_;
  bool positions_;
};

// x with its flipped or exchanged elements: what bitflip by count and swap write.
at::Tensor rearranged(const FaultArguments& arguments, const DeviceControl& control, const at::Tensor& x);

}  // namespace faultline::numeric::portable
