#include "cli/experiment_command.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>

#include "base/files/temporary_folder.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/pace.h"
#include "diagnose/examination.h"
#include "experiment/analysis.h"
#include "experiment/campaign.h"
#include "experiment/preparation.h"
#include "experiment/start.h"
#include "experiment/trial_work.h"
#include "recipe/recipe.h"
#include "record/document.h"

namespace faultline::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDiagnosisTokens = 24;

Node read_scaled(const Node& config, const std::string& scale, const std::vector<std::string>& overrides) {
  std::vector<std::string> all = experiment::scale_overrides(recipe::read_recipe(config, {}), scale);
  all.insert(all.end(), overrides.begin(), overrides.end());
  return recipe::read_recipe(config, all);
}

using StagingFolder = std::optional<TemporaryFolder>;  // of the small model, where nothing goes into the output folder

// Scale tiny has a model of its own; scale paper has none and must be given one. -> the path that names the experiment:
// in a dry run the small model lies elsewhere than in the run.
std::string choose_model(Node& recipe, const ExperimentOptions& options, const fs::path& out, StagingFolder& workshop) {
  const bool unnamed = recipe.at("model").as_string() == "default";
  if (options.scale == "paper" && unnamed)
    throw UsageError("--scale paper: give a model, as in model=/path/to/Qwen2.5-1.5B-Instruct");
  if (options.scale != "tiny" || !unnamed) return recipe.at("model").as_string();
  const fs::path lasting = out / ".small-model";
  fs::path folder = lasting;
  if (options.dry_run) {
    folder = workshop.emplace("small-model").path() / "model";
  }
  fs::create_directories(folder.parent_path());
  recipe.set("model", experiment::make_small_model(folder).string());
  return lasting.string();
}

Json diagnose_for_experiment(lab::LoadedModel& loaded, const std::string& method, uint64_t seed) {
  std::vector<int64_t> tokens = loaded.tokenizer.encode(
      "A train leaves the station at nine and covers sixty miles an hour. How far has it gone at noon, and how long "
      "would a car at forty miles an hour need for the same way?");
  tokens.resize(std::min<std::size_t>(tokens.size(), kDiagnosisTokens));
  diagnose::Examiner examiner(*loaded.model, at::kCPU, seed, /*keep=*/false);
  diagnose::Examination examination;
  examination.method = method;
  examination.tokens = at::tensor(tokens, at::kLong).unsqueeze(0);
  examination.seed = seed;
  return diagnose::to_json(examiner.run(examination));
}

experiment::CampaignPart part_of(const ExperimentOptions& options, const experiment::ExperimentSpec& spec) {
  experiment::CampaignPart part;
  part.pilot = options.pilot;
  part.time_limit = options.pace.seconds();
  if (!options.arms.empty())
    for (const std::string& arm : comma_separated(options.arms)) part.arms.insert(spec.arm(arm).name);
  if (options.seeds.empty()) return part;
  const int64_t seeds = options.pilot ? spec.pilot : spec.seeds;
  for (const int64_t index : parse_indices("--seeds", options.seeds)) {
    if (index >= seeds)
      throw UsageError(fmt::format("--seeds: {} is named, but the {} has the seeds 0 to {}; raise experiment.{}", index,
                                   options.pilot ? "pilot" : "experiment", seeds - 1,
                                   options.pilot ? "pilot" : "seeds"));
    part.seeds.insert(index);
  }
  return part;
}

// What an interruption leaves: the store has every trial that ended.
trials::RunnerEnd run_trials(experiment::Experiment& experiment, trials::Executor& executor,
                             const experiment::CampaignPart& part, experiment::ExperimentRun run, Progress& bar) {
  int64_t done = 0;
  run.on_done = [&] { bar.advance(), ++done; };
  const trials::RunnerEnd end = experiment::run_experiment(executor, experiment, part, run);
  if (end.interrupted) end_interrupted(done, experiment.folder().string());
  return end;
}

