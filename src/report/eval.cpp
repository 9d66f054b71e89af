// The story of an evaluation: a model clean and under faults. A faulty row counts only with its evidence: where that is
// missing or complains, no number of the row is shown, whatever the record holds.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/stats/stats.h"
#include "report/chart.h"
#include "report/eval_rows.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostSentences = 8;
constexpr std::size_t kMostProofs = 12;  // with map and ledger: the page stays small

std::string text_words(const EvalRow& row, const EvalRow& clean) {
  if (!row.perplexity || !clean.perplexity) return "";
  std::string words = fmt::format("perplexity {} → {}", number_text(*clean.perplexity), number_text(*row.perplexity));
  if (row.added_range)
    words += fmt::format(" ({:+.3g} nats a token, {:+.3g} to {:+.3g})", row.added_nats.value_or(0),
                         row.added_range->first, row.added_range->second);
  return words;
}

// A difference of this size is shown by so many questions in four of five evaluations.
std::string limit_words(const EvalRow& row) { return fmt::format("use --limit {}", row.needed.value_or(0)); }

std::string difference_from_clean(const EvalRow& row, const EvalRow& clean) {
  if (!row.proven) return fmt::format("{}: evidence missing, no number is shown.", row.label);
  const std::string in_text = text_words(row, clean);
  if (!row.accuracy || !clean.accuracy)
    return fmt::format("{}: {}.", row.label, in_text.empty() ? "not measured" : in_text);
  return fmt::format("{}{} {} → {} ({:+.1f} points, {} after Holm){}{}{}.", row.label,
                     row.shown()  ? row.lost_more() ? " costs accuracy:" : " raises accuracy:"
                     : row.needed ? ": inconclusive, too few questions:"
                                  : ": the same accuracy:",
                     percent_text(*clean.accuracy), percent_text(*row.accuracy), row.points(clean),
                     p_words(row.p_holm.value_or(1)), row.needed ? "; " + limit_words(row) : "",
                     in_text.empty() ? "" : "; ", in_text);
}

struct Count {
  std::size_t faulty = 0, unproven = 0, harmful = 0, raised = 0, inconclusive = 0, worse_text = 0, measured = 0,
              text = 0;
  const EvalRow* largest = nullptr;  // of the inconclusive ones, the largest difference
};

Count count(const std::vector<EvalRow>& rows) {
  Count found;
  for (const EvalRow& row : rows) {
    if (row.clean) continue;
    ++found.faulty;
    found.unproven += !row.proven;
    if (!row.proven) continue;
    found.measured += row.accuracy.has_value();
    found.text += row.perplexity.has_value();
    if (row.shown()) (row.lost_more() ? found.harmful : found.raised) += 1;
    if (row.needed) {
      ++found.inconclusive;
      const auto size = [&](const EvalRow& one) { return std::abs(one.points(rows.front())); };
      if (found.largest == nullptr || size(row) > size(*found.largest)) found.largest = &row;
    }
    found.worse_text += row.added_range && row.added_range->first > 0;
  }
  return found;
}

std::string of(std::size_t some, std::size_t all, const char* what) {
  if (all == 1) return fmt::format("the {}", what);
  return some == all ? fmt::format("all {} {}s", all, what) : fmt::format("{} of {} {}s", some, all, what);
}

std::string accuracy_words(const Count& n, const EvalRow& clean) {
  if (n.harmful > 0) return fmt::format("Under {} the model lost accuracy", of(n.harmful, n.measured, "fault"));
  if (n.raised > 0) return fmt::format("Under {} the model gained accuracy", of(n.raised, n.measured, "fault"));
  if (n.measured == 0) return "";
  if (n.largest == nullptr)
    return fmt::format("The accuracy is the same under {}", of(n.measured, n.measured, "fault"));
  const std::string which = n.measured == 1 ? "" : fmt::format(" for {}", of(n.inconclusive, n.measured, "fault"));
  return fmt::format("Inconclusive{}, too few questions: {}{:+.1f} points, {}; {}", which,
                     n.inconclusive > 1 ? "up to " : "", n.largest->points(clean),
                     p_words(n.largest->p_holm.value_or(1)), limit_words(*n.largest));
}

