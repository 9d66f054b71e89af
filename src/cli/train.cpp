// `faultline train`: what a recipe says about learning — supervised steps, GRPO, faults in chosen phases, noise on the
// norms — with a bar that shows reward, KL and speed, checkpoints that survive a kill, and the proof at the end.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "base/json.h"
#include "base/progress.h"
#include "base/stats/stats.h"
#include "base/text.h"
#include "cli/interruption.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/train_replicas.h"
#include "lab/model_source.h"
#include "lab/training_memory.h"
#include "lab/training_run.h"
#include "model/memory.h"
#include "recipe/recipe.h"

namespace faultline::cli {
namespace {

constexpr const char* kDefaultRecipe =
    "task: {name: arithmetic}\n"
    "train: {algorithm: grpo, sft: {}, lr: 1.0e-5}\n";

struct TrainOptions : ModelOptions {
  std::string recipe, out = "runs", resume;
  std::vector<std::string> overrides;
  bool dry_run = false;
};

// The first word is a recipe unless it is an override.
Node load(TrainOptions& options) {
  const bool named =
      !options.recipe.empty() && options.recipe.find('=') == std::string::npos && !options.recipe.starts_with("~");
  if (!named && !options.recipe.empty()) options.overrides.insert(options.overrides.begin(), options.recipe);
  if (named) return recipe::load_recipe(options.recipe, options.overrides);
  options.recipe = "train";
  return recipe::parse_recipe(kDefaultRecipe, options.overrides);
}

// What a resumed run was asked: its manifest holds the resolved recipe.
Node load_resumed(TrainOptions& options) {
  if (!options.recipe.empty() || !options.overrides.empty())
    throw UsageError("--resume takes the recipe from the run itself; give neither a recipe nor overrides");
  const record::Manifest manifest = record::read_manifest(std::filesystem::path(options.resume) / "manifest.json");
  Json recipe = manifest.recipe;
  options.dtype = recipe.value("dtype", options.dtype);
  recipe.erase("dtype");
  return recipe::read_recipe(from_json(recipe), {});
}

record::RunDirectory open_directory(const TrainOptions& options, const Node& recipe, uint64_t seed,
                                    const record::Maker& maker) {
  Json resolved = to_json(recipe);
  resolved["dtype"] = options.dtype;
  if (options.resume.empty())
    return record::begin_run(
        options.out, {std::filesystem::path(options.recipe).stem().string(), resolved, seed, resolved["faults"]},
        maker);
  record::RunDirectory directory = record::RunDirectory::open(options.resume, resolved);
  record::write_provenance(directory.path(), maker);
  return directory;
}

std::string gibibytes(double bytes) { return fmt::format("{:.2f} GiB", bytes / 0x1p30); }

ExitCode dry_run(const lab::TrainingRun& run, const Node& recipe, const lab::TrainingSpec& spec, int64_t available,
                 const Globals& globals) {
  const Json prediction = run.prediction();
  if (globals.json) {
    print_json({{"command", "train"}, {"dry_run", true}, {"recipe", to_json(recipe)}, {"prediction", prediction}});
    return ExitCode::kOk;
  }
  print(styled(Style::kHeading, "resolved recipe") + "\n" + to_yaml(recipe) + "\n");
  const Json& memory = prediction["memory_bytes"];
  std::vector<std::vector<std::string>> rows = {{"predicted", ""}};
  rows.push_back({"steps", fmt::format("{}", spec.train.spec.total_steps())});
  rows.push_back({"sequences a step", fmt::format("{}", prediction["sequences_a_step"].get<int64_t>())});
  rows.push_back({"parameters", format_count(prediction["parameters"].get<int64_t>())});
  for (const char* part : {"weights_and_optimizer", "cache", "activations", "logits", "total"})
    rows.push_back({fmt::format("memory, {}", part), gibibytes(memory[part].get<double>())});
  rows.push_back({"memory, available before", gibibytes(static_cast<double>(available))});
  const double work = prediction["flops_a_step"].get<double>();
  rows.push_back({"arithmetic a step, at most", fmt::format("{:.3g} TFLOP", work / 1e12)});
  rows.push_back({"time a step, at most about", format_duration(prediction["seconds_a_step"].get<double>())});
  rows.push_back({"time, at most about", format_duration(prediction["seconds"].get<double>())});
  print(table(rows));
  if (!globals.quiet) print("\nNothing was run. Without --dry-run the recipe runs.\n");
  return ExitCode::kOk;
}

std::string step_line(const Json& event) {
  std::string line = fmt::format("step:{}", event["step"].get<int64_t>());
  for (const auto& [key, value] : event["metrics"].items())
    if (value.is_number()) line += fmt::format(" - {}:{:.6g}", key, value.get<double>());
  return line;
}

std::string postfix_of(const Json& event) {
  const Json &metrics = event["metrics"], &times = event["times"];
  std::string text;
  const auto add = [&](const Json& from, const char* key, const char* name, const char* format) {
    if (from.contains(key))
      text += fmt::format("{}{} ", text.empty() ? "" : "· ", name) +
              fmt::format(fmt::runtime(format), from[key].get<double>()) + " ";
  };
  add(metrics, "train/loss", "loss", "{:.3f}");
  add(metrics, "critic/score/mean", "reward", "{:.3f}");
  add(metrics, "rollout_corr/k3_kl", "KL", "{:.2g}");
  add(times, "perf/throughput", "tok/s", "{:.0f}");
  return text;
}

double median_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

struct StepCosts {  // of the GRPO steps
  std::vector<double> seconds, tokens;
  double memory = 0;

