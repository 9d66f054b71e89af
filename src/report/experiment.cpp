// The story of an experiment: arms times seeds, compared with the control seed by seed.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr double kAlpha = 0.05;

std::string sentence_of(const Json& arm) {
  const Json& against = at(arm, "against_control");
  const std::optional<double> difference = number(against, "difference"), p = number(against, "p_holm");
  const auto range = interval(against, "interval");
  if (!difference || !p || !range)
    return against.is_null() ? "" : fmt::format("{}: too few pairs to compare.", string(arm, "arm"));
  const std::string numbers =
      fmt::format("{:+.1f} points [{:+.1f}, {:+.1f}], {} after Holm, {} pairs", 100 * *difference, 100 * range->first,
                  100 * range->second, p_words(*p), number_text(number(against, "pairs")));
  if (*p < kAlpha)
    return fmt::format("{} is {} than the control: {}.", string(arm, "arm"), *difference > 0 ? "better" : "worse",
                       numbers);
  const std::optional<double> resolvable = number(against, "resolvable");
  return fmt::format(
      "{}: inconclusive, {}{}.", string(arm, "arm"), numbers,
      resolvable ? fmt::format("; an effect of {:.1f} points could have been seen", 100 * *resolvable) : "");
}

IntervalChart difference_chart(const Json& arms, const std::string& control) {
  IntervalChart chart{.title = fmt::format("Difference from '{}' in points, 95 % intervals, paired by seed", control),
                      .reference = 0.0};
  for (const Json& arm : arms) {
    const Json& against = at(arm, "against_control");
    if (against.is_null()) continue;
    IntervalRow row{.label = string(arm, "arm"), .note = "not comparable", .tone = "c1"};
    const std::optional<double> difference = number(against, "difference");
    const auto range = interval(against, "interval");
    if (difference && range) {
      row.value = 100 * *difference;
      row.range = std::pair(100 * range->first, 100 * range->second);
      row.note = fmt::format("{:+.1f} [{:+.1f}, {:+.1f}]", *row.value, row.range->first, row.range->second);
      if (number(against, "p_holm").value_or(1) < kAlpha) row.tone = *difference > 0 ? "good" : "bad";
    }
    chart.rows.push_back(row);
  }
  return chart;
}

// Comparisons that were named before the run.
Html contrasts_of(const Json& contrasts) {
  IntervalChart chart{.title = "Contrasts named beforehand: difference in points, 95 % intervals, paired by seed",
                      .reference = 0.0};
  for (const Json& one : contrasts) {
    const std::optional<double> difference = number(one, "difference");
    const auto range = interval(one, "interval");
    IntervalRow row{.label = fmt::format("{} against {}", string(one, "arm"), string(one, "against")),
                    .note = "not comparable",
                    .tone = "c1"};
    if (difference && range) {
      const std::optional<double> p = number(one, "p_holm");
      row.value = 100 * *difference;
      row.range = std::pair(100 * range->first, 100 * range->second);
      row.note = fmt::format("{:+.1f} [{:+.1f}, {:+.1f}]{}", *row.value, row.range->first, row.range->second,
                             p && *p < kAlpha ? "" : ", inconclusive");
      if (p && *p < kAlpha) row.tone = *difference > 0 ? "good" : "bad";
    }
    chart.rows.push_back(row);
  }
  return chart.rows.empty() ? Html() : draw(chart);
}

// Arms x faults that every final model was judged under.
Html under_faults(const Json& arms) {
  std::vector<std::string> labels;
  for (const Json& arm : arms)
    for (const auto& [label, value] : fields(at(arm, "under")).items())
      if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
  if (labels.empty()) return {};
  GridChart chart{.title = "Accuracy of the final models (rows) under each fault (columns), mean over seeds",
                  .columns = labels,
                  .unit = Unit::kShare,
                  .write_values = labels.size() <= 8};
  for (const Json& arm : arms) {
    chart.rows.push_back(string(arm, "arm"));
    for (const std::string& label : labels)
      chart.values.push_back(number(at(at(at(arm, "under"), label), "accuracy"), "mean"));
  }
  return draw(chart);
}

std::string mean_text(const Json& value, double factor) {
  const std::optional<double> mean = number(value, "mean"), sd = number(value, "sd");
  if (!mean) return "–";
  return sd ? fmt::format("{:.3g} ± {:.2g}", factor * *mean, factor * *sd) : fmt::format("{:.3g}", factor * *mean);
}

