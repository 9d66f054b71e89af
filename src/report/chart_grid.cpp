// Values on a grid. The shade is linear from zero to the greatest value when all are of one order, logarithmic when
// they are not; the legend says which, and each cell names its value to a pointer that rests on it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_parts.h"
#include "report/field.h"

namespace faultline::report {
namespace {

struct Shades {
  double low = 0, high = 1;
  bool log = false;

  double operator()(double value) const {  // 0 … 1
    if (!(value > 0)) return 0;
    if (!std::isfinite(value)) return 1;
    if (log) return high > low ? 0.1 + 0.9 * (std::log(value / low) / std::log(high / low)) : 1;
    return value / high;
  }
};

Shades shades_of(const GridChart& chart) {
  Extent positive;
  for (const std::optional<double>& value : chart.values)
    if (value && *value > 0) positive.add(*value);
  if (positive.empty()) return {};
  return {positive.low(), positive.high(), positive.high() > 100 * positive.low()};
}

std::string value_text(double value, Unit unit) {
  return unit == Unit::kShare ? percent_text(value) : number_text(value);
}

std::string draw_cell(const GridChart& chart, std::size_t row, std::size_t column, const Shades& shade, double x,
                      double y, double width, double height) {
  const std::optional<double> value = chart.values[row * chart.columns.size() + column];
  const std::string words = value ? value_text(*value, chart.unit) : "none";
  std::string out = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\" "
      "fill-opacity=\"{:.3f}\">{}</rect>",
      x, y, std::max(1.0, width - 1), height - 1, value ? chart.damage ? "heat" : "count" : "none",
      value ? shade(*value) : 1.0,
      svg_title(fmt::format("{}, {}{}: {}", chart.rows[row], chart.column_label.empty() ? "" : chart.column_label + " ",
                            chart.columns[column], words)));
  if (chart.write_values && value)
    out += svg_text(x + width / 2, y + height / 2 + 4, words, "middle", shade(*value) > 0.55 ? "on" : "value");
  return out;
}

Html legend_of(const GridChart& chart, const Shades& shade) {
  if (chart.write_values) return {};
  const double low = shade.log ? shade.low : 0;
  Html out = text(value_text(low, chart.unit)) +
             markup(chart.damage ? " <i class=\"ramp\"></i> " : " <i class=\"ramp count\"></i> ") +
             text(value_text(shade.high, chart.unit) + (shade.log ? ", logarithmic" : ""));
  if (std::any_of(chart.values.begin(), chart.values.end(), [](const auto& value) { return !value; }))
    out += markup(" <i class=\"key none\"></i> no evidence there");
  return element("div", out, "legend");
}

Drawing draw_at(const GridChart& chart, double width, const Shades& shade) {
  const bool narrow = width < 500;
  std::size_t longest = 4;
  for (const std::string& row : chart.rows) longest = std::max(longest, row.size());
  const double left = std::min(narrow ? 118.0 : 250.0, 8 + 6.6 * static_cast<double>(longest));
  const auto columns = static_cast<double>(std::max<std::size_t>(1, chart.columns.size()));
  const double cell = std::min(chart.write_values ? 110.0 : 40.0, (width - left - 2) / columns);
  const double height = chart.write_values ? 32 : narrow ? 18 : 22;
  std::string out;
  double y = 0;
  for (std::size_t row = 0; row < chart.rows.size(); ++row, y += height) {
    out += "<g>" + svg_title(chart.rows[row]) +
           svg_text(left - 6, y + height / 2 + 4, shortened(chart.rows[row], left - 6), "end", "label") + "</g>";
    for (std::size_t column = 0; column < chart.columns.size(); ++column)
      out += draw_cell(chart, row, column, shade, left + cell * static_cast<double>(column), y, cell, height);
  }
  double end = 0;  // of the last column's name that was written
  for (std::size_t column = 0; column < chart.columns.size(); ++column) {
    const std::string name = shortened(chart.columns[column], std::max(cell, 40.0));
    const double middle = left + cell * (static_cast<double>(column) + 0.5);
    const double half = 3.5 * static_cast<double>(name.size()) + 2;
    if (middle - half < end || middle + half > width + 6) continue;
    out += svg_text(middle, y + 15, name, "middle", "tick");
    end = middle + half;
  }
  if (!chart.column_label.empty())
    out += svg_text(left + cell * columns / 2, y + 32, chart.column_label, "middle", "tick");
  return {out, y + (chart.column_label.empty() ? 22 : 38)};
}

}  // namespace

Html draw(const GridChart& chart) {
  if (chart.values.size() != chart.rows.size() * chart.columns.size() || chart.values.empty()) return {};
  const Shades shade = shades_of(chart);
  return figure(
      chart.title, false, [&](double width) { return draw_at(chart, width, shade); }, legend_of(chart, shade));
}

}  // namespace faultline::report
