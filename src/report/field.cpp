#include "report/field.h"

#include <fmt/format.h>

#include <cmath>

#include "base/complaint.h"
#include "base/machine.h"

namespace faultline::report {
namespace {

void gather(const Json& tree, const std::string& path, std::vector<std::pair<std::string, std::string>>& found) {
  if (tree.is_object() && !tree.empty()) {
    for (const auto& [key, value] : tree.items()) gather(value, path.empty() ? key : path + "." + key, found);
  } else if (tree.is_array() && !tree.empty()) {
    for (std::size_t i = 0; i < tree.size(); ++i) gather(tree[i], fmt::format("{}[{}]", path, i), found);
  } else {
    found.emplace_back(path, shown(tree));
  }
}

std::string grouped(int64_t value) {
  std::string digits = std::to_string(std::abs(value));
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<std::size_t>(i), ",");
  return (value < 0 ? "-" : "") + digits;
}

}  // namespace

const Json& at(const Json& object, std::string_view key) {
  static const Json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

const Json& at(const Json& array, std::size_t index) {
  static const Json nothing;
  return array.is_array() && index < array.size() ? array[index] : nothing;
}

const Json& items(const Json& array) {
  static const Json none = Json::array();
  return array.is_array() ? array : none;
}

const Json& fields(const Json& object) {
  static const Json none = Json::object();
  return object.is_object() ? object : none;
}

std::optional<double> number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return NAN;
  if (value == "Infinity") return INFINITY;
  if (value == "-Infinity") return -INFINITY;
  return std::nullopt;
}

std::optional<double> number(const Json& object, std::string_view key) { return number(at(object, key)); }

std::string shown(const Json& value) { return value.is_string() ? value.get<std::string>() : to_json_text(value); }

std::string string(const Json& object, std::string_view key) {
  const Json& value = at(object, key);
  return value.is_null() ? "" : shown(value);
}

std::string sentence_of(const Json& complaint) {
  const std::string sentence = complaint_from_json(complaint).sentence;
  return sentence.empty() ? shown(complaint) : sentence;
}

std::string joined(const Json& list, std::string_view separator) {
  std::string line;
  for (const Json& item : items(list)) {
    if (!line.empty()) line += separator;
    line += shown(item);
  }
  return line;
}

std::string names(const Json& list, std::string_view separator) {
  const std::string all = joined(list, separator);
  return all.empty() ? "–" : all;
}

std::optional<std::pair<double, double>> interval(const Json& object, std::string_view key) {
  const Json& pair = at(object, key);
  const std::optional<double> low = number(at(pair, std::size_t{0})), high = number(at(pair, std::size_t{1}));
  if (!low || !high) return std::nullopt;
  return std::pair(*low, *high);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-∞" : "∞";
  if (value == std::floor(value) && std::abs(value) < 1e15) return grouped(static_cast<int64_t>(value));
  if (std::abs(value) >= 1e4 && std::abs(value) < 1e9) return grouped(std::llround(value));
  return fmt::format("{:.4g}", value);
}

std::string number_text(const std::optional<double>& value) { return value ? number_text(*value) : "–"; }

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string p_text(double p) { return p < 0.0001 ? "< 0.0001" : fmt::format("{:.2g}", p); }

std::string p_words(double p) { return p < 0.0001 ? "p < 0.0001" : "p = " + p_text(p); }

std::string time_text(double seconds_since_1970) {
  constexpr double kLatest = 253402300799;  // the last second of 9999
  if (!(seconds_since_1970 > 0 && seconds_since_1970 <= kLatest)) return "at an unknown time";
  return utc_text(seconds_since_1970, "%Y-%m-%d %H:%M UTC");
}

std::vector<std::pair<std::string, std::string>> leaves(const Json& tree) {
  std::vector<std::pair<std::string, std::string>> found;
  gather(tree, "", found);
  return found;
}

}  // namespace faultline::report
