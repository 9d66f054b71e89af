// The story of a training run: how far it came, what its validations said (clean and under faults apart), and a curve
// for every series in its events.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "base/stats/stats.h"
#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostCurves = 60;
constexpr const char* kClean = "val-core/";
constexpr const char* kFaulty = "faultline/val-faulty/";
constexpr std::size_t kMostRows = 200, kMostSteps = 60;
constexpr const char* kLayerErrors = "faultline/layer_error";
constexpr const char* kProblems = "faultline/validation_problems";

using SeriesByName = std::map<std::string, std::vector<Point>>;

SeriesByName series_of(const LoadedRecord& record) {
  SeriesByName found;
  for (const Json& event : record.events) {
    const std::optional<double> step = number(event, "step");
    if (!step || !std::isfinite(*step)) continue;
    for (const char* group : {"metrics", "times"})
      for (const auto& [key, value] : fields(at(event, group)).items())
        if (const auto y = number(value)) found[key].push_back({*step, *y});
    for (const auto& [key, value] : event.items())  // flat events of other writers
      if (key.find('/') != std::string::npos)
        if (const auto y = number(value)) found[key].push_back({*step, *y});
  }
  return found;
}

// Faults that were planned are proven by a ledger that does not complain; it is written when the run ends.
bool faults_unproven(const LoadedRecord& record) {
  const bool planned = record.manifest && !items(at(record.manifest->recipe, "faults")).empty();
  return !items(at(record.ledger, "complaints")).empty() || (planned && record.ledger.is_null());
}

bool is_validation(const std::string& name) { return name.starts_with(kClean) || name.starts_with(kFaulty); }

// Validation accuracy is a share of so many problems: its interval follows.
void add_bands(const LoadedRecord& record, std::vector<Point>& points) {
  std::optional<double> problems;
  for (const Json& event : record.events)
    if (const auto n = number(at(event, "metrics"), kProblems)) problems = n;
  if (!problems || *problems < 1 || *problems > 1e9) return;
  const auto n = static_cast<int64_t>(*problems);
  for (Point& point : points) {
    if (!(point.y >= 0 && point.y <= 1)) continue;
    const Interval band = wilson_interval(std::llround(point.y * *problems), n);
    point.band = std::pair(band.low, band.high);
  }
}

Html validation(const LoadedRecord& record) {
  const bool unproven = faults_unproven(record);
  LineChart chart{.title = "Validation accuracy, with 95 % intervals (Wilson); clean and faulty apart",
                  .unit = Unit::kShare};
  for (auto& [name, points] : series_of(record)) {
    if (!is_validation(name) || (unproven && name.starts_with(kFaulty))) continue;
    add_bands(record, points);
    chart.series.push_back({(name.starts_with(kFaulty) ? "under faults: " : "clean: ") + name, points});
  }
  if (chart.series.empty())
    return paragraph(text("No step was validated: the record says nothing about accuracy."), "note");
  return draw(chart);
}

std::string final_accuracy(const LoadedRecord& record) {
  std::string words;
  for (const auto& [name, points] : series_of(record)) {
    if (!is_validation(name) || (faults_unproven(record) && name.starts_with(kFaulty))) continue;
    words +=
        fmt::format("{}{} accuracy {} → {}", words.empty() ? "" : ", ", name.starts_with(kFaulty) ? "faulty" : "clean",
                    percent_text(points.front().y), percent_text(points.back().y));
  }
  return words;
}

std::string sentence_of_stop(const LoadedRecord& record) {
  for (const Json& event : record.events)
    if (at(event, "kind") == "stopped")
      return fmt::format("The run stopped at step {}: {}", string(event, "step"), string(event, "reason"));
  return "";
}

