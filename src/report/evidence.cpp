// The proof of an injection as tables and a map: what each rule changed, how strong the realised error was in which
// layer, and how much of the arithmetic the rules could reach. The data are what tap/report.cpp writes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostSites = 400;  // rows of the full ledger on the page
constexpr std::size_t kMostMapRows = 40;

double share(const Json& object, const char* part, const char* whole) {
  const double all = number(object, whole).value_or(0);
  return all > 0 ? number(object, part).value_or(0) / all : 0;
}

Html rules_table(const Json& evidence) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& rule : items(at(evidence, "rules"))) {
    const bool never = number(rule, "calls").value_or(0) == 0;
    rows.push_back({string(rule, "name"), string(rule, "kind"), number_cell(number_text(number(rule, "sites"))),
                    number_cell(number_text(number(rule, "calls")), never ? "bad" : ""),
                    number_cell(number_text(number(rule, "elements"))),
                    number_cell(percent_text(share(rule, "changed", "elements"))),
                    number_cell(number(rule, "survival") ? percent_text(*number(rule, "survival")) : "–")});
  }
  return table({"rule", "kind", "sites", "calls", "elements", "changed", "survival of non-zeros"}, rows);
}

std::string without_layer(const std::string& place, int64_t layer) {
  const std::string part = fmt::format("layers.{}.", layer);
  const std::size_t found = place.find(part);
  return layer < 0 || found == std::string::npos ? place : place.substr(found + part.size());
}

// The map's rows are what repeats in each layer; its columns the layers, first what stands outside of them.
Html error_map(const Json& evidence) {
  std::map<std::string, std::map<int64_t, double>> found;
  std::set<int64_t> layers;
  for (const Json& row : items(at(evidence, "rows"))) {
    const std::optional<double> error = number(at(row, "ledger"), "relative_rms");
    if (!error) continue;
    const auto layer = static_cast<int64_t>(number(row, "layer").value_or(-1));
    std::string name = without_layer(string(row, "place"), layer);
    if (name.empty()) name = string(row, "operator");
    found[fmt::format("{} · {}", name, string(row, "phase"))][layer] = *error;
    layers.insert(layer);
  }
  if (found.empty() || (found.size() == 1 && layers.size() == 1)) return {};  // one number: the table has it
  GridChart chart;
  chart.title = "Realised relative error (RMS of error over RMS of signal) by layer";
  chart.column_label = "layer";
  for (const int64_t layer : layers) chart.columns.push_back(layer < 0 ? "–" : std::to_string(layer));
  for (const auto& [name, values] : found) {
    if (chart.rows.size() == kMostMapRows) break;
    chart.rows.push_back(name);
    for (const int64_t layer : layers) {
      const auto value = values.find(layer);
      chart.values.push_back(value == values.end() ? std::nullopt : std::optional(value->second));
    }
  }
  Html out = draw(chart);
  if (found.size() > kMostMapRows)
    out += paragraph(text(fmt::format("The map shows {} of {} places.", kMostMapRows, found.size())), "note");
  return out;
}

Html sites_table(const Json& evidence) {
  std::vector<std::vector<Cell>> rows;
  const Json& sites = items(at(evidence, "rows"));
  for (const Json& row : sites) {
    if (rows.size() == kMostSites) break;
    const Json& ledger = at(row, "ledger");
    rows.push_back(
        {string(row, "rule"), string(row, "place"), string(row, "operator"), string(row, "phase"), string(row, "dtype"),
         number_cell(number_text(number(ledger, "calls"))), number_cell(number_text(number(ledger, "elements"))),
         number_cell(number_text(number(ledger, "changed"))), number_cell(number_text(number(ledger, "relative_rms"))),
         number_cell(number_text(number(ledger, "max_abs_error"))),
         number_cell(number_text(number(ledger, "nonfinite")))});
  }
  if (rows.empty()) return {};
  const std::string heading = sites.size() > kMostSites
                                  ? fmt::format("The ledger: the first {} of {} sites", kMostSites, sites.size())
                                  : fmt::format("The ledger, site by site ({})", sites.size());
  return folded(text(heading), table({"rule", "place", "operator", "phase", "dtype", "calls", "elements", "changed",
                                      "relative RMS", "largest error", "not finite"},
                                     rows));
}

void add_coverage(const std::string& kind, const Json& phases, std::vector<std::vector<Cell>>& rows,
                  std::vector<std::vector<Cell>>& missed) {
  for (const auto& [phase, sums] : fields(phases).items()) {
    rows.push_back({kind, phase, number_cell(number_text(number(sums, "reached"))),
                    number_cell(number_text(number(sums, "operators"))),
                    number_cell(percent_text(number(sums, "flops_share").value_or(0))),
                    number_cell(percent_text(number(sums, "bytes_share").value_or(0)))});
    for (const Json& one : items(at(sums, "not_reached")))
      missed.push_back(
          {kind, phase, string(one, "operator"), number_cell(number_text(number(one, "calls"))), string(one, "why")});
  }
}

Html coverage_tables(const Json& evidence) {
  std::vector<std::vector<Cell>> rows, missed;
  for (const auto& [key, value] : fields(at(evidence, "coverage")).items()) {
    if (at(value, "operators").is_null()) {  // by kind of forward, then phase
      add_coverage(key, value, rows, missed);
    } else {  // one kind of forward
      Json one;
      one[key] = value;
      add_coverage("", one, rows, missed);
    }
  }
  if (rows.empty()) return paragraph(text("The record says nothing about coverage."), "note");
  Html out = paragraph(text("Coverage: how much of one forward's arithmetic the rules reach."));
  out += table({"forward", "phase", "calls reached", "of", "FLOPs", "bytes"}, rows);
  if (missed.empty()) return out;
  return out + folded(text(fmt::format("Operators that were not reached ({})", missed.size())),
                      table({"forward", "phase", "operator", "calls", "why"}, missed));
}

}  // namespace

Html evidence_tables(const Json& evidence) {
  if (!evidence.is_object()) return paragraph(text("There is no evidence in the record."), "note");
  return rules_table(evidence) + error_map(evidence) + coverage_tables(evidence) + sites_table(evidence);
}

}  // namespace faultline::report
