#include "diagnose/kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>

#include "diagnose/picture.h"

namespace faultline {
namespace {

constexpr double kNearlyAll = 0.95;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

using Test = std::function<bool(const Element&)>;

double share(const Picture& picture, bool only_changed, const Test& test) {
  int64_t all = 0, yes = 0;
  for (const Element& element : picture.touched) {
    if (only_changed && !element.changed) continue;
    ++all, yes += test(element);
  }
  return all == 0 ? 0 : static_cast<double>(yes) / static_cast<double>(all);
}

// The parameter that most elements allow: each allows an interval, as wide as its rounding.
struct Interval {
  double low, high;
};
double agreed(const std::vector<Interval>& intervals) {
  std::vector<std::pair<double, int>> ends;
  for (const Interval& one : intervals) ends.emplace_back(one.low, -1), ends.emplace_back(one.high, 1);
  std::sort(ends.begin(), ends.end());  // at equal places an interval opens before another closes
  int64_t open = 0, most = 0;
  double best = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    open -= ends[i].second;
    if (open <= most) continue;
    most = open;
    best = i + 1 < ends.size() ? (ends[i].first + ends[i + 1].first) / 2 : ends[i].first;
  }
  return best;
}

// observed = expected + parameter * unit(element), within rounding, nearly everywhere. The parameter, or 0.
double fitted(const Picture& picture, const std::function<double(const Element&)>& unit) {
  std::vector<Interval> intervals;
  for (const Element& element : picture.touched) {
    const double one = unit(element), residual = element.observed - element.expected;
    if (one == 0 || !std::isfinite(residual)) continue;
    const double width = element.slack / std::abs(one);
    intervals.push_back({residual / one - width, residual / one + width});
  }
  if (intervals.empty()) return 0;
  const double parameter = agreed(intervals);
  const double explained = share(picture, false, [&](const Element& element) {
    const double want = element.expected + parameter * unit(element);
    return std::abs(element.observed - want) <= 1.02 * element.slack + 1e-6 * std::abs(want);
  });
  return explained >= kNearlyAll ? parameter : 0;
}

bool is_single_bit(uint64_t bits) { return std::has_single_bit(bits); }

bool name_not_finite(const Picture& picture, Kind& kind) {
  const double nan = share(picture, true, [](const Element& e) { return std::isnan(e.observed); });
  const double infinite = share(picture, true, [](const Element& e) { return std::isinf(e.observed); });
  if (nan + infinite < 0.5) return false;
  kind.name = nan >= infinite ? "nan" : "inf";
  return true;
}

bool name_stuck_bit(const Picture& picture, Kind& kind) {
  std::map<uint64_t, int64_t> flipped;
  for (const Element& element : picture.touched)
    if (element.changed) ++flipped[element.expected_bits ^ element.observed_bits];
  const auto most =
      std::max_element(flipped.begin(), flipped.end(), [](auto& a, auto& b) { return a.second < b.second; });
  if (most == flipped.end() || !is_single_bit(most->first)) return false;
  const uint64_t bit = most->first;
  // What is expected is known to the last bit only where nothing was rounded; neighbours of a tie may carry.
  if (static_cast<double>(most->second) < 0.9 * static_cast<double>(picture.changed)) return false;
  const double ones = share(picture, false, [&](const Element& e) { return (e.observed_bits & bit) != 0; });
  if (std::max(ones, 1 - ones) < 0.99) return false;
  kind.name = "stuck_at";
  kind.detail = fmt::format("bit {} forced to {}", std::countr_zero(bit), ones > 0.5 ? 1 : 0);
  return true;
}

bool name_zeros(const Picture& picture, Kind& kind) {
  if (share(picture, true, [](const Element& e) { return e.observed == 0; }) < 0.99) return false;
  std::vector<double> lost, kept;
  for (const Element& element : picture.touched) {
    const double relative = std::abs(element.expected) / picture.row_max[static_cast<std::size_t>(element.row)];
    if (element.changed) lost.push_back(relative);
    if (!element.changed && element.observed != 0) kept.push_back(relative);
  }
  if (kept.size() * 100 < lost.size()) {
    kind.name = "zero";
    return true;
  }
  const double threshold = *std::max_element(lost.begin(), lost.end());
  kind.name = "deadzone";
  kind.detail = fmt::format("below about {:.3g} of the row's largest", threshold);
  return true;
}

bool name_saturation(const Picture& picture, Kind& kind) {
  const double cut = share(picture, true, [](const Element& e) {
    return std::abs(e.observed) < std::abs(e.expected) && e.observed * e.expected > 0;
  });
  if (cut < 0.99) return false;
  std::map<int64_t, std::pair<double, double>> levels;  // by row: least and largest of what is left
  for (const Element& element : picture.touched) {
    if (!element.changed) continue;
    auto [found, fresh] = levels.try_emplace(element.row, std::abs(element.observed), std::abs(element.observed));
    found->second.first = std::min(found->second.first, std::abs(element.observed));
    found->second.second = std::max(found->second.second, std::abs(element.observed));
  }
  std::vector<double> margins;
  int64_t level_rows = 0;
  for (const auto& [row, level] : levels) {
    level_rows += level.second <= level.first * 1.02;
    margins.push_back(1 - level.second / picture.row_max[static_cast<std::size_t>(row)]);
  }
  if (static_cast<double>(level_rows) < kNearlyAll * static_cast<double>(levels.size())) return false;
  const double left = share(picture, false, [&](const Element& e) {  // nothing stands above its row's level
    const auto level = levels.find(e.row);
    return level == levels.end() || std::abs(e.observed) <= level->second.second * 1.02;
  });
  if (left < 0.99) return false;
  kind.name = "saturate";
  kind.detail = fmt::format("margin about {:.3g}", median(margins));
  return true;
}

bool name_quantisation(const Picture& picture, Kind& kind) {
  std::vector<int> used;
  bool zeros = false;
  for (const Element& element : picture.touched) {
    if (!element.changed) continue;
    const uint64_t mantissa = element.observed_bits & ((uint64_t{1} << picture.mantissa) - 1);
    zeros |= element.observed == 0;
    used.push_back(mantissa == 0 ? 0 : picture.mantissa - std::countr_zero(mantissa));
  }
  if (used.size() < 8) return false;
  const auto high = used.begin() + std::ssize(used) * 99 / 100;
  std::nth_element(used.begin(), high, used.end());
  if (*high > 3 || *high >= picture.mantissa) return false;
  const double smaller =
      share(picture, true, [](const Element& e) { return std::abs(e.observed) <= std::abs(e.expected); });
  kind.name = smaller > 0.99 && !zeros ? "truncate" : "quantize";
  kind.detail = fmt::format("{} mantissa bit{} left{}", *high, *high == 1 ? "" : "s",
                            *high <= 1 ? ": a 4-bit float such as mxfp4" : "");
  return true;
}

bool name_formula(const Picture& picture, Kind& kind) {
  if (const double s = fitted(picture, [](const Element& e) { return e.expected; }); s != 0) {
    kind.name = "gain", kind.detail = fmt::format("times {:.4g}", 1 + s);
    return true;
  }
  const auto sign = [](const Element& e) { return e.expected > 0 ? 1.0 : e.expected < 0 ? -1.0 : 0.0; };
  const double bias = fitted(picture, sign);
  const double constant = fitted(picture, [](const Element&) { return 1.0; });
  if (bias > 0 && constant == 0) {
    kind.name = "systematic_bias", kind.detail = fmt::format("{:.3g} away from zero", bias);
    return true;
  }
  const double spread =
      fitted(picture, [&](const Element& e) { return picture.row_spread[static_cast<std::size_t>(e.row)]; });
  if (spread == 0 && constant == 0) return false;
  kind.name = "offset";
  kind.detail = spread != 0 ? fmt::format("{:.3g} standard deviations of the row", spread)
                            : fmt::format("{:.3g} everywhere", constant);
  return true;
}

// Nothing but zero was expected: what came has no value to be compared with, only a size and a sign.
bool name_from_nothing(const Picture& picture, Kind& kind) {
  std::vector<double> sizes;
  int64_t positive = 0;
  for (const Element& element : picture.touched) {
    if (!element.changed) continue;
    sizes.push_back(std::abs(element.observed)), positive += element.observed > 0;
  }
  const double size = median(sizes);
  const double same =
      share(picture, true, [&](const Element& e) { return std::abs(std::abs(e.observed) - size) <= 0.02 * size; });
  if (same < kNearlyAll) return false;
  const bool one_sign = positive == 0 || positive == std::ssize(sizes);
  kind.name = one_sign ? "offset" : "systematic_bias";
  kind.detail = fmt::format("{:.3g}", size);
  return true;
}

bool name_rare(const Picture& picture, Kind& kind) {
  if (picture.changed * 10 > std::ssize(picture.touched) && picture.changed > 2) return false;
  const double bits =
      share(picture, true, [](const Element& e) { return is_single_bit(e.expected_bits ^ e.observed_bits); });
  std::vector<double> sizes;
  for (const Element& element : picture.touched)
    if (element.changed)
      sizes.push_back(std::abs(element.observed) / picture.row_max[static_cast<std::size_t>(element.row)]);
  if (bits > 0.9) {
    kind.name = "bitflip";
    for (const Element& element : picture.touched)
      if (element.changed)
        kind.detail = fmt::format("bit {}", std::countr_zero(element.expected_bits ^ element.observed_bits));
    return true;
  }
  if (median(sizes) < 0.5) return false;
  kind.name = "spike";
  kind.detail = fmt::format("about {:.3g} times the row's largest", median(sizes));
  return true;
}

void name_noise(const Picture& picture, bool fresh, Kind& kind) {
  std::vector<double> relative;
  for (const Element& element : picture.touched)
    if (element.changed && element.expected != 0)
      relative.push_back(std::abs(element.observed - element.expected) / std::abs(element.expected));
  kind.name = "noise";
  kind.detail =
      fmt::format("{}median error {:.3g} of the value", fresh ? "fresh at every call; " : "", median(relative));
}

}  // namespace

