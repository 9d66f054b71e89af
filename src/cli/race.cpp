// `faultline race`: known bytes through collectives and compute. Ranks are threads here, processes with --transport
// gloo or nccl, or one process of a torchrun or srun job, which its environment says.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/config/override.h"
#include "base/config/schema_data.h"
#include "base/files/file.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/pace.h"
#include "race/checks.h"
#include "race/run.h"
#include "race/run_processes.h"
#include "race/selftest.h"

namespace faultline::cli {
namespace {

struct RaceOptions {
  std::string recipe, transport = "threads", out, write_golden, join, host, trial;
  std::string ranks_text = "4", faults_text = "0";
  std::vector<std::string> overrides;
  LaunchOptions launch;
  bool selftest = false, full = false, overhead = false;
};

std::atomic<bool> interrupted{false};
void on_interrupt(int) { interrupted = true; }

Node config_of(const RaceOptions& options) {
  Node given = options.recipe.empty() ? race::smoke_config() : load_config(options.recipe);
  if (const Node* section = given.find("race"))
    given = Node(*section);
  else if (const Node* workload = given.find("workload_config"))
    given = Node(*workload);
  const Schema schema = race::config_schema();
  return validate(apply_overrides(given, options.overrides, &schema), schema);
}

Json overhead_json(const race::Overhead& overhead) {
  return {{"relative", overhead.relative.mean},
          {"low", overhead.relative.low},
          {"high", overhead.relative.high},
          {"pairs", overhead.relative.count},
          {"of_medians", overhead.with / overhead.without - 1},
          {"median_with", overhead.with},
          {"median_without", overhead.without},
          {"drift", {{"relative", overhead.drift.mean}, {"low", overhead.drift.low}, {"high", overhead.drift.high}}}};
}

std::string overhead_text(const race::Overhead& overhead) {
  return fmt::format(
      "digests: {:+.2f} % of a step (95 % interval {:+.2f} to {:+.2f} %, {} pairs of iterations; median {:.6f} s with, "
      "{:.6f} s without: {:+.2f} %)\ndrift: {:+.2f} % ({:+.2f} to {:+.2f} %) between steps without\n",
      100 * overhead.relative.mean, 100 * overhead.relative.low, 100 * overhead.relative.high, overhead.relative.count,
      overhead.with, overhead.without, 100 * (overhead.with / overhead.without - 1), 100 * overhead.drift.mean,
      100 * overhead.drift.low, 100 * overhead.drift.high);
}

void print_result(const race::RunResult& result, const race::Config& config, bool overhead, const Globals& globals) {
  if (globals.json) {
    Json json = race::to_json(result, config);
    if (overhead) json["overhead"] = overhead_json(race::digest_overhead(result));
    print_json(json);
    return;
  }
  for (const std::string& line : race::log_lines(result)) {
    const Style style = result.verdict == race::Verdict::kPass ? Style::kGood : Style::kBad;
    print((line.starts_with("VERDICT:") ? styled(style, line) : line) + "\n");
  }
  if (overhead) print(overhead_text(race::digest_overhead(result)));
}

ExitCode exit_code(const race::RunResult& result) {
  if (result.verdict == race::Verdict::kPass) return ExitCode::kOk;
  if (result.verdict == race::Verdict::kFail) return ExitCode::kFound;
  return result.canary_missed() ? ExitCode::kEvidence : ExitCode::kRuntime;
}

// A rank's thread that never came back would keep exit() waiting.
ExitCode leave(const race::RunResult& result) {
  const ExitCode code = exit_code(result);
  if (result.abandoned) {
    (void)finish_output();
    std::_Exit(static_cast<int>(code));
  }
  return code;
}

// The merged evidence, with what `faultline reproduce` needs to ask the same again.
void write_record(const RaceOptions& options, const Node& node, const race::Config& config, const race::RunOptions& run,
                  const race::RunResult& result, const Globals& globals) {
  Json json = race::to_json(result, config);
  json["made_by"] = {{"config", to_json(node)},
                     {"seed", std::to_string(config.seed)},
                     {"ranks", run.ranks},
                     {"transport", options.transport},
                     {"device", run.device.str()}};
  if (!run.launch.is_local()) json["made_by"]["launcher"] = race::to_json(run.launch);
  record::write_result(options.out, json, maker_of(globals));
}

ExitCode race_run(const RaceOptions& options, const Globals& globals) {
  const Node node = config_of(options);
  race::Config config = race::read_config(node);
  if (!config.deterministic) config.seed = globals.seed();
  if (race::leave_out_drill(config)) fmt::print(stderr, "FAULTLINE_DRILL=off: planted faults are left out\n");
  if (options.overhead && config.verify_iterations < race::kOverheadIterations)
    throw UsageError(fmt::format("--measure-overhead needs at least {} verified iterations; raise verify_iterations",
                                 race::kOverheadIterations));
  race::RunOptions run;
  run.ranks = static_cast<int>(parse_count("--ranks", options.ranks_text, 1, 256));
  run.device = open_device(globals.device);
  run.interrupted = &interrupted;
  run.alternate_digests = options.overhead;
  run.launch = options.launch.launch();
  if (!config.golden.empty()) run.reference = race::read_golden(config.golden, node, run.device);
  race::check_ranks(config, run.ranks);
  race::check_transport(options.transport, run.device);
  race::check_launch(run.launch, options.transport, run.ranks);
  std::signal(SIGINT, on_interrupt);
  if (!globals.quiet && !globals.json) fmt::print(stderr, "{}\n", race::describe(config, run.ranks));
  std::optional<Progress> progress;
  progress.emplace("race", config.verify_iterations, ProgressOptions{.unit = "iteration", .quiet = globals.quiet});
  run.progress = [&, before = int64_t{0}](int64_t done, int64_t) mutable {
    progress->advance(done - std::exchange(before, done));
  };
  const race::RunResult result = race::run(options.transport, node, config, run);
  progress.reset();
  // Of ranks that are processes only the first has the evidence of all.
  if (!options.out.empty() && !result.silent) write_record(options, node, config, run, result, globals);
  if (!options.write_golden.empty() && !result.silent)
    race::write_golden(options.write_golden, node, run.device, result);
  if (!result.silent) print_result(result, config, options.overhead, globals);
  return leave(result);
}

// A rank that `run_processes` has started, here or through a launcher.
race::RunResult join_race(const cluster::Membership& membership, const std::string& host) {
  const Node request = race::launched_request(membership);
  const Node node = validate(request.at("config"), race::config_schema());
  race::Config config = race::read_config(node);
  config.seed = std::stoull(request.at("seed").as_string());
  (void)race::leave_out_drill(config);
  race::RunOptions run;
  run.device = open_device(request.at("device").as_string());
  run.interrupted = &interrupted;
  run.alternate_digests = request.at("alternate_digests").as_bool();
  if (!config.golden.empty()) run.reference = race::read_golden(config.golden, node, run.device);
  std::signal(SIGINT, on_interrupt);
  return race::run_launched(membership, host, node, config, run);
}

ExitCode race_join(const RaceOptions& options) {
  std::signal(SIGTERM, SIG_IGN);  // mpirun and Slurm end all ranks when one has failed; each first says what it saw
  const cluster::Membership membership = cluster::joined_membership(options.join);
  const std::string host = options.host.empty() ? host_name() : options.host;
  try {
    return leave(join_race(membership, host));
  } catch (const std::exception& error) {
    race::refuse_launch(membership, host, error.what());
    throw;
  }
}

// A trial of `faultline triage`: the request says everything, the answer repeats its nonce. Standard output is the log.
ExitCode race_trial(const RaceOptions& options) {
  const std::filesystem::path folder = options.trial;
  const Node request = load_config(folder / "request.json");
  const Node node = validate(request.at("config"), race::config_schema());
  race::Config config = race::read_config(node);
  if (!config.deterministic) config.seed = std::stoull(request.at("seed").as_string());
  if (race::leave_out_drill(config)) print("FAULTLINE_DRILL=off: planted faults are left out\n");
  race::RunOptions run;
  run.ranks = static_cast<int>(request.at("ranks").as_integer());
  run.device = open_device(request.at("device").as_string());
  run.launch = race::read_launch(request.at("launcher"));
  for (const Node::Entry& variable : request.at("variables").entries())
    run.variables[variable.key] = variable.value.as_string();
  if (!config.golden.empty()) run.reference = race::read_golden(config.golden, node, run.device);
  print(race::describe(config, run.ranks) + "\n");
  const race::RunResult result = race::run(request.at("transport").as_string(), node, config, run);
  for (const std::string& line : race::log_lines(result)) print(line + "\n");
  const Json answer = {{"nonce", request.at("nonce").as_string()}, {"result", race::to_json(result, config)}};
  write_file_atomically(folder / "response.json", to_json_text(answer));
  return leave(result);
}

ExitCode race_selftest(const RaceOptions& options, const Globals& globals) {
  race::SelftestOptions selftest{.full = options.full, .seed = globals.seed(), .device = open_device(globals.device)};
  std::optional<Progress> progress;
  selftest.progress = [&](int64_t, int64_t total) {
    if (!progress)
      progress.emplace("selftest", total, ProgressOptions{.unit = "fault", .quiet = globals.quiet || globals.json});
    progress->advance();
  };
  const race::SelftestResult result = race::selftest(selftest);
  progress.reset();
  const Json json = race::to_json(result);
  if (!options.out.empty()) write_file_atomically(options.out, to_json_text(json, 1) + "\n");
  if (globals.json) {
    print_json(json);
  } else {
    print(table(race::matrix(result)));
    for (const std::string& miss : result.misses) print(fmt::format("MISSED: {}\n", miss));
    print(styled(result.passed() ? Style::kGood : Style::kBad, result.sentence()) + "\n");
  }
  return result.passed() ? ExitCode::kOk : ExitCode::kFound;
}

// Every key with its default and what it may be, as the schema has them.
std::string keys_text() {
  std::string text = "Keys of the configuration (default): what for; what it may be\n";
  const Schema schema = race::config_schema();
  for (const SchemaField& field : schema.data().fields) {
    const Node& value = field.options.default_value.value();
    text +=
        fmt::format("  {} ({}): {}; {}\n", field.name, value.is_string() ? value.as_string() : to_json(value).dump(),
                    field.options.doc, describe(field.schema));
  }
  return text;
}

constexpr const char* kRaceFooter =
    "Examples:\n"
    "  faultline race --ranks 4\n"
    "  faultline race --ranks 4 'inject={target: comm_output, kind: bitflip, layer: 7, rank: 2}'\n"
    "  faultline race --recipe recipes/race-smoke.yaml verify_iterations=200 --out race.json\n"
    "  faultline race --ranks 2 --transport gloo timeout_seconds=10\n"
    "  faultline race --ranks 8 --transport gloo --launcher ssh --hosts n1,n2,n3,n4\n"
    "  torchrun --no-python --nproc-per-node 4 faultline race\n"
    "  torchrun --no-python --nproc-per-node 8 faultline race --transport nccl --device cuda\n"
    "  faultline race --selftest\n"
    "  faultline race --measure-overhead mode=fsdp verify_iterations=100\n\n"
    "Exit codes: 0 no corruption, 1 corruption, 2 a rank failed or hung, 3 the canary was missed, 64 usage.\n"
    "Global options: see `faultline --help`.";

}  // namespace

void add_race(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command =
      app.add_subcommand("race", "send known bytes through collectives and compute; name what corrupts them");
  auto options = std::make_shared<RaceOptions>();
  command
      ->add_option("--recipe", options->recipe, "a file with a race: section or a triage recipe; default: a small run")
      ->group("Run")
      ->type_name("FILE");
  command->add_option("--ranks", options->ranks_text, "how many, 1 to 256; under torchrun its WORLD_SIZE")
      ->group("Run")
      ->capture_default_str()
      ->type_name("N");
  offer(
      command->add_option("--transport", options->transport, "threads; one process a rank: gloo on a CPU, nccl on GPUs")
          ->group("Run")
          ->capture_default_str()
          ->type_name("NAME"),
      {"threads", "gloo", "nccl"});
  add_launch_options(*command, options->launch, "Run");
  command->add_option("--out", options->out, "the merged evidence as JSON")->group("Output")->type_name("FILE");
  command->add_option("--write-golden", options->write_golden, "keep this run's digests as the golden of later ones")
      ->group("Output")
      ->type_name("FILE");
  command
      ->add_flag("--selftest", options->selftest,
                 "plant faults of every kind everywhere; all must be found and attributed")
      ->group("Run");
  command->add_flag("--full", options->full, "with --selftest: more than 1,000 faults and 1,000 clean iterations")
      ->group("Run");
  command->add_flag("--measure-overhead", options->overhead, "digests in every second iteration; what they cost")
      ->group("Run");
  command->add_option("--join", options->join, "a launcher's store: be the rank that the environment says")
      ->type_name("ADDRESS:PORT")
      ->group("");
  command->add_option("--host", options->host, "with --join: what the launcher calls this machine")->group("");
  command->add_option("--trial", options->trial, "a folder of `faultline triage` with a request")
      ->type_name("FOLDER")
      ->group("");
  command->add_option("overrides", options->overrides, "key=value of the configuration; the keys are listed below")
      ->type_name("");
  command->footer([] { return keys_text() + "\n" + kRaceFooter; });
  command->callback([&run, &globals, options] {
    run = [&globals, options] {
      if (!options->join.empty()) return race_join(*options);
      if (!options->trial.empty()) return race_trial(*options);
      return options->selftest ? race_selftest(*options, globals) : race_run(*options, globals);
    };
  });
}

}  // namespace faultline::cli
