#include "record/comparison.h"

#include <algorithm>
#include <cmath>

namespace faultline::record {
namespace {

constexpr std::size_t kMostText = 120;

std::string shortened(const Json& value) {
  const std::string text = to_json_text(value);
  return text.size() <= kMostText ? text : text.substr(0, kMostText) + "…";
}

class Comparer {
 public:
  Comparer(const ComparisonOptions& options, RecordComparison& result) : options_(options), result_(result) {}

  void visit(const std::string& path, const Json& was, const Json& is) {
    if (was.is_object() && is.is_object()) return objects(path, was, is);
    if (was.is_array() && is.is_array()) return arrays(path, was, is);
    ++result_.values;
    // 1 and 1.0 are one number, and so are the two zeros' texts; a record keeps neither apart.
    if (was.is_number() && is.is_number()) return numbers(path, was, is);
    if (was != is) differ(path, shortened(was), shortened(is));
  }

 private:
  void objects(const std::string& path, const Json& was, const Json& is) {
    for (const auto& [key, value] : was.items()) {
      if (options_.ignored.contains(key)) continue;
      const std::string below = path + "/" + key;
      if (is.contains(key))
        visit(below, value, is.at(key));
      else
        missing(below, shortened(value), "nothing");
    }
    for (const auto& [key, value] : is.items())
      if (!was.contains(key) && !options_.ignored.contains(key)) missing(path + "/" + key, "nothing", shortened(value));
  }

  void arrays(const std::string& path, const Json& was, const Json& is) {
    const std::size_t both = std::min(was.size(), is.size());
    for (std::size_t i = 0; i < both; ++i) visit(path + "/" + std::to_string(i), was[i], is[i]);
    if (was.size() != is.size())
      missing(path, std::to_string(was.size()) + " items", std::to_string(is.size()) + " items");
  }

  void numbers(const std::string& path, const Json& was, const Json& is) {
    if (was == is) return;
    const auto a = was.get<double>(), b = is.get<double>();
    const double size = std::max(std::abs(a), std::abs(b));
    // Integers beyond 2^53 may be equal as doubles and are not equal.
    const double apart = size == 0 || a == b ? 0 : std::abs(a - b) / size;
    result_.largest = std::max(result_.largest, apart);
    if (apart > 0 && apart <= options_.tolerance)
      ++result_.within;
    else
      differ(path, shortened(was), shortened(is));
  }

  void missing(const std::string& path, std::string was, std::string is) {  // on one side
    ++result_.values;
    differ(path, std::move(was), std::move(is));
  }

  void differ(const std::string& path, std::string was, std::string is) {
    ++result_.different;
    if (result_.differences.size() < kMostDifferences)
      result_.differences.push_back({path, std::move(was), std::move(is)});
  }

  const ComparisonOptions& options_;
  RecordComparison& result_;
};

}  // namespace

void compare(const std::string& name, const Json& was, const Json& is, const ComparisonOptions& options,
             RecordComparison& result) {
  Comparer(options, result).visit(name, was, is);
}

}  // namespace faultline::record
