// Nearest names, durations and counts for progress lines, and our own XXH64. The hash follows the published
// specification step by step, so that it can be checked against it line by line.
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <vector>

namespace faultline {
namespace {

static_assert(std::endian::native == std::endian::little, "hash64 reads lanes in little-endian order");

char fold(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Insertions, deletions, substitutions and swaps of neighbours; no substring is edited twice.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = last[j - 1] + (fold(a[i - 1]) == fold(b[j - 1]) ? 0 : 1);
      current[j] = std::min({last[j] + 1, current[j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]);
      if (swapped) current[j] = std::min(current[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(current);
  }
  return last[b.size()];
}

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5;

template <typename Word>
Word read_word(const char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

uint64_t lane_round(uint64_t accumulator, uint64_t lane) {
  return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

uint64_t merge_lane(uint64_t hash, uint64_t accumulator) {
  return (hash ^ lane_round(0, accumulator)) * kPrime1 + kPrime4;
}

// Consumes all whole stripes of 32 bytes.
uint64_t hash_stripes(std::string_view& bytes, uint64_t seed) {
  uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  while (bytes.size() >= 32) {
    for (size_t i = 0; i < 4; ++i) lanes[i] = lane_round(lanes[i], read_word<uint64_t>(bytes.data() + 8 * i));
    bytes.remove_prefix(32);
  }
  uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = merge_lane(hash, lane);
  return hash;
}

uint64_t splitmix_finalise(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::string nearest_name(std::string_view unknown, std::span<const std::string> known) {
  size_t best = (unknown.size() + 2) / 3 + 1;
  std::string nearest;
  for (const std::string& name : known) {
    if (name == unknown) continue;  // it is known, so the trouble lies elsewhere
    const size_t distance = edit_distance(unknown, name);
    if (distance >= best || distance >= std::min(unknown.size(), name.size())) continue;
    best = distance;
    nearest = name;
  }
  return nearest;
}

std::string did_you_mean(std::string_view unknown, std::span<const std::string> known) {
  const std::string nearest = nearest_name(unknown, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e12;  // 30,000 years: beyond it the number says nothing
  if (!(seconds >= 0 && seconds < kLongest)) return "?";
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest) : fmt::format("{:02}:{:02}", minutes, rest);
}

std::string shell_quoted(const std::string& argument) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || std::strchr("_./:=,+-@%", c) != nullptr; };
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), plain)) return argument;
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string> comma_separated(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::string format_count(int64_t count) {
  if (count < 100'000 && count > -100'000) return fmt::format("{}", count);
  double scaled = static_cast<double>(count);
  const char* unit = "kMGTPE";
  for (scaled /= 1000; std::abs(scaled) >= 999.5; scaled /= 1000) ++unit;
  // Thresholds are where rounding would add a digit: 9.995 prints as "10.0", not as "10.00".
  const int decimals = std::abs(scaled) < 9.995 ? 2 : std::abs(scaled) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", scaled, decimals, *unit);
}

uint64_t hash64(std::string_view bytes, uint64_t seed) {
  const uint64_t length = bytes.size();
  uint64_t hash = length >= 32 ? hash_stripes(bytes, seed) : seed + kPrime5;
  hash += length;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    hash = std::rotl(hash ^ lane_round(0, read_word<uint64_t>(bytes.data())), 27) * kPrime1 + kPrime4;
  }
  if (bytes.size() >= 4) {
    hash = std::rotl(hash ^ read_word<uint32_t>(bytes.data()) * kPrime1, 23) * kPrime2 + kPrime3;
    bytes.remove_prefix(4);
  }
  for (const char byte : bytes) hash = std::rotl(hash ^ static_cast<unsigned char>(byte) * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t mix64(uint64_t a, uint64_t b) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  return splitmix_finalise(splitmix_finalise(a + kGolden) + b + kGolden);
}

}  // namespace faultline
