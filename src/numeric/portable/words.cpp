#include "numeric/portable/words.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "numeric/arithmetic.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kWord = 0xFFFFFFFFll;

// One round while some counters may still be scalars: every result is a new tensor.
void first_round(at::Tensor (&c)[4], const at::Tensor& low, const at::Tensor& high) {
  const at::Tensor p0 = c[0] * int64_t{0xD2511F53}, p1 = c[2] * int64_t{0xCD9E8D57};
  c[0] = (p1.bitwise_right_shift(32) ^ c[1] ^ low) & kWord;
  c[2] = (p0.bitwise_right_shift(32) ^ c[3] ^ high) & kWord;
  c[1] = p1 & kWord;
  c[3] = p0 & kWord;
}

// The rounds after, all in six buffers. The lower halves of products are cut to 32 bits by the round that follows.
void next_round(at::Tensor (&c)[4], at::Tensor (&product)[2], const at::Tensor& low, const at::Tensor& high) {
  const at::Scalar thirty_two(int64_t{32}), mask(kWord);
  at::mul_out(product[0], c[0], at::Scalar(int64_t{0xD2511F53}));
  at::mul_out(product[1], c[2], at::Scalar(int64_t{0xCD9E8D57}));
  at::bitwise_right_shift_out(c[0], product[1], thirty_two).bitwise_xor_(c[1]).bitwise_xor_(low).bitwise_and_(mask);
  at::bitwise_right_shift_out(c[2], product[0], thirty_two).bitwise_xor_(c[3]).bitwise_xor_(high).bitwise_and_(mask);
  std::swap(c[1], product[1]);
  std::swap(c[3], product[0]);
}

at::Tensor counter_tag(const DeviceControl& control, uint32_t stream) {
  return (control.phase & 0xFF).bitwise_left_shift(16) | static_cast<int64_t>(uint64_t{stream} << 24);
}

}  // namespace

at::Tensor scalar(double value, at::ScalarType dtype, const at::Device& device) {
  return at::full({}, value, at::TensorOptions().dtype(dtype).device(device));
}
at::Tensor word_scalar(uint64_t value, const at::Device& device) {
  return at::full({}, static_cast<int64_t>(value), at::TensorOptions().dtype(at::kLong).device(device));
}

at::Tensor Pool::take(at::ScalarType dtype, int64_t elements) {
  std::deque<at::Tensor>& buffers = buffers_[{dtype, elements}];
  for (const at::Tensor& buffer : buffers) {
    if (buffer.use_count() == 1 && buffer.storage().use_count() == 1) return buffer;
  }
  buffers.push_back(at::empty({elements}, at::TensorOptions().dtype(dtype).device(device_)));
  return buffers.back();
}

RoundKeys round_keys(uint64_t key, const at::Device& device, const at::Tensor& flipped) {
  RoundKeys keys;
  at::Tensor high = word_scalar(key >> 32, device);
  if (flipped.defined()) high = high ^ flipped;
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    keys.low[round] = word_scalar(static_cast<uint32_t>(key) + round * 0x9E3779B9u, device);
    keys.high[round] = (high + static_cast<int64_t>(round * 0xBB67AE85u)) & kWord;
  }
  return keys;
}

WordTensors philox(at::Tensor c0, at::Tensor c1, at::Tensor c2, at::Tensor c3, const RoundKeys& keys, Pool& pool) {
  at::Tensor c[4] = {std::move(c0), std::move(c1), std::move(c2), std::move(c3)};
  const int64_t elements = std::max({c[0].numel(), c[1].numel(), c[2].numel(), c[3].numel()});
  const bool scalars = c[0].dim() + c[1].dim() + c[2].dim() + c[3].dim() == 0;
  int round = 0;
  for (; round < (scalars ? kPhiloxRounds : 2); ++round) first_round(c, keys.low[round], keys.high[round]);
  if (scalars) return {{c[0], c[1], c[2], c[3]}};
  for (at::Tensor& counter : c) {  // the last scalar takes its place among the buffers
    if (counter.dim() == 1) continue;
    const at::Tensor buffer = pool.take(at::kLong, elements);
    buffer.copy_(counter);
    counter = buffer;
  }
  at::Tensor product[2] = {pool.take(at::kLong, elements), {}};
  product[1] = pool.take(at::kLong, elements);
  for (; round < kPhiloxRounds; ++round) next_round(c, product, keys.low[round], keys.high[round]);
  return {{c[0], c[1].bitwise_and_(kWord), c[2], c[3].bitwise_and_(kWord)}};
}

