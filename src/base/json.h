// JSON: one type for all modules, and its text as our records write it. Keys are sorted, so that equal values are equal
// bytes; numbers that JSON does not have are
// the strings "NaN", "Infinity", "-Infinity" (null would hide which of them it was, a bare NaN breaks other
// readers); broken UTF-8, as a model may generate it, becomes U+FFFD. Depth is limited, for reading and
// writing alike, because the library underneath prints and copies recursively.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace faultline {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 100;

std::string to_json_text(const Json& value, int indent = -1);

// `origin` (a path, or path:line) opens the sentence of the RuntimeFailure.
Json parse_json_text(std::string_view text, const std::string& origin);

// A number field, the three strings included.
double number_from_json(const Json& value, const std::string& origin);

}  // namespace faultline
