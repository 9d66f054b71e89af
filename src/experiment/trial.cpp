#include "experiment/trial.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/text.h"
#include "experiment/arm_data.h"
#include "lab/run_evidence.h"
#include "record/document.h"
#include "task/evaluate.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

// What the table needs of a trial's events.
Json curves_of(const fs::path& run) {
  Json curves = {{"reward", Json::array()}, {"loss", Json::array()}, {"seconds", Json::array()}};
  for (const Json& event : record::read_events(run / "events.jsonl")) {
    if (event["kind"] == "start") {
      curves["start"] = event["metrics"];
      if (event.contains("weights")) curves["start_weights"] = event["weights"];  // equal in all arms of a seed
    }
    if (event["kind"] != "step") continue;
    if (event["stage"] != "grpo") {
      curves["start"] = event["metrics"];  // what GRPO began with: the last supervised step's validation
      continue;
    }
    curves["reward"].push_back(event["metrics"].value("critic/score/mean", 0.0));
    curves["loss"].push_back(event["metrics"].value("actor/pg_loss", 0.0));
    curves["seconds"].push_back(event["times"].value("timing_s/step", 0.0));
  }
  return curves;
}

// The run of an earlier attempt, which had the same recipe, or a new one.
record::RunDirectory open_run(const TrialRequest& request, const Json& recipe, uint64_t seed) {
  std::vector<fs::path> found;
  if (fs::exists(request.folder))
    for (const auto& entry : fs::directory_iterator(request.folder))
      if (entry.is_directory() && !entry.path().filename().string().starts_with(".")) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  if (!found.empty()) {
    try {
      return record::RunDirectory::open(found.back(), recipe);
    } catch (const RuntimeFailure&) {  // of another recipe, or torn: left as it is, a new one beside it
    }
  }
  const std::string name = fmt::format("{}-{}", record::sanitized_run_name(request.key.cell), request.key.index);
  return record::begin_run(request.folder, {name, recipe, seed, recipe.value("faults", Json::array())}, request.maker);
}

struct JudgedModel {
  double accuracy = 0;
  Json evidence;
  std::vector<Complaint> complaints;
};

// The final model under faults that it may never have met; once where they draw nothing.
JudgedModel judge_under(lab::LoadedModel& loaded, const recipe::PlanSpec& plan, const lab::TrainingSpec& spec,
                        int64_t most_draws) {
  const int64_t draws =
      std::all_of(plan.rules.begin(), plan.rules.end(), numeric::always_does_the_same) ? 1 : most_draws;
  const train::StageSpec& stage = spec.train.spec.stages.back();
  task::Problems problems = task::load_task(spec.task);
  problems.test.resize(
      std::min(problems.test.size(), static_cast<std::size_t>(std::max<int64_t>(1, spec.train.validation_problems))));
  const int64_t rows = std::min<int64_t>(stage.slots, std::ssize(problems.test));
  lab::Injection injection(plan, *loaded.model, site::Phase::kEval, rows);
  injection.self_check();
  task::EvaluateOptions options;
  options.max_new_tokens = stage.max_new_tokens;
  options.slots = stage.slots;
  options.scoring = spec.task.scoring;
  options.seed = spec.seed;
  options.fixed_batch = true;
  JudgedModel judged;
  injection.arm();
  for (int64_t draw = 0; draw < draws; ++draw) {
    injection.plan().begin_step(draw);
    for (const task::Answer& answer : task::evaluate(*loaded.model, loaded.tokenizer, problems.test, options))
      judged.accuracy += answer.reward / static_cast<double>(draws * std::ssize(problems.test));
  }
  injection.disarm();
  judged.evidence = lab::part_evidence(injection.plan(), injection.censuses());
  judged.complaints = lab::missing_evidence(judged.evidence, injection.plan());
  return judged;
}

void judge_final_model(lab::LoadedModel& loaded, const TrialRequest& request, const lab::TrainingSpec& spec,
                       record::Trial& trial, std::vector<Complaint>& complaints) {
  for (const lab::FaultCase& one : request.experiment->evaluations) {
    JudgedModel judged = judge_under(loaded, evaluation_plan(request.recipe, one), spec, request.experiment->draws);
    trial.outcome["results"][fmt::format("faultline/under/{}/acc", one.label)] = judged.accuracy;
    trial.evidence["evaluations"][one.label] = judged.evidence;
    for (Complaint& complaint : judged.complaints) {
      complaint.sentence = one.label + ": " + complaint.sentence;
      complaints.push_back(std::move(complaint));
    }
  }
}

}  // namespace

Snapshot::Snapshot(model::CausalLm& model) {
  for (const model::CausalLm::Parameter& parameter : model.parameters())
    values.push_back(parameter.tensor->detach().clone());
}

void Snapshot::restore(model::CausalLm& model) const {
  const at::NoGradGuard no_gradients;
  for (model::Linear* linear : model.linears()) linear->adapter = {};
  const std::vector<model::CausalLm::Parameter> parameters = model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor->copy_(values[i]);
}

recipe::PlanSpec evaluation_plan(const Node& trial_recipe, const lab::FaultCase& evaluation) {
  Node recipe = trial_recipe;
  recipe.set("faults", evaluation.recipe.at("faults"));
  recipe.erase("phases");
  return recipe::read_plan_spec(recipe);
}

