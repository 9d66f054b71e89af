#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/stats/stats.h"
#include "diagnose/kind.h"
#include "diagnose/observation.h"

namespace faultline::diagnose {
namespace {

struct Interval {
  double low, high;
};

// The parameter that most intervals contain.
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

struct Fit {
  double parameter = 0;
  double explained = 0;  // share of the changed elements; 0: the formula does not hold

  bool holds() const { return explained > 0; }
};

// observed = expected + parameter * unit(element), within rounding, nearly everywhere.
Fit fitted(const Picture& picture, const std::function<double(const Element&)>& unit) {
  std::vector<Interval> intervals;
  for (const Element& element : picture.touched) {
    const double one = unit(element), residual = element.observed - element.expected;
    if (one == 0 || !std::isfinite(residual)) continue;
    const double width = element.slack / std::abs(one);
    intervals.push_back({residual / one - width, residual / one + width});
  }
  if (intervals.empty()) return {};
  Fit fit{agreed(intervals), 0};
  const auto explains = [&](const Element& element) {
    const double want = element.expected + fit.parameter * unit(element);
    return std::abs(element.observed - want) <= 1.02 * element.slack + 1e-6 * std::abs(want);
  };
  const double changed = share(picture, true, explains);
  if (fit.parameter != 0 && changed >= kNearlyAll && share(picture, false, explains) >= kNearlyAll)
    fit.explained = changed;
  return fit;
}

// Whatever stands above one level is cut off there: the same share of the row's largest in every row, or the same
// number. Asked before the gain: a channel that is the largest of every row is scaled by its own saturation, and that a
// gain should choose exactly the largest is the less likely story.
bool name_saturation(const Picture& picture, Kind& kind) {
  const double cut = share(picture, true, [](const Element& e) {
    return std::abs(e.observed) < std::abs(e.expected) && e.observed * e.expected > 0;
  });
  if (cut < 0.99) return false;
  for (const bool relative : {true, false}) {
    const auto unit = [&](const Element& e) {
      return relative ? picture.row_max[static_cast<std::size_t>(e.row)] : 1.0;
    };
    const auto width = [&](const Element& e) {
      return e.slack + (relative ? kRoundedReference * std::abs(e.observed) : 0);
    };
    std::vector<Interval> intervals;
    for (const Element& e : picture.touched)
      if (e.changed && unit(e) > 0)
        intervals.push_back({(std::abs(e.observed) - width(e)) / unit(e), (std::abs(e.observed) + width(e)) / unit(e)});
    const double level = agreed(intervals);
    const double at_level = share(picture, true, [&](const Element& e) {
      return std::abs(std::abs(e.observed) - level * unit(e)) <= 1.02 * width(e);
    });
    const double below = share(
        picture, false, [&](const Element& e) { return std::abs(e.observed) <= level * unit(e) + 1.02 * width(e); });
    if (at_level < kNearlyAll || below < 0.99) continue;
    kind.name = "saturate";
    kind.detail = relative ? fmt::format("margin about {:.3g}", 1 - level) : fmt::format("at about {:.3g}", level);
    return true;
  }
  return false;
}

}  // namespace

double share(const Picture& picture, bool only_changed, const std::function<bool(const Element&)>& test) {
  int64_t all = 0, yes = 0;
  for (const Element& element : picture.touched) {
    if (only_changed && !element.changed) continue;
    ++all, yes += test(element);
  }
  return all == 0 ? 0 : static_cast<double>(yes) / static_cast<double>(all);
}

bool name_formula(const Picture& picture, Kind& kind) {
  if (name_saturation(picture, kind)) return true;
  if (const Fit gain = fitted(picture, [](const Element& e) { return e.expected; }); gain.holds()) {
    kind.name = "gain", kind.detail = fmt::format("times {:.4g}", 1 + gain.parameter);
    return true;
  }
  const auto sign = [](const Element& e) { return e.expected > 0 ? 1.0 : e.expected < 0 ? -1.0 : 0.0; };
  const Fit bias = fitted(picture, sign), constant = fitted(picture, [](const Element&) { return 1.0; });
  const Fit spread =
      fitted(picture, [&](const Element& e) { return picture.row_spread[static_cast<std::size_t>(e.row)]; });
  // Where all values have one sign a bias and a constant are the same; an offset in units of the row's spread is not.
  const bool away = bias.holds() && bias.parameter > 0;
  if (away && (!constant.holds() || spread.explained < bias.explained)) {
    kind.name = "systematic_bias", kind.detail = fmt::format("{:.3g} away from zero", bias.parameter);
    return true;
  }
  if (!spread.holds() && !constant.holds()) return false;
  kind.name = "offset";
  kind.detail = spread.holds() ? fmt::format("{:.3g} standard deviations of the row", spread.parameter)
                               : fmt::format("{:.3g} everywhere", constant.parameter);
  return true;
}

}  // namespace faultline::diagnose
