// The story of a diagnosis, one JSON file: verdict, candidates with their evidence and residuals, what was not tested.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostSamples = 60;
Html candidates_of(const Json& diagnosis) {
  std::vector<std::vector<Cell>> rows, proofs;
  for (const Json& one : items(at(diagnosis, "candidates"))) {
    rows.push_back({string(one, "place"), number_cell(string(one, "layer")), string(one, "operation"),
                    string(one, "kind"), string(one, "certainty"), number_cell(number_text(number(one, "score"))),
                    string(one, "detail")});
    for (const Json& proof : items(at(one, "evidence")))
      proofs.push_back(
          {string(proof, "place"), string(proof, "relation"), number_cell(number_text(number(proof, "violations"))),
           number_cell(number_text(number(proof, "elements"))), number_cell(number_text(number(proof, "ratio")))});
  }
  if (rows.empty()) return paragraph(text("Nothing is accused."), "note");
  Html out = table({"place", "layer", "operation", "kind", "certainty", "score", "detail"}, rows);
  if (proofs.empty()) return out + paragraph(text("The record holds no evidence for it."), "bad");
  return out + folded(text(fmt::format("Relations that were violated ({})", proofs.size())),
                      table({"place", "relation", "violations", "of elements", "times the bound"}, proofs));
}

// What convinced it: the worst elements, what they should have been and what they were.
Html residuals_of(const Json& diagnosis) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& one : items(at(diagnosis, "candidates"))) {
    for (const Json& proof : items(at(one, "evidence"))) {
      for (const Json& sample : items(at(proof, "samples"))) {
        if (rows.size() == kMostSamples) break;
        const std::optional<double> expected = number(sample, "expected"), observed = number(sample, "observed");
        const bool both = expected && observed;
        rows.push_back({string(proof, "place"), string(proof, "relation"), number_cell(string(sample, "row")),
                        number_cell(string(sample, "column")), number_cell(number_text(expected)),
                        number_cell(observed ? number_text(observed) : "not finite", observed ? "" : "bad"),
                        number_cell(both && *expected != 0
                                        ? fmt::format("{:+.3g} %", 100 * (*observed - *expected) / std::abs(*expected))
                                        : "–")});
      }
    }
  }
  if (rows.empty()) return {};
  return folded(text(fmt::format("Residuals: the worst elements of each relation ({})", rows.size())),
                table({"place", "relation", "row", "column", "expected", "observed", "deviation"}, rows));
}

// How far each layer left its bound: one column a layer.
Html layers_of(const Json& diagnosis) {
  std::vector<double> worst;
  for (const Json& one : items(at(diagnosis, "candidates"))) {
    const double layer = number(one, "layer").value_or(-1);
    if (!(layer >= 0 && layer < kMostLayers)) continue;
    if (worst.size() <= static_cast<std::size_t>(layer)) worst.resize(static_cast<std::size_t>(layer) + 1, 0);
    for (const Json& proof : items(at(one, "evidence"))) {
      const double elements = number(proof, "elements").value_or(0);
      if (elements <= 0) continue;
      double& share = worst[static_cast<std::size_t>(layer)];
      share = std::max(share, number(proof, "violations").value_or(0) / elements);
    }
  }
  if (worst.size() < 2) return {};
  GridChart chart{.title = "Share of elements that broke their relation, up to the last accused layer",
                  .rows = {"worst relation"},
                  .unit = Unit::kShare,
                  .column_label = "layer"};
  for (std::size_t layer = 0; layer < worst.size(); ++layer) {
    chart.columns.push_back(std::to_string(layer));
    chart.values.emplace_back(worst[layer]);
  }
  return draw(chart);
}

// Of a record that several methods made.
Html methods_of(const Json& verdicts) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& one : items(verdicts)) {
    const Json& first = at(at(one, "candidates"), std::size_t{0});
    rows.push_back({string(one, "method"), string(one, "verdict"), string(first, "place"), string(first, "kind"),
                    string(first, "certainty"), number_cell(number_text(number(one, "relations"))),
                    number_cell(number_text(number(one, "seconds")))});
  }
  return table({"method", "verdict", "first accused", "kind", "certainty", "relations", "seconds"}, rows);
}

}  // namespace

Story diagnosis_story(const LoadedRecord& record) {
  Story story;
  const Json& diagnosis = record.document.is_null() ? record.results() : record.document;
  const std::string verdict = string(diagnosis, "verdict");
  const Json& first = at(at(diagnosis, "candidates"), std::size_t{0});
  story.tone = verdict == "fault" ? Tone::kBad : verdict == "healthy" ? Tone::kGood : Tone::kDoubt;
  story.headline = verdict == "healthy"                ? "Healthy: every relation that was tested holds."
                   : verdict == "healthy_where_tested" ? "Healthy where it could be tested; not everything could."
                   : verdict != "fault"
                       ? "Nothing could be tested."
                       : fmt::format("A fault: {} at {}, {} ({}).", string(first, "kind"), string(first, "place"),
                                     string(first, "operation"), string(first, "certainty"));
  story.words.push_back(
      fmt::format("Method {}: {} relations on {} elements, {} forwards, {} s.", string(diagnosis, "method"),
                  number_text(number(diagnosis, "relations")), number_text(number(diagnosis, "elements")),
                  number_text(number(diagnosis, "forward_equivalents")), number_text(number(diagnosis, "seconds"))));
  if (const std::string not_tested = joined(at(diagnosis, "not_tested"), "; "); !not_tested.empty())
    story.words.push_back("Not tested: " + not_tested);
  if (const std::string not_excluded = joined(at(diagnosis, "not_excluded"), "; "); !not_excluded.empty())
    story.words.push_back("Not excluded: " + not_excluded);
  story.sections.push_back(
      {"What is accused", candidates_of(diagnosis) + layers_of(diagnosis) + residuals_of(diagnosis)});
  if (const Json& all = at(diagnosis, "verdicts"); items(all).size() > 1)
    story.sections.push_back({"Every method", methods_of(all)});
  if (const Json& evidence = at(diagnosis, "evidence"); !evidence.is_null())
    story.sections.push_back({"Evidence of the planted fault", evidence_tables(evidence)});
  return story;
}

}  // namespace faultline::report
