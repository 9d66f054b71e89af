// `faultline run RECIPE`: what the recipe says. Its model under its faults on its task, clean beside faulty; --dry-run
// shows the resolved recipe, the matched sites and the predicted counts, and runs nothing else.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/device.h"
#include "cli/diagnose_campaign.h"
#include "cli/evaluation_output.h"
#include "cli/experiment_command.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "diagnose/diagnose_schema.h"
#include "lab/evaluation_schema.h"
#include "recipe/recipe.h"

namespace faultline::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options : ModelOptions {
  std::string recipe, out = "runs";
  std::vector<std::string> overrides;
  bool dry_run = false, summarise = false, out_given = false;
  Pace pace;
  CampaignOptions campaign;
  ExperimentOptions experiment;
};

ExitCode dry_run(LoadedModel& loaded, const Node& recipe, const EvaluationSpec& spec,
                 const std::vector<FaultCase>& cases, const Globals& globals) {
  Json plans = Json::array();
  for (const FaultCase& one : cases) {
    PlanSettings settings;
    settings.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
    if (const Node* phases = recipe.find("phases")) settings.phases = *phases;
    const Injection injection(one.rules, settings, *loaded.model, Phase::kEval,
                              std::min(spec.generation.slots, spec.limit));
    plans.push_back(injection.prediction());
  }
  if (globals.json) {
    print_json({{"command", "run"}, {"dry_run", true}, {"recipe", to_json(recipe)}, {"predictions", plans}});
    return ExitCode::kOk;
  }
  print(styled(Style::kHeading, "resolved recipe") + "\n" + to_yaml(recipe) + "\n");
  std::vector<std::vector<std::string>> rows = {{"rule", "forward", "sites", "calls a forward"}};
  for (const Json& plan : plans) {
    for (const auto& [kind, rules] : plan.items()) {
      for (const Json& rule : rules)
        rows.push_back({rule["rule"], kind, fmt::format("{}", rule["sites"].get<int64_t>()),
                        fmt::format("{}", rule["calls"].get<int64_t>())});
    }
  }
  print(styled(Style::kHeading, "matched sites") + "\n" + table(rows));
  if (!globals.quiet) print("\nNothing was run. Without --dry-run the recipe runs.\n");
  return ExitCode::kOk;
}

// Read as a recipe of this command, another's would only be full of unknown or missing keys.
void refuse_recipe_of_another_command(const Node& config, const std::string& file) {
  const auto refuse = [&](const char* whose, const char* command) {
    throw UsageError(
        fmt::format("{}: a recipe of {}; carry it out with `faultline {} {}`", file, whose, command, file));
  };
  if (config.find("cells") != nullptr) refuse("a triage", "triage run --recipe");
  if (config.find("train") != nullptr && config.find("faults") == nullptr) refuse("a training", "train");
}

// The recipe names the store of a campaign; it lies in the folder of --out, or here.
std::string store_path(const Options& options, const std::string& name) {
  if (!options.out_given) return name;
  std::error_code error;
  if (!options.summarise) std::filesystem::create_directories(options.out, error);
  if (error) throw UsageError(fmt::format("--out: {} cannot be made: {}", options.out, error.message()));
  return (std::filesystem::path(options.out) / name).string();
}

