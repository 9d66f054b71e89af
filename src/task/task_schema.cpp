// The catalogue of tasks and the recipe section `task:` made from it: which options a task has is declared once, here,
// for the recipe, the command line and the documentation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "task/task.h"

namespace faultline::task {
namespace {

constexpr int64_t kMaxProblems = 1'000'000;

Schema count_schema() { return Schema::integer({.min = 0, .max = kMaxProblems}); }

Schema with_common_options(const Schema& options) {
  return options
      .field("shots", Schema::integer({.min = 0, .max = 16}),
             {.default_value = Node(0), .doc = "worked examples before each question, for models that were not tuned"})
      .field("scoring", Schema::choice({"strict", "flexible"}),
             {.default_value = Node("strict"), .doc = "strict: the number after '####'; flexible: the last number"});
}

Schema arithmetic_options() {
  return with_common_options(
      Schema::map()
          .field("difficulty", Schema::integer({.min = 1, .max = kMaxDifficulty}),
                 {.default_value = Node(2), .doc = "1: 1-9; 2: 10-99; 3: 10-99 and products; 4: 100-999 and products"})
          .field("seed", Schema::integer({.min = 0}), {.default_value = Node(0), .doc = "of the problems"})
          .field("train", count_schema(), {.default_value = Node(4096), .doc = "problems to train on"})
          .field("test", count_schema(), {.default_value = Node(2048), .doc = "problems of the test split"})
          .field("shifted", count_schema(),
                 {.default_value = Node(512), .doc = "problems with other wording and larger numbers"}));
}

Schema addition_options() {
  return Schema::map()
      .field("seed", Schema::integer({.min = 0}), {.default_value = Node(0), .doc = "of the order"})
      .field("train", count_schema(), {.doc = "the first so many; all of them if not given"})
      .field("test", count_schema(), {.doc = "the first so many; all of them if not given"})
      .field("shots", Schema::integer({.min = 0, .max = 16}),
             {.default_value = Node(2), .doc = "sums with their results before each question"});
}

Schema gsm8k_options() {
  const Schema file = Schema::string({.min = 1});
  return with_common_options(
      Schema::map()
          .field("train", count_schema(), {.doc = "the first so many; all of them if not given"})
          .field("test", count_schema(), {.doc = "the first so many; all of them if not given"})
          .field("train_file", file, {.doc = ".jsonl or verl-schema .parquet instead of the shipped data"})
          .field("test_file", file, {.doc = "the same for the test split"}));
}

std::optional<int64_t> optional_count(const Node& task, const char* key) {
  const Node* node = task.find(key);
  return node == nullptr ? std::nullopt : std::optional<int64_t>(node->as_integer());
}

std::string optional_text(const Node& task, const char* key) {
  const Node* node = task.find(key);
  return node == nullptr ? "" : node->as_string();
}

// Fewer problems than were asked for would make a smaller experiment than the one that was planned.
void keep_first(std::vector<Problem>& problems, std::optional<int64_t> count, const char* split) {
  if (!count) return;
  const auto wanted = static_cast<size_t>(*count);
  if (wanted > problems.size())
    throw UsageError(fmt::format("task.{}: {} problems are wanted, there are {}", split, wanted, problems.size()));
  problems.resize(wanted);
}

Problems load_arithmetic(const TaskSpec& spec) {
  Problems problems;
  problems.train = arithmetic("train", spec.train.value_or(0) + spec.shots, spec.arithmetic);
  problems.test = arithmetic("test", spec.test.value_or(0), spec.arithmetic);
  problems.shifted = arithmetic("shifted", spec.shifted.value_or(0), spec.arithmetic);
  return problems;
}

Problems load_gsm8k(const TaskSpec& spec) {
  Problems problems;
  problems.train = spec.train_file.empty() ? gsm8k("train") : read_gsm8k(spec.train_file);
  problems.test = spec.test_file.empty() ? gsm8k("test") : read_gsm8k(spec.test_file);
  return problems;
}

Problems load_all(const TaskSpec& spec) {
  const std::string& name = task_info(spec.name).name;
  if (name == "arithmetic") return load_arithmetic(spec);
  Problems problems =
      name == "addition" ? Problems{addition("train", spec.arithmetic.seed), addition("test", spec.arithmetic.seed), {}}
                         : load_gsm8k(spec);
  keep_first(problems.test, spec.test, "test");
  keep_first(problems.train, spec.train ? std::optional(*spec.train + spec.shots) : std::nullopt, "train");
  return problems;
}

}  // namespace

const std::vector<TaskInfo>& task_infos() {
  static const std::vector<TaskInfo> infos = {
      {"addition",
       "sums of two one-digit numbers, a text to continue: what a small untuned model can do",
       "Scored by the last number of the line that the model adds. For evaluations; training wants a task with "
       "messages.",
       {"train", "test"},
       addition_options()},
      {"arithmetic",
       "two-step word problems made from a seed; no number triple is in two splits",
       "There are as many problems as you ask for; problem i of a split does not depend on how many there are.",
       {"train", "test", "shifted"},
       arithmetic_options()},
      {"gsm8k",
       "grade school word problems (Cobbe et al. 2021), shipped with the project",
       "Small models score 0 here; SmolLM2 needs `arithmetic`.",
       {"train", "test"},
       gsm8k_options()}};
  return infos;
}

const TaskInfo& task_info(const std::string& name) {
  std::vector<std::string> known;
  for (const TaskInfo& info : task_infos()) {
    if (info.name == name) return info;
    known.push_back(info.name);
  }
  throw UsageError(fmt::format("no task is called {}{}; tasks are {}", describe_text(name), did_you_mean(name, known),
                               fmt::join(known, ", ")));
}

void check_split(const TaskInfo& task, const std::string& split) {
  if (std::find(task.splits.begin(), task.splits.end(), split) != task.splits.end()) return;
  throw UsageError(fmt::format("{} has no split {}{}; its splits are {}", task.name, describe_text(split),
                               did_you_mean(split, task.splits), fmt::join(task.splits, ", ")));
}

void register_task_section() {
  std::vector<std::pair<std::string, Schema>> tasks;
  for (const TaskInfo& info : task_infos()) tasks.emplace_back(info.name, info.options);
  SectionRegistry::global().add("task", Schema::tagged("name", std::move(tasks)),
                                {.doc = "the problems that a model is trained and evaluated on"});
}

TaskSpec read_task(const Node& task) {
  TaskSpec spec;
  spec.name = task.at("name").as_string();
  spec.train = optional_count(task, "train");
  spec.test = optional_count(task, "test");
  spec.shifted = optional_count(task, "shifted");
  spec.shots = task.at("shots").as_integer();
  if (const Node* scoring = task.find("scoring")) spec.scoring = scoring_by_name(scoring->as_string());
  if (const Node* difficulty = task.find("difficulty")) spec.arithmetic.difficulty = difficulty->as_integer();
  if (const Node* seed = task.find("seed")) spec.arithmetic.seed = static_cast<uint64_t>(seed->as_integer());
  spec.train_file = optional_text(task, "train_file");
  spec.test_file = optional_text(task, "test_file");
  return spec;
}

// Examples are training problems that are then not trained on: the last ones loaded.
Problems load_task(const TaskSpec& spec) {
  Problems problems = load_all(spec);
  const auto shots = static_cast<size_t>(spec.shots);
  if (shots == 0) return problems;
  if (problems.train.size() < shots)
    throw UsageError(fmt::format("task.shots: {} examples are wanted, there are {} training problems", shots,
                                 problems.train.size()));
  const std::vector<Problem> examples(problems.train.end() - static_cast<ptrdiff_t>(shots), problems.train.end());
  problems.train.resize(problems.train.size() - shots);
  for (auto* split : {&problems.train, &problems.test, &problems.shifted}) {
    for (Problem& problem : *split) problem.question = few_shot(examples, problem);
  }
  return problems;
}

std::string few_shot(std::span<const Problem> examples, const Problem& problem) {
  std::string text;
  for (const Problem& example : examples)
    text += example.continued ? example.question + example.solution + "\n"
                              : example.question + "\n" + example.solution + "\n\n";
  return text + problem.question;
}

}  // namespace faultline::task
