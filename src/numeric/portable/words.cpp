#include "numeric/portable/words.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "numeric/arithmetic.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kWord = 0xFFFFFFFFll;

// Note [Halves of a round]
// A round multiplies counters 0 and 2, and of the products' upper halves makes counters 2 and 0, xored with counters 3
// and 1. Both halves lie in one tensor of two rows, so that an operator serves both: `even` holds counters 0 and 2,
// after a round 2 and 0, after the next 0 and 2 again. Only the xor with the odd counters, which change places, takes a
// row at a time. A device that waits longer for an operator than the operator takes has six a round instead of ten.
struct Constants {
  at::Tensor factors[2];  // (2, 1): of counters 0 and 2; of 2 and 0
  at::Tensor weyl;        // (rounds, 2, 1): what each round adds to the key's high and low half, in the rows' order
};

const Constants& constants(const at::Device& device) {
  static std::mutex mutex;
  static std::map<std::string, Constants> all;
  const std::lock_guard<std::mutex> lock(mutex);
  Constants& there = all[device.str()];
  if (there.weyl.defined()) return there;
  std::vector<int64_t> weyl;
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    const int64_t low = round * 0x9E3779B9u, high = round * 0xBB67AE85u;
    weyl.insert(weyl.end(), {round % 2 == 0 ? high : low, round % 2 == 0 ? low : high});
  }
  constexpr int64_t kFactor0 = 0xD2511F53, kFactor2 = 0xCD9E8D57;
  const auto rows = [&](std::vector<int64_t> values) {
    return at::tensor(values, at::kLong).view({-1, 2, 1}).to(device);
  };
  there = {{rows({kFactor0, kFactor2})[0], rows({kFactor2, kFactor0})[0]}, rows(weyl)};
  return there;
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
  const at::Tensor low = word_scalar(key & 0xFFFFFFFFu, device);
  at::Tensor high = word_scalar(key >> 32, device);
  if (flipped.defined()) high = high ^ flipped;
  const at::Tensor even = at::stack({high, low}), odd = at::stack({low, high});
  const at::Tensor in_turn = at::stack({even, odd}).repeat({kPhiloxRounds / 2, 1}).unsqueeze(2);
  static_assert(kPhiloxRounds % 2 == 0);
  return in_turn.add_(constants(device).weyl).bitwise_and_(kWord);
}

at::Tensor WordTensors::word(int64_t number) const {
  return number % 2 == 0 ? even.select(0, number / 2) : odd.select(0, number / 2) & kWord;
}

WordTensors philox(const at::Tensor& c0, const at::Tensor& c1, const at::Tensor& c2, const at::Tensor& c3,
                   const RoundKeys& keys, Pool& pool) {
  const int64_t blocks = std::max({c0.numel(), c1.numel(), c2.numel(), c3.numel()});
  const at::Scalar thirty_two(int64_t{32});
  const Constants& constant = constants(keys.device());
  const auto rows = [&] { return pool.take(at::kLong, 2 * blocks).view({2, blocks}); };
  at::Tensor even = rows(), odd = rows(), product = rows();
  even.select(0, 0).copy_(c0), even.select(0, 1).copy_(c2);
  odd.select(0, 0).copy_(c3), odd.select(0, 1).copy_(c1);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    at::mul_out(product, even, constant.factors[round % 2]);
    at::bitwise_right_shift_out(even, product, thirty_two);
    const int64_t swapped = round == 0 ? 0 : 1;  // the caller's odd counters stand where they are needed
    even.select(0, 0).bitwise_xor_(odd.select(0, swapped));
    even.select(0, 1).bitwise_xor_(odd.select(0, 1 - swapped));
    even.bitwise_xor_(keys.select(0, round)).bitwise_and_(kWord);
    std::swap(odd, product);
  }
  if (c0.dim() + c1.dim() + c2.dim() + c3.dim() > 0) return {even, odd};
  return {even.select(1, 0), odd.select(1, 0)};
}

WordTensors block_words(const DeviceControl& control, const RoundKeys& keys, uint64_t first, int64_t count,
                        uint32_t stream, Pool& pool) {
  at::Tensor tag = counter_tag(control, stream);
  const uint64_t last = first + static_cast<uint64_t>(count) - 1;
  at::Tensor block = pool.take(at::kLong, count);
  at::arange_out(block, static_cast<int64_t>(first), static_cast<int64_t>(last) + 1, 1);
  if (last >> 32 != 0) {
    tag = tag | block.bitwise_right_shift(32);
    block.bitwise_and_(kWord);
  }
  return philox(block, tag, control.call, control.step, keys, pool);
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
  const int64_t blocks = words.even.size(1);
  const at::Tensor pairs = pool.take(at::kLong, 2 * blocks);
  const at::Tensor joined = words.odd.bitwise_left_shift_(32).bitwise_or_(words.even);
  pairs.view({blocks, 2}).copy_(joined.t());
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

namespace {

void keep_in(at::Tensor& selected, const IndexRange* ranges, int count, const at::Tensor& index) {
  if (count == 0) return;
  at::Tensor any;
  for (int i = 0; i < count; ++i) {
    const at::Tensor holds = (index >= ranges[i].first) & (index <= ranges[i].last);
    any = any.defined() ? any | holds : holds;
  }
  selected = selected.defined() ? selected & any : any;
}

}  // namespace

at::Tensor extent_selects(const Extent& extent, uint64_t key, const at::Tensor& row, const at::Tensor& column) {
  const Region& region = extent.region;
  at::Tensor inside;  // undefined: everything
  keep_in(inside, region.ranges, region.rows, row);
  keep_in(inside, region.ranges + region.rows, region.columns, column);
  if (region.elements > 0)
    keep_in(inside, region.ranges + region.rows + region.columns, region.elements, row * region.width + column);
  if (extent.structure == Structure::kRegion) return inside;
  at::Tensor index = column;
  if (extent.structure == Structure::kRow) index = row;
  if (extent.structure == Structure::kLane) index = column.remainder(extent.period);
  if (extent.structure == Structure::kTile) {
    index =
        at::div(row, extent.tile_rows, "floor").bitwise_left_shift(32) ^ at::div(column, extent.tile_columns, "floor");
  }
  const at::Tensor hash = mix_bits(mix_bits(index) ^ static_cast<int64_t>(key));
  const at::Tensor selected = shift_right(hash, 32) <= static_cast<int64_t>(extent.threshold);
  return inside.defined() ? selected & inside : selected;
}

}  // namespace faultline::numeric::portable
