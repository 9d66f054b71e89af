// The digest misses nothing of the pattern table; the plain sum misses every exchange and all that cancels out.
// FAULTLINE_DIGEST_TRIALS sets the number of corruptions (10,000,000 for docs/results/digest.json, which
// FAULTLINE_DIGEST_RECORD=FILE writes; fewer by default, so that the suite stays short).
#include "numeric/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "numeric/cpu/kernels.h"

namespace faultline::numeric {
namespace digest_test {

using Buffer = std::vector<uint8_t>;

uint64_t digest_of(const Buffer& bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size()), tiles = (size + kDigestTile - 1) / kDigestTile;
  return finish_digest(cpu::kernels().digest_tiles(bytes.data(), size, 0, tiles), static_cast<uint64_t>(tiles),
                       static_cast<uint64_t>(size));
}
uint64_t sum_of(const Buffer& bytes) {
  return cpu::kernels().checksum(bytes.data(), 2, 0, static_cast<int64_t>(bytes.size() / 2));
}

struct Source {
  uint64_t state;
  uint64_t operator()() { return state = mix_bits(state); }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>((*this)() % limit); }
};

struct Pattern {
  const char* name;
  bool keeps_sum;  // the plain sum cannot see it
  std::function<void(Buffer&, const Buffer& stale, Source&)> corrupt;
};

int16_t element(const Buffer& b, std::size_t i) {
  int16_t value;
  std::memcpy(&value, b.data() + 2 * i, 2);
  return value;
}
void set_element(Buffer& b, std::size_t i, int16_t value) { std::memcpy(b.data() + 2 * i, &value, 2); }

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"1 bit", false,
       [](Buffer& b, const Buffer&, Source& r) {
         const auto bit = r.below(b.size() * 8);
         b[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
       }},
      {"2 bits", false,
       [](Buffer& b, const Buffer&, Source& r) {
         const auto one = r.below(b.size() * 8), two = (one + 1 + r.below(b.size() * 8 - 1)) % (b.size() * 8);
         b[one / 8] ^= static_cast<uint8_t>(1 << one % 8);
         b[two / 8] ^= static_cast<uint8_t>(1 << two % 8);
       }},
      {"compensating", true,
       [](Buffer& b, const Buffer&, Source& r) {
         const auto d = static_cast<int>(1 + r.below(100));
         std::size_t i, j;
         do {
           i = r.below(b.size() / 2), j = (i + 1 + r.below(b.size() / 2 - 1)) % (b.size() / 2);
         } while (element(b, i) + d > INT16_MAX || element(b, j) - d < INT16_MIN);
         set_element(b, i, static_cast<int16_t>(element(b, i) + d));
         set_element(b, j, static_cast<int16_t>(element(b, j) - d));
       }},
      {"swapped elements", true,
       [](Buffer& b, const Buffer&, Source& r) {
         const auto i = r.below(b.size() / 2), j = (i + 1 + r.below(b.size() / 2 - 1)) % (b.size() / 2);
         const int16_t keep = element(b, i);
         set_element(b, i, element(b, j));
         set_element(b, j, keep);
       }},
      {"swapped 4 KiB chunks", true,
       [](Buffer& b, const Buffer&, Source& r) {
         const auto chunks = b.size() / 4096;
         const auto i = r.below(chunks), j = (i + 1 + r.below(chunks - 1)) % chunks;
         std::swap_ranges(b.begin() + static_cast<long>(i * 4096), b.begin() + static_cast<long>((i + 1) * 4096),
                          b.begin() + static_cast<long>(j * 4096));
       }},
      {"rotated", true,
       [](Buffer& b, const Buffer&, Source& r) {
         std::rotate(b.begin(), b.begin() + static_cast<long>(2 * (1 + r.below(b.size() / 2 - 1))), b.end());
       }},
      {"stale half", false,
       [](Buffer& b, const Buffer& stale, Source& r) {
         const auto half = r.below(2) * b.size() / 2;
         std::copy_n(stale.begin() + static_cast<long>(half), b.size() / 2, b.begin() + static_cast<long>(half));
       }},
      {"stale", false, [](Buffer& b, const Buffer& stale, Source&) { b = stale; }},
      {"warp lane", false,
       [](Buffer& b, const Buffer&, Source& r) {
         const auto lane = r.below(32);
         const auto bit = static_cast<int16_t>(1 << r.below(16));
         for (std::size_t i = lane; i < b.size() / 2; i += 32)
           set_element(b, i, static_cast<int16_t>(element(b, i) ^ bit));
       }},
  };
  return all;
}

