// The stories of a triage (matrix.json: cells with mitigations, their failure rates) and of a race (one JSON result of
// ranks that checked each other's collectives).
#include <fmt/format.h>

#include <algorithm>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostFindings = 200;

std::string names(const Json& list, const char* separator) {
  const std::string all = joined(list, separator);
  return all.empty() ? "–" : all;
}

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

Html failed_trials(const LoadedRecord& record) {
  std::vector<std::vector<Cell>> rows;
  std::size_t failed = 0;
  for (const Json& trial : record.events) {
    if (at(trial, "status") == "pass" || ++failed > kMostFindings) continue;
    rows.push_back({string(trial, "cell"), number_cell(string(trial, "index")), number_cell(string(trial, "seed")),
                    Cell(text(string(trial, "status")), false, at(trial, "status") == "fail" ? "bad" : "doubt"),
                    string(at(trial, "outcome"), "sentence")});
  }
  if (rows.empty()) return paragraph(text("Every trial passed."), "note");
  return folded(text(fmt::format("Trials that did not pass ({})", failed)),
                table({"cell", "trial", "seed", "status", "what happened"}, rows));
}

// Findings of all ranks under one key of the evidence: mismatches, events, …
Html findings(const Json& evidence, const char* key, const std::vector<std::string>& columns) {
  std::vector<std::vector<Cell>> rows;
  std::size_t count = 0;
  for (const Json& rank : items(evidence)) {
    const Json& list = at(rank, key);
    for (const Json& one : items(list.is_object() ? at(list, "items") : list)) {
      if (++count > kMostFindings) continue;
      std::vector<Cell> row;
      for (const std::string& column : columns) row.emplace_back(string(one, column));
      rows.push_back(std::move(row));
    }
    count += static_cast<std::size_t>(std::max(0.0, number(list, "omitted").value_or(0)));
  }
  if (rows.empty()) return {};
  return element("h3", text(fmt::format("{} ({})", key, count))) + table(columns, rows);
}

}  // namespace

Story tell_triage(const LoadedRecord& record) {
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
  story.sections.push_back({"Cells", rates(cells) + cells_table(cells)});
  story.sections.push_back({"Trials", failed_trials(record)});
  return story;
}

Story tell_race(const LoadedRecord& record) {
  Story story;
  const Json& result = record.document.is_null() ? record.results() : record.document;
  const std::string verdict = string(result, "verdict");
  story.tone = verdict == "pass" ? Tone::kGood : verdict == "fail" ? Tone::kBad : Tone::kDoubt;
  story.headline = fmt::format("{} ({}): {}", verdict, string(result, "outcome"), string(result, "sentence"));
  story.words.push_back(fmt::format("{} ranks, {} iterations, {} layers, {:.3g} s; blamed ranks: {}.",
                                    string(result, "ranks"), string(result, "iterations"), string(result, "layers"),
                                    number(result, "seconds").value_or(0), names(at(result, "blamed"), ", ")));
  const Json& evidence = at(result, "evidence");
  Html body = findings(evidence, "events",
                       {"rank", "iteration", "layer", "cause", "operation", "keys", "sources", "consequences"});
  body +=
      findings(evidence, "mismatches", {"rank", "iteration", "layer", "operation", "phase", "damage", "count", "xor"});
  body += findings(evidence, "deviations", {"rank", "iteration", "layer", "key", "scope", "observed", "reference"});
  body += findings(evidence, "slow", {"rank", "iteration", "layer", "seconds", "usual"});
  if (body.empty()) body = paragraph(text("No rank found anything."), "note");
  story.sections.push_back({"What the ranks found", body});
  std::vector<std::vector<Cell>> failures;
  for (const Json& one : items(at(result, "failures")))
    failures.push_back(
        {string(one, "rank"), names(at(one, "blamed"), ", "), string(one, "hang"), string(one, "sentence")});
  if (!failures.empty())
    story.sections.push_back({"Failures", table({"rank", "blamed", "hang", "what happened"}, failures)});
  return story;
}

}  // namespace faultline::report