record::Trial run_trial(lab::LoadedModel& loaded, const TrialRequest& request, const lab::TrainingProgress& progress) {
  lab::TrainingSpec spec = lab::read_training(request.recipe);
  spec.train.spec.start = request.start;
  record::Trial trial{.key = request.key, .seed = spec.seed, .started = system_seconds()};
  trial.fingerprint = request.fingerprint;
  record::RunDirectory directory = open_run(request, to_json(request.recipe), spec.seed);
  std::optional<lab::TrainingRun> run;
  std::vector<Complaint> complaints;
  try {
    run.emplace(loaded, spec);
    const lab::TrainingOutcome outcome = run->run(directory, progress);
    trial.outcome = {{"results", outcome.results}, {"noise_seconds", outcome.noise_seconds}};
    trial.evidence = outcome.evidence;
    complaints = outcome.complaints;
    run.reset();  // its plan and noise end here; the model stays trained
    judge_final_model(loaded, request, spec, trial, complaints);
    trial.status = complaints.empty() ? record::TrialStatus::kPass : record::TrialStatus::kError;
    if (!complaints.empty()) trial.outcome = {{"complaints", to_json(complaints)}};  // no numbers without proof
  } catch (const train::NonFiniteError& error) {  // a run that died is a finding, not an accident
    trial.status = record::TrialStatus::kFail;
    trial.outcome = {{"reason", error.what()}};
    if (run) trial.evidence = run->evidence();
  } catch (const EvidenceError& error) {  // a canary that stayed silent, noise that was not the schedule's
    trial.status = record::TrialStatus::kError;
    trial.outcome = {{"complaints", to_json(error.complaints())}};
    if (run) trial.evidence = run->evidence();
  } catch (
      const UsageError& error) {  // of the recipe: for everybody; of this seed's model (noise it cannot bear): here
    if (!run) throw;
    trial.status = record::TrialStatus::kError;
    trial.outcome = {{"complaints", to_json(std::vector<Complaint>{{ComplaintCode::kUnproven, "", "", error.what()}})}};
  }
  trial.outcome["curves"] = curves_of(directory.path());
  trial.outcome["run"] = (request.folder.filename() / directory.path().filename()).string();
  trial.outcome["threads"] = at::get_num_threads();
  trial.outcome["device"] = loaded.model->device().str();
  trial.outcome["versions"] = request.maker.versions;
  trial.finished = system_seconds();
  return trial;
}

namespace {

template <class Test>
bool each(const Json& values, const Test& test) {
  return std::all_of(values.begin(), values.end(), test);
}

bool is_number(const Json& value) { return value.is_number(); }
bool is_text(const Json& value) { return value.is_string(); }
bool numbers(const Json& values) { return values.is_array() && each(values, is_number); }
bool numbers_by_name(const Json& values) { return values.is_object() && each(values, is_number); }
bool is_complaint(const Json& value) {  // trials of before complaints had codes hold sentences
  return is_text(value) || (value.is_object() && value.contains("code") && is_text(value["code"]) &&
                            value.contains("sentence") && is_text(value["sentence"]));
}
bool complaints(const Json& values) { return values.is_array() && !values.empty() && each(values, is_complaint); }

bool start(const Json& metrics) {  // of a step, of which its validation is read
  if (!metrics.is_object()) return false;
  for (const auto& [name, value] : metrics.items())
    if (name.starts_with(kCleanMetric) && !value.is_number()) return false;
  return true;
}

bool curves(const Json& all) {
  if (!all.is_object()) return false;
  for (const char* name : {"loss", "reward", "seconds"})
    if (!all.contains(name) || !numbers(all[name])) return false;
  return (!all.contains("start") || start(all["start"])) &&
         (!all.contains("start_weights") || is_text(all["start_weights"]));
}

bool fault_counts(const Json& evidence) {
  if (!evidence.contains("faults") || evidence["faults"].is_null()) return true;
  const Json& faults = evidence["faults"];
  return faults.is_object() && faults.contains("counts") && faults["counts"].is_array() &&
         each(faults["counts"], [](const Json& row) {
           return row.is_object() && row.contains("phase") && is_text(row["phase"]) && row.contains("changed") &&
                  is_number(row["changed"]);
         });
}

std::string wrong_field(const record::Trial& trial) {
  const Json& outcome = trial.outcome;
  if (!outcome.is_object()) return "outcome";
  const bool results = outcome.contains("results");
  if ((trial.status == record::TrialStatus::kPass && !results) || (results && !numbers_by_name(outcome["results"])))
    return "outcome.results";
  if (!outcome.contains("curves") || !curves(outcome["curves"])) return "outcome.curves";
  for (const char* name : {"run", "device"})
    if (!outcome.contains(name) || !is_text(outcome[name])) return fmt::format("outcome.{}", name);
  if (outcome.contains("complaints") && !complaints(outcome["complaints"])) return "outcome.complaints";
  if (outcome.contains("noise_seconds") && !is_number(outcome["noise_seconds"])) return "outcome.noise_seconds";
  if (!trial.evidence.is_null() && (!trial.evidence.is_object() || !fault_counts(trial.evidence))) return "evidence";
  return "";
}

}  // namespace

std::string misshapen(const record::Trial& trial) {
  const std::string field = wrong_field(trial);
  if (field.empty()) return "";
  return fmt::format("trial {} of {} is not as this program writes it: {}", trial.key.index, trial.key.cell, field);
}

}  // namespace faultline::experiment