  void add(const Json& event) {
    memory = std::max(memory, event["times"].value("perf/max_memory_allocated_gb", 0.0));
    if (event["stage"] != "grpo") return;
    seconds.push_back(event["times"]["timing_s/step"].get<double>());
    tokens.push_back(event["metrics"]["response_length/mean"].get<double>());
  }
  Json json() const {
    if (seconds.empty()) return {{"peak_memory_gib", memory}};
    return {{"median_step_seconds", median_of(seconds)},
            {"mean_response_tokens", mean_of(tokens)},
            {"peak_memory_gib", memory}};
  }
  std::string text() const {
    std::string peak = fmt::format("peak memory {:.2f} GiB", memory);
    if (seconds.empty()) return peak;
    return fmt::format("a GRPO step: {:.3f} s (median of {}), {:.1f} tokens a response; {}", median_of(seconds),
                       seconds.size(), mean_of(tokens), peak);
  }
};

void show(const lab::TrainingOutcome& outcome, const std::string& directory, const std::string& saved,
          const StepCosts& costs, const TrainingJob& job, const Globals& globals) {
  const Json results = outcome.complaints.empty() ? outcome.results : Json::object();  // no number without proof
  if (globals.json) {
    print_json({{"command", "train"},
                {"results", results},
                {"costs", costs.json()},
                {"evidence", outcome.proof ? outcome.proof->report : Json()},
                {"complaints", to_json(outcome.complaints)},
                {"joined", outcome.evidence},
                {"processes", job.replicas.ranks},
                {"exchange", job.replicas.alone() ? Json() : Json(job.exchange())},
                {"why_gloo", job.why_gloo.empty() ? Json() : Json(job.why_gloo)},
                {"record", directory},
                {"model", saved.empty() ? Json() : Json(saved)}});
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"result", ""}};
  for (const auto& [key, value] : results.items()) rows.push_back({key, number_text(value.get<double>())});
  if (!results.empty()) print(table(rows));
  for (const std::string& line : outcome.log) print(line + "\n");
  print("\n" + costs.text() + "\n");
  if (!job.replicas.alone())
    print(fmt::format("{} processes, gradients over {}\n", job.replicas.ranks,
                      job.why_gloo.empty() ? "NCCL" : fmt::format("Gloo ({})", job.why_gloo)));
  print(fmt::format("record: {}\n", directory));
  if (!saved.empty()) print(fmt::format("model: {}\n", saved));
}

// The first rank's directory, or this rank's own below it: every process leaves the proof of what it did.
record::RunDirectory open_shared_directory(const TrainOptions& options, const Node& recipe, uint64_t seed,
                                           const record::Maker& maker, const TrainingJob& job) {
  if (job.replicas.rank == 0) {
    record::RunDirectory directory = open_directory(options, recipe, seed, maker);
    job.tell(directory.path().string());
    return directory;
  }
  TrainOptions own = options;
  own.out = (std::filesystem::path(job.tell("")) / fmt::format("rank-{}", job.replicas.rank)).string();
  return open_directory(own, recipe, seed, maker);
}

// What is about to happen, before the first step: whoever typed `faultline train` alone has asked for all of it.
std::string plan_words(const lab::TrainingRun& run, const TrainOptions& options, const lab::TrainingSpec& spec,
                       int64_t available, const std::string& folder) {
  const Json prediction = run.prediction();
  std::vector<std::string> stages;
  for (const train::StageSpec& stage : spec.train.spec.stages)
    stages.push_back(fmt::format("{} steps of {} with {} sequences each", stage.steps,
                                 stage.algorithm == train::Algorithm::kSft ? "SFT" : "GRPO", stage.sequences()));
  std::string text;
  if (options.recipe == "train" && options.resume.empty())
    text += "no recipe was named, so this is the default training; recipes/train/ has others\n";
  text += fmt::format("training {} on the task {}: {}\n", options.model, spec.task.name, joined(stages, ", then "));
  text += fmt::format("at most about {} by its arithmetic; the bar says more after a few steps\n",
                      format_duration(prediction["seconds"].get<double>()));
  const double memory = prediction["memory_bytes"]["total"].get<double>();
  text += fmt::format("memory: about {}, of {} that were available", gibibytes(memory),
                      gibibytes(static_cast<double>(available)));
  text +=
      memory > static_cast<double>(available)
          ? "; it may not be enough: a smaller train.micro_batch or train.slots, or '+train.lora.rank=16', takes less\n"
          : "\n";
  return text + fmt::format("record: {}; Ctrl-C ends it, and --resume goes on. --dry-run only predicts.\n\n", folder);
}

ExitCode train(TrainOptions options, const Globals& given) {
  const Node recipe = options.resume.empty() ? load(options) : load_resumed(options);
  lab::TrainingSpec spec = lab::read_training(recipe);
  options.model = recipe.at("model").as_string();
  const TrainingJob job = join_training(spec, recipe, !options.resume.empty(), given.device);
  const Globals globals = job.globals_of(given);
  if (!job.replicas.is_first()) spec.train.save_model = false;
  fetch_default_model(options.model);
  const int64_t available = model::available_memory(open_device(globals.device));
  lab::refuse_training_that_does_not_fit(options.model, lab::config_of(options.model), model_dtype(options.dtype),
                                         spec.train.spec, available);
  lab::LoadedModel loaded = open_model(options, globals);
  job.agree_on_model(*loaded.model);
  lab::TrainingRun run(loaded, spec, job.replicas);
  if (options.dry_run) {
    const ExitCode code = dry_run(run, recipe, spec, available, globals);
    job.close();
    return code;
  }
  record::RunDirectory directory = open_shared_directory(options, recipe, spec.seed, maker_of(globals, &loaded), job);
  const std::string folder = directory.path().string();
  on_interrupt_say(
      spec.train.spec.checkpoint_every > 0
          ? fmt::format("{0} keeps its checkpoints; go on from the newest with\n  faultline train --resume {0}", folder)
          : fmt::format("{} keeps the log of its steps, but no checkpoint (train.checkpoint_every is 0); "
                        "the same command begins again",
                        folder));
  if (!globals.quiet && !globals.json && job.replicas.is_first())
    print_now(plan_words(run, options, spec, available, folder));
  lab::TrainingOutcome outcome;
  StepCosts costs;
  {
    const auto total = spec.train.spec.total_steps();
    std::optional<Progress> bar;
    lab::TrainingProgress progress;
    progress.on_event = [&](const Json& event) {
      if (event["kind"] != "step") return;
      costs.add(event);
      const auto step = event["step"].get<int64_t>();
      if (!bar) bar.emplace("training", total, ProgressOptions{.already_done = step - 1, .quiet = globals.quiet});
      bar->set_postfix(postfix_of(event));
      bar->advance();
      if (!globals.quiet && !globals.json) print_now(step_line(event) + "\n");
    };
    progress.on_line = [&](const std::string& line) {
      if (!globals.quiet && !globals.json) print_now(line + "\n");
    };
    outcome = run.run(directory, progress);
  }
  add_complaints_of_others(job.replicas, outcome.complaints);
  job.close();
  const std::string saved = spec.train.save_model ? lab::save_model(loaded, directory).string() : "";
  if (job.replicas.rank == 0) show(outcome, directory.path().string(), saved, costs, job, globals);
  if (!outcome.complaints.empty()) throw EvidenceError("evidence missing: ", outcome.complaints);
  return ExitCode::kOk;
}

}  // namespace

