// Every instruction set's kernels against the portable ones on tensors that the short forms of common cases take: many
// tiles a segment, a ragged end, every bf16 bit pattern, and numbers whose squares have a finite sum, alone and among
// such as need a path of their own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "numeric/cpu/kernels.h"

namespace faultline::numeric {
namespace cpu_kernels_test {

enum class Input { kPatterns, kOrdinary, kMixed };

// The upper bits are what a 16-bit tensor gets.
uint32_t bits_of(uint32_t i, Input input) {
  constexpr uint32_t kSpecial[] = {0x00000000, 0x80000000, 0x00000001, 0x00400000, 0x807FFFFF,
                                   0x7F800000, 0xFF800000, 0x7F812345, 0xFFC54321, 0x44800000};  // the last is 2^10
  const uint32_t pattern = (i * 40503u) << 16 | (i * 2654435769u) >> 16;
  if (input == Input::kPatterns) return pattern;
  if (input == Input::kMixed && i % 7 == 0) return kSpecial[i / 7 % std::size(kSpecial)];
  return (pattern & 0x83FFFFFFu) | 0x3C000000u;  // 2^-7 to 2 and their negatives
}

template <class Type>
struct Outcome {
  std::vector<typename Type::Bits> bits;
  std::vector<SegmentPartial> partials;
};

template <class Type>
Outcome<Type> run(const cpu::Kernels& kernels, const FaultArguments& arguments, Input input, bool counted) {
  Outcome<Type> outcome;
  outcome.bits.resize(static_cast<std::size_t>(arguments.elements));
  uint32_t i = 0;
  for (auto& bits : outcome.bits) bits = static_cast<typename Type::Bits>(bits_of(i++, input) >> (32 - Type::kWidth));
  const int64_t chunks = (arguments.elements + kChunk - 1) / kChunk;
  const Traversal traversal = counted ? make_traversal(chunks) : make_uncounted_traversal(chunks);
  outcome.partials.assign(counted ? static_cast<std::size_t>(traversal.segments) : 0, SegmentPartial{});
  const int64_t middle = traversal.segments / 3;  // two threads' shares
  SegmentPartial* partials = counted ? outcome.partials.data() : nullptr;
  kernels.fault(arguments, traversal, 0, middle, outcome.bits.data(), partials);
  kernels.fault(arguments, traversal, middle, traversal.segments, outcome.bits.data(), partials);
  return outcome;
}

std::vector<const cpu::Kernels*> wider_kernels() {
#if defined(__x86_64__)
  const std::string_view best = cpu::kernels().name;
  if (best == "avx512") return {&cpu::avx2::kKernels, &cpu::avx512::kKernels};
  if (best == "avx2") return {&cpu::avx2::kKernels};
#elif defined(__aarch64__)
  return {&cpu::neon::kKernels};
#endif
  return {};
}

template <class Type>
void expect_equal(const cpu::Kernels& kernels, const FaultArguments& arguments, Input input, bool counted) {
  const Outcome<Type> portable = run<Type>(cpu::portable::kKernels, arguments, input, counted);
  const Outcome<Type> other = run<Type>(kernels, arguments, input, counted);
  const std::string what = fmt::format("{}, {} bits, input {}, {} elements, strength {}", kernels.name, Type::kWidth,
                                       static_cast<int>(input), arguments.elements, arguments.control.strength);
  ASSERT_EQ(portable.bits, other.bits) << what;
  for (std::size_t i = 0; i < other.partials.size(); ++i) {
    const SegmentPartial &p = portable.partials[i], &q = other.partials[i];
    ASSERT_TRUE(std::equal(p.sum, p.sum + kPartialSums, q.sum) && p.max == q.max &&
                std::equal(p.count, p.count + kPartialCounts, q.count))
        << what << ", segment " << i;
  }
}

template <class Type>
void expect_equal_everywhere() {
  FaultArguments arguments;
  arguments.kind = FaultKind::kRelativeGaussian;
  arguments.dtype = Type::kDtype;
  arguments.noise_key = 0x1234567890ABCDEFull;
  arguments.control.step = 3, arguments.control.call = 2, arguments.control.phase = 1;
  for (const int64_t elements : {1, 31, 32, 33, 63, 64, 2047, 2049, 70'000, 3 * 264 * kTile + 4133}) {
    for (const float strength : {0.0f, 1e-30f, 0.05f, 1e6f, 1e36f}) {  // the last makes 2^10 overflow
      arguments.elements = elements, arguments.control.strength = strength;
      for (const cpu::Kernels* kernels : wider_kernels()) {
        for (const Input input : {Input::kPatterns, Input::kOrdinary, Input::kMixed}) {
          for (const bool counted : {false, true}) expect_equal<Type>(*kernels, arguments, input, counted);
        }
      }
    }
  }
}

TEST(CpuKernels, GiveEqualBitsAndLedgersForRelativeNoiseOnEveryInstructionSet) {
  expect_equal_everywhere<BFloat16>();
  expect_equal_everywhere<Float32>();
}

}  // namespace cpu_kernels_test
}  // namespace faultline::numeric
