#include "experiment/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/override.h"
#include "base/text.h"
#include "record/clock.h"
#include "record/document.h"

namespace faultline {
namespace {

std::string check_experiment(const Node& experiment) {
  std::vector<std::string> names;
  for (const auto& entry : experiment.at("arms").entries()) names.push_back(entry.key);
  if (names.empty()) return "arms: there must be at least one";
  const Node* control = experiment.find("control");
  if (control != nullptr && std::find(names.begin(), names.end(), control->as_string()) == names.end())
    return fmt::format("control: '{}' is no arm{}", control->as_string(), did_you_mean(control->as_string(), names));
  return "";
}

Json as_record(const nlohmann::ordered_json& json) { return Json::parse(json.dump()); }

// One flow value on one line, as overrides read it.
std::string flow_text(const Node& node) {
  const Json json = as_record(to_json(node));
  return json.is_string() ? "'" + json.get<std::string>() + "'" : json.dump();
}

struct Snapshot {  // of the weights a trial begins with
  std::vector<at::Tensor> values;
  explicit Snapshot(CausalLm& model) {
    for (const CausalLm::Parameter& parameter : model.parameters())
      values.push_back(parameter.tensor->detach().clone());
  }
  void restore(CausalLm& model) const {
    const at::NoGradGuard no_gradients;
    for (Linear* linear : model.linears()) linear->adapter = {};
    const std::vector<CausalLm::Parameter> parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor->copy_(values[i]);
  }
};

std::vector<Rule> rules_of(const Node& recipe) {
  std::vector<Rule> rules;
  for (const Node& rule : recipe.at("faults").items()) rules.push_back(read_rule(rule));
  return rules;
}

// What the trial's table needs of its events.
Json curves_of(const std::filesystem::path& run) {
  Json curves = {{"reward", Json::array()}, {"loss", Json::array()}, {"seconds", Json::array()}};
  for (const Json& event : read_events(run / "events.jsonl")) {
    if (event["kind"] != "step" || event["stage"] != "grpo") continue;
    curves["reward"].push_back(event["metrics"].value("critic/score/mean", 0.0));
    curves["loss"].push_back(event["metrics"].value("actor/pg_loss", 0.0));
    curves["seconds"].push_back(event["times"].value("timing_s/step", 0.0));
  }
  return curves;
}

Trial run_trial(LoadedModel& loaded, const Node& recipe, const TrialKey& key, const std::filesystem::path& runs,
                const ExperimentProgress& progress) {
  const TrainingSpec spec = read_training(recipe, rules_of(recipe));
  Trial trial{.key = key, .seed = spec.seed, .started = system_seconds()};
  trial.fingerprint = json_hash(as_record(to_json(recipe)));
  Manifest manifest;
  manifest.recipe_name = fmt::format("{}-{}", key.cell, key.index);
  manifest.recipe = as_record(to_json(recipe));
  manifest.seeds = {{"seed", spec.seed}};
  manifest.host = host_description();
  RunDirectory directory = RunDirectory::create(runs, manifest);
  try {
    TrainingRun run(loaded, spec);
    const TrainingOutcome outcome = run.run(directory, {progress.on_event, progress.on_line});
    trial.outcome = {{"results", outcome.results}, {"curves", curves_of(directory.path())}};
    if (outcome.proof) trial.evidence = as_record(outcome.proof->report);
    const bool proven = !outcome.proof || outcome.proof->complaints.empty();
    trial.status = proven ? TrialStatus::kPass : TrialStatus::kError;
    if (!proven) trial.outcome["complaints"] = outcome.proof->complaints;
  } catch (const NonFiniteError& error) {  // a run that died is a finding, not an accident
    trial.status = TrialStatus::kFail;
    trial.outcome = {{"reason", error.what()}, {"curves", curves_of(directory.path())}};
  }
  trial.finished = system_seconds();
  return trial;
}

}  // namespace

void register_experiment_section() {
  const Schema changes = Schema::map().extra(Schema::anything()).described_as("changes: {aqn.schedule: constant}");
  SectionRegistry::global().add(
      "experiment",
      Schema::map()
          .field("arms", Schema::map().extra(changes), {.required = true, .doc = "name: what it changes; null removes"})
          .field("seeds", Schema::integer({.min = 1, .max = 10000}), {.default_value = Node(3)})
          .field("control", Schema::string({.min = 1}), {.doc = "the arm that others are compared with"})
          .field("endpoint", Schema::string({.min = 1}), {.doc = "a metric of the last validation"})
          .field("question", Schema::string({.min = 1}), {.doc = "what the table answers"})
          .check(check_experiment),
      {.doc = "arms times seeds, compared seed by seed"});
}

ExperimentSpec read_experiment(const Node& experiment) {
  ExperimentSpec spec;
  for (const auto& entry : experiment.at("arms").entries()) {
    Arm arm{entry.key, {}};
    for (const auto& change : entry.value.entries())
      arm.overrides.push_back(change.value.is_null() ? "~" + change.key
                                                     : fmt::format("++{}={}", change.key, flow_text(change.value)));
    spec.arms.push_back(std::move(arm));
  }
  spec.seeds = experiment.at("seeds").as_integer();
  if (const Node* control = experiment.find("control")) spec.control = control->as_string();
  if (const Node* endpoint = experiment.find("endpoint")) spec.endpoint = endpoint->as_string();
  if (const Node* question = experiment.find("question")) spec.question = question->as_string();
  return spec;
}

Node arm_recipe(const Node& recipe, const Arm& arm, int64_t seed_index) {
  Node changed = recipe;
  changed.erase("experiment");
  const Schema schema = SectionRegistry::global().recipe_schema();
  changed = apply_overrides(std::move(changed), arm.overrides, &schema);
  changed.set("seed", recipe.at("seed").as_integer() + seed_index);
  try {
    return validate(changed, schema);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("arm '{}': {}", arm.name, error.what()));
  }
}

void run_experiment(LoadedModel& loaded, const Node& recipe, const ExperimentSpec& spec,
                    const std::filesystem::path& folder, const ExperimentProgress& progress) {
  std::vector<std::string> cells;
  for (const Arm& arm : spec.arms) {
    const Node checked = arm_recipe(recipe, arm, 0);
    (void)read_training(checked, rules_of(checked));
    if (checked.at("model") != recipe.at("model"))
      throw UsageError(fmt::format("arm '{}': arms of one experiment train one model", arm.name));
    cells.push_back(arm.name);
  }
  std::filesystem::create_directories(folder);
  CampaignStore store(folder / "campaign.sqlite");
  const Snapshot start(*loaded.model);
  for (const TrialKey& key : store.pending(cells, spec.seeds)) {
    if (progress.on_trial) progress.on_trial(key);
    const auto arm = std::find_if(spec.arms.begin(), spec.arms.end(), [&](const Arm& a) { return a.name == key.cell; });
    start.restore(*loaded.model);
    const Trial trial = run_trial(loaded, arm_recipe(recipe, *arm, key.index), key, folder / "runs", progress);
    (void)store.insert(trial);
  }
}

int64_t finished_trials(const ExperimentSpec& spec, const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "campaign.sqlite")) return 0;
  CampaignStore store(folder / "campaign.sqlite");
  int64_t done = 0;
  for (const Arm& arm : spec.arms) done += std::min(store.count(arm.name), spec.seeds);
  return done;
}

}  // namespace faultline
