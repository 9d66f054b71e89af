// Several records on one page: a table of verdicts, what differs between their recipes, and their numbers on common
// axes. Rows of different runs are never pooled: each keeps its run's name.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/chart.h"
#include "report/eval_rows.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostDifferences = 100;

Html verdicts(const std::vector<LoadedRecord>& records, const std::vector<Story>& stories) {
  std::vector<std::vector<Cell>> rows;
  for (std::size_t i = 0; i < records.size(); ++i)
    rows.push_back(
        {Cell(markup(fmt::format("<a href=\"#run-{}\">", i + 1)) + text(records[i].name, 200) + markup("</a>")),
         records[i].kind.empty() ? "–" : records[i].kind,
         Cell(text(stories[i].headline), false, tone_name(stories[i].tone))});
  return table({"run", "kind", "verdict"}, rows);
}

Html differences(const std::vector<LoadedRecord>& records) {
  std::map<std::string, std::vector<std::string>> values;  // key -> by record
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (!records[i].manifest) continue;
    Json recipe = records[i].manifest->recipe;
    if (at(recipe, "command").is_array())
      recipe["command"] = joined(recipe["command"], " ");  // one row, not one a word
    for (const auto& [key, value] : leaves(recipe)) {
      auto& row = values[key];
      row.resize(records.size(), "–");
      row[i] = value;
    }
  }
  std::vector<std::vector<Cell>> rows;
  for (const auto& [key, row] : values) {
    if (std::all_of(row.begin(), row.end(), [&](const std::string& value) { return value == row.front(); })) continue;
    if (rows.size() == kMostDifferences) break;
    std::vector<Cell> cells = {key};
    for (const std::string& value : row) cells.emplace_back(text(value, 300));
    rows.push_back(std::move(cells));
  }
  if (rows.empty()) return paragraph(text("The recipes are the same."), "note");
  std::vector<std::string> heading = {"key"};
  for (const LoadedRecord& record : records) heading.push_back(record.name);
  return table(heading, rows);
}

Html accuracies(const std::vector<LoadedRecord>& records) {
  IntervalChart chart{
      .title = "Accuracy of every row, 95 % intervals (Wilson)", .unit = Unit::kShare, .axis = std::pair(0.0, 1.0)};
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].kind != "eval") continue;
    for (const EvalRow& row : read_eval_rows(records[i])) {
      IntervalRow line{.label = fmt::format("{}: {}", i + 1, row.label), .tone = fmt::format("c{}", i % 8)};
      line.value = row.accuracy, line.range = row.accuracy_range;
      line.note = !row.proven ? "evidence missing" : row.accuracy ? percent_text(*row.accuracy) : "not measured";
      chart.rows.push_back(line);
    }
  }
  return chart.rows.empty() ? Html() : draw(chart);
}

}  // namespace

std::vector<Section> compare(const std::vector<LoadedRecord>& records, const std::vector<Story>& stories) {
  std::vector<Section> sections = {{"Verdicts", verdicts(records, stories)}};
  if (Html chart = accuracies(records); !chart.empty()) sections.push_back({"Accuracy side by side", std::move(chart)});
  std::vector<const LoadedRecord*> trained;
  for (const LoadedRecord& record : records)
    if (record.kind == "train") trained.push_back(&record);
  if (trained.size() > 1)
    if (Html curves = curves_of(trained); !curves.empty())
      sections.push_back({"Curves side by side", std::move(curves)});
  sections.push_back({"What differs between the recipes", differences(records)});
  return sections;
}

}  // namespace faultline::report
