// Charts as inline SVG: no script, no network, drawn from the numbers of a record. Each is drawn twice, for a wide page
// and for a phone, and the style sheet shows the one that fits: a picture that is merely scaled down cannot be read.
// Colours are classes of the style sheet, so that dark, light and print each have their own. What has no value is drawn
// as a gap and said in words, never as zero.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/html.h"

namespace faultline::report {

enum class Unit { kNumber, kShare };  // a share is shown in percent

// A point with its interval, one row each.
struct IntervalRow {
  std::string label;
  std::optional<double> value = {};  // none: `note` says why
  std::optional<std::pair<double, double>> range = {};
  std::string note = {};  // at the right: the number in words, or what is missing
  std::string tone = {};  // "good", "bad", "doubt", "plain"
};

struct IntervalChart {
  std::string title;
  std::vector<IntervalRow> rows = {};
  Unit unit = Unit::kNumber;
  bool log = false;
  std::optional<std::pair<double, double>> axis = {};  // else from the rows
  std::optional<double> reference = {};                // a dashed line: the clean value
};
Html draw(const IntervalChart& chart);

struct Point {
  double x = 0, y = 0;
  std::optional<std::pair<double, double>> band = {};
};

struct Series {
  std::string name;
  std::vector<Point> points;  // by x
};

struct LineChart {
  std::string title;
  std::string x_label = "step";
  std::vector<Series> series = {};
  Unit unit = Unit::kNumber;
  bool small = false;  // one of many beside each other
  bool log_x = false;
  std::optional<double> reference = {};
  std::string reference_label = {};
};
Html draw(const LineChart& chart);

// Values on a grid: darker is more. Heat maps, confusion matrices, cells of a campaign.
struct GridChart {
  std::string title;
  std::vector<std::string> rows = {}, columns = {};
  std::vector<std::optional<double>> values = {};  // (rows, columns)
  Unit unit = Unit::kNumber;
  bool write_values = false;  // into the cells; for few columns
  bool damage = true;         // more is worse: red; else blue, the colour of counts and of right answers
  std::string column_label = {};
};
Html draw(const GridChart& chart);

// Small charts beside each other.
Html side_by_side(const std::vector<Html>& charts);

}  // namespace faultline::report