Buffer random_buffer(std::size_t size, Source& r) {
  Buffer b(size);
  for (auto& byte : b) byte = static_cast<uint8_t>(r());
  return b;
}

struct Outcome {
  int64_t corruptions = 0, missed = 0, missed_by_sum = 0;
};

// Each pattern in turn, on buffers of four sizes; a corruption that changed nothing (two equal elements exchanged) is
// drawn again and not counted.
std::map<std::string, Outcome> corrupted(uint64_t seed, int64_t trials) {
  Source r{seed};
  const std::size_t sizes[] = {8192, 16384, 20000, 12290};
  std::map<std::string, Outcome> outcomes;
  for (int64_t done = 0; done < trials;) {
    const Buffer original = random_buffer(sizes[r.below(4)], r), stale = random_buffer(original.size(), r);
    const uint64_t digest = digest_of(original), sum = sum_of(original);
    for (int repeat = 0; repeat < 200 && done < trials; ++repeat) {
      const Pattern& pattern = patterns()[static_cast<std::size_t>(done) % patterns().size()];
      Buffer damaged = original;
      pattern.corrupt(damaged, stale, r);
      if (damaged == original) continue;
      ++done;
      Outcome& one = outcomes[pattern.name];
      ++one.corruptions;
      one.missed += digest_of(damaged) == digest;
      one.missed_by_sum += sum_of(damaged) == sum;
    }
  }
  return outcomes;
}

TEST(Digest, MissesNoCorruptionOfThePatternTable) {
  const char *wish = std::getenv("FAULTLINE_DIGEST_TRIALS"), *file = std::getenv("FAULTLINE_DIGEST_RECORD");
  const uint64_t seed = 12345;
  const int64_t trials = wish ? std::atoll(wish) : 40000;
  const auto outcomes = corrupted(seed, trials);
  Json rows = Json::array();
  int64_t misses = 0;
  for (const Pattern& pattern : patterns()) {
    const Outcome& one = outcomes.at(pattern.name);
    EXPECT_EQ(one.missed, 0) << pattern.name;
    if (pattern.keeps_sum) {
      EXPECT_EQ(one.missed_by_sum, one.corruptions) << pattern.name;
    }
    misses += one.missed;
    rows.push_back({{"pattern", pattern.name},
                    {"corruptions", one.corruptions},
                    {"missed", one.missed},
                    {"missed_by_sum", one.missed_by_sum}});
  }
  EXPECT_EQ(outcomes.at("1 bit").missed_by_sum, 0);
  const Json record = {{"seed", seed}, {"corruptions", trials}, {"missed", misses}, {"patterns", rows}};
  std::printf("%s\n", record.dump().c_str());
  if (file != nullptr) write_file_atomically(file, record.dump(1) + "\n");
}

TEST(Digest, DependsOnTheLengthOfTrailingZeros) {
  const Buffer a(100, 0), b(101, 0), c(20000, 0);
  EXPECT_NE(digest_of(a), digest_of(b));
  EXPECT_NE(digest_of(a), digest_of(c));
}

TEST(Digest, OfTwoPartsAddsUpAtTileBoundaries) {
  Source r{7};
  const Buffer whole = random_buffer(5 * kDigestTile, r);
  const auto part = [&](int64_t first, int64_t last) {
    return cpu::kernels().digest_tiles(whole.data(), static_cast<int64_t>(whole.size()), first, last);
  };
  EXPECT_EQ(reduce61(part(0, 5)), reduce61(fold61(part(0, 2)) + part(2, 5)));
  // D(AB) = D(A) + alpha^T D(B), before the length is added.
  const uint64_t tail = cpu::kernels().digest_tiles(whole.data() + 2 * kDigestTile, 3 * kDigestTile, 0, 3);
  EXPECT_EQ(reduce61(part(0, 5)), reduce61(fold61(part(0, 2)) + multiply61(power61(kDigestAlpha, 2), tail)));
}

TEST(Digest, MultipliesModuloTheMersennePrime) {
  Source r{3};
  for (int i = 0; i < 1000; ++i) {
    const uint64_t a = r() >> 3, b = r() >> 3;
    __extension__ using Wide = unsigned __int128;
    EXPECT_EQ(reduce61(multiply61(a, b)), static_cast<uint64_t>(static_cast<Wide>(a) * b % kDigestPrime));
  }
}

}  // namespace digest_test
}  // namespace faultline::numeric
