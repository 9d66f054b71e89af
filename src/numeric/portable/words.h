// Random words and integer hashes as tensors. Words of 32 bits are kept in int64 while they are multiplied: a product
// of two is exact there. What is the same for a whole call (step, call number, phase) is a scalar tensor on the
// device, because it may live in a control row that the host must not wait for.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>

#include "base/rng.h"
#include "numeric/arguments.h"

namespace faultline::numeric::portable {

at::Tensor scalar(double value, at::ScalarType dtype, const at::Device& device);  // of no dimension
at::Tensor word_scalar(uint64_t value, const at::Device& device);                 // its bits as int64

// Buffers of a chunk, used again as soon as nobody holds them: fresh memory would cost more than the arithmetic.
class Pool {
 public:
  explicit Pool(const at::Device& device) : device_(device) {}
  at::Tensor take(at::ScalarType dtype, int64_t elements);

 private:
  at::Device device_;
  std::map<std::pair<at::ScalarType, int64_t>, std::deque<at::Tensor>> buffers_;
};

// The control of one call, on the device.
struct DeviceControl {
  at::Tensor armed;     // bool; undefined: armed for certain
  at::Tensor strength;  // fp32
  at::Tensor step, call, phase, row_base;
};

// What is xored to each round's counters, (kPhiloxRounds, 2, 1) of int64: the half of counters 0 and 2 stands on top in
// turn, as Note [Halves of a round] has it.
using RoundKeys = at::Tensor;
// `flipped`: a word that is xored into the key's high half.
RoundKeys round_keys(uint64_t key, const at::Device& device, const at::Tensor& flipped = {});

// Four words a block, as int64: words 0 and 2 in `even`, words 1 and 3 in `odd`, (2, blocks). Above an odd word's 32
// bits stands what its product left there.
struct WordTensors {
  at::Tensor even, odd;
  at::Tensor word(int64_t number) const;  // 0 … 2^32 - 1
};
// Counters that broadcast to one dimension, or to none: then there is one block.
WordTensors philox(const at::Tensor& c0, const at::Tensor& c1, const at::Tensor& c2, const at::Tensor& c3,
                   const RoundKeys& keys, Pool& pool);

// element_words of blocks [first, first + count), as arithmetic.h has it.
WordTensors block_words(const DeviceControl& control, const RoundKeys& keys, uint64_t first, int64_t count,
                        uint32_t stream, Pool& pool);
// The words of all those blocks one after the other, as int32 with the same bits. `words` is lost.
at::Tensor flat_words(const WordTensors& words, Pool& pool);
// row_words, one block an element. `row_key` mixed; keys from round_keys(key, device, phase).
WordTensors keyed_words(const DeviceControl& control, const RoundKeys& keys, const at::Tensor& column_block,
                        const at::Tensor& mixed, uint32_t stream, Pool& pool);
WordTensors element_words(const DeviceControl& control, const RoundKeys& keys, const at::Tensor& block, uint32_t stream,
                          Pool& pool);

at::Tensor shift_right(const at::Tensor& words, int64_t by);  // of unsigned 64-bit words
at::Tensor mix_bits(at::Tensor words);
at::Tensor unit_float(const at::Tensor& word);  // int32 or int64 words -> fp32 in [0, 1)

// permute_back of every rank. Walks a fixed number of steps, since the device is not asked how far it got: a rank that
// has not arrived then (one in 2^60 a call at most) is marked false in `arrived`.
at::Tensor permute_back(const Permutation& permutation, at::Tensor ranks, at::Tensor& arrived);

// Whether the extent's mask takes an element.
at::Tensor extent_selects(const Extent& extent, uint64_t key, const at::Tensor& row, const at::Tensor& column);

}  // namespace faultline::numeric::portable