std::string headline_of(const Count& n, const EvalRow& clean) {
  if (n.faulty == 0 && clean.accuracy)
    return fmt::format("The clean model answers {} right; no fault was planted.", percent_text(*clean.accuracy));
  if (n.faulty == 0) return "The clean model was measured; no fault was planted.";
  if (n.unproven == n.faulty)
    return n.faulty == 1 ? "The fault is not proven: its evidence is missing, so no number is shown."
                         : "No fault is proven: the evidence is missing, so no number is shown.";
  std::string words = accuracy_words(n, clean);
  if (n.text > 0)
    words += fmt::format("{}{} raised perplexity", words.empty() ? "" : "; ",
                         n.worse_text == 0 ? "no fault provably" : of(n.worse_text, n.text, "fault"));
  if (words.empty()) words = "Nothing was measured under the faults";
  words[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(words[0])));
  if (n.unproven > 0) words += fmt::format("; {} of {} faults are not proven and show no number", n.unproven, n.faulty);
  return words + ".";
}

void add_warnings(const std::vector<EvalRow>& rows, Story& story) {
  const EvalRow& clean = rows.front();
  if (clean.accuracy && *clean.accuracy == 0 && rows.size() > 1)
    story.words.emplace_back(
        "The clean model answers nothing right: a fault cannot take anything away here. Choose an easier task.");
  // Two-sided exact McNemar: with n changed answers, all one way, p = 2^(1-n).
  if (clean.questions && *clean.questions < 6 && rows.size() > 1)
    story.words.push_back(
        fmt::format("{} questions cannot show any difference: a paired test needs at least six answers that change.",
                    number_text(*clean.questions)));
  if (!clean.clean) story.words.emplace_back("The first row is not a clean one: nothing can be compared with it.");
}

IntervalChart accuracy_chart(const std::vector<EvalRow>& rows) {
  IntervalChart chart{.title = "Accuracy with 95 % intervals (Wilson); the dashed line is the clean model",
                      .unit = Unit::kShare,
                      .axis = std::pair(0.0, 1.0),
                      .reference = rows.front().accuracy};
  for (const EvalRow& row : rows) {
    IntervalRow line{.label = row.label, .tone = row.clean ? "plain" : "c1"};
    if (!row.proven)
      line.note = "evidence missing";
    else if (!row.accuracy)
      line.note = "not measured";
    else {
      line.value = row.accuracy, line.range = row.accuracy_range;
      line.note =
          fmt::format("{} ({}/{})", percent_text(*row.accuracy), number_text(row.correct), number_text(row.questions));
      if (row.shown()) line.tone = row.lost_more() ? "bad" : "good";
    }
    chart.rows.push_back(line);
  }
  return chart;
}

IntervalChart perplexity_chart(const std::vector<EvalRow>& rows) {
  IntervalChart chart{.title = "Perplexity (logarithmic); intervals are of the difference from the clean text",
                      .log = true,
                      .reference = rows.front().perplexity};
  const std::optional<double> clean = rows.front().perplexity;
  for (const EvalRow& row : rows) {
    IntervalRow line{.label = row.label, .tone = row.clean ? "plain" : "c1"};
    line.note = row.proven ? number_text(row.perplexity) : "evidence missing";
    if (row.proven) line.value = row.perplexity;
    if (row.proven && row.added_range && clean) {
      line.range = std::pair(*clean * std::exp(row.added_range->first), *clean * std::exp(row.added_range->second));
      if (row.added_range->first > 0) line.tone = "bad";
    }
    chart.rows.push_back(line);
  }
  return chart;
}