// This command again, on another machine: everything that decides a trial.
std::vector<std::string> words_for_others(const ModelOptions& given, const ExperimentOptions& options,
                                          const fs::path& recipe_file, const std::vector<std::string>& overrides,
                                          const Globals& globals) {
  std::vector<std::string> words = {"--device", globals.device, "run", recipe_file.string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  for (const std::string& word : {std::string("--dtype"), given.dtype, std::string("--scale"), options.scale})
    words.push_back(word);
  return words;
}

Progress trial_bar(const experiment::Experiment& experiment, const experiment::CampaignPart& part,
                   const Globals& globals) {
  const auto total = std::ssize(experiment.keys(part)), left = std::ssize(experiment.pending(part));
  return Progress("trials", total, {.unit = "trial", .already_done = total - left, .quiet = globals.quiet});
}

// Asked by lines on standard input; its standard output is the answers' alone.
ExitCode work_for_experiment(experiment::Experiment& experiment, lab::LoadedModel& loaded,
                             const ExperimentOptions& options, const fs::path& folder) {
  experiment::ExperimentBench bench(experiment, loaded, {});
  std::string line;
  while (std::getline(std::cin, line)) std::cout << bench.answer(line) << "\n" << std::flush;
  if (!options.folder.empty()) experiment::offer_run(folder);
  return ExitCode::kOk;
}

// The design is of the whole pilot, whichever part of it this command ran.
ExitCode finish_pilot(const experiment::Experiment& experiment, const Globals& globals) {
  const int64_t left = std::ssize(experiment.pending({.arms = {}, .seeds = {}, .pilot = true}));
  const std::string folder = experiment.folder().string();
  if (left > 0)
    show_left(left, folder, globals);
  else
    show_design(experiment::write_design(experiment.spec(), experiment.folder()), folder, globals);
  return ExitCode::kOk;
}

ExitCode finish(const experiment::Experiment& experiment, const experiment::CampaignPart& part, int64_t merged,
                const Json& ray, const Globals& globals) {
  experiment.check_trials();  // workers may have found other files than this process did
  if (part.pilot) return finish_pilot(experiment, globals);
  const int64_t left = std::ssize(experiment.pending(part));
  Json analysis = experiment::analyse(experiment.spec(), experiment.folder());
  if (!ray.is_null()) analysis["ray"] = ray;
  record::write_document(experiment.folder() / "analysis.json", "experiment", analysis);
  show_analysis(analysis, experiment.folder().string(), left, merged, globals);
  for (const Json& row : analysis["arms"])
    if (row["evidence_missing"].get<int64_t>() > 0)
      throw EvidenceError(
          ComplaintCode::kNoEvidence,
          fmt::format("arm '{}': the evidence of {} trials is missing; see {}; --again runs them once more",
                      row["arm"].get<std::string>(), row["evidence_missing"].get<int64_t>(),
                      experiment.folder().string()));
  return ExitCode::kOk;
}

void check_pilot(const experiment::Experiment& experiment, const experiment::CampaignPart& part) {
  const experiment::ExperimentSpec& spec = experiment.spec();
  const fs::path& folder = experiment.folder();
  if (spec.contrasts.empty())
    throw UsageError("--pilot: the recipe names neither contrasts nor a control: there is no difference to measure");
  if (experiment.keys(part).empty())
    throw UsageError(fmt::format("--pilot --arms: the pilot trains '{}' and '{}' alone, the arms of the first contrast",
                                 spec.contrasts.front().arm, spec.contrasts.front().against));
  if (!fs::exists(folder / "design.json")) return;
  if (record::read_document(folder / "design.json", "experiment_design").at("pilot").is_null())
    throw UsageError(fmt::format("--pilot: {}: the design was written without a pilot and is frozen; use another --out",
                                 folder.string()));
}

}  // namespace

std::vector<int64_t> parse_indices(const std::string& option, const std::string& text) {
  std::vector<int64_t> indices;
  for (const std::string& word : comma_separated(text)) {
    const std::size_t dash = word.find('-');
    const auto first = static_cast<int64_t>(parse_count(option, word.substr(0, dash), 0, 9999));
    const auto last =
        dash == std::string::npos ? first : static_cast<int64_t>(parse_count(option, word.substr(dash + 1), 0, 9999));
    if (last < first) throw UsageError(fmt::format("{}: the range '{}' counts downwards", option, word));
    for (int64_t index = first; index <= last; ++index) indices.push_back(index);
  }
  return indices;
}

