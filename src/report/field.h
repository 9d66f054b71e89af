// Reading a record that may lack anything: every access answers with nothing rather than with an exception, because a
// page about a broken run is worth more than no page. Also how numbers look on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace faultline::report {

const Json& at(const Json& object, std::string_view key);  // null where it is missing, or this is no object
const Json& at(const Json& array, std::size_t index);
const Json& items(const Json& array);    // an empty array where this is none
const Json& fields(const Json& object);  // an empty object where this is none

std::optional<double> number(const Json& value);  // the strings of to_json_text ("NaN") included
std::optional<double> number(const Json& object, std::string_view key);
std::string string(const Json& object, std::string_view key);  // "" where it is missing; other types as JSON
std::string shown(const Json& value);                          // a string as it is, everything else as JSON

std::string sentence_of(const Json& complaint);  // also of records of before complaints had codes

std::string joined(const Json& list, std::string_view separator);  // its items as shown; "" for none
std::string names(const Json& list, std::string_view separator);   // the same; "–" for none

constexpr double kMostLayers = 1000;  // that a record may have, to be drawn

std::optional<std::pair<double, double>> interval(const Json& object, std::string_view key);  // [low, high]

// "0.0123", "1.23e-05", "12,345": four significant digits, whole numbers whole.
std::string number_text(double value);
std::string number_text(const std::optional<double>& value);  // "–" for none
std::string percent_text(double share);                       // "41.2 %"
std::string p_text(double p);                                 // "0.031", "< 0.0001"
std::string p_words(double p);                                // "p = 0.031", "p < 0.0001"
std::string time_text(double seconds_since_1970);             // "2026-11-15 18:03 UTC"

// "a.b[2].c" -> value, for every leaf.
std::vector<std::pair<std::string, std::string>> leaves(const Json& tree);

}  // namespace faultline::report