Kind classify(const Observation& observation, int64_t first, int64_t size) {
  std::vector<at::Tensor> given = {observation.observed};
  given.insert(given.end(), observation.repetitions.begin(), observation.repetitions.end());
  Kind kind;
  bool fresh = false;
  Picture picture;
  int64_t wrong = 0;
  for (const at::Tensor& one : given) {
    Picture now = picture_of(observation, one, first, size);
    fresh |= !one.narrow(1, first, size).equal(given[0].narrow(1, first, size));
    wrong += now.changed > 0;
    if (now.changed > picture.changed) picture = std::move(now);
  }
  if (picture.changed == 0) return kind;
  kind.intermittent = wrong < std::ssize(given);
  kind.weight = std::log2(1 + static_cast<double>(picture.changed));
  const bool whole_calls = !fresh || kind.intermittent;  // the same at every call in which it acts
  if (name_not_finite(picture, kind)) return kind;
  if (whole_calls) {
    if (name_stuck_bit(picture, kind)) return kind;
    if (picture.expected_zero && name_from_nothing(picture, kind)) {
      kind.weight *= 0.3;
      return kind;
    }
    if (name_zeros(picture, kind) || name_quantisation(picture, kind) || name_formula(picture, kind) ||
        name_saturation(picture, kind))
      return kind;
  }
  kind.weight *= 0.1;
  if (name_rare(picture, kind)) return kind;
  name_noise(picture, fresh, kind);
  return kind;
}

}  // namespace faultline