ExitCode run_recipe(const Options& options, const Globals& globals) {
  const Node config = load_config(options.recipe);
  if (config.find("experiment") != nullptr) {
    ExperimentOptions experiment = options.experiment;
    experiment.dry_run = options.dry_run, experiment.pace = options.pace;
    return run_experiment_command(options, experiment, options.recipe, options.overrides, options.out, globals);
  }
  if (options.experiment.changed())
    throw UsageError(
        fmt::format("{}: --scale, --arms, --seeds, --pilot and --merge belong to experiments, and it has no section "
                    "experiment",
                    options.recipe));
  refuse_recipe_of_another_command(config, options.recipe);
  const Node recipe = load_recipe(options.recipe, options.overrides);
  if (const Node* campaign = recipe.find("diagnose"); campaign != nullptr && !options.dry_run) {
    ModelOptions model = options;
    model.model = recipe.at("model").as_string();
    CampaignOptions how = options.campaign;
    how.pace = options.pace;
    how.preset = campaign->at("campaign").as_string();
    how.store = store_path(options, campaign->at("store").as_string());
    if (options.summarise) return summarise_campaign(how.store, how, globals);
    return run_and_show_campaign(model, read_campaign(recipe), how, globals);
  }
  if (options.pace.changed())
    throw UsageError(
        fmt::format("{}: --jobs, --executor and --time-limit belong to experiments and campaigns, and it is neither",
                    options.recipe));
  const EvaluationSpec spec = read_evaluation(recipe);
  std::vector<FaultCase> cases;
  std::vector<Rule> rules = read_rules(recipe);
  if (rules.empty())
    throw UsageError(
        fmt::format("{}: no faults: there is nothing to inject; add a rule under faults:", options.recipe));
  cases.push_back({"faults of the recipe", std::move(rules)});
  ModelOptions model = options;
  model.model = recipe.at("model").as_string();
  LoadedModel loaded = open_model(model, globals);
  if (options.dry_run) return dry_run(loaded, recipe, spec, cases, globals);
  const EvaluationRecord record{static_cast<uint64_t>(recipe.at("seed").as_integer()), options.out,
                                std::filesystem::path(options.recipe).stem().string(), to_json(recipe)};
  return run_and_show(loaded, spec, cases, record, globals);
}

}  // namespace

void add_run(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("run", "carry out a recipe: an injection run or an experiment, with proof");
  auto options = std::make_shared<Options>();
  command->add_option("recipe", options->recipe, "a .yaml or .json file")->required()->type_name("");
  command->add_option("overrides", options->overrides, "key=value, +key=value, ~key, as in Hydra")->type_name("");
  offer(command->add_option("--dtype", options->dtype, "what the model computes in")
            ->group("Model")
            ->type_name("NAME")
            ->capture_default_str(),
        {"bf16", "fp16", "fp32"});
  command
      ->add_flag("--dry-run", options->dry_run,
                 "validate, show the resolved recipe, matched sites and predicted counts")
      ->group("Run");
  CLI::Option* out = command->add_option(
      "--out", options->out, "run directories go below this folder; a campaign's store into it, where it is given");
  out->group("Run")->type_name("DIR")->capture_default_str();
  add_pace_options(*command, options->pace, "Experiments and campaigns");
  add_experiment_options(*command, options->experiment);
  add_campaign_run_options(*command, options->campaign);
  command->add_flag("--summarise", options->summarise, "run nothing: rates from the trials in the recipe's store")
      ->group("Campaign of diagnoses");
  command->footer(
      "Examples:\n  faultline run recipes/example.yaml --dry-run\n"
      "  faultline run recipes/diagnose-campaign.yaml --jobs 2 --time-limit 30m\n"
      "  faultline run recipes/experiments/noisy-ops.yaml --scale tiny\n"
      "  faultline run recipes/experiments/noisy-ops.yaml --executor ray\n"
      "  faultline run recipes/experiments/noisy-ops.yaml --device cuda --pilot\n"
      "  faultline run recipes/experiments/noisy-ops.yaml --device cuda --seeds 0-5 --time-limit 40m\n"
      "  faultline run recipes/experiments/noisy-ops.yaml --merge elsewhere/noisy-ops-default-1f2e3d4c\n\n"
      "The run directory is printed last; `faultline report DIR` makes a page of it.\n"
      "Global options (--seed, --device, --json, …): see `faultline --help`.");
  command->callback([&run, &globals, options, out] {
    options->out_given = out->count() > 0;
    run = [&globals, options] { return run_recipe(*options, globals); };
  });
}

}  // namespace faultline::cli
