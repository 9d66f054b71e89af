// What an experiment has to find out before its first trial: how strong a fault must be so that it alone leaves a share
// of the clean model's answers, and which layer a diagnosis of the faulty machine accuses. Both are found on the model
// that the trials start GRPO from (after the supervised steps of the first seed), written down (calibration.json,
// verdict.json), and read from there ever after.
#pragma once

#include <filesystem>
#include <functional>

#include "base/json.h"
#include "experiment/experiment.h"
#include "lab/loaded_model.h"

namespace faultline::experiment {

struct Preparation {
  bool complete = true;         // nothing is left to find out
  std::optional<double> value;  // of the calibrated parameter
  int64_t layer = -1;           // that the diagnosis accuses
  std::filesystem::path verdict;
};

// The verdict of a method about the machine as it is armed, as `faultline diagnose --out` writes it.
using Diagnose = std::function<Json(lab::LoadedModel&, const std::string& method, uint64_t seed)>;

// UsageError where there is no such fault or parameter.
void check_calibration(const Node& recipe, const ExperimentSpec& spec);
Preparation read_preparation(const ExperimentSpec& spec, const std::filesystem::path& folder);
// The model comes with the weights of that fingerprint and leaves trained; the caller restores it.
Preparation prepare(lab::LoadedModel& loaded, const std::string& weights, const Node& recipe,
                    const ExperimentSpec& spec, const std::filesystem::path& folder, const Diagnose& diagnose,
                    const std::function<void(const std::string&)>& line);

Node apply_preparation(const Node& recipe, const ExperimentSpec& spec, const Preparation& preparation);
bool reads_verdict(const Node& arm_recipe);                            // of the experiment's own diagnosis
void place_verdict(Node& arm_recipe, const Preparation& preparation);  // verdict.json -> where it lies

// A random Llama of two layers whose tokens are bytes: what experiments run on at scale tiny, where the machinery is
// tried and not the model. A pure function of nothing: the same files everywhere.

// The Hugging Face folder, made if it is not there.
std::filesystem::path make_small_model(const std::filesystem::path& folder);

}  // namespace faultline::experiment
