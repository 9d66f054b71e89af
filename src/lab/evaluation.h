// An evaluation: a model on a task, clean and under each fault, with the same prompts, sampling and scorer. Every
// faulty row carries its own proof; a row without one has no numbers.
#pragma once

#include <optional>

#include "lab/injection.h"
#include "lab/loaded_model.h"
#include "task/evaluate.h"

namespace faultline::lab {

struct EvaluationSpec {
  task::TaskSpec task;
  std::string split = "test";
  int64_t limit = 100;
  task::EvaluateOptions generation;  // seed, sampling, slots, tokens
  std::filesystem::path text;        // perplexity of this file; "": none
  int64_t window = 512;
  bool run_task = true;
};

struct FaultCase {
  std::string label;  // as the table shows it
  Node recipe;        // seed and faults; phases and allow_partial where it has them
};

struct EvaluationRow {
  std::string label;
  std::vector<task::Answer> answers;
  std::optional<task::Perplexity> perplexity;
  double seconds = 0;
  std::optional<Injection::Proof> proof;  // of a faulty row
  Json rules;                             // as written
  int64_t correct() const;
};

// Made, it has heard every refusal: problems and text are read, each plan is on the model and has shown that it acts.
// A dry run makes one and a run runs one, so what the one accepts is what the other does.
class Evaluation {
 public:
  Evaluation(LoadedModel& loaded, const EvaluationSpec& spec, const std::vector<FaultCase>& cases);

  const LoadedModel& loaded() const { return loaded_; }
  int64_t answers() const;   // of all rows
  int64_t at_once() const;   // so many answers are made together
  Json predictions() const;  // of each faulty row: Injection::prediction

  // The first row is the clean one. progress: finished problems. Once.
  std::vector<EvaluationRow> run(const std::function<void(const std::string&, int64_t)>& progress);

 private:
  EvaluationRow measured(const std::string& label,
                         const std::function<void(const std::string&, int64_t)>& progress) const;

  LoadedModel& loaded_;
  EvaluationSpec spec_;
  std::vector<task::Problem> problems_;
  std::vector<int64_t> text_tokens_;
  std::vector<FaultCase> cases_;
  std::vector<std::unique_ptr<Injection>> injections_;
};

// Counts, Wilson intervals, paired tests against the clean row, evidence: what tables and reports are made of.
Json evaluation_json(const std::vector<EvaluationRow>& rows);

// The recipe sections that evaluations and trainings read: task, evaluate, train, aqn. Once.
void register_lab_sections();

EvaluationSpec read_evaluation(const Node& recipe);  // of a whole recipe, validated

// Throws UsageError where a file that the evaluation reads is missing or cannot be read: before a model is loaded.
void check_files(const EvaluationSpec& spec);

}  // namespace faultline::lab
