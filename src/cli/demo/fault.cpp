// Which fault the demo plants, and how it shows two texts beside each other.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/demo/demo.h"
#include "cli/output.h"
#include "recipe/recipe.h"

namespace faultline::cli {
namespace {

struct Kind {
  const char* what;   // the short form without its place
  const char* named;  // by a diagnosis
};
// Strong enough that a reader sees it in one sentence of text.
constexpr Kind kKinds[] = {{"deadzone(threshold=0.05)", "deadzone"},
                           {"saturate(margin=0.3)", "saturate"},
                           {"relative_gaussian(strength=0.5)", "noise"},
                           {"gain(strength=0.5)", "gain"},
                           {"stuck_at(bit=8, value=1)", "stuck_at"}};

// What a terminal would obey is not printed: a broken model says anything.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text) out += (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F ? ' ' : c;
  return out;
}

}  // namespace

Node PlantedFault::recipe(uint64_t seed) const {
  return recipe::recipe_of_rules({numeric::parse_rule(text, numeric::RuleUse::kInPlan)}, seed);
}

PlantedFault choose_fault(uint64_t seed, int64_t layers) {
  const Kind& kind = kKinds[mix64(seed, 1) % std::size(kKinds)];
  PlantedFault fault;
  fault.layer = static_cast<int64_t>(mix64(seed, 2) % static_cast<uint64_t>(layers));
  fault.text = fmt::format("{} @ module=layer_output,layer={}", kind.what, fault.layer);
  fault.kind = kind.named;
  fault.place = fmt::format("model.layers.{}", fault.layer);
  return fault;
}

std::vector<std::string> in_columns(const std::string& left, const std::string& right, std::size_t width) {
  const std::vector<std::string> a = wrapped(printable(left), width), b = wrapped(printable(right), width);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string first = i < a.size() ? a[i] : "";
    const auto used =
        static_cast<std::size_t>(std::count_if(first.begin(), first.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    lines.push_back("  " + first + std::string(width - std::min(width, used), ' ') + " | " +
                    (i < b.size() ? b[i] : ""));
  }
  return lines;
}

}  // namespace faultline::cli
