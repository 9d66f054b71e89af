// Patterns on tensors: which key a buffer has, filling, checking and poisoning it on its own device, and what a
// mismatch looks like. Keys come from (seed, iteration, layer, rank, stream): "stream" tells apart the buffers of one
// layer (parameters, gradients, the host copy, …), so that none can stand in for another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "numeric/pattern.h"

namespace faultline::race {

enum class Stream : uint32_t { kParameters, kGradients, kHost, kAllToAll, kAllReduce, kReference, kWeights };

struct PatternPlace {
  uint64_t seed = 0;
  int64_t iteration = 0;
  int64_t layer = 0;
  int rank = 0;
  Stream stream = Stream::kParameters;
};

numeric::Dtype pattern_dtype(at::ScalarType type);  // fp32, bf16, fp16; anything else is our mistake
numeric::PatternKey pattern_key(const PatternPlace& place);
numeric::Pattern element_pattern(numeric::PatternForm form, at::ScalarType type, const PatternPlace& place);
// The exact sum of the integer patterns of ranks 0 … ranks-1; `place.rank` is ignored.
numeric::Pattern sum_pattern(at::ScalarType type, PatternPlace place, int ranks);
numeric::Pattern integer_pattern(at::ScalarType type, const PatternPlace& place,
                                 int ranks);  // one summand of the above
int most_exact_ranks(at::ScalarType type);    // beyond it a sum of integers is no longer exact in this dtype

void fill(const at::Tensor& buffer, const numeric::Pattern& pattern);
// Adds what differs to `row`, int64[kPatternCheckWords] on the buffer's device. `offset`: of the buffer's first element
// in the pattern (CPU only; 0 on a GPU).
void check(const at::Tensor& buffer, const numeric::Pattern& pattern, uint32_t poison, const at::Tensor& row);

// A word no pattern of this (iteration, layer) is likely to hold often; outputs are filled with it before they are
// written, so that what was never written shows.
uint32_t poison_word(uint64_t seed, int64_t iteration, int64_t layer);
void poison(const at::Tensor& buffer, uint32_t word);

uint32_t expected_bits(const numeric::Pattern& pattern, uint64_t element);

enum class Damage { kBitFlip, kZero, kUntouched, kPartial, kStale, kOtherRank, kSwapped, kNan, kUnknown };
const char* damage_name(Damage damage);

struct Diagnosis {
  Damage damage = Damage::kUnknown;
  std::optional<int64_t> from_iteration;  // kStale
  std::optional<int64_t> from_layer;      // kStale
  std::optional<int> from_rank;           // kOtherRank
};

// What else the buffer could have held: the pattern of another place.
using PatternAt = std::function<numeric::Pattern(const PatternPlace&)>;
struct DiagnosisContext {
  PatternPlace place;
  PatternAt pattern_at;
  int64_t elements = 0;
  int64_t layers = 1;
  int ranks = 1;
};
Diagnosis diagnose(const numeric::PatternCheck& row, const DiagnosisContext& context);

}  // namespace faultline::race
