// An evaluation: a model on a task, clean and under each fault, with the same prompts, sampling and scorer. Every
// faulty row carries its own proof; a row without one has no numbers.
#pragma once

#include <optional>

#include "lab/injection.h"
#include "lab/loaded_model.h"
#include "task/evaluate.h"

namespace faultline {

struct EvaluationSpec {
  TaskSpec task;
  std::string split = "test";
  int64_t limit = 100;
  EvaluateOptions generation;  // seed, sampling, slots, tokens
  std::filesystem::path text;  // perplexity of this file; "": none
  int64_t window = 512;
  bool run_task = true;
};

struct FaultCase {
  std::string label;  // as the table shows it
  std::vector<Rule> rules;
};

struct EvaluationRow {
  std::string label;
  std::vector<Answer> answers;
  std::optional<Perplexity> perplexity;
  double seconds = 0;
  std::optional<Injection::Proof> proof;  // of a faulty row
  nlohmann::ordered_json rules;           // as written
  int64_t correct() const;
};

// The first row is the clean one. progress: finished problems and windows.
std::vector<EvaluationRow> run_evaluation(LoadedModel& loaded, const EvaluationSpec& spec,
                                          const std::vector<FaultCase>& cases, uint64_t seed,
                                          const std::function<void(const std::string&, int64_t)>& progress);

// Counts, Wilson intervals, paired tests against the clean row, evidence: what tables and reports are made of.
nlohmann::ordered_json evaluation_json(const std::vector<EvaluationRow>& rows);

}  // namespace faultline
