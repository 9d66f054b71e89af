// What the charts share: scales with round ticks, text that fits, the two widths.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/chart.h"

namespace faultline::report {

constexpr double kWide = 940, kNarrow = 350, kSmall = 360;  // user units = CSS pixels

// A value's place between two pixels. A logarithmic scale takes positive values only.
class Scale {
 public:
  Scale(double low, double high, double from, double to, bool log);
  double operator()(double value) const;  // clamped to the scale
  std::vector<double> ticks(int about) const;

 private:
  double low_, high_, from_, to_;
  bool log_;
};

// Least and greatest of what was added; a little room around; never empty.
class Extent {
 public:
  void add(double value);  // what is not finite does not count
  bool empty() const { return !(low_ <= high_); }
  double low() const { return low_; }
  double high() const { return high_; }
  Extent with_room(double share) const;

 private:
  double low_ = 1e308, high_ = -1e308;
};

std::string tick_text(double value, Unit unit);
std::string shortened(const std::string& text, double pixels);  // to what fits at 12 px; both ends stay

std::string svg_text(double x, double y, const std::string& words, const char* anchor, const char* class_name);
std::string svg_line(double x1, double y1, double x2, double y2, const char* class_name);
std::string svg_title(const std::string& words);  // what a pointer that rests on it shows

// A figure with its title; `draw_at(width)` gives the SVG's content and its height.
struct Drawing {
  std::string content;
  double height = 0;
};
Html figure(const std::string& title, bool small, const std::function<Drawing(double width)>& draw_at,
            const Html& legend = {});

}  // namespace faultline::report
