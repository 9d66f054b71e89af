// The arithmetic of every fault kind, once, for host and device. A value kind maps a number to a number and is rounded
// once to the tensor's dtype; a bit kind maps raw bits to raw bits. Two rules hold for all value kinds: a non-finite
// input is returned as it is, and where the result equals the input the input's own bits are written back, so that a
// strength of zero is the identity to the bit (-0.0 stays -0.0). Loops, loads and evidence are the backends' business.
#pragma once

#include "numeric/arguments.h"
#include "numeric/gaussian.h"

namespace faultline::numeric {

// Which random streams an element uses. A stream is part of the Philox counter; stream 0 carries the deviates.
enum Stream : uint32_t {
  kGaussianStream = 0,
  kFirstStream = 1,
  kRoundingStream = 3,
  kCodeStream = 4,
  kScaleStream = 5,
  kCallStream = 7,
  kFlipStream = 16
};

FL_HD constexpr bool is_bit_kind(FaultKind kind) {
  return kind == FaultKind::kBitflip || kind == FaultKind::kStuckAt || kind == FaultKind::kNan ||
         kind == FaultKind::kInf || kind == FaultKind::kZero || kind == FaultKind::kSwap ||
         kind == FaultKind::kAccumulate;
}
FL_HD constexpr bool uses_gaussian(FaultKind kind) {
  return kind == FaultKind::kRelativeGaussian || kind == FaultKind::kAbsoluteGaussian ||
         kind == FaultKind::kScaledGaussian || kind == FaultKind::kSpike || kind == FaultKind::kNondeterministic;
}
FL_HD constexpr bool uses_word(FaultKind kind) {
  return kind == FaultKind::kTruncate || kind == FaultKind::kSpike || kind == FaultKind::kProfile;
}
// Relative and absolute noise fold the strength into the table of the deviates: one multiplication a call, not an
// element.
FL_HD constexpr bool scales_table(FaultKind kind) {
  return kind == FaultKind::kRelativeGaussian || kind == FaultKind::kAbsoluteGaussian;
}

// The counter is (block, block's high half with phase and stream above it, call, step). The key stays the same for a
// site's whole life, so that a kernel can be given the ten round keys instead of deriving them for each element.
FL_HD uint32_t counter_tag(const Control& control, uint32_t stream) {
  return (control.phase & 0xFFu) << 16 | stream << 24;
}

FL_HD PhiloxWords element_words(const Control& control, uint64_t key, uint64_t block, uint32_t stream) {
  return philox(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32) | counter_tag(control, stream),
                control.call, control.step, key);
}
// keyed_by: row — the row's own key takes the place of the row's position in the batch.
FL_HD PhiloxWords row_words(const Control& control, uint64_t key, uint64_t column_block, int64_t row_key,
                            uint32_t stream) {
  const uint64_t mixed = mix_bits(static_cast<uint64_t>(row_key));
  return philox(static_cast<uint32_t>(column_block) | (stream << 24), static_cast<uint32_t>(mixed), control.call,
                control.step ^ static_cast<uint32_t>(mixed >> 32), key ^ (static_cast<uint64_t>(control.phase) << 32));
}
FL_HD uint32_t half_word(const PhiloxWords& words, uint32_t index) {
  return (words.word[index >> 1] >> ((index & 1) * 16)) & 0xFFFFu;
}

FL_HD bool lifetime_acts(const LifetimeArguments& lifetime, uint64_t noise_key, const Control& control) {
  if (lifetime.kind == Lifetime::kWindow) return control.step >= lifetime.from && control.step < lifetime.to;
  if (lifetime.kind == Lifetime::kPermanent) return true;
  return unit_float(element_words(control, noise_key, 0, kCallStream).word[0]) < lifetime.probability;
}

