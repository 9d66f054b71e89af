#include "lab/evaluation.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/stats.h"
#include "site/phase_guard.h"

namespace faultline {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw UsageError(fmt::format("{}: cannot be read", path.string()));
  return text.str();
}

struct Work {
  std::vector<Problem> problems;
  std::vector<int64_t> text_tokens;
};

Work prepare(const LoadedModel& loaded, const EvaluationSpec& spec) {
  Work work;
  if (spec.run_task) {
    TaskSpec wanted = spec.task;
    wanted.train = spec.split == "train" ? spec.limit : 0;  // beside the examples
    wanted.test = spec.split == "test" ? spec.limit : 0;
    wanted.shifted = spec.split == "shifted" ? spec.limit : 0;
    Problems all = load_task(wanted);
    work.problems = std::move(spec.split == "train" ? all.train : spec.split == "shifted" ? all.shifted : all.test);
  }
  if (!spec.text.empty()) work.text_tokens = loaded.tokenizer.encode(read_whole(spec.text), /*parse_special=*/false);
  return work;
}

void measure(const LoadedModel& loaded, const EvaluationSpec& spec, const Work& work, EvaluationRow& row,
             const std::function<void(const std::string&, int64_t)>& progress) {
  const PhaseGuard phase(Phase::kEval);
  const auto advance = [&](int64_t count) {
    if (progress) progress(row.label, count);
  };
  const auto start = std::chrono::steady_clock::now();
  if (!work.problems.empty())
    row.answers = evaluate(*loaded.model, loaded.tokenizer, work.problems, spec.generation, advance);
  if (!work.text_tokens.empty())
    row.perplexity = perplexity(*loaded.model, work.text_tokens, spec.window, [](int64_t) {});
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

OrderedJson accuracy_json(const EvaluationRow& row, const EvaluationRow& clean) {
  const int64_t n = std::ssize(row.answers), correct = row.correct();
  const Interval interval = wilson_interval(correct, n);
  OrderedJson json = {{"correct", correct},
                      {"questions", n},
                      {"accuracy", static_cast<double>(correct) / static_cast<double>(n)},
                      {"interval", {interval.low, interval.high}}};
  int64_t ended = 0;
  for (const Answer& answer : row.answers) ended += answer.ended;
  json["ended"] = ended;
  if (&row == &clean) return json;
  int64_t only_clean = 0, only_faulty = 0;
  for (std::size_t i = 0; i < row.answers.size(); ++i) {
    only_clean += clean.answers[i].reward > row.answers[i].reward;
    only_faulty += clean.answers[i].reward < row.answers[i].reward;
  }
  json["only_clean_right"] = only_clean;
  json["only_faulty_right"] = only_faulty;
  json["p_mcnemar"] = mcnemar_exact_test(only_clean, only_faulty);
  return json;
}

OrderedJson perplexity_json(const EvaluationRow& row, const EvaluationRow& clean) {
  OrderedJson json = {{"perplexity", std::exp(row.perplexity->mean_loss)},
                      {"nats_per_token", row.perplexity->mean_loss},
                      {"tokens", row.perplexity->tokens}};
  if (&row == &clean || row.perplexity->window_losses.size() < 2) return json;
  const MeanInterval difference = paired_t_interval(row.perplexity->window_losses, clean.perplexity->window_losses);
  json["added_nats"] = difference.mean;
  json["added_nats_interval"] = {difference.low, difference.high};
  return json;
}

}  // namespace

int64_t EvaluationRow::correct() const {
  int64_t count = 0;
  for (const Answer& answer : answers) count += answer.reward > 0;
  return count;
}

std::vector<EvaluationRow> run_evaluation(LoadedModel& loaded, const EvaluationSpec& spec,
                                          const std::vector<FaultCase>& cases, uint64_t seed,
                                          const std::function<void(const std::string&, int64_t)>& progress) {
  const Work work = prepare(loaded, spec);
  EvaluationSpec same = spec;
  same.generation.fixed_batch = !cases.empty();        // clean and faulty rows see the same shapes throughout
  std::vector<std::unique_ptr<Injection>> injections;  // all checked before the first is run
  for (const FaultCase& one : cases) {
    PlanSettings settings;
    settings.seed = seed;
    const int64_t rows = std::min<int64_t>(spec.generation.slots, std::max<int64_t>(1, std::ssize(work.problems)));
    injections.push_back(std::make_unique<Injection>(one.rules, settings, *loaded.model, Phase::kEval, rows));
    injections.back()->self_check();
  }
  std::vector<EvaluationRow> rows;
  rows.push_back({"clean", {}, {}, 0, {}, OrderedJson::array()});
  measure(loaded, same, work, rows.back(), progress);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EvaluationRow row{cases[i].label, {}, {}, 0, {}, OrderedJson::array()};
    for (const Rule& rule : cases[i].rules) row.rules.push_back(to_json(rule.source));
    injections[i]->arm();
    measure(loaded, same, work, row, progress);
    row.proof = injections[i]->finish();
    rows.push_back(std::move(row));
  }
  return rows;
}

OrderedJson evaluation_json(const std::vector<EvaluationRow>& rows) {
  OrderedJson json = OrderedJson::array();
  const EvaluationRow& clean = rows.front();
  for (const EvaluationRow& row : rows) {
    OrderedJson entry = {{"label", row.label}, {"rules", row.rules}, {"seconds", row.seconds}};
    const bool proven = !row.proof || row.proof->complaints.empty();
    if (proven && !row.answers.empty()) entry["task"] = accuracy_json(row, clean);
    if (proven && row.perplexity) entry["text"] = perplexity_json(row, clean);
    if (row.proof) {
      entry["evidence"] = row.proof->report;
      entry["complaints"] = row.proof->complaints;
    }
    json.push_back(entry);
  }
  return json;
}

}  // namespace faultline
