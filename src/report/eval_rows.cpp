#include "report/eval_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/stats/stats.h"
#include "report/chart.h"
#include "report/field.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostAnswers = 6;
constexpr std::size_t kFewestPoints = 3;  // of a curve

EvalRow read_row(const Json& json) {
  EvalRow row;
  row.label = string(json, "label"), row.rules = at(json, "rules"), row.evidence = at(json, "evidence");
  row.clean = items(row.rules).empty();
  for (const Json& complaint : items(at(json, "complaints"))) row.complaints.push_back(sentence_of(complaint));
  row.proven = row.clean || (row.evidence.is_object() && row.complaints.empty());
  if (!row.proven) return row;
  const Json &task = at(json, "task"), &text = at(json, "text");
  row.accuracy = number(task, "accuracy"), row.correct = number(task, "correct");
  row.questions = number(task, "questions"), row.accuracy_range = interval(task, "interval");
  row.only_clean = number(task, "only_clean_right"), row.only_faulty = number(task, "only_faulty_right");
  row.p = number(task, "p_mcnemar");
  row.perplexity = number(text, "perplexity"), row.added_nats = number(text, "added_nats");
  row.added_range = interval(text, "added_nats_interval");
  return row;
}

// How many questions the difference that was seen needs: McNemar's test at Holm's first step.
std::optional<int64_t> needed_questions(const EvalRow& row, std::size_t tested) {
  if (row.shown() || !row.questions || !row.only_clean || !row.only_faulty) return std::nullopt;
  const auto n = static_cast<int64_t>(*row.questions), lost = static_cast<int64_t>(*row.only_clean),
             won = static_cast<int64_t>(*row.only_faulty);
  if (lost == won || lost < 0 || won < 0 || lost + won > n) return std::nullopt;
  return std::max(n + 1, mcnemar_required_pairs(lost, won, n, 0.8, kAlpha / static_cast<double>(tested)));
}

void adjust_for_many(std::vector<EvalRow>& rows) {
  std::vector<double> p;
  for (const EvalRow& row : rows)
    if (row.p && *row.p >= 0 && *row.p <= 1) p.push_back(*row.p);
  if (p.empty()) return;
  const std::vector<double> adjusted = holm_adjust(p);
  std::size_t next = 0;
  for (EvalRow& row : rows)
    if (row.p && *row.p >= 0 && *row.p <= 1) {
      row.p_holm = adjusted[next++];
      row.needed = needed_questions(row, p.size());
    }
}

// One rule whose strength is the only thing that differs: a family of rows -> (strength, row).
struct Strength {
  std::string family;
  double value = 0;
};

std::optional<Strength> strength_of(const EvalRow& row) {
  if (items(row.rules).size() != 1) return std::nullopt;
  Json rule = row.rules[0];
  const Json what = at(rule, "what");
  for (const char* name : {"strength", "threshold"}) {
    const std::optional<double> value = number(what, name);
    if (!value || !rule.is_object()) continue;
    rule["what"].erase(name);
    rule.erase("name");
    return Strength{to_json_text(rule), *value};
  }
  return std::nullopt;
}

std::string family_name(const EvalRow& row) {
  const Json& where = at(row.rules[0], "where");
  const std::string kind = string(at(row.rules[0], "what"), "kind"), place = string(where, "operator");
  return place.empty() ? kind : fmt::format("{} on {}", kind, place);
}

}  // namespace

std::vector<EvalRow> read_eval_rows(const LoadedRecord& record) {
  std::vector<EvalRow> rows;
  for (const Json& json : items(at(record.results(), "rows"))) rows.push_back(read_row(json));
  std::stable_partition(rows.begin(), rows.end(), [](const EvalRow& row) { return row.clean; });
  adjust_for_many(rows);
  return rows;
}

Html strength_curves(const std::vector<EvalRow>& rows) {
  LineChart accuracy{.title = "Accuracy over strength, with 95 % intervals",
                     .x_label = "strength",
                     .unit = Unit::kShare,
                     .log_x = true,
                     .reference = rows.front().clean ? rows.front().accuracy : std::nullopt,
                     .reference_label = "clean"};
  std::map<std::string, std::pair<std::string, std::vector<Point>>> families;
  for (const EvalRow& row : rows) {
    const auto strength = strength_of(row);
    if (!strength || !row.accuracy || strength->value <= 0) continue;
    auto& [name, points] = families[strength->family];
    name = family_name(row);
    points.push_back({strength->value, *row.accuracy, row.accuracy_range});
  }
  for (auto& [key, family] : families) {
    auto& [name, points] = family;
    if (points.size() < kFewestPoints) continue;
    std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    accuracy.series.push_back({name, points});
  }
  return accuracy.series.empty() ? Html() : draw(accuracy);
}

Html changed_answers(const LoadedRecord& record, const std::vector<EvalRow>& all) {
  std::set<std::string> proven;
  for (const EvalRow& row : all)
    if (row.proven) proven.insert(row.label);
  std::map<std::string, std::vector<const Json*>> by_question;  // the clean answer first, as written
  for (const Json& event : record.events)
    if (at(event, "kind") == "answer" && proven.contains(string(event, "row")))
      by_question[string(event, "id")].push_back(&event);
  std::vector<std::vector<Cell>> rows;
  std::size_t changed = 0;
  for (const auto& [id, answers] : by_question) {
    const Json* other = nullptr;
    for (const Json* answer : answers)
      if (other == nullptr && at(*answer, "reward") != at(*answers.front(), "reward")) other = answer;
    if (other == nullptr) continue;
    if (++changed > kMostAnswers) continue;
    const auto cell = [](const Json& answer) {
      const bool right = number(answer, "reward").value_or(0) > 0;
      return Cell(element("div", text(string(answer, "row"), 120) + text(right ? ": right" : ": wrong"),
                          right ? "good" : "bad") +
                  element("pre", markup("\n") + text(string(answer, "text"), 600)));
    };
    rows.push_back({id, cell(*answers.front()), cell(*other)});
  }
  if (rows.empty()) return {};
  Html out = table({"question", "clean", "under a fault"}, rows);
  return out + paragraph(text(fmt::format("{} of {} questions were judged differently under some fault{}.", changed,
                                          by_question.size(),
                                          changed > kMostAnswers ? fmt::format("; {} are shown", kMostAnswers) : "")),
                         "note");
}

}  // namespace faultline::report
