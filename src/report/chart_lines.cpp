// Lines over steps or strengths, with bands. A value that is not finite interrupts its line; a long series is thinned
// to the least and the greatest value of each few pixels, so that a spike is never lost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_parts.h"

namespace faultline::report {
namespace {

constexpr std::size_t kColours = 8;
constexpr std::size_t kMostPoints = 400;

struct Axes {
  Scale x, y;
};

std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<Point> kept;
  const std::size_t bucket = (2 * points.size() + kMostPoints - 1) / kMostPoints;
  for (std::size_t from = 0; from < points.size(); from += bucket) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(from);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(std::min(points.size(), from + bucket));
    const auto broken = std::find_if(begin, end, [](const Point& p) { return !std::isfinite(p.y); });
    if (broken != end) kept.push_back(*broken);
    auto [least, most] = std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    if (most < least) std::swap(least, most);
    kept.push_back(*least);
    if (most != least) kept.push_back(*most);
  }
  return kept;
}

std::string band_of(const std::vector<Point>& points, const Axes& axes, std::size_t colour) {
  std::string there, back;
  std::size_t banded = 0;
  for (const Point& point : points) {
    if (!point.band) continue;
    ++banded;
    there += fmt::format("{:.1f},{:.1f} ", axes.x(point.x), axes.y(point.band->second));
    back = fmt::format("{:.1f},{:.1f} ", axes.x(point.x), axes.y(point.band->first)) + back;
  }
  if (banded < 2) return "";
  return fmt::format("<polygon points=\"{}{}\" class=\"band c{}\"/>", there, back, colour);
}

std::string line_of(const std::vector<Point>& points, const Axes& axes, std::size_t colour) {
  std::string path;
  bool down = false;
  for (const Point& point : points) {
    if (!std::isfinite(point.y)) {
      down = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", down ? "L" : "M", axes.x(point.x), axes.y(point.y));
    down = true;
  }
  return path.empty() ? "" : fmt::format("<path d=\"{}\" class=\"line c{}\"/>", path, colour);
}

std::string dots_of(const Series& series, const LineChart& chart, const Axes& axes, std::size_t colour) {
  if (series.points.size() > 60) return "";
  std::string out;
  for (const Point& point : series.points) {
    if (!std::isfinite(point.y)) continue;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" class=\"point c{}\">{}</circle>", axes.x(point.x),
                       axes.y(point.y), chart.small ? 2 : 3, colour,
                       svg_title(fmt::format("{} at {} {}: {}", series.name, chart.x_label,
                                             tick_text(point.x, Unit::kNumber), tick_text(point.y, chart.unit))));
  }
  return out;
}

Html legend_of(const LineChart& chart) {
  if (chart.series.size() < 2 && chart.reference_label.empty()) return {};
  Html items;
  for (std::size_t i = 0; i < chart.series.size(); ++i)
    items += markup(fmt::format("<span><i class=\"key c{}\"></i>{}</span> ", i % kColours,
                                text(chart.series[i].name, 120).bytes()));
  if (!chart.reference_label.empty())
    items += markup(fmt::format("<span><i class=\"key dashed\"></i>{}</span>", text(chart.reference_label).bytes()));
  return element("div", items, "legend");
}

void measure(const LineChart& chart, Extent& x, Extent& y) {
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (!chart.log_x || point.x > 0) x.add(point.x);
      y.add(point.y);
      if (point.band) y.add(point.band->first), y.add(point.band->second);
    }
  }
  if (chart.reference) y.add(*chart.reference);
  if (x.empty()) x.add(chart.log_x ? 1 : 0);
}

Drawing draw_at(const LineChart& chart, double width) {
  const bool narrow = width < 500;
  const double height = chart.small ? 180 : narrow ? 230 : 280, left = narrow ? 48 : 60, right = width - 12;
  const double top = 8, bottom = height - (chart.small ? 24 : 38);
  Extent xs, ys;
  measure(chart, xs, ys);
  ys = ys.with_room(0.08);
  const Axes axes{{xs.low(), xs.high(), left, right, chart.log_x}, {ys.low(), ys.high(), bottom, top, false}};
  std::string out;
  for (const double tick : axes.y.ticks(narrow ? 4 : 5)) {
    out += svg_line(left, axes.y(tick), right, axes.y(tick), "grid");
    out += svg_text(left - 6, axes.y(tick) + 4, tick_text(tick, chart.unit), "end", "tick");
  }
  for (const double tick : axes.x.ticks(narrow ? 4 : 8)) {
    const char* anchor = axes.x(tick) > right - 10 ? "end" : "middle";
    out += svg_text(axes.x(tick), bottom + 16, tick_text(tick, Unit::kNumber), anchor, "tick");
  }
  if (!chart.small) out += svg_text((left + right) / 2, height - 4, chart.x_label, "middle", "tick");
  if (chart.reference) out += svg_line(left, axes.y(*chart.reference), right, axes.y(*chart.reference), "reference");
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const std::vector<Point> points = thinned(chart.series[i].points);
    out += band_of(points, axes, i % kColours) + line_of(points, axes, i % kColours);
    out += dots_of(chart.series[i], chart, axes, i % kColours);
  }
  return {out, height};
}

}  // namespace

Html draw(const LineChart& chart) {
  return figure(chart.title, chart.small, [&](double width) { return draw_at(chart, width); }, legend_of(chart));
}

}  // namespace faultline::report
