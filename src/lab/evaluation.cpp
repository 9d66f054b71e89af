#include "lab/evaluation.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/stats.h"
#include "record/json_text.h"
#include "site/phase_guard.h"

namespace faultline {
namespace {

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw UsageError(fmt::format("{}: cannot be read", path.string()));
  return text.str();
}

std::vector<Problem> load_problems(const EvaluationSpec& spec) {
  TaskSpec wanted = spec.task;
  wanted.train = spec.split == "train" ? spec.limit : 0;  // beside the examples
  wanted.test = spec.split == "test" ? spec.limit : 0;
  wanted.shifted = spec.split == "shifted" ? spec.limit : 0;
  Problems all = load_task(wanted);
  return std::move(spec.split == "train" ? all.train : spec.split == "shifted" ? all.shifted : all.test);
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

Evaluation::Evaluation(LoadedModel& loaded, const EvaluationSpec& spec, const std::vector<FaultCase>& cases)
    : loaded_(loaded), spec_(spec), cases_(cases) {
  spec_.generation.fixed_batch = !cases.empty();  // clean and faulty rows see the same shapes throughout
  if (spec.run_task) problems_ = load_problems(spec);
  check_problems(*loaded.model, loaded.tokenizer, problems_, spec_.generation);
  if (!spec.text.empty()) {
    text_tokens_ = loaded.tokenizer.encode(read_whole(spec.text), /*parse_special=*/false);
    check_text(text_tokens_);
  }
  for (const FaultCase& one : cases) {
    const int64_t rows = std::min<int64_t>(spec.generation.slots, std::max<int64_t>(1, std::ssize(problems_)));
    injections_.push_back(std::make_unique<Injection>(read_plan_spec(one.recipe), *loaded.model, Phase::kEval, rows));
    injections_.back()->self_check();
  }
}

int64_t Evaluation::answers() const { return std::ssize(problems_) * (1 + std::ssize(cases_)); }

OrderedJson Evaluation::predictions() const {
  OrderedJson json = OrderedJson::array();
  for (const auto& injection : injections_) json.push_back(injection->prediction());
  return json;
}

EvaluationRow Evaluation::measured(const std::string& label,
                                   const std::function<void(const std::string&, int64_t)>& progress) const {
  EvaluationRow row{label, {}, {}, 0, {}, OrderedJson::array()};
  const PhaseGuard phase(Phase::kEval);
  const auto advance = [&](int64_t count) {
    if (progress) progress(label, count);
  };
  const auto start = std::chrono::steady_clock::now();
  if (!problems_.empty())
    row.answers = evaluate(*loaded_.model, loaded_.tokenizer, problems_, spec_.generation, advance);
  if (!text_tokens_.empty()) row.perplexity = perplexity(*loaded_.model, text_tokens_, spec_.window, [](int64_t) {});
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return row;
}

std::vector<EvaluationRow> Evaluation::run(const std::function<void(const std::string&, int64_t)>& progress) {
  std::vector<EvaluationRow> rows = {measured("clean", progress)};
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    injections_[i]->arm();
    EvaluationRow row = measured(cases_[i].label, progress);
    row.proof = injections_[i]->finish();
    row.rules = to_json(cases_[i].recipe.at("faults"));
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
      entry["complaints"] = to_json(row.proof->complaints);
    }
    json.push_back(entry);
  }
  return json;
}

}  // namespace faultline
