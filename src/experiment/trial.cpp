#include "experiment/trial.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "experiment/run_evidence.h"
#include "record/clock.h"
#include "record/document.h"
#include "record/json_text.h"
#include "site/phase_guard.h"
#include "task/evaluate.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

// What the table needs of a trial's events.
Json curves_of(const fs::path& run) {
  Json curves = {{"reward", Json::array()}, {"loss", Json::array()}, {"seconds", Json::array()}};
  for (const Json& event : read_events(run / "events.jsonl")) {
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
RunDirectory open_run(const TrialRequest& request, const Json& recipe, uint64_t seed) {
  std::vector<fs::path> found;
  if (fs::exists(request.folder))
    for (const auto& entry : fs::directory_iterator(request.folder))
      if (entry.is_directory() && !entry.path().filename().string().starts_with(".")) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  if (!found.empty()) {
    try {
      return RunDirectory::open(found.back(), recipe);
    } catch (const RuntimeFailure&) {  // of another recipe, or torn: left as it is, a new one beside it
    }
  }
  Manifest manifest;
  manifest.recipe_name = fmt::format("{}-{}", sanitized_run_name(request.key.cell), request.key.index);
  manifest.recipe = recipe;
  manifest.seeds = {{"seed", seed}};
  manifest.host = host_description();
  manifest.versions = request.versions;
  return RunDirectory::create(request.folder, manifest);
}

struct JudgedModel {
  double accuracy = 0;
  Json evidence;
  std::vector<Complaint> complaints;
};

// The final model under faults that it may never have met; once where they draw nothing.
JudgedModel judge_under(LoadedModel& loaded, const PlanSpec& plan, const TrainingSpec& spec, int64_t most_draws) {
  const int64_t draws = std::all_of(plan.rules.begin(), plan.rules.end(), always_does_the_same) ? 1 : most_draws;
  const StageSpec& stage = spec.train.spec.stages.back();
  Problems problems = load_task(spec.task);
  problems.test.resize(
      std::min(problems.test.size(), static_cast<std::size_t>(std::max<int64_t>(1, spec.train.validation_problems))));
  const int64_t rows = std::min<int64_t>(stage.slots, std::ssize(problems.test));
  Injection injection(plan, *loaded.model, Phase::kEval, rows);
  injection.self_check();
  EvaluateOptions options;
  options.max_new_tokens = stage.max_new_tokens;
  options.slots = stage.slots;
  options.scoring = spec.task.scoring;
  options.seed = spec.seed;
  options.fixed_batch = true;
  const PhaseGuard phase(Phase::kEval);
  JudgedModel judged;
  injection.arm();
  for (int64_t draw = 0; draw < draws; ++draw) {
    injection.plan().begin_step(draw);
    for (const Answer& answer : evaluate(*loaded.model, loaded.tokenizer, problems.test, options))
      judged.accuracy += answer.reward / static_cast<double>(draws * std::ssize(problems.test));
  }
  injection.disarm();
  judged.evidence = part_evidence(injection.plan(), injection.censuses());
  judged.complaints = missing_evidence(judged.evidence, injection.plan());
  return judged;
}

void judge_final_model(LoadedModel& loaded, const TrialRequest& request, const TrainingSpec& spec, Trial& trial,
                       std::vector<Complaint>& complaints) {
  for (const FaultCase& one : request.experiment->evaluations) {
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

Snapshot::Snapshot(CausalLm& model) {
  for (const CausalLm::Parameter& parameter : model.parameters()) values.push_back(parameter.tensor->detach().clone());
}

void Snapshot::restore(CausalLm& model) const {
  const at::NoGradGuard no_gradients;
  for (Linear* linear : model.linears()) linear->adapter = {};
  const std::vector<CausalLm::Parameter> parameters = model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor->copy_(values[i]);
}

PlanSpec evaluation_plan(const Node& trial_recipe, const FaultCase& evaluation) {
  Node recipe = trial_recipe;
  recipe.set("faults", evaluation.recipe.at("faults"));
  recipe.erase("phases");
  return read_plan_spec(recipe);
}

Trial run_trial(LoadedModel& loaded, const TrialRequest& request, const TrainingProgress& progress) {
  TrainingSpec spec = read_training(request.recipe);
  spec.train.spec.start = request.start;
  Trial trial{.key = request.key, .seed = spec.seed, .started = system_seconds()};
  trial.fingerprint = request.fingerprint;
  RunDirectory directory = open_run(request, as_record(to_json(request.recipe)), spec.seed);
  std::optional<TrainingRun> run;
  std::vector<Complaint> complaints;
  try {
    run.emplace(loaded, spec);
    const TrainingOutcome outcome = run->run(directory, progress);
    trial.outcome = {{"results", outcome.results}, {"noise_seconds", outcome.noise_seconds}};
    trial.evidence = outcome.evidence;
    complaints = outcome.complaints;
    run.reset();  // its plan and noise end here; the model stays trained
    judge_final_model(loaded, request, spec, trial, complaints);
    trial.status = complaints.empty() ? TrialStatus::kPass : TrialStatus::kError;
    if (!complaints.empty()) trial.outcome = {{"complaints", to_json(complaints)}};  // no numbers without proof
  } catch (const NonFiniteError& error) {  // a run that died is a finding, not an accident
    trial.status = TrialStatus::kFail;
    trial.outcome = {{"reason", error.what()}};
    if (run) trial.evidence = run->evidence();
  } catch (const EvidenceError& error) {  // a canary that stayed silent, noise that was not the schedule's
    trial.status = TrialStatus::kError;
    trial.outcome = {{"complaints", to_json(error.complaints())}};
    if (run) trial.evidence = run->evidence();
  } catch (
      const UsageError& error) {  // of the recipe: for everybody; of this seed's model (noise it cannot bear): here
    if (!run) throw;
    trial.status = TrialStatus::kError;
    trial.outcome = {{"complaints", to_json(std::vector<Complaint>{{ComplaintCode::kUnproven, "", "", error.what()}})}};
  }
  trial.outcome["curves"] = curves_of(directory.path());
  trial.outcome["run"] = (request.folder.filename() / directory.path().filename()).string();
  trial.outcome["threads"] = at::get_num_threads();
  trial.outcome["device"] = loaded.model->device().str();
  trial.outcome["versions"] = request.versions;
  trial.finished = system_seconds();
  return trial;
}

}  // namespace faultline
