// A record whose kind this program does not know, or that says none: everything it holds, without an opinion.
#include <fmt/format.h>

#include <map>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostLeaves = 500;

Html tree(const Json& json) {
  const auto all = leaves(json);
  std::vector<std::vector<Cell>> rows;
  for (const auto& [path, value] : all)
    if (rows.size() < kMostLeaves) rows.push_back({path, value});
  Html out = table({"key", "value"}, rows);
  if (all.size() > kMostLeaves)
    out += paragraph(text(fmt::format("{} of {} values are shown.", kMostLeaves, all.size())), "note");
  return out;
}

Html event_counts(const LoadedRecord& record) {
  std::map<std::string, std::size_t> kinds;
  for (const Json& event : record.events) ++kinds[string(event, "kind")];
  std::vector<std::vector<Cell>> rows;
  for (const auto& [kind, count] : kinds)
    rows.push_back({kind.empty() ? "(no kind)" : kind, number_cell(number_text(static_cast<double>(count)))});
  return rows.empty() ? paragraph(text("There are no events."), "note") : table({"kind of event", "count"}, rows);
}

Html trials_by_cell(const LoadedRecord& record) {
  std::map<std::string, std::map<std::string, std::size_t>> cells;
  for (const Json& trial : record.events) ++cells[string(trial, "cell")][string(trial, "status")];
  GridChart chart{.title = "Trials by cell and status", .columns = {"pass", "fail", "error"}, .write_values = true};
  for (auto& [cell, counts] : cells) {
    chart.rows.push_back(cell);
    for (const std::string& status : chart.columns) chart.values.emplace_back(static_cast<double>(counts[status]));
  }
  return draw(chart);
}

}  // namespace

Story anything_story(const LoadedRecord& record) {
  Story story;
  story.headline = record.kind.empty() ? "The record does not say of what kind it is; this is what it holds."
                                       : fmt::format("A record of kind '{}': this is what it holds.", record.kind);
  if (const std::string sentence = string(record.results(), "sentence"); !sentence.empty()) story.headline = sentence;
  const Json& document = record.document.is_null() ? record.results() : record.document;
  if (!document.is_null()) story.sections.push_back({"Results", tree(document)});
  if (record.kind == "campaign")
    story.words.emplace_back("No analysis lies beside the trials: if this is an experiment, it has not ended.");
  if (record.kind == "campaign") story.sections.push_back({"Trials", trials_by_cell(record)});
  if (Html curves = curves_of({&record}); !curves.empty()) story.sections.push_back({"Curves", std::move(curves)});
  if (!record.ledger.is_null()) story.sections.push_back({"Ledger", evidence_tables(record.ledger)});
  if (record.document.is_null()) story.sections.push_back({"Events", event_counts(record)});
  return story;
}

}  // namespace faultline::report
