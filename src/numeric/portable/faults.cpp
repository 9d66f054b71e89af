#include "numeric/portable/faults.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "numeric/arithmetic.h"

namespace faultline::numeric::portable {
namespace {

bool by_count(const FaultArguments& a) { return a.kind == FaultKind::kBitflip && a.count > 0; }
bool writes_source(const FaultArguments& a) {
  return is_replacement(a.kind) || a.kind == FaultKind::kSwap || by_count(a);
}
bool is_correlated(const FaultArguments& a) {
  return a.kind == FaultKind::kNondeterministic &&
         static_cast<NondeterministicMode>(a.mode) == NondeterministicMode::kCorrelated;
}

// call_scale on the device.
at::Tensor scale_of(const FaultArguments& a, const DeviceControl& control, const RoundKeys& keys) {
  if (a.kind == FaultKind::kSaturate && a.relative) return at::rsub(control.strength, 1.0);
  if (a.kind != FaultKind::kNondeterministic) return control.strength;
  const at::Tensor factor = control.strength * static_cast<double>(0.01f);
  if (static_cast<NondeterministicMode>(a.mode) != NondeterministicMode::kInconsistent) return factor;
  Pool pool(control.strength.device());
  const at::Tensor block = word_scalar(1, control.strength.device());
  return factor * (unit_float(element_words(control, keys, block, kCallStream, pool).word(0)) * 2.0);
}

// A profile's knots on a device, (2, knots); the copy lives as long as the process.
at::Tensor knots_of(const ProfileTable& profile, const at::Device& device) {
  const auto knots = static_cast<int64_t>(profile.knots);
  const at::Tensor rows = at::empty({2, knots}, at::kFloat);
  float* to = rows.mutable_data_ptr<float>();
  std::copy_n(profile.probability, knots, to);
  std::copy_n(profile.error, knots, to + knots);
  static std::mutex mutex;
  static std::deque<std::pair<at::Tensor, at::Tensor>> copies;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [host, there] : copies) {
    if (there.device() == device && at::equal(host, rows)) return there;
  }
  copies.emplace_back(rows, rows.to(device));
  return copies.back().second;
}

// How many flips an element can have but for a chance below 2^-64.
uint32_t most_flips(const FaultArguments& a) {
  const double rate = std::ldexp(static_cast<double>(a.flip_threshold[0]), -64);
  const double n = a.bit_count;
  for (uint32_t flips = 1; flips < a.bit_count; ++flips) {
    // P(at least `flips`) <= C(n, flips) rate^flips
    const double bound = std::exp(std::lgamma(n + 1) - std::lgamma(flips + 1.0) - std::lgamma(n - flips + 1) +
                                  flips * std::log(rate > 0 ? rate : 1e-300));
    if (bound < 0x1p-64) return flips - 1;
  }
  return a.bit_count;
}

}  // namespace

FaultCall::FaultCall(const FaultArguments& arguments, const DeviceControl& control, const at::Tensor& x,
                     const at::Tensor& reference, const at::Tensor& replacement, const at::Tensor& row_keys,
                     const ProfileTable* profile)
    : a_(arguments),
      control_(control),
      x_(x),
      reference_(reference),
      replacement_(replacement),
      row_keys_(row_keys),
      keys_(round_keys(arguments.noise_key, x.device())),
      profile_(profile),
      positions_(arguments.extent.structure != Structure::kAll ||
                 (reference.defined() && arguments.axis != Axis::kTensor) || arguments.keyed_by_row ||
                 is_correlated(arguments)) {
  scale_ = scale_of(a_, control_, keys_);
  if (a_.keyed_by_row) row_round_keys_ = round_keys(a_.noise_key, x.device(), control_.phase);
  if (uses_gaussian(a_.kind)) deviates_.emplace(a_.dtype, scales_table(a_.kind) ? scale_ : at::Tensor(), x.device());
  if (a_.kind == FaultKind::kProfile) {
    const at::Tensor knots = knots_of(*profile_, x.device());
    probability_ = knots.select(0, 0), error_ = knots.select(0, 1);
  }
}

