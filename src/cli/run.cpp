// `faultline run RECIPE`: what the recipe says. Its model under its faults on its task, clean beside faulty; --dry-run
// shows the resolved recipe, the matched sites and the predicted counts, and runs nothing else.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "cli/diagnose_campaign.h"
#include "cli/evaluation_output.h"
#include "cli/experiment_command.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "diagnose/campaign/campaign.h"
#include "lab/evaluation.h"
#include "recipe/recipe.h"

namespace faultline::cli {
namespace {

struct RunOptions : ModelOptions {
  std::string recipe, out = "runs";
  std::vector<std::string> overrides;
  bool dry_run = false, summarise = false, out_given = false;
  Pace pace;
  CampaignOptions campaign;
  ExperimentOptions experiment;
};

void show_recipe(const Node& recipe, const Globals& globals) {
  if (!globals.json) print(styled(Style::kHeading, "resolved recipe") + "\n" + to_yaml(recipe) + "\n");
}

// Everything that a campaign can be refused for is asked here; how many trials it has, and how many are left.
ExitCode dry_run_campaign(const ModelOptions& model, const Node& recipe, const CampaignOptions& options,
                          const Globals& globals) {
  const diagnose::CampaignSpec spec = diagnose::read_campaign(recipe);
  int64_t trials = 0;
  for (const diagnose::CampaignCell& cell : diagnose::campaign_cells(spec)) trials += cell.trials;
  const int64_t left = trials_left(model, spec, options, globals);
  show_recipe(recipe, globals);
  if (globals.json)
    print_json(
        {{"command", "run"}, {"dry_run", true}, {"recipe", to_json(recipe)}, {"trials", trials}, {"left", left}});
  else
    print(fmt::format("{} trials, {} left; store: {}\n\nNothing was run. Without --dry-run it runs.\n", trials, left,
                      options.store));
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
std::string store_path(const RunOptions& options, const std::string& name) {
  if (!options.out_given) return name;
  std::error_code error;
  if (!options.summarise && !options.dry_run) std::filesystem::create_directories(options.out, error);
  if (error) throw UsageError(fmt::format("--out: {} cannot be made: {}", options.out, error.message()));
  return (std::filesystem::path(options.out) / name).string();
}

ExitCode run_recipe(const RunOptions& options, const Globals& globals) {
  const Node config = recipe::load_recipe_file(options.recipe);
  if (config.find("experiment") != nullptr) {
    ExperimentOptions experiment = options.experiment;
    experiment.dry_run = options.dry_run, experiment.pace = options.pace;
    return run_experiment_command(options, experiment, options.recipe, config, options.overrides, options.out, globals);
  }
  if (options.experiment.changed())
    throw UsageError(
        fmt::format("{}: --scale, --arms, --seeds, --pilot and --merge belong to experiments, and it has no section "
                    "experiment",
                    options.recipe));
  refuse_recipe_of_another_command(config, options.recipe);
  const Node recipe = recipe::read_recipe(config, options.overrides);
  if (const Node* campaign = recipe.find("diagnose")) {
    ModelOptions model = options;
    model.model = recipe.at("model").as_string();
    CampaignOptions how = options.campaign;
    how.pace = options.pace;
    how.preset = campaign->at("campaign").as_string();
    how.store = store_path(options, campaign->at("store").as_string());
    if (options.summarise) return summarise_campaign(how.store, how, globals);
    if (options.dry_run) return dry_run_campaign(model, recipe, how, globals);
    return run_and_show_campaign(model, diagnose::read_campaign(recipe), how, globals);
  }
  if (options.pace.changed())
    throw UsageError(
        fmt::format("{}: --jobs, --executor and --time-limit belong to experiments and campaigns, and it is neither",
                    options.recipe));
  if (recipe.at("faults").items().empty())
    throw UsageError(
        fmt::format("{}: no faults: there is nothing to inject; add a rule under faults:", options.recipe));
  ModelOptions model = options;
  model.model = recipe.at("model").as_string();
  refuse_invisible(recipe::read_plan_spec(recipe).rules, model);
  const lab::EvaluationSpec spec = lab::read_evaluation(recipe);
  lab::check_files(spec);
  lab::LoadedModel loaded = open_model(model, globals);
  lab::Evaluation evaluation(loaded, spec, {{"faults of the recipe", recipe}});
  if (options.dry_run) {
    show_recipe(recipe, globals);
    return show_predictions(evaluation, "run", to_json(recipe), globals);
  }
  const EvaluationRecord record{static_cast<uint64_t>(recipe.at("seed").as_integer()), options.out,
                                std::filesystem::path(options.recipe).stem().string(), to_json(recipe)};
  return run_and_show(evaluation, record, globals);
}

}  // namespace

void add_run(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("run", "carry out a recipe: an injection run or an experiment, with proof");
  auto options = std::make_shared<RunOptions>();
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
      "Examples:\n  faultline run recipes/noise.yaml --dry-run\n"
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