void add_train(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("train", "supervised fine-tuning and GRPO, under faults and noise, resumable");
  auto options = std::make_shared<TrainOptions>();
  command->add_option("recipe", options->recipe, "a .yaml or .json file; without one: SFT and GRPO on arithmetic")
      ->type_name("");
  command->add_option("overrides", options->overrides, "key=value, +key=value, ~key, as in Hydra")->type_name("");
  offer(command->add_option("--dtype", options->dtype, "what the model computes in; master weights are fp32")
            ->group("Model")
            ->type_name("NAME")
            ->capture_default_str(),
        {"bf16", "fp16", "fp32"});
  command->add_flag("--dry-run", options->dry_run, "validate, show the resolved recipe, predicted memory and time")
      ->group("Run");
  command->add_option("--resume", options->resume, "continue this run directory from its newest checkpoint")
      ->group("Run")
      ->type_name("DIR");
  command->add_option("--out", options->out, "run directories go below this folder")
      ->group("Run")
      ->type_name("DIR")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  faultline train recipes/train/default.yaml --device cuda\n"
      "  faultline train recipes/train/default.yaml train.steps=10 train.prompts=16 --dry-run\n"
      "  faultline train model=default task.difficulty=1 seed=3\n"
      "  torchrun --no-python --nproc-per-node 2 faultline train recipes/train/default.yaml train.shards=2\n"
      "  faultline train --resume runs/default-20260131T235959Z-1f2e3d4c\n\n"
      "Global options (--device, --json, …): see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return train(*options, globals); }; });
}

}  // namespace faultline::cli
