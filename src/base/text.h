// Text that people read and hashes that files keep. Two decisions shape it: a name we do not know is answered with the
// nearest one we do, always through did_you_mean() so every error words it alike; and hash64/mix64 are fixed forever
// (records, seeds and site identities are derived from them), so they are published functions with test vectors and
// never std::hash, whose value may change with the compiler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

// The known name with the least Damerau-Levenshtein distance (optimal string alignment, ASCII case ignored), the
// earliest of equals. Empty if none is within a third of the typed length, rounded up, or all of it would change.
std::string nearest_name(std::string_view unknown, std::span<const std::string> known);

// "; did you mean 'addmm'?" to append to an error's sentence, or "".
std::string did_you_mean(std::string_view unknown, std::span<const std::string> known);

// "02:05", "1:02:03", "75:00:00"; rounded down to whole seconds. "?" when negative or not finite (an unknown ETA).
std::string format_duration(double seconds);

std::string first_line(std::string_view text);

std::string shell_quoted(const std::string& argument);  // one word of a POSIX shell
std::vector<std::string> comma_separated(const std::string& text);

// Exact below 100,000, then three significant digits: "99999", "123k", "1.23M", "45.6G".
std::string format_count(int64_t count);

// XXH64 (Yann Collet, xxHash specification 0.1.1): the same value on every machine, version and thread.
uint64_t hash64(std::string_view bytes, uint64_t seed = 0);

// One well-mixed word of an ordered pair: f(f(a + g) + b + g), f the SplitMix64 finaliser (Steele, Lea, Flood 2014;
// constants of Stafford's variant 13), g = 0x9e3779b97f4a7c15. For a fixed a it is a bijection of b.
uint64_t mix64(uint64_t a, uint64_t b);

}  // namespace faultline
