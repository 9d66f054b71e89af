// What kind of damage a mismatch is, from the few sampled elements of a check and its counts. The order of the
// questions matters: what was never written and what is all zero are certain; one flipped bit is by far the likeliest
// reason for one changed bit; only then are other places asked whether they would have held what was seen.
#include <algorithm>
#include <array>

#include "race/patterns.h"

namespace faultline::race {
namespace {

constexpr int64_t kIterationsBack = 3;

struct Sample {
  uint64_t index;
  uint32_t observed;
  uint32_t expected;
};

std::vector<Sample> samples_of(const numeric::PatternCheck& row, const numeric::Pattern& pattern) {
  std::vector<Sample> samples;
  const uint64_t kept = std::min<uint64_t>(row.samples, numeric::PatternCheck::kSamples);
  for (uint64_t i = 0; i < kept; ++i)
    samples.push_back({row.index[i], static_cast<uint32_t>(row.observed[i]), expected_bits(pattern, row.index[i])});
  return samples;
}

bool all_hold(const std::vector<Sample>& samples, const numeric::Pattern& pattern) {
  return std::all_of(samples.begin(), samples.end(),
                     [&](const Sample& s) { return s.observed == expected_bits(pattern, s.index); });
}

bool one_bit_each(const std::vector<Sample>& samples) {
  return std::all_of(samples.begin(), samples.end(),
                     [](const Sample& s) { return __builtin_popcount(s.observed ^ s.expected) == 1; });
}

bool all_nan(const std::vector<Sample>& samples, numeric::Dtype dtype) {
  const uint32_t exponent = dtype == numeric::Dtype::kFloat32    ? 0x7F800000u
                            : dtype == numeric::Dtype::kBFloat16 ? 0x7F80u
                                                                 : 0x7C00u;
  const uint32_t magnitude = dtype == numeric::Dtype::kFloat32 ? 0x7FFFFFFFu : 0x7FFFu;
  return std::all_of(samples.begin(), samples.end(),
                     [&](const Sample& s) { return (s.observed & magnitude) > exponent; });
}

// Each element holds what another differing element should hold.
bool exchanged(const std::vector<Sample>& samples) {
  return samples.size() >= 2 && std::all_of(samples.begin(), samples.end(), [&](const Sample& s) {
           return std::any_of(samples.begin(), samples.end(), [&](const Sample& other) {
             return other.index != s.index && other.expected == s.observed;
           });
         });
}

std::optional<Diagnosis> from_elsewhere(const std::vector<Sample>& samples, const DiagnosisContext& context) {
  for (int64_t back = 0; back <= kIterationsBack; ++back) {
    for (int64_t layer = 0; layer < context.layers; ++layer) {
      PatternPlace place = context.place;
      place.iteration -= back;
      place.layer = layer;
      if (back == 0 && layer == context.place.layer) continue;
      if (all_hold(samples, context.pattern_at(place))) return Diagnosis{Damage::kStale, place.iteration, layer, {}};
    }
  }
  for (int rank = 0; rank < context.ranks; ++rank) {
    PatternPlace place = context.place;
    if (place.rank == rank) continue;
    place.rank = rank;
    if (all_hold(samples, context.pattern_at(place))) return Diagnosis{Damage::kOtherRank, {}, {}, rank};
  }
  return std::nullopt;
}

}  // namespace

Diagnosis diagnose(const numeric::PatternCheck& row, const DiagnosisContext& context) {
  const numeric::Pattern pattern = context.pattern_at(context.place);
  const std::vector<Sample> samples = samples_of(row, pattern);
  if (samples.empty()) return {};
  const uint64_t span = row.last - row.first() + 1;
  // An element may hold the poison's or a zero's bits by right: such elements do not count as differing.
  if (row.poisoned == row.count && row.count > 1) {
    const bool whole = span + 8 >= static_cast<uint64_t>(context.elements);
    return {whole ? Damage::kUntouched : Damage::kPartial, {}, {}, {}};
  }
  if (row.zeros == row.count && row.count > 1) return {Damage::kZero, {}, {}, {}};
  if (one_bit_each(samples)) return {Damage::kBitFlip, {}, {}, {}};
  if (row.zeros == row.count) return {Damage::kZero, {}, {}, {}};
  if (exchanged(samples)) return {Damage::kSwapped, {}, {}, {}};
  if (const auto elsewhere = from_elsewhere(samples, context)) return *elsewhere;
  if (all_nan(samples, pattern.dtype)) return {Damage::kNan, {}, {}, {}};
  return {};
}

const char* damage_name(Damage damage) {
  constexpr std::array kNames = {"bitflip",    "zero",    "untouched", "partial", "stale",
                                 "other_rank", "swapped", "nan",       "unknown"};
  return kNames[static_cast<size_t>(damage)];
}

}  // namespace faultline::race
