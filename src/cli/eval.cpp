// `faultline eval`: a model on a task or a text, clean and under faults of several strengths, side by side with
// intervals and paired tests. A row whose evidence is missing shows no number.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <sstream>

#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/evaluation_output.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "lab/evaluation.h"
#include "record/environment.h"

namespace faultline::cli {
namespace {

struct EvalOptions : ModelOptions {
  std::string task = "arithmetic", split = "test", limit = "100", difficulty = "1", shots = "2", scoring = "strict";
  std::string tokens = "64", slots = "32", temperature = "0", file, text, window = "512", strengths, out;
  bool task_given = false, limit_given = false, scoring_given = false, dry_run = false;
};

constexpr const char* kNoisyProducts = "relative_gaussian(strength=0.05) @ operator=matmul";

// --strengths 0.01,0.05: each fault once with each; 0 is the clean row, which is there anyway.
std::vector<lab::FaultCase> make_cases(const EvalOptions& options, uint64_t seed) {
  std::vector<lab::FaultCase> cases;
  std::vector<std::string> faults = options.faults;
  if (faults.empty() && !options.strengths.empty()) faults.emplace_back(kNoisyProducts);
  for (const std::string& text : faults) {
    if (options.strengths.empty()) {
      cases.push_back({text, recipe::recipe_of_rules(read_faults({text}), seed)});
      continue;
    }
    for (const std::string& strength : comma_separated(options.strengths)) {
      const double value = parse_number("--strengths", strength, 0, 1e30);
      if (value == 0) continue;
      Node rule = numeric::parse_rule(text, numeric::RuleUse::kInPlan).source;
      Node* what = rule.find("what");
      const char* name = what->find("strength") ? "strength" : what->find("threshold") ? "threshold" : nullptr;
      if (name == nullptr)
        throw UsageError(fmt::format("--strengths: fault '{}' has neither strength nor threshold", text));
      what->set(name, Node(value));
      const std::string label = fmt::format("{} {}={}", what->at("kind").as_string(), name, strength);
      cases.push_back(
          {label, recipe::recipe_of_rules(
                      {numeric::read_rule(validate(rule, numeric::rule_schema(numeric::RuleUse::kInPlan)))}, seed)});
    }
  }
  return cases;
}

lab::EvaluationSpec make_spec(const EvalOptions& options, const Globals& globals) {
  lab::EvaluationSpec spec;
  if (!options.file.empty() && options.task_given && options.task != "gsm8k")
    throw UsageError(fmt::format("--file holds problems of gsm8k; --task {} makes its own", options.task));
  spec.task.name = options.file.empty() ? task::task_info(options.task).name : "gsm8k";
  (options.split == "train" ? spec.task.train_file : spec.task.test_file) = options.file;
  task::check_split(task::task_info(spec.task.name), options.split);
  spec.task.arithmetic = {
      globals.seed(), static_cast<int64_t>(parse_count("--difficulty", options.difficulty, 1, task::kMaxDifficulty))};
  spec.task.shots = static_cast<int64_t>(parse_count("--shots", options.shots, 0, 16));
  spec.split = options.split;
  spec.limit = static_cast<int64_t>(parse_count("--limit", options.limit, 1, 1 << 20));
  if (spec.task.name == "addition") {
    if (options.scoring_given)
      throw UsageError("--scoring: addition has one scoring only: the number that the line ends with");
    if (!options.limit_given)
      spec.limit = std::ssize(task::addition(options.split, 0)) - (options.split == "train" ? spec.task.shots : 0);
  }
  spec.generation.scoring = task::scoring_by_name(options.scoring);
  spec.generation.max_new_tokens = static_cast<int64_t>(parse_count("--max-new-tokens", options.tokens, 1, 1 << 20));
  spec.generation.slots = static_cast<int64_t>(parse_count("--slots", options.slots, 1, 4096));
  spec.generation.sampling.temperature = parse_number("--temperature", options.temperature, 0, 100);
  spec.generation.seed = globals.seed();
  spec.text = options.text;
  spec.window = static_cast<int64_t>(parse_count("--window", options.window, 2, 1 << 20));
  spec.run_task = options.task_given || !options.file.empty() || options.text.empty();
  return spec;
}

// What the record keeps of the question: the command as typed, and what its defaults meant.
Json as_recipe(const lab::EvaluationSpec& spec, const Globals& globals) {
  Json recipe = {{"command", record::recorded_words(globals.arguments)}};
  if (spec.run_task)
    recipe["task"] = {{"name", spec.task.name},
                      {"split", spec.split},
                      {"questions", spec.limit},
                      {"shots", spec.task.shots},
                      {"max_new_tokens", spec.generation.max_new_tokens},
                      {"temperature", spec.generation.sampling.temperature}};
  if (const auto& file = spec.split == "train" ? spec.task.train_file : spec.task.test_file; !file.empty())
    recipe["task"]["file"] = file.string();
  if (!spec.text.empty()) recipe["text"] = {{"file", spec.text.string()}, {"window", spec.window}};
  return recipe;
}

ExitCode eval(const EvalOptions& options, const Globals& globals) {
  const std::vector<lab::FaultCase> cases = make_cases(options, globals.seed());
  const lab::EvaluationSpec spec = make_spec(options, globals);
  for (const lab::FaultCase& one : cases) refuse_invisible(recipe::read_plan_spec(one.recipe).rules, options);
  lab::check_files(spec);
  lab::LoadedModel loaded = open_model(options, globals);
  lab::Evaluation evaluation(loaded, spec, cases);
  if (options.dry_run) return show_predictions(evaluation, "eval", as_recipe(spec, globals), globals);
  return run_and_show(evaluation, {globals.seed(), options.out, "eval", as_recipe(spec, globals)}, globals);
}

void add_task_options(CLI::App& command, EvalOptions& options) {
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->group("Task")->type_name(type)->capture_default_str();
  };
  offer(option("--task", options.task, "addition, arithmetic or gsm8k", "NAME"), {"addition", "arithmetic", "gsm8k"});
  command.add_option("--file", options.file, "the task gsm8k from this file: .jsonl, or .parquet in verl's schema")
      ->group("Task")
      ->type_name("FILE");
  option("--split", options.split, "test, shifted or train", "NAME");
  option("--limit", options.limit,
         "how many questions, 1 to 1048576; the task addition asks all that it has unless this is given", "N");
  option("--difficulty", options.difficulty, "of arithmetic, 1 to 4", "N");
  option("--shots", options.shots, "worked examples before each question, 0 to 16", "N");
  option("--scoring", options.scoring, "strict (the number after ####) or flexible (the last number)", "NAME");
  option("--max-new-tokens", options.tokens, "at most so many tokens for an answer, 1 to 1048576", "N");
  option("--temperature", options.temperature, "0 is greedy; up to 100", "T");
  option("--slots", options.slots, "how many answers are made at once, 1 to 4096", "N");
  command.add_option("--text", options.text, "perplexity of this text file; with --task both")
      ->group("Text")
      ->type_name("FILE");
  command.add_option("--window", options.window, "tokens that are scored together, 2 to 1048576")
      ->group("Text")
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace

void add_eval(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("eval", "accuracy or perplexity, clean and under faults, with intervals");
  auto options = std::make_shared<EvalOptions>();
  add_model_options(*command, *options);
  add_task_options(*command, *options);
  add_fault_option(*command, *options, "a fault; each --fault is a row of its own");
  command
      ->add_option("--strengths", options->strengths,
                   "each fault once with each of these: 0.01,0.05; without a --fault it is noise on every product")
      ->group("Faults")
      ->type_name("S,…");
  command->add_flag("--dry-run", options->dry_run, "check everything, show matched sites and predicted counts")
      ->group("Faults");
  command
      ->add_option("--out", options->out,
                   "also write a run directory below this folder; `faultline report` makes a page of it")
      ->group("Output")
      ->type_name("DIR");
  command->footer(
      std::string(
          "Examples:\n  faultline eval --limit 200 --fault 'relative_gaussian(strength=0.05) @ operator=matmul' "
          "--strengths 0.05,0.1\n"
          "  faultline eval --model runs/NAME/checkpoints/step-000020 --strengths 0,0.05,0.1 --file test.parquet "
          "--limit 200\n"
          "  faultline eval --text book.txt --fault 'quantize(format=mxfp4) @ operator=matmul,surface=weight'\n\n") +
      where_help() + "Global options (--seed, --device, --json, …): see `faultline --help`.");
  command->callback([&run, &globals, options, command] {
    options->task_given = command->count("--task") > 0;
    options->limit_given = command->count("--limit") > 0;
    options->scoring_given = command->count("--scoring") > 0;
    run = [&globals, options] { return eval(*options, globals); };
  });
}

}  // namespace faultline::cli
