// A task: problems with one right answer each, and the rule that scores a text. Problems are data; how a model is asked
// (chat template, examples) and what it answers is for the evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/schema.h"

namespace faultline::task {

struct Problem {
  std::string question;  // the user's message, the task's suffix included
  std::string answer;    // the ground truth, as the reward compares it
  std::string solution;  // worked text that ends with the answer line, for SFT; "" where the data have none
  std::string id;        // stable: "gsm8k/test/17", "arithmetic/shifted/3"
  // The question is a text to continue, not a message: no chat template, and the answer ends with its line.
  bool continued = false;

  friend bool operator==(const Problem&, const Problem&) = default;
};

// What every question that is a message ends with (verl's wording).
inline constexpr std::string_view kPromptSuffix =
    " Let's think step by step and output the final answer after \"####\".";

enum class Scoring { kStrict, kFlexible };
Scoring scoring_by_name(const std::string& name);  // strict, flexible

// 1 or 0. Only the text before the end of turn may be given.
double reward(std::string_view response, std::string_view answer, Scoring scoring);
// How a problem is scored: one that is continued has no "####" to look for.
inline Scoring scoring_of(const Problem& problem, Scoring wanted) {
  return problem.continued ? Scoring::kFlexible : wanted;
}
// What the scorer read as the answer; "" if nothing.
std::string extract_answer(std::string_view response, Scoring scoring);

inline constexpr int64_t kMaxDifficulty = 4;
struct ArithmeticOptions {
  uint64_t seed = 0;
  int64_t difficulty = 2;  // 1 … kMaxDifficulty
};
// Splits: train, test, shifted (other templates, larger numbers). Number triples of the splits are disjoint, whatever
// the seeds and difficulties. Problem i does not depend on count.
std::vector<Problem> arithmetic(const std::string& split, int64_t count, const ArithmeticOptions& options);

// Sums of two numbers from 1 to 9, all of a split (train, test), in the seed's order.
std::vector<Problem> addition(const std::string& split, uint64_t seed);

// .jsonl or verl-schema .parquet. UsageError with file, line and field.
std::vector<Problem> read_gsm8k(const std::filesystem::path& file);
std::vector<Problem> gsm8k(const std::string& split);  // train or test, as shipped with the project

// The recipe section `task:`.
struct TaskSpec {
  std::string name = "arithmetic";
  ArithmeticOptions arithmetic = {};                           // addition takes its seed
  std::optional<int64_t> train = {}, test = {}, shifted = {};  // how many problems; nothing: all there are
  std::filesystem::path train_file = {}, test_file = {};       // gsm8k only; "": as shipped
  int64_t shots = 0;                                           // worked examples before each question
  Scoring scoring = Scoring::kStrict;
};
struct Problems {
  std::vector<Problem> train, test, shifted;  // a split that the task does not have is empty
};

void register_task_section();          // of the recipe's schema; once
TaskSpec read_task(const Node& task);  // the validated section
Problems load_task(const TaskSpec& spec);

// The question after worked examples, one message or one text: for models that were not tuned to the answer format.
std::string few_shot(std::span<const Problem> examples, const Problem& problem);

struct TaskInfo {
  std::string name, summary, note;
  std::vector<std::string> splits;
  Schema options;  // of the section, without `name`
};
const std::vector<TaskInfo>& task_infos();
const TaskInfo& task_info(const std::string& name);  // an unknown name is answered with the nearest
// "; did you mean …" for a split the task does not have.
void check_split(const TaskInfo& task, const std::string& split);

}  // namespace faultline::task
