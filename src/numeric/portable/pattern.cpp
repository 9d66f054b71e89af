#include "numeric/portable/pattern.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstddef>
#include <mutex>

#include "base/error.h"
#include "numeric/cpu/pattern.h"
#include "numeric/portable/portable.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
constexpr int64_t kWordMask = 0xFFFFFFFF;
constexpr int64_t kNone = INT64_MAX;

at::Tensor indices(int64_t first, int64_t count, const at::Device& device) {
  return at::arange(first, first + count, at::TensorOptions().dtype(at::kLong).device(device));
}

// pattern_word of every index. Products keep their lower 32 bits, whatever happens above.
at::Tensor pattern_words(PatternKey key, const at::Tensor& index) {
  const auto times = [](const at::Tensor& x, int64_t factor) { return x.mul(factor).bitwise_and_(kWordMask); };
  at::Tensor x = times(index, 0x9E3779B1).add_(int64_t{key.low}).bitwise_and_(kWordMask);
  x.bitwise_xor_(x.bitwise_right_shift(16));
  x = times(x, 0x85EBCA6B).bitwise_xor_(int64_t{key.high});
  x.bitwise_xor_(x.bitwise_right_shift(15));
  x = times(x, 0xC2B2AE35);
  return x.bitwise_xor_(x.bitwise_right_shift(16));
}

template <class Type>
constexpr at::ScalarType kInteger = Type::kWidth == 32 ? at::kInt : at::kShort;
template <class Type>
constexpr int64_t kBitsMask = (int64_t{1} << Type::kWidth) - 1;

at::ScalarType scalar_type(Dtype dtype) {
  return dtype == Dtype::kBFloat16 ? at::kBFloat16 : dtype == Dtype::kFloat16 ? at::kHalf : at::kFloat;
}

// The bits of every element, from 0 to 2^width - 1.
template <class Type, PatternForm kForm>
at::Tensor expected_bits(const Pattern& pattern, const at::Tensor& index) {
  if constexpr (kForm == PatternForm::kInteger) {
    at::Tensor sum = at::zeros_like(index);
    for (int32_t k = 0; k < pattern.keys; ++k)
      sum.add_(pattern_words(pattern.key[k], index).bitwise_right_shift(32 - pattern.integer_bits))
          .sub_(int64_t{1} << (pattern.integer_bits - 1));
    const at::Tensor values = sum.to(at::kFloat).to(scalar_type(pattern.dtype));
    return values.view(kInteger<Type>).to(at::kLong).bitwise_and_(kBitsMask<Type>);
  } else {
    const at::Tensor bits = pattern_words(pattern.key[0], index).bitwise_right_shift(32 - Type::kWidth);
    if constexpr (kForm == PatternForm::kRaw) return bits;
    constexpr int64_t kBias = (1 << (Type::kExponentBits - 1)) - 1, kMantissa = (int64_t{1} << Type::kMantissaBits) - 1;
    const at::Tensor exponent = bits.bitwise_right_shift(Type::kMantissaBits).bitwise_and_(7).add_(kBias - 8);
    return bits.bitwise_and((int64_t{1} << (Type::kWidth - 1)) | kMantissa)
        .bitwise_or_(exponent.bitwise_left_shift(Type::kMantissaBits));
  }
}

template <class Type>
at::Tensor integers_of(const at::Tensor& buffer) {
  return buffer.view({-1}).view(kInteger<Type>);
}

template <class Visit>
void for_each_chunk(int64_t elements, const Visit& visit) {
  for (int64_t first = 0; first < elements; first += kElementsAtOnce)
    visit(first, std::min(kElementsAtOnce, elements - first));
}

void fill_unproven(const at::Tensor& buffer, const Pattern& pattern) {
  dispatch_pattern(pattern, [&]<class Type, PatternForm kForm>() {
    const at::Tensor values = integers_of<Type>(buffer);
    for_each_chunk(buffer.numel(), [&](int64_t first, int64_t count) {
      const at::Tensor bits = expected_bits<Type, kForm>(pattern, indices(first, count, buffer.device()));
      // Within the integer's range, so that no conversion is asked to wrap.
      values.narrow(0, first, count)
          .copy_(bits - bits.bitwise_right_shift(Type::kWidth - 1).bitwise_left_shift(Type::kWidth));
    });
  });
}

enum Word : int64_t {
  kCount,
  kFirstFromEnd,
  kLast,
  kChangedBits,
  kZeros,
  kPoisoned,
  kSamples,
  kIndex = offsetof(PatternCheck, index) / 8,
  kObserved = offsetof(PatternCheck, observed) / 8,
  kHistogram = offsetof(PatternCheck, histogram) / 8
};
static_assert(offsetof(PatternCheck, samples) == 8 * kSamples);