FaultCall::Place FaultCall::place_of(const at::Tensor& elements) const {
  const at::Tensor row = at::div(elements, a_.columns, "floor");
  return {row, elements - row * a_.columns};
}

at::Tensor FaultCall::selected(const at::Tensor& elements) const {
  if (a_.extent.structure == Structure::kAll) return {};
  const Place place = place_of(elements);
  return extent_selects(a_.extent, a_.mask_key, place.row, place.column);
}

at::Tensor FaultCall::keyed_words_of(const Place& place, uint32_t stream, int64_t per_block, Pool& pool) const {
  const bool half = per_block == 8;
  const at::Tensor block = place.column.bitwise_right_shift(half ? 3 : 2);
  WordTensors words;
  if (is_correlated(a_) && stream == kGaussianStream) {
    words = element_words(control_, keys_, block, stream, pool);
  } else {
    const at::Tensor key =
        row_keys_.defined() ? row_keys_.view({-1}).index_select(0, place.row) : place.row + control_.row_base;
    words = keyed_words(control_, row_round_keys_, block, mix_bits(key), stream, pool);
  }
  const at::Tensor part = (half ? place.column.bitwise_right_shift(1) : place.column) & 3;
  at::Tensor word = words.word(0) * part.eq(0).to(at::kLong);
  for (int64_t k = 1; k < 4; ++k) word.add_(words.word(k) * part.eq(k).to(at::kLong));
  return half ? at::bitwise_right_shift(word, (place.column & 1) * 16).to(at::kShort) : word.to(at::kInt);
}

at::Tensor FaultCall::words(int64_t first, int64_t count, const Place& place, uint32_t stream, Pool& pool) const {
  if (a_.keyed_by_row) return keyed_words_of(place, stream, 4, pool);
  return flat_words(block_words(control_, keys_, static_cast<uint64_t>(first) / 4, (count + 3) / 4, stream, pool), pool)
      .narrow(0, 0, count);
}

at::Tensor FaultCall::deviates(int64_t first, int64_t count, const Place& place, Pool& pool) const {
  const bool half = a_.dtype != Dtype::kFloat32;
  if (a_.keyed_by_row || is_correlated(a_)) {
    const at::Tensor words = keyed_words_of(place, kGaussianStream, half ? 8 : 4, pool);
    return half ? deviates_->of_halves(words, pool) : deviates_->of(words, pool);
  }
  const int64_t per_block = half ? 8 : 4;
  const at::Tensor words = flat_words(block_words(control_, keys_, static_cast<uint64_t>(first / per_block),
                                                  (count + per_block - 1) / per_block, kGaussianStream, pool),
                                      pool);
  return deviates_->of(words, pool).narrow(0, 0, count);
}

at::Tensor FaultCall::reference_of(const Place& place) const {
  if (a_.axis == Axis::kTensor) return reference_.select(0, 0);
  return reference_.index_select(0, a_.axis == Axis::kToken ? place.row : place.column);
}

at::Tensor FaultCall::profile_error(const at::Tensor& words, Pool& pool) const {
  const float share_equal = profile_->share_equal;
  const at::Tensor u = unit_float(words);
  const at::Tensor p = (u - static_cast<double>(share_equal)) / scalar(1.0f - share_equal, at::kFloat, u.device());
  at::Tensor low = at::zeros_like(words, at::kLong),
             high = at::full_like(low, static_cast<int64_t>(profile_->knots) - 1);
  for (uint32_t span = profile_->knots - 1; span > 1; span = (span + 1) / 2) {
    const at::Tensor middle = (low + high).bitwise_right_shift(1);
    const at::Tensor up = probability_.index_select(0, middle) <= p;
    low = at::where(up, middle, low), high = at::where(up, high, middle);
  }
  const at::Tensor below = probability_.index_select(0, low), width = probability_.index_select(0, high) - below;
  const at::Tensor none = at::zeros_like(p);
  const at::Tensor share = at::where(width.gt(0), (p - below) / width, none);
  const at::Tensor error = error_.index_select(0, low), step = error_.index_select(0, high) - error;
  return at::where(u < static_cast<double>(share_equal), none, multiply_add(share, step, error, pool));
}

