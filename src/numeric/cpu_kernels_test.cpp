// Every instruction set's kernels against the portable ones on tensors that the short forms of common cases take: many
// tiles a segment, a ragged end, every bf16 bit pattern, and numbers whose squares have a finite sum.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "numeric/cpu/kernels.h"

namespace faultline {
namespace {

struct Outcome {
  std::vector<uint16_t> bits;
  std::vector<SegmentPartial> partials;
};

Outcome run(const cpu::Kernels& kernels, const FaultArguments& arguments, bool ordinary, bool counted) {
  Outcome outcome;
  outcome.bits.resize(static_cast<std::size_t>(arguments.elements));
  for (std::size_t i = 0; i < outcome.bits.size(); ++i) {
    const auto pattern = static_cast<uint16_t>(i * 40503u);
    outcome.bits[i] = ordinary ? (pattern & 0x83FF) | 0x3C00 : pattern;  // ordinary: 2^-7 to 2 and their negatives
  }
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

void expect_equal(const cpu::Kernels& kernels, const FaultArguments& arguments, bool ordinary, bool counted) {
  const Outcome portable = run(cpu::portable::kKernels, arguments, ordinary, counted);
  const Outcome other = run(kernels, arguments, ordinary, counted);
  const std::string what =
      fmt::format("{}, {} elements, strength {}", kernels.name, arguments.elements, arguments.control.strength);
  ASSERT_EQ(portable.bits, other.bits) << what;
  for (std::size_t i = 0; i < other.partials.size(); ++i) {
    const SegmentPartial &p = portable.partials[i], &q = other.partials[i];
    ASSERT_TRUE(std::equal(p.sum, p.sum + kPartialSums, q.sum) && p.max == q.max &&
                std::equal(p.count, p.count + kPartialCounts, q.count))
        << what << ", segment " << i;
  }
}

TEST(CpuKernels, GiveEqualBitsAndLedgersForRelativeNoiseOnEveryInstructionSet) {
  FaultArguments arguments;
  arguments.kind = FaultKind::kRelativeGaussian;
  arguments.dtype = Dtype::kBFloat16;
  arguments.noise_key = 0x1234567890ABCDEFull;
  arguments.control.step = 3, arguments.control.call = 2, arguments.control.phase = 1;
  for (const int64_t elements : {1, 31, 32, 33, 63, 64, 2047, 2049, 70'000, 3 * 264 * kTile + 4133}) {
    for (const float strength : {0.0f, 1e-30f, 0.05f, 1e6f}) {
      arguments.elements = elements, arguments.control.strength = strength;
      for (const cpu::Kernels* kernels : wider_kernels()) {
        for (const bool ordinary : {false, true}) {
          for (const bool counted : {false, true}) expect_equal(*kernels, arguments, ordinary, counted);
        }
      }
    }
  }
}

}  // namespace
}  // namespace faultline