// Adds what differs in one chunk. `samples`: the smallest indices that differ so far, kNone where there are fewer.
void add_chunk(const at::Tensor& row, at::Tensor& samples, const at::Tensor& index, const at::Tensor& observed,
               const at::Tensor& expected, int64_t poison, int width) {
  const at::Tensor difference = observed.bitwise_xor(expected), wrong = difference.ne(0);
  const auto word = [&](int64_t place) { return row.select(0, place); };
  word(kCount).add_(wrong.sum());
  word(kLast).copy_(at::maximum(word(kLast), index.mul(wrong).max()));
  word(kZeros).add_(wrong.logical_and(observed.eq(0)).sum());
  word(kPoisoned).add_(wrong.logical_and(observed.eq(poison)).sum());
  for (int bit = 0; bit < width; ++bit)
    word(kHistogram + bit).add_(difference.bitwise_right_shift(bit).bitwise_and_(1).sum());
  const at::Tensor candidates = at::cat({samples, at::where(wrong, index, kNone)});
  samples = std::get<0>(candidates.topk(PatternCheck::kSamples, 0, /*largest=*/false, /*sorted=*/true));
}

template <class Type, PatternForm kForm>
void check_elements(const at::Tensor& buffer, const Pattern& pattern, uint32_t poison, const at::Tensor& row) {
  const at::Tensor values = integers_of<Type>(buffer);
  const auto bits_of = [](const at::Tensor& some) { return some.to(at::kLong).bitwise_and_(kBitsMask<Type>); };
  at::Tensor samples = at::full({PatternCheck::kSamples}, kNone, row.options());
  for_each_chunk(buffer.numel(), [&](int64_t first, int64_t count) {
    const at::Tensor index = indices(first, count, buffer.device());
    add_chunk(row, samples, index, bits_of(values.narrow(0, first, count)), expected_bits<Type, kForm>(pattern, index),
              int64_t{poison} & kBitsMask<Type>, Type::kWidth);
  });
  const at::Tensor found = samples.ne(kNone), where = samples.mul(found);
  row.select(0, kSamples).copy_(found.sum());
  row.select(0, kFirstFromEnd).copy_(at::where(found[0], samples[0].bitwise_not(), at::zeros_like(samples[0])));
  row.narrow(0, kIndex, PatternCheck::kSamples).copy_(where);
  row.narrow(0, kObserved, PatternCheck::kSamples).copy_(bits_of(values.index_select(0, where)).mul(found));
  const at::Tensor histogram = row.narrow(0, kHistogram, PatternCheck::kBits);
  const at::Tensor bits =
      at::bitwise_left_shift(histogram.gt(0).to(at::kLong), indices(0, PatternCheck::kBits, row.device()));
  row.select(0, kChangedBits).copy_(bits.sum());
}

std::string complaint_about(const at::Device& device) {
  constexpr int64_t kElements = 1000;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16})
    for (const PatternForm form : {PatternForm::kRaw, PatternForm::kFinite, PatternForm::kInteger}) {
      Pattern pattern;
      pattern.form = form, pattern.dtype = dtype, pattern.integer_bits = 5,
      pattern.keys = form == PatternForm::kInteger ? 3 : 1;
      for (uint32_t k = 0; k < 3; ++k) pattern.key[k] = {0xF0E1D2C3u + k, 0x87654321u - k};
      const at::Tensor known = at::empty({kElements}, at::TensorOptions().dtype(scalar_type(dtype)));
      cpu::pattern_kernels().fill(pattern, 0, kElements, known.mutable_data_ptr());
      const at::Tensor made = at::empty_like(known, known.options().device(device));
      fill_unproven(made, pattern);
      if (!at::equal(made.cpu().view(at::kByte), known.view(at::kByte)))
        return fmt::format(
            "known bytes come out otherwise on {} than on the CPU; its integer arithmetic is not exact; "
            "python -m faultline.selftest --device {} says what agrees there",
            device.str(), device.str());
    }
  return "";
}

void require_pattern_proof(const at::Device& device) {
  static std::mutex mutex;
  static std::map<std::string, std::string> complaints;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [place, is_new] = complaints.try_emplace(device.str());
  if (is_new) place->second = complaint_about(device);
  if (!place->second.empty()) throw UsageError(place->second);
}

}  // namespace

void fill_pattern(const at::Tensor& buffer, const Pattern& pattern) {
  require_pattern_proof(buffer.device());
  const at::NoGradGuard no_gradients;
  fill_unproven(buffer, pattern);
}

void check_pattern(const at::Tensor& buffer, const Pattern& pattern, uint32_t poison, const at::Tensor& row) {
  if (buffer.numel() == 0) return;
  const at::NoGradGuard no_gradients;
  dispatch_pattern(pattern,
                   [&]<class Type, PatternForm kForm>() { check_elements<Type, kForm>(buffer, pattern, poison, row); });
}

}  // namespace faultline::numeric::portable
