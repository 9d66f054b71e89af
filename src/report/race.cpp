// The story of a race, one JSON result of ranks that checked each other's collectives.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostFindings = 200;
constexpr double kMostColumns = 256, kMostRanks = 64;

// Findings of all ranks under one key of the evidence: mismatches, events, …
Html findings(const Json& evidence, const char* key, const char* title, const std::vector<std::string>& columns) {
  std::vector<std::vector<Cell>> rows;
  std::size_t count = 0;
  for (const Json& rank : items(evidence)) {
    const Json& list = at(rank, key);
    for (const Json& one : items(list.is_object() ? at(list, "items") : list)) {
      if (++count > kMostFindings) continue;
      std::vector<Cell> row;
      for (const std::string& column : columns) {
        const Json& value = at(one, column);
        row.emplace_back(value.is_array() ? names(value, ", ") : string(one, column));
      }
      rows.push_back(std::move(row));
    }
    count += static_cast<std::size_t>(std::max(0.0, number(list, "omitted").value_or(0)));
  }
  if (rows.empty()) return {};
  return element("h3", text(fmt::format("{} ({})", title, count))) + table(columns, rows);
}

// Events by rank and layer, the attributed ones: where the damage is.
Html damage_map(const Json& result) {
  const double layers = number(result, "layers").value_or(0), ranks = number(result, "ranks").value_or(0);
  if (!(layers >= 1 && layers <= kMostColumns && ranks >= 1 && ranks <= kMostRanks)) return {};
  GridChart chart{.title = "Corruptions by rank and layer", .column_label = "layer"};
  chart.write_values = layers <= 8;
  const auto columns = static_cast<std::size_t>(layers);
  chart.values.assign(columns * static_cast<std::size_t>(ranks), 0.0);
  for (double layer = 0; layer < layers; ++layer) chart.columns.push_back(number_text(layer));
  for (double rank = 0; rank < ranks; ++rank) chart.rows.push_back(fmt::format("rank {}", rank));
  for (const Json& one : items(at(result, "evidence"))) {
    for (const Json& event : items(at(at(one, "events"), "items"))) {
      const double rank = number(event, "rank").value_or(-1), layer = number(event, "layer").value_or(-1);
      if (!(rank >= 0 && rank < ranks && layer >= 0 && layer < layers)) continue;
      std::optional<double>& count =
          chart.values[static_cast<std::size_t>(rank) * columns + static_cast<std::size_t>(layer)];
      count = *count + 1;
    }
  }
  return draw(chart);
}

}  // namespace

Story race_story(const LoadedRecord& record) {
  Story story;
  const Json& result = record.document.is_null() ? record.results() : record.document;
  const std::string verdict = string(result, "verdict");
  story.tone = verdict == "pass" ? Tone::kGood : verdict == "fail" ? Tone::kBad : Tone::kDoubt;
  story.headline = fmt::format("{} ({}): {}", verdict, string(result, "outcome"), string(result, "sentence"));
  story.words.push_back(fmt::format("{} ranks, {} iterations, {} layers, {:.3g} s.", string(result, "ranks"),
                                    string(result, "iterations"), string(result, "layers"),
                                    number(result, "seconds").value_or(0)));
  if (const std::string blamed = joined(at(result, "blamed"), ", "); !blamed.empty())
    story.words.push_back(fmt::format("Ranks that hold the others up: {}.", blamed));
  const Json& evidence = at(result, "evidence");
  Html body = findings(evidence, "events", "Corruptions and whom they are put down to",
                       {"rank", "iteration", "layer", "cause", "operation", "keys", "sources", "consequences"});
  body += findings(evidence, "mismatches", "Elements that are not the ones that were sent",
                   {"rank", "iteration", "layer", "operation", "phase", "damage", "count", "xor"});
  body += findings(evidence, "deviations", "Digests that differ",
                   {"rank", "iteration", "layer", "key", "scope", "observed", "reference"});
  body += findings(evidence, "slow", "Slow steps", {"rank", "iteration", "layer", "seconds", "usual"});
  if (body.empty()) body = paragraph(text("No rank found anything."), "note");
  story.sections.push_back({"What the ranks found", damage_map(result) + body});
  std::vector<std::vector<Cell>> failures;
  for (const Json& one : items(at(result, "failures")))
    failures.push_back({string(one, "rank"), string(one, "hang"), string(one, "sentence")});
  if (!failures.empty()) story.sections.push_back({"Failures", table({"rank", "hang", "what happened"}, failures)});
  std::vector<std::vector<Cell>> standings;
  for (const Json& one : items(at(result, "standings")))
    standings.push_back({std::to_string(standings.size()), string(one, "state"), string(one, "place"),
                         string(one, "called"), string(one, "reached")});
  if (!standings.empty())
    story.sections.push_back({"Where the ranks stood when the first of them gave up",
                              table({"rank", "state", "place", "collectives called", "come to"}, standings)});
  return story;
}

}  // namespace faultline::report