void add_experiment_options(CLI::App& command, ExperimentOptions& options) {
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->group("Experiment")->type_name(type);
  };
  offer(option("--scale", options.scale,
               "tiny (seconds, a model of two layers), short (20 small steps), default, or paper (GSM8K; give model=)",
               "NAME")
            ->capture_default_str(),
        {"tiny", "short", "default", "paper"});
  option("--arms", options.arms, "only these, as in e5,e5a; default all", "LIST");
  option("--seeds", options.seeds, "only these seed numbers, as in 0-5,9; default all", "LIST");
  command.add_flag("--pilot", options.pilot, "run the pilot's seeds of the first contrast, then write down the design")
      ->group("Experiment");
  command.add_flag("--again", options.again, "run trials that ended without proof once more; their first end is kept")
      ->group("Experiment");
  command.add_option("--merge", options.merge, "take the trials of another folder of the same experiment; run none")
      ->group("Experiment")
      ->type_name("DIR")
      ->allow_extra_args(false);
  command.add_flag("--worker", options.worker, "")->group("");  // what --jobs and --executor ray start
  command.add_option("--folder", options.folder, "")->group("");
}

ExitCode run_experiment_command(const ModelOptions& given, const ExperimentOptions& options,
                                const fs::path& recipe_file, const Node& config,
                                const std::vector<std::string>& overrides, const fs::path& out,
                                const Globals& globals) {
  StagingFolder workshop;
  Node recipe = read_scaled(config, options.scale, overrides);
  const std::string named = choose_model(recipe, options, out, workshop);
  ModelOptions model = given;
  model.model = recipe.at("model").as_string();
  const int64_t jobs = options.pace.job_count();
  const bool on_ray = options.pace.on_ray();
  if (on_ray) refuse_gpus_on_ray(globals.device);
  if (!options.merge.empty() && (options.pilot || options.again))
    throw UsageError(
        fmt::format("--merge takes trials, --{} runs some; one of them", options.pilot ? "pilot" : "again"));
  const std::string hash = record::json_hash({experiment::experiment_identity(recipe, given.dtype), named});
  const fs::path folder = !options.folder.empty() ? fs::path(options.folder)
                                                  : out / fmt::format("{}-{}-{}", recipe_file.stem().string(),
                                                                      options.scale, hash.substr(0, 8));
  Adopted adopted(folder, options.merge);
  experiment::Experiment experiment(recipe, given.dtype, folder, maker_of(globals));
  const experiment::CampaignPart part = part_of(options, experiment.spec());
  if (options.pilot) check_pilot(experiment, part);
  if (options.dry_run) return show_dry_run(experiment, part, options.again, open_model(model, globals), globals);
  int64_t merged = 0;
  const TemporaryFolder tasks("experiment");
  {
    lab::LoadedModel loaded = open_model(model, globals);
    experiment::ExperimentProgress progress;
    progress.on_line = [&](const std::string& line) {
      if (!globals.quiet && !globals.json && !options.worker) print_now(line + "\n");
    };
    experiment.open(loaded, diagnose_for_experiment, progress);
    record::write_provenance(folder, maker_of(globals, &loaded));
    if (!options.pilot && !options.worker) (void)experiment::write_design(experiment.spec(), folder);
    merged = merge_folders(experiment, options.merge, adopted);
    if (options.again && !options.worker) experiment.try_again(part);
    if (options.worker) return work_for_experiment(experiment, loaded, options, folder);
    if (options.merge.empty() && jobs == 1 && !on_ray) {
      Progress bar = trial_bar(experiment, part, globals);
      experiment::ExperimentProgress steps;
      steps.on_trial = [&](const record::TrialKey& key) {
        bar.set_postfix(fmt::format("{}, seed {}", key.cell, key.index));
      };
      experiment::ExperimentBench here(experiment, loaded, steps);
      const auto executor = open_executor(options.pace, [&](const std::string& line) { return here.answer(line); });
      (void)run_trials(experiment, *executor, part, {tasks.path(), {}, false, {}}, bar);
    }
  }
  Json ray;
  if (options.merge.empty() && (on_ray || jobs > 1)) {
    const std::unique_ptr<trials::Executor> executor = open_executor(options.pace);
    Progress bar = trial_bar(experiment, part, globals);
    const std::vector<std::string> words =
        on_ray ? words_for_others(given, options, recipe_file, overrides, globals) : globals.arguments;
    const trials::RunnerEnd end = run_trials(experiment, *executor, part, {tasks.path(), words, on_ray, {}}, bar);
    ray = cluster_json(*executor, end.lost);
  }
  if (experiment.pending({}).empty()) experiment::remove_starts(folder);
  return finish(experiment, part, merged, ray, globals);
}

}  // namespace faultline::cli