// fused g * x + x. What an infinite x gives is not written.
at::Tensor FaultCall::noisy(const at::Tensor& g, const at::Tensor& x, Pool& pool) const {
  at::Tensor product = pool.take(at::kDouble, x.numel());
  product.copy_(g);
  const at::Tensor wide = operand64(x, pool);
  product.mul_(wide);
  if (a_.dtype == Dtype::kFloat32 || a_.stochastic_rounding || a_.kind != FaultKind::kRelativeGaussian)
    return add_rounded(product, wide, pool);
  return add_exact(product, wide, pool);
}

at::Tensor FaultCall::value(const at::Tensor& x, int64_t first, const Place& place, Pool& pool) const {
  const int64_t count = x.numel();
  const at::Tensor g = uses_gaussian(a_.kind) ? deviates(first, count, place, pool) : at::Tensor();
  const at::Tensor word = uses_word(a_.kind) ? words(first, count, place, kFirstStream, pool) : at::Tensor();
  const at::Tensor reference = reference_.defined() ? reference_of(place) : at::Tensor();
  const at::Tensor zero = scalar(0, at::kFloat, x.device());
  const auto limit = [&] { return a_.relative ? scale_ * reference : scale_; };
  switch (a_.kind) {
    case FaultKind::kRelativeGaussian: return noisy(g, x, pool);
    case FaultKind::kAbsoluteGaussian: {
      at::Tensor sum = pool.take(at::kFloat, count);
      return at::add_out(sum, x, g);
    }
    case FaultKind::kScaledGaussian:
    case FaultKind::kNondeterministic:
      return multiply_add(g, at::where(scale_.eq(0), zero, scale_ * reference), x, pool);
    case FaultKind::kSystematicBias: return at::where(x.eq(0), x, x + with_sign(scale_.expand_as(x).contiguous(), x));
    case FaultKind::kGain: return noisy(scale_, x, pool);
    case FaultKind::kOffset: return x + (a_.relative ? at::where(scale_.ne(0), scale_ * reference, scale_) : scale_);
    case FaultKind::kTruncate: {
      const int32_t low = static_cast<int32_t>((1u << a_.drop_bits) - 1u);
      const auto mode = static_cast<TruncateMode>(a_.mode);
      at::Tensor bits = bits_of(x);
      if (mode == TruncateMode::kNearest)
        bits = bits + ((bits.bitwise_right_shift(static_cast<int64_t>(a_.drop_bits)) & 1) +
                       static_cast<int32_t>(((1u << a_.drop_bits) >> 1) - 1u));
      if (mode == TruncateMode::kStochastic) bits = bits + (word & low);
      return (bits & ~low).view(at::kFloat);
    }
    case FaultKind::kDeadzone: return at::where(x.abs() < limit(), zero, x);
    case FaultKind::kSaturate: {
      const at::Tensor most = limit();
      return at::where(x.abs() > most, with_sign(most.expand_as(x).contiguous(), x), x);
    }
    case FaultKind::kSpike:
      return at::where(unit_float(word) < scale_, (reference * static_cast<double>(a_.factor)) * g, x);
    case FaultKind::kProfile: return noisy(profile_error(word, pool), x, pool);
    default: FL_ASSERT(!"not a value kind");
  }
}