Html number_table(const std::vector<EvalRow>& rows) {
  const bool texts =
      std::any_of(rows.begin(), rows.end(), [](const EvalRow& row) { return row.perplexity.has_value(); });
  std::vector<std::vector<Cell>> cells;
  for (const EvalRow& row : rows) {
    std::vector<Cell> line = {row.label};
    if (!row.proven) {
      line.emplace_back(text("evidence missing"), true, "doubt");
      line.insert(line.end(), texts ? 6 : 4, number_cell("–"));
      cells.push_back(line);
      continue;
    }
    line.push_back(number_cell(row.accuracy ? percent_text(*row.accuracy) : "–"));
    line.push_back(number_cell(row.accuracy_range ? fmt::format("{} to {}", percent_text(row.accuracy_range->first),
                                                                percent_text(row.accuracy_range->second))
                                                  : "–"));
    line.push_back(number_cell(
        row.only_clean ? fmt::format("{} / {}", number_text(row.only_clean), number_text(row.only_faulty)) : "–"));
    line.push_back(number_cell(row.p ? p_text(*row.p) : "–"));
    line.push_back(number_cell(row.p_holm ? p_text(*row.p_holm) : "–"));
    if (texts) line.push_back(number_cell(number_text(row.perplexity)));
    if (texts)
      line.push_back(number_cell(row.added_range ? fmt::format("{:+.4f} [{:+.4f}, {:+.4f}]", row.added_nats.value_or(0),
                                                               row.added_range->first, row.added_range->second)
                                                 : "–"));
    cells.push_back(line);
  }
  std::vector<std::string> heading = {"row",        "accuracy", "95 % interval", "lost / won answers",
                                      "p (paired)", "p (Holm)"};
  if (texts) heading.insert(heading.end(), {"perplexity", "added nats a token, 95 %"});
  return table(heading, cells);
}

Html measured(const std::vector<EvalRow>& rows) {
  Html out;
  const auto any = [&](auto member) {
    return std::any_of(rows.begin(), rows.end(), [&](const EvalRow& row) { return (row.*member).has_value(); });
  };
  if (any(&EvalRow::accuracy)) out += draw(accuracy_chart(rows));
  if (any(&EvalRow::perplexity)) out += draw(perplexity_chart(rows));
  out += strength_curves(rows);
  out += number_table(rows);
  return out + paragraph(text("Lost: answers right only without the fault; won: right only with it. p: exact McNemar "
                              "test on the same questions; Holm corrects for the number of faults."),
                         "note");
}

Html proofs(const std::vector<EvalRow>& rows) {
  Html out;
  std::size_t shown = 0;
  for (const EvalRow& row : rows) {
    if (row.clean) continue;
    out += element("h3", text(row.label, 300));
    for (const std::string& complaint : row.complaints) out += paragraph(text(complaint), "bad");
    if (row.complaints.empty() && !row.proven)
      out += paragraph(text("The record holds no evidence for this row."), "bad");
    if (row.proven)
      out += paragraph(text("Proven: every rule fired, the calls are as many as the forwards make, and the realised "
                            "strength is the one asked for."),
                       "good");
    out += ++shown <= kMostProofs ? evidence_tables(row.evidence)
                                  : paragraph(text("Its ledger is in summary.json of the record."), "note");
  }
  return out;
}

}  // namespace

Story eval_story(const LoadedRecord& record) {
  Story story;
  const std::vector<EvalRow> rows = read_eval_rows(record);
  if (rows.empty()) {
    story.tone = Tone::kDoubt;
    story.headline = "The record of this evaluation holds no rows.";
    return story;
  }
  const Count n = count(rows);
  story.headline = headline_of(n, rows.front());
  story.tone = n.unproven > 0 ? Tone::kDoubt : n.harmful + n.worse_text > 0 ? Tone::kBad : Tone::kPlain;
  for (const EvalRow& row : rows)
    if (!row.clean && story.words.size() < kMostSentences)
      story.words.push_back(difference_from_clean(row, rows.front()));
  if (n.faulty > kMostSentences) story.words.emplace_back("The other faults are in the table below.");
  add_warnings(rows, story);
  story.sections.push_back({"What was measured", measured(rows)});
  if (Html answers = changed_answers(record, rows); !answers.empty())
    story.sections.push_back({"Answers that changed", std::move(answers)});
  if (n.faulty > 0) story.sections.push_back({"Proof that the faults happened", proofs(rows)});
  return story;
}

}  // namespace faultline::report
