// g++'s coverage for libFuzzer, which knows clang's: g++ calls __sanitizer_cov_trace_pc on every edge, and libFuzzer
// looks at counters in a section of this name. Two edges may share one of them, as in AFL: of the edges that a corpus
// reaches about one in twenty does. Which ones changes with the addresses of a process.
#include <cstddef>
#include <cstdint>

namespace {

constexpr unsigned kBits = 18;
__attribute__((section("__libfuzzer_extra_counters"), used)) uint8_t counters[std::size_t{1} << kBits];

}  // namespace

extern "C" {

void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  uint8_t& counter = counters[place * 0x9E3779B97F4A7C15U >> (64 - kBits)];
  if (counter != UINT8_MAX) ++counter;
}

// Comparisons of floats, which g++ reports and libFuzzer does not know.
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
}