at::Tensor FaultCall::after_value(const FaultChunk& chunk, int64_t first, const Place& place, const at::Tensor& acts,
                                  Pool& pool) const {
  const at::Tensor y = value(chunk.x, first, place, pool);
  const at::Tensor bits =
      a_.stochastic_rounding && a_.dtype != Dtype::kFloat32
          ? stochastic_bits(y, a_.dtype, words(first, chunk.x.numel(), place, kRoundingStream, pool), pool)
          : rounded_bits(y, a_.dtype, pool);
  at::Tensor keep = nonfinite_mask(chunk.x, pool);
  keep.bitwise_or_(equal_mask(y, chunk.x, pool));
  if (chunk.selected.defined()) keep.bitwise_or_(mask_of(chunk.selected.logical_not(), at::kInt));
  if (acts.defined()) keep.bitwise_or_(acts.bitwise_not());
  choose_(bits, chunk.before, mask_as(keep, bits.scalar_type(), pool));
  return bits;
}

// flips_at_rate for a chunk: the draws that are made until none follows, of which there are at most as many as flips.
at::Tensor FaultCall::flips_at_rate(int64_t first, int64_t count, Pool& pool) const {
  const at::Device device = x_.device();
  const at::Tensor index = at::arange(first, first + count, at::TensorOptions().dtype(at::kLong).device(device));
  at::Tensor flips = at::zeros_like(index), done = at::zeros_like(index), going = at::ones_like(index);
  const uint32_t most = most_flips(a_);
  for (uint32_t draw = 0; draw < most; ++draw) {
    const WordTensors words = element_words(control_, keys_, index, kFlipStream + draw, pool);
    // Unsigned words are compared as signed ones with the top bit turned.
    const at::Tensor word = (words.word(0).bitwise_left_shift(32) | words.word(1)) ^ INT64_MIN;
    at::Tensor place = done.clone();
    for (uint32_t j = 0; j < a_.bit_count; ++j)
      place.add_(word.ge(static_cast<int64_t>(a_.flip_threshold[j] ^ (uint64_t{1} << 63))).to(at::kLong));
    going.mul_(place.lt(static_cast<int64_t>(a_.bit_count)).to(at::kLong));
    flips.bitwise_xor_(at::bitwise_left_shift(going, (place + static_cast<int64_t>(a_.bit)).clamp_max(63)));
    done = place + 1;
  }
  return flips;
}

at::Tensor FaultCall::after_bits(const FaultChunk& chunk, int64_t first, const at::Tensor& acts, Pool& pool) const {
  const at::Tensor& before = chunk.before;
  const at::ScalarType type = before.scalar_type();
  const int64_t count = before.numel();
  const bool wide = a_.dtype == Dtype::kFloat32;
  const int64_t infinity = wide ? 0x7F800000 : a_.dtype == Dtype::kBFloat16 ? 0x7F80 : 0x7C00;
  const int64_t nan = wide ? 0x7FC00000 : a_.dtype == Dtype::kBFloat16 ? 0x7FC0 : 0x7E00;
  const int64_t sign = wide ? INT32_MIN : INT16_MIN;
  at::Tensor after;
  if (writes_source(a_)) {
    after = bits_of(replacement_.view({-1}).narrow(0, first, count)).clone();
  } else if (a_.kind == FaultKind::kZero) {
    after = at::zeros_like(before);
  } else if (a_.kind == FaultKind::kNan) {
    after = at::full_like(before, nan);
  } else if (a_.kind == FaultKind::kInf) {
    after = (before & sign) | infinity;
  } else if (a_.kind == FaultKind::kStuckAt) {
    const int64_t bit = int64_t{1} << a_.bit, mask = wide ? static_cast<int32_t>(bit) : static_cast<int16_t>(bit);
    after = a_.bit_value ? before | mask : before & ~mask;
  } else {
    FL_ASSERT(a_.kind == FaultKind::kBitflip);
    after = before ^ flips_at_rate(first, count, pool).to(type);
  }
  if (chunk.selected.defined()) choose_(after, before, mask_of(chunk.selected.logical_not(), type));
  if (acts.defined()) choose_(after, before, acts.bitwise_not().to(type));
  return after;
}