WordTensors block_words(const DeviceControl& control, const RoundKeys& keys, uint64_t first, int64_t count,
                        uint32_t stream, Pool& pool) {
  const at::Tensor tag = counter_tag(control, stream);
  const uint64_t last = first + static_cast<uint64_t>(count) - 1;
  at::Tensor block = pool.take(at::kLong, count);
  at::arange_out(block, count);
  block.add_(static_cast<int64_t>(first));
  const at::Tensor high =
      first >> 32 == last >> 32 ? tag | static_cast<int64_t>(first >> 32) : tag | block.bitwise_right_shift(32);
  block.bitwise_and_(kWord);
  return philox(block, high, control.call, control.step, keys, pool);
}

WordTensors element_words(const DeviceControl& control, const RoundKeys& keys, const at::Tensor& block, uint32_t stream,
                          Pool& pool) {
  return philox(block & kWord, counter_tag(control, stream) | block.bitwise_right_shift(32), control.call, control.step,
                keys, pool);
}

WordTensors keyed_words(const DeviceControl& control, const RoundKeys& keys, const at::Tensor& column_block,
                        const at::Tensor& mixed, uint32_t stream, Pool& pool) {
  return philox((column_block | static_cast<int64_t>(uint64_t{stream} << 24)) & kWord, mixed & kWord, control.call,
                shift_right(mixed, 32) ^ control.step, keys, pool);
}

at::Tensor flat_words(const WordTensors& words, Pool& pool) {
  const int64_t blocks = words.word[0].numel();
  const at::Tensor pairs = pool.take(at::kLong, 2 * blocks), pair = pool.take(at::kLong, blocks);
  for (int64_t half = 0; half < 2; ++half) {
    at::bitwise_left_shift_out(const_cast<at::Tensor&>(pair), words.word[2 * half + 1], at::Scalar(int64_t{32}));
    pairs.view({blocks, 2}).select(1, half).copy_(pair.bitwise_or_(words.word[2 * half]));
  }
  return pairs.view(at::kInt);
}

at::Tensor shift_right(const at::Tensor& words, int64_t by) {
  return words.bitwise_right_shift(by) & ((int64_t{1} << (64 - by)) - 1);
}

at::Tensor mix_bits(at::Tensor words) {
  words = words + static_cast<int64_t>(0x9E3779B97F4A7C15ull);
  words = (words ^ shift_right(words, 30)) * static_cast<int64_t>(0xBF58476D1CE4E5B9ull);
  words = (words ^ shift_right(words, 27)) * static_cast<int64_t>(0x94D049BB133111EBull);
  return words ^ shift_right(words, 31);
}

at::Tensor unit_float(const at::Tensor& word) {
  return (word.bitwise_right_shift(8) & 0xFFFFFF).to(at::kFloat).mul_(0x1p-24);
}

at::Tensor permute_back(const Permutation& p, at::Tensor ranks, at::Tensor& arrived) {
  const double share = static_cast<double>(p.size) / (static_cast<double>(p.mask) + 1);
  const int steps = share >= 1 ? 1 : static_cast<int>(std::ceil(-60 / std::log2(1 - share))) + 1;
  const auto size = static_cast<int64_t>(p.size), mask = static_cast<int64_t>(p.mask);
  arrived = at::zeros_like(ranks, at::kBool);
  at::Tensor index = ranks;
  for (int step = 0; step < std::max(steps, 1); ++step) {
    for (int round = 3; round >= 0; --round) {
      index = index ^ index.bitwise_right_shift(p.shift);
      index = ((index - static_cast<int64_t>(p.increment[round])) * static_cast<int64_t>(p.inverse[round])) & mask;
    }
    index = at::where(arrived, ranks, index);
    arrived = index < size;
    ranks = index;
  }
  return at::where(arrived, index, at::zeros_like(index));
}

at::Tensor extent_selects(const Extent& extent, uint64_t key, const at::Tensor& row, const at::Tensor& column) {
  at::Tensor index = column;
  if (extent.structure == Structure::kRow) index = row;
  if (extent.structure == Structure::kLane) index = column.remainder(extent.period);
  if (extent.structure == Structure::kTile) {
    index =
        at::div(row, extent.tile_rows, "floor").bitwise_left_shift(32) ^ at::div(column, extent.tile_columns, "floor");
  }
  const at::Tensor hash = mix_bits(mix_bits(index) ^ static_cast<int64_t>(key));
  return shift_right(hash, 32) <= static_cast<int64_t>(extent.threshold);
}

}  // namespace faultline::numeric::portable