FL_HD bool hash_selects(uint64_t key, uint64_t index, uint32_t threshold) {
  return static_cast<uint32_t>(mix_bits(key ^ mix_bits(index)) >> 32) <= threshold;
}
FL_HD bool any_holds(const IndexRange* ranges, int count, int64_t index) {
  bool holds = count == 0;
  for (int i = 0; i < count; ++i) holds |= index >= ranges[i].first && index <= ranges[i].last;
  return holds;
}
FL_HD bool region_holds(const Region& region, int64_t row, int64_t column) {
  const IndexRange* ranges = region.ranges;
  return any_holds(ranges, region.rows, row) && any_holds(ranges + region.rows, region.columns, column) &&
         any_holds(ranges + region.rows + region.columns, region.elements, row * region.width + column);
}
FL_HD bool extent_selects(const Extent& extent, uint64_t key, int64_t row, int64_t column) {
  if (extent.structure == Structure::kAll) return true;
  if (!region_holds(extent.region, row, column)) return false;
  uint64_t index = 0;
  switch (extent.structure) {
    case Structure::kAll:
    case Structure::kRegion: return true;
    case Structure::kElement:
    case Structure::kChannel: index = static_cast<uint64_t>(column); break;
    case Structure::kRow: index = static_cast<uint64_t>(row); break;
    case Structure::kTile:
      index =
          (static_cast<uint64_t>(row / extent.tile_rows) << 32) ^ static_cast<uint64_t>(column / extent.tile_columns);
      break;
    case Structure::kLane: index = static_cast<uint64_t>(column % extent.period); break;
  }
  return hash_selects(key, index, extent.threshold);
}

FL_HD float cut_mantissa(float x, uint32_t drop, TruncateMode mode, uint32_t word) {
  const uint32_t bits = float_bits(x), keep = ~((1u << drop) - 1u);
  const uint32_t nearest = ((1u << drop) >> 1) - 1u + ((bits >> drop) & 1u);
  const uint32_t below = mode == TruncateMode::kZero ? 0u : mode == TruncateMode::kNearest ? nearest : word & ~keep;
  return bits_float((bits + below) & keep);
}
FL_HD double cut_mantissa(double x, uint32_t drop, TruncateMode mode, uint32_t word) {
  const uint64_t bits = double_bits(x), keep = ~((uint64_t{1} << drop) - 1);
  const uint64_t nearest = ((uint64_t{1} << drop) >> 1) - 1 + ((bits >> drop) & 1);
  const uint64_t random = mix_bits(word) & ~keep;
  const uint64_t below = mode == TruncateMode::kZero ? 0 : mode == TruncateMode::kNearest ? nearest : random;
  return bits_double((bits + below) & keep);
}

FL_HD float profile_error(const ProfileTable& table, uint32_t word) {
  const float u = unit_float(word);
  if (u < table.share_equal) return 0.0f;
  const float p = (u - table.share_equal) / (1.0f - table.share_equal);
  uint32_t low = 0, high = table.knots - 1;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (table.probability[middle] <= p)
      low = middle;
    else
      high = middle;
  }
  const float width = table.probability[high] - table.probability[low];
  const float share = width > 0.0f ? (p - table.probability[low]) / width : 0.0f;
  return fused_multiply_add(share, table.error[high] - table.error[low], table.error[low]);
}

// x finite. `g`: the deviate (already times the strength where scales_table). `reference`: max, std or mean of the row,
// tensor or channel. `scale`: strength, folded with what is constant in a call (see call_scale).
template <FaultKind kKind, class Value>
FL_HD Value fault_value(const FaultArguments& a, float scale, Value x, float g, uint32_t word, float reference) {
  const Value zero = 0;
  if constexpr (kKind == FaultKind::kRelativeGaussian) return fused_multiply_add(static_cast<Value>(g), x, x);
  if constexpr (kKind == FaultKind::kAbsoluteGaussian) return x + static_cast<Value>(g);
  if constexpr (kKind == FaultKind::kScaledGaussian || kKind == FaultKind::kNondeterministic) {
    // Huge fp64 values make the fp32 reference infinite; a strength of zero must stay the identity.
    return fused_multiply_add(static_cast<Value>(g), static_cast<Value>(scale == 0.0f ? 0.0f : scale * reference), x);
  }
  if constexpr (kKind == FaultKind::kSystematicBias) return x == zero ? x : x + with_sign(static_cast<Value>(scale), x);
  if constexpr (kKind == FaultKind::kGain) return fused_multiply_add(static_cast<Value>(scale), x, x);
  if constexpr (kKind == FaultKind::kOffset)
    return x + static_cast<Value>(a.relative && scale != 0.0f ? scale * reference : scale);
  if constexpr (kKind == FaultKind::kTruncate)
    return cut_mantissa(x, a.drop_bits, static_cast<TruncateMode>(a.mode), word);
  if constexpr (kKind == FaultKind::kDeadzone) {
    return magnitude(x) < static_cast<Value>(a.relative ? scale * reference : scale) ? zero : x;
  }
  if constexpr (kKind == FaultKind::kSaturate) {
    const Value limit = static_cast<Value>(a.relative ? scale * reference : scale);
    return magnitude(x) > limit ? with_sign(limit, x) : x;
  }
  if constexpr (kKind == FaultKind::kSpike) {
    return unit_float(word) < scale ? static_cast<Value>((a.factor * reference) * g) : x;
  }
  if constexpr (kKind == FaultKind::kProfile)
    return fused_multiply_add(static_cast<Value>(profile_error(*a.profile, word)), x, x);
  return x;
}

