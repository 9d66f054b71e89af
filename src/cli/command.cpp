#include "cli/command.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace faultline::cli {

uint64_t parse_count(std::string_view option, std::string_view text, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min || value > max) {
    throw UsageError(fmt::format("{}: wanted an integer from {} to {}, got '{}'", option, min, max, text));
  }
  return value;
}

double parse_number(std::string_view option, std::string_view text, double min, double max) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= min && value <= max)) {
    throw UsageError(fmt::format("{}: wanted a number from {} to {}, got '{}'", option, min, max, text));
  }
  return value;
}

uint64_t Globals::seed() const { return parse_count("--seed", seed_text, 0, std::numeric_limits<uint64_t>::max()); }

}  // namespace faultline::cli