Html arms_table(const Json& arms) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& arm : arms) {
    const double unproven = number(arm, "evidence_missing").value_or(0);
    rows.push_back({string(arm, "arm"), number_cell(number_text(number(arm, "trials"))),
                    number_cell(mean_text(at(arm, "endpoint"), 100)), number_cell(mean_text(at(arm, "clean"), 100)),
                    number_cell(mean_text(at(arm, "roughness"), 1)),
                    number_cell(mean_text(at(arm, "seconds_a_step"), 1)), number_cell(number_text(number(arm, "died"))),
                    number_cell(number_text(unproven), unproven > 0 ? "bad" : "")});
  }
  return table({"arm", "trials", "endpoint, %", "clean, %", "roughness", "s a step", "died", "unproven"}, rows);
}

// Mean reward over seeds at each step, with the range between the least and the greatest seed.
Html reward_curves(const LoadedRecord& record) {
  std::map<std::string, std::vector<std::vector<double>>> by_arm;  // step -> values
  for (const Json& trial : record.events) {
    if (at(trial, "status") != "pass") continue;
    auto& steps = by_arm[string(trial, "cell")];
    const Json& reward = items(at(at(at(trial, "outcome"), "curves"), "reward"));
    if (steps.size() < reward.size()) steps.resize(reward.size());
    for (std::size_t i = 0; i < reward.size(); ++i)
      if (const auto value = number(reward[i])) steps[i].push_back(*value);
  }
  LineChart chart{.title = "Reward while training: mean over seeds, band from the least to the greatest seed"};
  for (const auto& [arm, steps] : by_arm) {
    Series series{arm, {}};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].empty()) continue;
      double sum = 0;
      for (const double value : steps[i]) sum += value;
      const auto [least, most] = std::minmax_element(steps[i].begin(), steps[i].end());
      series.points.push_back(
          {static_cast<double>(i + 1), sum / static_cast<double>(steps[i].size()), std::pair(*least, *most)});
    }
    if (series.points.size() > 1) chart.series.push_back(std::move(series));
  }
  return chart.series.empty() ? Html() : draw(chart);
}

}  // namespace

Story tell_experiment(const LoadedRecord& record) {
  Story story;
  const Json& arms = items(at(record.document, "arms"));
  std::size_t compared = 0, decided = 0;
  double unproven = 0;
  for (const Json& arm : arms) {
    const Json& against = at(arm, "against_control");
    compared += number(against, "p_holm").has_value();
    decided += number(against, "p_holm").value_or(1) < kAlpha;
    unproven += number(arm, "evidence_missing").value_or(0);
    if (const std::string sentence = sentence_of(arm); !sentence.empty()) story.words.push_back(sentence);
    if (const Json& earlier = items(at(arm, "earlier_attempts")); !earlier.empty())
      story.words.push_back(fmt::format("{}: {} trials are later attempts; the earlier ones ended without proof.",
                                        string(arm, "arm"), earlier.size()));
    if (number(arm, "identical_seeds").value_or(0) > 0)  // equality to the last bit is an alarm, not a success
      story.words.push_back(
          fmt::format("{}: in {} seeds every step was the control's, to the bit: what it changes did "
                      "not act.",
                      string(arm, "arm"), number_text(number(arm, "identical_seeds"))));
  }
  if (const Json& starts = at(record.document, "starts"); at(starts, "alarm") == true)
    story.words.push_back(
        fmt::format("What the seeds begin with rises or falls with their number (p = {:.2g}): they do not look "
                    "independent, so intervals and p-values do not hold.",
                    number(starts, "p_of_a_trend").value_or(0)));
  const std::string question = string(record.document, "question");
  if (!question.empty()) story.words.insert(story.words.begin(), "Asked: " + question);
  story.headline = compared == 0 ? "No arm could be compared with a control."
                                 : fmt::format("{} of {} arms differ from the control '{}'{}.", decided, compared,
                                               string(record.document, "control"),
                                               decided < compared ? "; the others are inconclusive" : "");
  if (unproven > 0)
    story.words.push_back(fmt::format("{} trials have no evidence and are left out.", number_text(unproven)));
  if (const auto fewest = number(record.document, "fewest_pairs_for_holm"))
    story.words.push_back(
        fmt::format("{} seeds are the fewest with which Holm's first step can pass 0.05.", number_text(*fewest)));
  story.tone = unproven > 0 || compared == 0 ? Tone::kDoubt : Tone::kPlain;
  Html body;
  if (compared > 0) body += draw(difference_chart(arms, string(record.document, "control")));
  body += contrasts_of(items(at(record.document, "contrasts"))) + under_faults(arms);
  story.sections.push_back({"Arms", body + arms_table(arms)});
  if (Html curves = reward_curves(record); !curves.empty()) story.sections.push_back({"Curves", std::move(curves)});
  return story;
}

}  // namespace faultline::report