// The strength of this call, folded with the kind's constants.
FL_HD float call_scale(const FaultArguments& a, const Control& control) {
  if (a.kind == FaultKind::kSaturate && a.relative) return 1.0f - control.strength;
  if (a.kind != FaultKind::kNondeterministic) return control.strength;
  float factor = control.strength * 0.01f;
  if (static_cast<NondeterministicMode>(a.mode) == NondeterministicMode::kInconsistent) {
    const PhiloxWords words = element_words(control, a.noise_key, 1, kCallStream);
    factor = factor * (2.0f * unit_float(words.word[0]));
  }
  return factor;
}

// Flips each eligible bit with a rate: the position of the first flip is drawn from its exact distribution, then the
// first flip above it, and so on until none follows. A call with no flip costs one comparison.
template <class Bits>
FL_HD Bits flips_at_rate(const FaultArguments& a, const Control& control, uint64_t key, uint64_t index) {
  Bits flips = 0;
  uint32_t done = 0;
  for (uint32_t draw = 0; done < a.bit_count; ++draw) {
    const PhiloxWords words = element_words(control, key, index, kFlipStream + draw);
    const uint64_t word = (static_cast<uint64_t>(words.word[0]) << 32) | words.word[1];
    if (word >= a.flip_threshold[a.bit_count - done - 1]) break;
    uint32_t first = 0;
    while (word >= a.flip_threshold[first]) ++first;
    flips ^= static_cast<Bits>(Bits{1} << (a.bit + done + first));
    done += first + 1;
  }
  return flips;
}

template <class Bits>
FL_HD Bits flips_by_count(const FaultArguments& a, const Control& control, uint64_t key, uint64_t index) {
  // The permutation ranks the elements; each call takes another window of `count` ranks.
  const uint64_t offset =
      mix_bits(key ^ ((static_cast<uint64_t>(control.step) << 32) | control.call)) % a.permutation.size;
  const uint64_t rank = permute(a.permutation, index) + offset;
  if ((rank < a.permutation.size ? rank : rank - a.permutation.size) >= a.count) return 0;
  const uint32_t word = element_words(control, key, index, kFirstStream).word[0];
  return static_cast<Bits>(
      Bits{1} << (a.bit + static_cast<uint32_t>((static_cast<uint64_t>(word) * a.bit_count) >> 32)));
}

// The element whose old bits arrive at `index` when pairs of regions are exchanged.
FL_HD int64_t swap_partner(const FaultArguments& a, int64_t index) {
  const uint64_t region = static_cast<uint64_t>(index / a.region);
  if (region >= a.permutation.size) return index;
  const uint64_t rank = permute(a.permutation, region);
  if (rank >= 2 * a.count) return index;
  const uint64_t other = permute_back(a.permutation, rank ^ 1u);
  return static_cast<int64_t>(other) * a.region + index % a.region;
}

template <FaultKind kKind, class Type>
FL_HD typename Type::Bits fault_bits(const FaultArguments& a, const Control& control, uint64_t key,
                                     typename Type::Bits bits, uint64_t index) {
  using Bits = typename Type::Bits;
  if constexpr (kKind == FaultKind::kZero) return 0;
  if constexpr (kKind == FaultKind::kNan) return Type::kNan;
  if constexpr (kKind == FaultKind::kInf)
    return static_cast<Bits>(Type::kInf | (bits & (Bits{1} << (Type::kWidth - 1))));
  if constexpr (kKind == FaultKind::kStuckAt) {
    const Bits mask = static_cast<Bits>(Bits{1} << a.bit);
    return static_cast<Bits>(a.bit_value ? bits | mask : bits & ~mask);
  }
  if constexpr (kKind == FaultKind::kBitflip) {
    const Bits flips =
        a.count > 0 ? flips_by_count<Bits>(a, control, key, index) : flips_at_rate<Bits>(a, control, key, index);
    return static_cast<Bits>(bits ^ flips);
  }
  if constexpr (kKind == FaultKind::kAccumulate) return static_cast<const typename Type::Bits*>(a.source)[index];
  if constexpr (kKind == FaultKind::kSwap)
    return static_cast<const Bits*>(a.source)[swap_partner(a, static_cast<int64_t>(index))];
  return bits;
}

}  // namespace faultline::numeric
