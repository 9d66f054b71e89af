// Points with intervals, one below the other. Wide: label, plot, words in three columns; narrow: label and words above
// the plot.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_parts.h"

namespace faultline::report {
namespace {

struct Layout {
  double width, left, right, row_height, mark;  // mark: of a row's top, where the point is
  bool narrow;
};

Layout layout_for(double width) {
  if (width < 500) return {width, 8, width - 8, 44, 30, true};
  return {width, 280, width - 248, 30, 15, false};
}

Extent axis_of(const IntervalChart& chart) {
  Extent extent;
  const auto add = [&](double value) {
    if (!chart.log || value > 0) extent.add(value);
  };
  for (const IntervalRow& row : chart.rows) {
    if (row.value) add(*row.value);
    if (row.range) add(row.range->first), add(row.range->second);
  }
  if (chart.reference) add(*chart.reference);
  if (chart.log) {
    Extent wider;
    if (extent.empty()) extent.add(1);
    wider.add(extent.low() / 1.15), wider.add(extent.high() * 1.15);
    return wider;
  }
  return extent.with_room(0.06);
}

std::string draw_row(const IntervalChart& chart, const IntervalRow& row, const Layout& at, const Scale& x, double top) {
  const double y = top + at.mark, words = at.narrow ? top + 14 : y + 4;
  const std::string tone = row.tone.empty() ? "plain" : row.tone;
  std::string out = "<g>" + svg_title(row.label + ": " + row.note);
  out += fmt::format("<rect x=\"0\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\" class=\"hit\"/>", top, at.width,
                     at.row_height);
  const double note_room = std::min(at.width * 0.5, 10 + 6.6 * static_cast<double>(row.note.size()));
  const double label_room = at.narrow ? at.width - note_room - 24 : at.left - 22;
  out += svg_text(at.narrow ? at.left : 0, words, shortened(row.label, label_room), "start", "label");
  out += svg_text(at.narrow ? at.right : at.right + 14, words,
                  shortened(row.note, at.narrow ? note_room : at.width - at.right - 14), at.narrow ? "end" : "start",
                  row.value ? "value" : "value doubt");
  if (row.range)
    out += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"range {}\"/>",
                       x(row.range->first), x(row.range->second), y, y, tone);
  if (row.value && std::isfinite(*row.value) && (!chart.log || *row.value > 0))
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" class=\"dot {}\"/>", x(*row.value), y, tone);
  return out + "</g>";
}

Drawing draw_at(const IntervalChart& chart, double width) {
  const Layout at = layout_for(width);
  const Extent found = axis_of(chart);
  const double low = chart.axis ? chart.axis->first : found.low(),
               high = chart.axis ? chart.axis->second : found.high();
  const Scale x(low, high, at.left, at.right, chart.log);
  const double bottom = at.row_height * static_cast<double>(chart.rows.size()) + 4;
  std::string out;
  for (const double tick : x.ticks(at.narrow ? 4 : 5)) {
    out += svg_line(x(tick), 0, x(tick), bottom, "grid");
    const double where = x(tick);
    const char* anchor = at.narrow && where < at.left + 12    ? "start"
                         : at.narrow && where > at.right - 12 ? "end"
                                                              : "middle";
    out += svg_text(x(tick), bottom + 16, tick_text(tick, chart.unit), anchor, "tick");
  }
  double top = 0;
  for (const IntervalRow& row : chart.rows) {
    const double above = at.narrow ? at.mark - 10 : 0;  // not through the words
    if (chart.reference)
      out += svg_line(x(*chart.reference), top + above, x(*chart.reference), top + at.row_height, "reference");
    out += draw_row(chart, row, at, x, top);
    top += at.row_height;
  }
  return {out, bottom + 24};
}

}  // namespace

Html draw(const IntervalChart& chart) {
  return figure(chart.title, false, [&](double width) { return draw_at(chart, width); });
}

}  // namespace faultline::report