FaultChunk FaultCall::chunk(int64_t first, int64_t count, const at::Tensor& acts, Pool& pool) const {
  const at::Tensor values = x_.narrow(0, first, count);
  FaultChunk chunk;
  chunk.before = bits_of(values);
  chunk.x = values;
  if (a_.dtype != Dtype::kFloat32) {
    at::Tensor wide = pool.take(at::kFloat, count);
    chunk.x = wide.copy_(values);
  }
  Place place;
  if (positions_)
    place = place_of(at::arange(first, first + count, at::TensorOptions().dtype(at::kLong).device(x_.device())));
  if (a_.extent.structure != Structure::kAll)
    chunk.selected = extent_selects(a_.extent, a_.mask_key, place.row, place.column);
  chunk.after = is_bit_kind(a_.kind) || writes_source(a_) ? after_bits(chunk, first, acts, pool)
                                                          : after_value(chunk, first, place, acts, pool);
  return chunk;
}

at::Tensor rearranged(const FaultArguments& a, const DeviceControl& control, const at::Tensor& x) {
  const at::Tensor result = x.clone(), bits = bits_of(result);
  const auto options = at::TensorOptions().dtype(at::kLong).device(x.device());
  const bool swaps = a.kind == FaultKind::kSwap;
  const auto ranks = static_cast<int64_t>(swaps ? 2 * a.count : a.count);
  const int64_t at_once = std::max<int64_t>(2, (int64_t{1} << 18) / (swaps ? a.region : 1) / 2 * 2);
  Pool pool(x.device());
  const RoundKeys keys = round_keys(a.noise_key, x.device());
  const auto size = static_cast<int64_t>(a.permutation.size);
  // Each call takes another window of `count` ranks.
  const at::Tensor when = control.step.bitwise_left_shift(32) | control.call;
  const at::Tensor mixed = mix_bits(when ^ static_cast<int64_t>(a.noise_key));
  // An unsigned word modulo the size: its upper 63 bits first, which are not negative.
  const at::Tensor upper = shift_right(mixed, 1).remainder(size);
  const at::Tensor offset = (upper + upper + (mixed & 1)).remainder(size);
  for (int64_t first = 0; first < ranks; first += at_once) {
    const int64_t count = std::min(at_once, ranks - first);
    at::Tensor rank = at::arange(first, first + count, options), arrived;
    if (!swaps) rank = (rank - offset).remainder(size);
    const at::Tensor index = permute_back(a.permutation, rank, arrived);
    if (swaps) {
      const int64_t regions = size * a.region;
      const at::Tensor from = bits_of(x).narrow(0, 0, regions).view({size, a.region});
      const at::Tensor to = bits.narrow(0, 0, regions).view({size, a.region});
      const at::Tensor other = index.view({-1, 2}).flip(1).reshape({-1});
      // A pair whose walk was too long stays where it is: its difference counts nothing.
      const at::Tensor both = arrived.view({-1, 2}).all(1, true).expand({-1, 2}).reshape({-1, 1});
      const at::Tensor change =
          (from.index_select(0, other) - from.index_select(0, index)) * both.to(bits.scalar_type());
      to.index_add_(0, index, change);
      continue;
    }
    const at::Tensor word = element_words(control, keys, index, kFirstStream, pool).word(0);
    const at::Tensor bit =
        (word * static_cast<int64_t>(a.bit_count)).bitwise_right_shift(32) + static_cast<int64_t>(a.bit);
    const at::Tensor flip = at::bitwise_left_shift(arrived.to(at::kLong), bit).to(bits.scalar_type());
    const at::Tensor old = bits_of(x).index_select(0, index);
    bits.index_add_(0, index, (old ^ flip) - old);
  }
  return result;
}

}  // namespace faultline::numeric::portable
