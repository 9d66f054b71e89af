// The story of an experiment: arms times seeds, compared seed by seed. What is claimed comes from the contrasts that
// were named before the run, and from them alone; differences from the control beside them are shown, never judged.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/stats/stats.h"
#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

std::string contrast_sentence(const Json& contrast, std::optional<double> fewest_pairs) {
  const std::optional<double> difference = number(contrast, "difference"), p = number(contrast, "p_holm");
  const auto range = interval(contrast, "interval");
  const std::string arm = string(contrast, "arm"), against = string(contrast, "against");
  if (!difference || !p || !range) return fmt::format("{} against {}: too few pairs to compare.", arm, against);
  const std::optional<double> pairs = number(contrast, "pairs"), resolvable = number(contrast, "resolvable");
  const std::string numbers =
      fmt::format("{:+.1f} points [{:+.1f}, {:+.1f}], {} after Holm, {} pairs", 100 * *difference, 100 * range->first,
                  100 * range->second, p_words(*p), number_text(pairs));
  if (*p < kAlpha)
    return fmt::format("{} is {} than {}: {}.", arm, *difference > 0 ? "better" : "worse", against, numbers);
  std::string power;
  if (pairs && fewest_pairs && *pairs < *fewest_pairs)
    power =
        fmt::format("; {} pairs cannot be significant at Holm's first step, whatever the effect", number_text(*pairs));
  else if (resolvable)
    power = fmt::format("; an effect of {:.1f} points would have been seen with 80 % power", 100 * *resolvable);
  return fmt::format("{} against {}: inconclusive, {}{}.", arm, against, numbers, power);
}

IntervalChart difference_chart(const Json& arms, const std::string& control) {
  IntervalChart chart{.title = fmt::format("Difference from '{}' in points, 95 % intervals, paired by seed; described, "
                                           "not tested",
                                           control),
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

// -> trials without evidence
double words_of_arms(const Json& arms, Story& story) {
  double unproven = 0;
  for (const Json& arm : arms) {
    unproven += number(arm, "evidence_missing").value_or(0);
    if (const Json& earlier = items(at(arm, "earlier_attempts")); !earlier.empty())
      story.words.push_back(fmt::format("{}: {} trials are later attempts; the earlier ones ended without proof.",
                                        string(arm, "arm"), earlier.size()));
    if (number(arm, "identical_seeds").value_or(0) > 0)  // equality to the last bit is an alarm, not a success
      story.words.push_back(
          fmt::format("{}: in {} seeds every step was the control's, to the bit: what it changes did "
                      "not act.",
                      string(arm, "arm"), number_text(number(arm, "identical_seeds"))));
  }
  return unproven;
}

// The headline too. -> how many could be tested
std::size_t words_of_contrasts(const Json& document, Story& story) {
  const Json& contrasts = items(at(document, "contrasts"));
  std::size_t tested = 0, decided = 0;
  for (const Json& one : contrasts) {
    tested += number(one, "p_holm").has_value();
    decided += number(one, "p_holm").value_or(1) < kAlpha;
    story.words.push_back(contrast_sentence(one, number(document, "fewest_pairs_for_holm")));
    if (number(one, "identical_seeds").value_or(0) > 0 && at(one, "against") != at(document, "control"))
      story.words.push_back(fmt::format("{}: in {} seeds every step was that of {}, to the bit.", string(one, "arm"),
                                        number_text(number(one, "identical_seeds")), string(one, "against")));
  }
  if (contrasts.empty())
    story.headline = fmt::format("{} arms, described: no contrast was named, so nothing is claimed.",
                                 items(at(document, "arms")).size());
  else if (tested == 0)
    story.headline = fmt::format("None of {} contrasts could be tested.", contrasts.size());
  else
    story.headline =
        fmt::format("{} of {} contrasts {} significant after Holm{}.", decided, contrasts.size(),
                    decided == 1 ? "is" : "are", decided < contrasts.size() ? "; the others are inconclusive" : "");
  return tested;
}

// "Trained on cuda:0 with faultline 0.1.0 (commit 4de0f6f), torch 2.11.0."
std::string made_with(const Json& made) {
  std::vector<std::string> programs;
  for (const Json& one : items(at(made, "versions")))
    programs.push_back(fmt::format("faultline {} (commit {}), torch {}", string(one, "version"), string(one, "commit"),
                                   string(one, "torch")));
  if (number(made, "trials_without_versions").value_or(0) > 0)
    programs.emplace_back("a version that the trials do not name");
  const std::string devices = joined(items(at(made, "devices")), ", ");
  return devices.empty() ? "" : fmt::format("Trained on {} with {}.", devices, joined(Json(programs), "; "));
}

}  // namespace

Story experiment_story(const LoadedRecord& record) {
  Story story;
  const Json &arms = items(at(record.document, "arms")), &contrasts = items(at(record.document, "contrasts"));
  const double unproven = words_of_arms(arms, story);
  const std::size_t tested = words_of_contrasts(record.document, story);
  for (const Json& remark : items(at(record.document, "remarks"))) story.words.push_back(shown(remark));
  if (const std::string made = made_with(at(record.document, "made_with")); !made.empty()) story.words.push_back(made);
  if (const Json& starts = at(record.document, "starts"); at(starts, "alarm") == true)
    story.words.push_back(
        fmt::format("What the seeds begin with rises or falls with their number (p = {:.2g}): they do not look "
                    "independent, so intervals and p-values do not hold.",
                    number(starts, "p_of_a_trend").value_or(0)));
  const std::string question = string(record.document, "question");
  if (!question.empty()) story.words.insert(story.words.begin(), "Asked: " + question);
  if (unproven > 0)
    story.words.push_back(fmt::format("{} trials have no evidence and are left out.", number_text(unproven)));
  if (const auto fewest = number(record.document, "fewest_pairs_for_holm"))
    story.words.push_back(
        fmt::format("{} seeds are the fewest with which Holm's first step can pass 0.05.", number_text(*fewest)));
  story.tone = unproven > 0 || tested == 0 ? Tone::kDoubt : Tone::kPlain;
  const IntervalChart differences = difference_chart(arms, string(record.document, "control"));
  Html body = contrasts_of(contrasts);
  if (!differences.rows.empty()) body += draw(differences);
  story.sections.push_back({"Arms", body + under_faults(arms) + arms_table(arms)});
  if (Html curves = reward_curves(record); !curves.empty()) story.sections.push_back({"Curves", std::move(curves)});
  return story;
}

}  // namespace faultline::report
