// Non-finite numbers are replaced in a copy, made only when there is one: most events have none.
#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace faultline {
namespace {

bool is_nonfinite(const Json& value) { return value.is_number_float() && !std::isfinite(value.get<double>()); }

// Also refuses what parse_json_text would: a record must never be written that cannot be read.
bool holds_nonfinite(const Json& value, int depth = 0) {
  if (!value.is_structured()) return is_nonfinite(value);
  if (depth >= kMaxJsonDepth) throw RuntimeFailure(fmt::format("a record nested deeper than {} levels", kMaxJsonDepth));
  bool found = false;
  for (const Json& element : value) found |= holds_nonfinite(element, depth + 1);
  return found;
}

void name_nonfinite(Json& value) {
  if (is_nonfinite(value)) {
    const double number = value.get<double>();
    value = std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  } else if (value.is_structured()) {
    for (Json& element : value) name_nonfinite(element);
  }
}

}  // namespace

std::string to_json_text(const Json& value, int indent) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  if (!holds_nonfinite(value)) return value.dump(indent, ' ', false, kReplace);
  Json copy = value;
  name_nonfinite(copy);
  return copy.dump(indent, ' ', false, kReplace);
}

Json parse_json_text(std::string_view text, const std::string& origin) {
  const auto limit_depth = [&](int depth, Json::parse_event_t event, Json&) {
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonDepth) {
      throw RuntimeFailure(fmt::format("{}: JSON nested deeper than {} levels", origin, kMaxJsonDepth));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), limit_depth);
  } catch (const Json::parse_error& error) {
    throw RuntimeFailure(fmt::format("{}: not valid JSON, at byte {} of {}", origin, error.byte, text.size()));
  } catch (const Json::exception&) {
    throw RuntimeFailure(fmt::format("{}: not valid JSON: a number is out of range", origin));
  }
}

double number_from_json(const Json& value, const std::string& origin) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  throw RuntimeFailure(fmt::format("{}: wanted a number, \"NaN\", \"Infinity\" or \"-Infinity\", found {}", origin,
                                   to_json_text(value).substr(0, 80)));
}

}  // namespace faultline
