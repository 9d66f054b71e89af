// The story of a triage, matrix.json and its trials: cells with mitigations, their failure rates, every trial.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostFailures = 200;
constexpr int64_t kMostTrials = 128;
constexpr std::size_t kMostCells = 60;

Html rates(const Json& cells) {
  IntervalChart chart{.title = "Failure rate of each cell, 95 % intervals (Clopper-Pearson)",
                      .unit = Unit::kShare,
                      .axis = std::pair(0.0, 1.0)};
  for (const Json& cell : cells) {
    IntervalRow row{.label = string(cell, "name"), .note = string(cell, "text")};
    if (number(cell, "valid").value_or(0) > 0) {
      row.value = number(cell, "rate"), row.range = interval(cell, "clopper_pearson_95");
      row.tone = number(cell, "failed").value_or(0) > 0 ? "bad" : "good";
    } else {
      row.note = "no valid trial";
    }
    chart.rows.push_back(row);
  }
  return chart.rows.empty() ? Html() : draw(chart);
}

Html cells_table(const Json& cells) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& cell : cells)
    rows.push_back(
        {string(cell, "name"), names(at(cell, "mitigations"), " + "), string(cell, "text"),
         number_cell(number_text(number(cell, "p_holm"))), number_cell(number_text(number(cell, "step_seconds"))),
         number_cell(number_text(number(cell, "errors"))), string(cell, "confound"), string(cell, "finding")});
  return table({"cell", "mitigations", "failures / valid", "p (Fisher, Holm)", "s a step", "errors left out",
                "confound", "finding"},
               rows);
}

// Of a command: how its trials ended, cell by cell, in the order in which the first that applies counts.
Html outcomes_table(const Json& cells) {
  constexpr std::array kOutcomes = {"did_not_run", "hung", "crashed", "unproven", "wrong", "differs", "slow", "clean"};
  std::vector<std::string> heads = {"cell"};
  heads.insert(heads.end(), kOutcomes.begin(), kOutcomes.end());
  heads.emplace_back("complaints of the tap");
  std::vector<std::vector<Cell>> rows;
  for (const Json& cell : cells) {
    const Json& counts = at(cell, "outcomes");
    if (!counts.is_object()) continue;
    rows.push_back({string(cell, "name")});
    for (const char* outcome : kOutcomes)
      rows.back().push_back(number_cell(number_text(number(counts, outcome).value_or(0))));
    std::string complaints;
    if (const Json& codes = at(cell, "complaints"); codes.is_object())
      for (const auto& [code, count] : codes.items())
        complaints += fmt::format("{}{} {}", complaints.empty() ? "" : ", ", code, string(codes, code));
    rows.back().emplace_back(complaints);
  }
  return rows.empty() ? Html() : table(heads, rows);
}

// A trial that does not repeat the others of its cell passed by itself; that it differs is known of the matrix alone.
std::vector<Json> judged_trials(const LoadedRecord& record) {
  std::map<std::pair<std::string, std::string>, std::string> different;
  for (const Json& cell : items(at(record.document, "cells")))
    for (const Json& trial : items(at(cell, "different")))
      different[{string(cell, "name"), string(trial, "index")}] = string(trial, "sentence");
  std::vector<Json> trials(record.events.begin(), record.events.end());
  for (Json& trial : trials)
    if (const auto found = different.find({string(trial, "cell"), string(trial, "index")}); found != different.end())
      trial["status"] = "fail", trial["outcome"] = {{"outcome", "differs"}, {"sentence", found->second}};
  return trials;
}

Html failed_trials(const std::vector<Json>& trials) {
  std::vector<std::vector<Cell>> rows;
  std::size_t failed = 0;
  for (const Json& trial : trials) {
    if (at(trial, "status") == "pass" || ++failed > kMostFailures) continue;
    rows.push_back({string(trial, "cell"), number_cell(string(trial, "index")), number_cell(string(trial, "seed")),
                    Cell(text(string(trial, "status")), false, at(trial, "status") == "fail" ? "bad" : "doubt"),
                    string(at(trial, "outcome"), "sentence")});
  }
  if (rows.empty()) return paragraph(text("Every trial passed."), "note");
  return folded(text(fmt::format("Trials that did not pass ({})", failed)),
                table({"cell", "trial", "seed", "status", "what happened"}, rows));
}

// Every trial once: a row for each cell, a column for each trial.
Html trials_matrix(const std::vector<Json>& trials, const Json& cells) {
  std::map<std::string, std::map<int64_t, std::optional<double>>> found;
  int64_t most = 0;
  for (const Json& trial : trials) {
    const auto index = static_cast<int64_t>(number(trial, "index").value_or(-1));
    if (index < 0 || index >= kMostTrials) continue;
    const Json& status = at(trial, "status");
    found[string(trial, "cell")][index] = status == "pass"   ? std::optional(0.0)
                                          : status == "fail" ? std::optional(1.0)
                                                             : std::nullopt;
    most = std::max(most, index + 1);
  }
  if (most == 0) return {};
  GridChart chart{.title = "Every trial: filled where it failed, grey where it ended in an error or is missing",
                  .column_label = "trial"};
  for (int64_t i = 0; i < most; ++i) chart.columns.push_back(std::to_string(i));
  for (const Json& cell : cells) {
    const auto row = found.find(string(cell, "name"));
    if (row == found.end() || chart.rows.size() == kMostCells) continue;
    chart.rows.push_back(row->first);
    for (int64_t i = 0; i < most; ++i) {
      const auto trial = row->second.find(i);
      chart.values.push_back(trial == row->second.end() ? std::nullopt : trial->second);
    }
  }
  return draw(chart);
}

}  // namespace

Story triage_story(const LoadedRecord& record) {
  Story story;
  const Json& cells = items(at(record.document, "cells"));
  const bool disqualified = at(record.document, "disqualified") == true;
  const bool failed =
      std::any_of(cells.begin(), cells.end(), [](const Json& cell) { return number(cell, "failed").value_or(0) > 0; });
  story.tone = disqualified || cells.empty() ? Tone::kDoubt : failed ? Tone::kBad : Tone::kGood;
  story.headline = (disqualified ? "Disqualified. " : "") + string(record.document, "sentence");
  if (string(record.document, "sentence").empty()) story.headline = "The matrix of this triage is missing.";
  if (const std::string ticket = string(at(record.document, "plan"), "ticket"); !ticket.empty())
    story.words.push_back("Ticket: " + ticket);
  story.words.emplace_back(
      "Trials that ended in an error are left out of the rates. A confound 'speed' means that a cell is slower than "
      "the baseline, so that its effect may be the slowness alone.");
  const std::vector<Json> trials = judged_trials(record);
  story.sections.push_back({"Cells", rates(cells) + trials_matrix(trials, cells) + cells_table(cells)});
  if (const Html outcomes = outcomes_table(cells); !outcomes.empty()) story.sections.push_back({"Outcomes", outcomes});
  story.sections.push_back({"Trials", failed_trials(trials)});
  return story;
}

}  // namespace faultline::report
