#include "lab/evaluation.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>

#include "aqn/aqn_section.h"
#include "base/error.h"
#include "base/json.h"
#include "base/stats/stats.h"
#include "site/scope.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!std::filesystem::exists(path)) throw UsageError(fmt::format("{}: there is no such file", path.string()));
  if (file.peek() == std::ifstream::traits_type::eof())
    throw UsageError(
        fmt::format("{}: cannot be read, or is empty; perplexity is measured on a text file", path.string()));
  text << file.rdbuf();
  return text.str();
}

std::vector<task::Problem> load_problems(const EvaluationSpec& spec) {
  task::TaskSpec wanted = spec.task;
  wanted.train = spec.split == "train" ? spec.limit : 0;  // beside the examples
  wanted.test = spec.split == "test" ? spec.limit : 0;
  wanted.shifted = spec.split == "shifted" ? spec.limit : 0;
  task::Problems all = task::load_task(wanted);
  return std::move(spec.split == "train" ? all.train : spec.split == "shifted" ? all.shifted : all.test);
}

Json accuracy_json(const EvaluationRow& row, const EvaluationRow& clean) {
  const int64_t n = std::ssize(row.answers), correct = row.correct();
  const Interval interval = wilson_interval(correct, n);
  Json json = {{"correct", correct},
               {"questions", n},
               {"accuracy", static_cast<double>(correct) / static_cast<double>(n)},
               {"interval", {interval.low, interval.high}}};
  int64_t ended = 0;
  for (const task::Answer& answer : row.answers) ended += answer.ended;
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

Json perplexity_json(const EvaluationRow& row, const EvaluationRow& clean) {
  Json json = {{"perplexity", std::exp(row.perplexity->mean_loss)},
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
  for (const task::Answer& answer : answers) count += answer.reward > 0;
  return count;
}

Evaluation::Evaluation(LoadedModel& loaded, const EvaluationSpec& spec, const std::vector<FaultCase>& cases)
    : loaded_(loaded), spec_(spec), cases_(cases) {
  spec_.generation.fixed_batch = !cases.empty();  // clean and faulty rows see the same shapes throughout
  if (spec.run_task) problems_ = load_problems(spec);
  task::check_problems(*loaded.model, loaded.tokenizer, problems_, spec_.generation);
  if (!spec.text.empty()) {
    text_tokens_ = loaded.tokenizer.encode(read_whole(spec.text), /*parse_special=*/false);
    task::check_text(text_tokens_);
  }
  for (const FaultCase& one : cases) {
    const int64_t rows = std::min<int64_t>(spec.generation.slots, std::max<int64_t>(1, std::ssize(problems_)));
    injections_.push_back(
        std::make_unique<Injection>(recipe::read_plan_spec(one.recipe), *loaded.model, site::Phase::kEval, rows));
    injections_.back()->self_check();
  }
}

int64_t Evaluation::answers() const { return std::ssize(problems_) * (1 + std::ssize(cases_)); }

int64_t Evaluation::at_once() const { return std::clamp<int64_t>(std::ssize(problems_), 1, spec_.generation.slots); }

Json Evaluation::predictions() const {
  Json json = Json::array();
  for (const auto& injection : injections_) json.push_back(injection->prediction());
  return json;
}

EvaluationRow Evaluation::measured(const std::string& label,
                                   const std::function<void(const std::string&, int64_t)>& progress) const {
  EvaluationRow row{label, {}, {}, 0, {}, Json::array()};
  const auto advance = [&](int64_t count) {
    if (progress) progress(label, count);
  };
  const auto start = std::chrono::steady_clock::now();
  if (!problems_.empty())
    row.answers = task::evaluate(*loaded_.model, loaded_.tokenizer, problems_, spec_.generation, advance);
  if (!text_tokens_.empty())
    row.perplexity = task::perplexity(*loaded_.model, text_tokens_, spec_.window, [](int64_t) {});
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

Json evaluation_json(const std::vector<EvaluationRow>& rows) {
  Json json = Json::array();
  const EvaluationRow& clean = rows.front();
  for (const EvaluationRow& row : rows) {
    Json entry = {{"label", row.label}, {"rules", row.rules}, {"seconds", row.seconds}};
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

void register_lab_sections() {
  task::register_task_section();
  const Schema schema =
      Schema::map()
          .field("split", Schema::choice({"test", "shifted", "train"}),
                 {.default_value = Node("test"), .doc = "which problems"})
          .field("limit", Schema::integer({.min = 1}), {.default_value = Node(100), .doc = "at most so many problems"})
          .field("max_new_tokens", Schema::integer({.min = 1}), {.default_value = Node(64), .doc = "for an answer"})
          .field("slots", Schema::integer({.min = 1, .max = 4096}),
                 {.default_value = Node(32), .doc = "answers made at once"})
          .field("temperature", Schema::number({.min = 0}), {.default_value = Node(0.0), .doc = "0 is greedy"})
          .field("top_k", Schema::integer({.min = 0}), {.default_value = Node(0), .doc = "0: all tokens"})
          .field("top_p", Schema::number({.min = 0, .max = 1}), {.default_value = Node(1.0), .doc = "1: all tokens"})
          .field("text", Schema::string({.min = 1}), {.doc = "perplexity of this file, too"})
          .field("window", Schema::integer({.min = 2}), {.default_value = Node(512), .doc = "tokens scored together"});
  SectionRegistry::global().add("evaluate", schema,
                                {.doc = "how an injection run measures the model, clean and faulty"});
  train::register_train_section();
  aqn::register_aqn_section();
}

void check_files(const EvaluationSpec& spec) {
  if (spec.run_task) (void)load_problems(spec);
  if (!spec.text.empty()) (void)read_whole(spec.text);
}

EvaluationSpec read_evaluation(const Node& recipe) {
  EvaluationSpec spec;
  if (const Node* task = recipe.find("task")) spec.task = task::read_task(*task);
  spec.generation.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  spec.generation.scoring = spec.task.scoring;
  const Node* evaluate = recipe.find("evaluate");
  if (evaluate == nullptr) return spec;
  spec.split = evaluate->at("split").as_string();
  spec.limit = evaluate->at("limit").as_integer();
  spec.window = evaluate->at("window").as_integer();
  if (const Node* text = evaluate->find("text")) spec.text = text->as_string();
  spec.generation.max_new_tokens = evaluate->at("max_new_tokens").as_integer();
  spec.generation.slots = evaluate->at("slots").as_integer();
  spec.generation.sampling = {evaluate->at("temperature").as_number(), evaluate->at("top_k").as_integer(),
                              evaluate->at("top_p").as_number()};
  return spec;
}

}  // namespace faultline::lab
