// The stories of a diagnosis (one JSON file: verdict, candidates with their evidence, what was not tested) and of a
// campaign of diagnoses (trials with a planted fault and what each method said about it).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/stats.h"
#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

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

struct Rates {
  int64_t trials = 0, layer = 0, place = 0, kind = 0;
};

struct Tally {  // of one method
  Rates all;
  std::map<std::string, std::map<std::string, int64_t>> said;  // planted kind -> said kind
  int64_t healthy = 0, flagged = 0;
};

void count(const Json& trial, std::map<std::string, Tally>& methods) {
  const Json& outcome = at(trial, "outcome");
  if (at(outcome, "inactive") == true) return;
  for (const auto& [method, said] : fields(outcome).items()) {
    if (!said.is_object() || !said.contains("found")) continue;
    Tally& tally = methods[method];
    const bool found = at(said, "found") == true;
    if (string(trial, "cell") == "healthy") {
      ++tally.healthy, tally.flagged += found;
      continue;
    }
    ++tally.all.trials;
    tally.all.layer += at(said, "layer_right") == true, tally.all.place += at(said, "place_right") == true;
    tally.all.kind += at(said, "kind_right") == true;
    ++tally.said[string(outcome, "planted_kind")][found ? string(said, "kind") : "healthy"];
  }
}

IntervalChart rates_chart(const std::string& method, const Tally& tally) {
  IntervalChart chart{
      .title = fmt::format("{}: planted faults named rightly, 95 % intervals (Clopper-Pearson)", method),
      .unit = Unit::kShare,
      .axis = std::pair(0.0, 1.0)};
  const auto add = [&](const char* label, int64_t right, int64_t trials, const char* tone) {
    if (trials == 0) return;
    const Interval range = clopper_pearson_interval(right, trials);
    const double share = static_cast<double>(right) / static_cast<double>(trials);
    chart.rows.push_back({.label = label,
                          .value = share,
                          .range = std::pair(range.low, range.high),
                          .note = fmt::format("{} ({}/{})", percent_text(share), right, trials),
                          .tone = tone});
  };
  add("layer", tally.all.layer, tally.all.trials, "c0");
  add("layer and operator", tally.all.place, tally.all.trials, "c0");
  add("kind", tally.all.kind, tally.all.trials, "c0");
  add("healthy models accused", tally.flagged, tally.healthy, tally.flagged > 0 ? "bad" : "good");
  return chart;
}

Html confusion_of(const std::string& method, const Tally& tally) {
  GridChart chart{.title = fmt::format("{}: planted kind (rows) and what was said (columns)", method)};
  std::set<std::string> said;
  for (const auto& [planted, answers] : tally.said)
    for (const auto& [answer, n] : answers) said.insert(answer);
  chart.columns.assign(said.begin(), said.end());
  chart.write_values = chart.columns.size() <= 8;
  for (const auto& [planted, answers] : tally.said) {
    chart.rows.push_back(planted);
    for (const std::string& answer : chart.columns) {
      const auto n = answers.find(answer);
      chart.values.emplace_back(n == answers.end() ? 0.0 : static_cast<double>(n->second));
    }
  }
  return draw(chart);
}

}  // namespace

Story tell_diagnosis(const LoadedRecord& record) {
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
  story.sections.push_back({"What is accused", candidates_of(diagnosis)});
  return story;
}

Story tell_campaign(const LoadedRecord& record) {
  std::map<std::string, Tally> methods;
  for (const Json& trial : record.events) count(trial, methods);
  if (methods.empty()) return tell_anything(record);
  Story story;
  int64_t flagged = 0, healthy = 0;
  for (const auto& [method, tally] : methods) {
    flagged += tally.flagged, healthy += tally.healthy;
    story.words.push_back(
        fmt::format("{}: the layer was named in {} of {} planted faults, the kind in {}; {} of {} "
                    "healthy models were accused.",
                    method, tally.all.layer, tally.all.trials, tally.all.kind, tally.flagged, tally.healthy));
    Html body = tally.all.trials + tally.healthy > 0 ? draw(rates_chart(method, tally)) : Html();
    story.sections.push_back({"Method " + method, body + confusion_of(method, tally)});
  }
  story.tone = flagged > 0 ? Tone::kBad : Tone::kPlain;
  story.headline = flagged > 0   ? fmt::format("{} of {} diagnoses of healthy models accused them.", flagged, healthy)
                   : healthy > 0 ? fmt::format("No false accusation in {} diagnoses of healthy models.", healthy)
                                 : std::string("A campaign of planted faults; no healthy model was examined.");
  return story;
}

}  // namespace faultline::report