// Layers x steps: how strong the faults were, from what the ledger gained at each step.
Html layer_map(const LoadedRecord& record) {
  std::map<int64_t, std::map<double, double>> by_layer;
  std::set<double> steps;
  for (const Json& event : record.events) {
    const std::optional<double> step = number(event, "step");
    if (!step || !std::isfinite(*step)) continue;
    for (const auto& [layer, value] : fields(at(at(event, "metrics"), kLayerErrors)).items()) {
      const std::optional<double> error = number(value);
      if (!error || layer.empty() || layer.size() > 6 || layer.find_first_not_of("-0123456789") != std::string::npos)
        continue;
      by_layer[std::atoll(layer.c_str())][*step] = *error;
      steps.insert(*step);
    }
  }
  if (by_layer.empty() || steps.size() < 2 || by_layer.size() > kMostRows) return {};
  const std::vector<double> all(steps.begin(), steps.end());
  const std::size_t every = (all.size() + kMostSteps - 1) / kMostSteps;
  GridChart chart{.title = fmt::format("Realised relative error by layer (rows) and step (columns){}",
                                       every > 1 ? fmt::format("; every {}th step", every) : ""),
                  .column_label = "step"};
  for (std::size_t i = 0; i < all.size(); i += every) chart.columns.push_back(number_text(all[i]));
  for (const auto& [layer, errors] : by_layer) {
    chart.rows.push_back(layer < 0 ? "no layer" : fmt::format("layer {}", layer));
    for (std::size_t i = 0; i < all.size(); i += every) {
      const auto error = errors.find(all[i]);
      chart.values.push_back(error == errors.end() ? std::nullopt : std::optional(error->second));
    }
  }
  return draw(chart);
}

// A series that never moves is a number, not a picture.
std::optional<double> only_value(const LineChart& chart) {
  const double first = chart.series.front().points.front().y;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (point.y != first) return std::nullopt;
  return first;
}

}  // namespace

Html curves_of(const std::vector<const LoadedRecord*>& records) {
  std::map<std::string, LineChart> charts;
  for (const LoadedRecord* record : records) {
    for (auto& [name, points] : series_of(*record)) {
      if (points.size() < 2 || is_validation(name) || name == kProblems) continue;
      LineChart& chart = charts[name];
      chart.title = name, chart.small = true;
      chart.series.push_back({records.size() > 1 ? record->name : name, std::move(points)});
    }
  }
  std::vector<Html> drawn;
  std::vector<std::string> constant;
  std::size_t moving = 0;
  for (const auto& [name, chart] : charts) {
    if (const std::optional<double> value = only_value(chart)) {
      constant.push_back(fmt::format("{} {}", name, number_text(*value)));
    } else if (++moving <= kMostCurves) {
      drawn.push_back(draw(chart));
    }
  }
  if (charts.empty()) return {};
  Html out = drawn.empty() ? Html() : side_by_side(drawn);
  if (moving > kMostCurves)
    out += paragraph(text(fmt::format("{} of {} series are shown.", kMostCurves, moving)), "note");
  if (!constant.empty())
    out += paragraph(text(fmt::format("The same at every step: {}.", fmt::join(constant, ", "))), "note");
  return out;
}

Story train_story(const LoadedRecord& record) {
  Story story;
  const std::string stopped = sentence_of_stop(record);
  const std::string accuracy = final_accuracy(record);
  if (!stopped.empty()) {
    story.tone = Tone::kBad;
    story.headline = stopped;
  } else if (!record.summary) {
    story.tone = Tone::kDoubt;
    story.headline = "The training has not ended; what follows is how far it came.";
  } else {
    story.tone = record.summary->complete() ? Tone::kPlain : Tone::kDoubt;
    story.headline = fmt::format("{} of {} steps were made{}{}.", record.summary->step_reached,
                                 record.summary->steps_planned, accuracy.empty() ? "" : ": ", accuracy);
  }
  for (const Json& complaint : items(at(record.ledger, "complaints")))
    story.words.push_back("Evidence missing: " + sentence_of(complaint));
  if (record.ledger.is_null() && faults_unproven(record))
    story.words.emplace_back("The recipe plans faults, but there is no ledger: nothing proves that they happened.");
  if (faults_unproven(record)) {
    story.words.emplace_back("No validation under faults is shown.");
    story.tone = Tone::kDoubt;
  }
  story.sections.push_back({"Validation", validation(record)});
  if (Html curves = curves_of({&record}); !curves.empty()) story.sections.push_back({"Curves", std::move(curves)});
  if (!record.ledger.is_null())
    story.sections.push_back({"Proof that the faults happened", layer_map(record) + evidence_tables(record.ledger)});
  return story;
}

}  // namespace faultline::report
