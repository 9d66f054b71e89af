// A task: problems with one right answer each, and the rule that scores a text. Problems are data; how a model is asked
// (chat template, examples) and what it answers is for the evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

struct Problem {
  std::string question;  // the user's message, the task's suffix included
  std::string answer;    // the ground truth, as the reward compares it
  std::string solution;  // worked text that ends with the answer line, for SFT; "" where the data have none
  std::string id;        // stable: "gsm8k/test/17", "arithmetic/shifted/3"
};

enum class Scoring { kStrict, kFlexible };

// 1 or 0. Only the text before the end of turn may be given.
double reward(std::string_view response, std::string_view answer, Scoring scoring);
// What the scorer read as the answer; "" if nothing.
std::string extract_answer(std::string_view response, Scoring scoring);

struct ArithmeticOptions {
  uint64_t seed = 0;
  int64_t difficulty = 2;
};
// Splits: train, test, shifted (other templates, larger numbers). Number triples of the splits are disjoint.
std::vector<Problem> arithmetic(const std::string& split, int64_t count, const ArithmeticOptions& options);

// .jsonl or verl-schema .parquet. UsageError with file, line and field.
std::vector<Problem> read_gsm8k(const std::filesystem::path& file);
std::vector<Problem> gsm8k(const std::string& split);  // train or test, as shipped with the project

}  // namespace faultline
