// `faultline race`: known bytes through collectives and compute. Ranks are threads here, processes with --transport
// gloo or nccl, Python processes with --transport torch, or one process of a torchrun or srun job, which its
// environment says.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/files/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/pace.h"
#include "race/asked.h"
#include "race/checks.h"
#include "race/run_processes.h"
#include "race/selftest.h"

namespace faultline::cli {
namespace {

struct RaceOptions {
  race::Asked asked;
  std::string join, host, trial, backend, ranks_text = "4";
  std::vector<std::string> imports;
  LaunchOptions launch;
  bool selftest = false, full = false;
};

std::atomic<bool> interrupted{false};
void on_interrupt(int) { interrupted = true; }

void print_result(const race::RunResult& result, const race::Config& config, bool overhead, const Globals& globals) {
  if (globals.json) {
    Json json = race::to_json(result, config);
    if (overhead) json["overhead"] = race::to_json(race::digest_overhead(result));
    print_json(json);
    return;
  }
  for (const std::string& line : race::log_lines(result)) {
    const Style style = result.verdict == race::Verdict::kPass ? Style::kGood : Style::kBad;
    print((line.starts_with("VERDICT:") ? styled(style, line) : line) + "\n");
  }
  if (overhead) print(race::describe(race::digest_overhead(result)));
}

// A rank's thread that never came back would keep exit() waiting.
ExitCode leave(const race::RunResult& result) {
  const ExitCode code = race::exit_code(result);
  if (result.abandoned) {
    (void)finish_output();
    std::_Exit(static_cast<int>(code));
  }
  return code;
}

race::Asked asked_of(const RaceOptions& options, const Globals& globals) {
  race::Asked asked = options.asked;
  asked.seed = globals.seed();
  asked.run.ranks = static_cast<int>(parse_count("--ranks", options.ranks_text, 1, 256));
  asked.run.interrupted = &interrupted;
  asked.run.launch = options.launch.launch();
  if (asked.transport == "torch" || !options.backend.empty() || !options.imports.empty())
    asked.run.python = race::PythonRanks{options.backend, globals.device, options.imports, ""};
  else
    asked.run.device = open_device(globals.device);
  return asked;
}

ExitCode race_run(const RaceOptions& options, const Globals& globals) {
  race::Asked asked = asked_of(options, globals);
  race::Ready ready = race::prepare(asked);
  if (ready.drill_left_out) fmt::print(stderr, "FAULTLINE_DRILL=off: planted faults are left out\n");
  std::signal(SIGINT, on_interrupt);
  if (!globals.quiet && !globals.json) fmt::print(stderr, "{}\n", race::describe(ready.config, ready.run.ranks));
  std::optional<Progress> progress;
  progress.emplace("race", ready.config.verify_iterations,
                   ProgressOptions{.unit = "iteration", .quiet = globals.quiet});
  ready.run.progress = [&, before = int64_t{0}](int64_t done, int64_t) mutable {
    progress->advance(done - std::exchange(before, done));
  };
  const race::RunResult result = race::carry_out(asked, ready, maker_of(globals));
  progress.reset();
  if (!result.silent) print_result(result, ready.config, asked.overhead, globals);
  return leave(result);
}

// A rank that `run_processes` has started, here or through a launcher.
ExitCode race_join(const RaceOptions& options) {
  std::signal(SIGTERM, SIG_IGN);  // mpirun and Slurm end all ranks when one has failed; each first says what it saw
  std::signal(SIGINT, on_interrupt);
  race::RunOptions run;
  run.interrupted = &interrupted;
  return leave(race::join_launched(options.join, options.host, run, open_device));
}

// A trial of `faultline triage`: the request says everything, the answer repeats its nonce. Standard output is the log.
ExitCode race_trial(const RaceOptions& options) {
  const std::filesystem::path folder = options.trial;
  const Node request = load_config(folder / "request.json");
  race::RunOptions run;
  run.ranks = static_cast<int>(request.at("ranks").as_integer());
  if (const Node* python = request.find("python"))
    run.python = race::read_python_ranks(*python);
  else
    run.device = open_device(request.at("device").as_string());
  run.launch = race::read_launch(request.at("launcher"));
  for (const Node::Entry& variable : request.at("variables").entries())
    run.variables[variable.key] = variable.value.as_string();
  const race::Ready ready = race::prepare_given(validate(request.at("config"), race::config_schema()),
                                                std::stoull(request.at("seed").as_string()), std::move(run));
  if (ready.drill_left_out) print("FAULTLINE_DRILL=off: planted faults are left out\n");
  print(race::describe(ready.config, ready.run.ranks) + "\n");
  const race::RunResult result = race::run(request.at("transport").as_string(), ready.node, ready.config, ready.run);
  for (const std::string& line : race::log_lines(result)) print(line + "\n");
  const Json answer = {{"nonce", request.at("nonce").as_string()}, {"result", race::to_json(result, ready.config)}};
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
  if (!options.asked.out.empty()) write_file_atomically(options.asked.out, to_json_text(json, 1) + "\n");
  if (globals.json) {
    print_json(json);
  } else {
    print(table(race::matrix(result)));
    for (const std::string& miss : result.misses) print(fmt::format("MISSED: {}\n", miss));
    print(styled(result.passed() ? Style::kGood : Style::kBad, result.sentence()) + "\n");
  }
  return result.passed() ? ExitCode::kOk : ExitCode::kFound;
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
    "  faultline race --ranks 8 --transport torch --backend hccl --device npu\n"
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
      ->add_option("--recipe", options->asked.recipe,
                   "a file with a race: section or a triage recipe; default: a small run")
      ->group("Run")
      ->type_name("FILE");
  command->add_option("--ranks", options->ranks_text, "how many, 1 to 256; under torchrun its WORLD_SIZE")
      ->group("Run")
      ->capture_default_str()
      ->type_name("N");
  offer(command
            ->add_option("--transport", options->asked.transport,
                         "threads; one process a rank: gloo on a CPU, nccl on GPUs; torch: Python processes")
            ->group("Run")
            ->capture_default_str()
            ->type_name("NAME"),
        {"threads", "gloo", "nccl", "torch"});
  offer(command
            ->add_option("--backend", options->backend,
                         "with --transport torch: of torch.distributed; FAULTLINE_PYTHON names the Python")
            ->group("Run")
            ->type_name("NAME"),
        {"nccl", "hccl", "gloo", "ucc"});
  command
      ->add_option("--import", options->imports,
                   "with --transport torch: a module that registers the backend or device")
      ->group("Run")
      ->type_name("MODULE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_launch_options(*command, options->launch, "Run");
  command->add_option("--out", options->asked.out, "the merged evidence as JSON")->group("Output")->type_name("FILE");
  command
      ->add_option("--write-golden", options->asked.write_golden, "keep this run's digests as the golden of later ones")
      ->group("Output")
      ->type_name("FILE");
  command
      ->add_flag("--selftest", options->selftest,
                 "plant faults of every kind everywhere; all must be found and attributed")
      ->group("Run");
  command->add_flag("--full", options->full, "with --selftest: more than 1,000 faults and 1,000 clean iterations")
      ->group("Run");
  command->add_flag("--measure-overhead", options->asked.overhead, "digests in every second iteration; what they cost")
      ->group("Run");
  command->add_option("--join", options->join, "a launcher's store: be the rank that the environment says")
      ->type_name("ADDRESS:PORT")
      ->group("");
  command->add_option("--host", options->host, "with --join: what the launcher calls this machine")->group("");
  command->add_option("--trial", options->trial, "a folder of `faultline triage` with a request")
      ->type_name("FOLDER")
      ->group("");
  command
      ->add_option("overrides", options->asked.overrides, "key=value of the configuration; the keys are listed below")
      ->type_name("");
  command->footer([] { return race::keys_text() + "\n" + kRaceFooter; });
  command->callback([&run, &globals, options] {
    run = [&globals, options] {
      if (!options->join.empty()) return race_join(*options);
      if (!options->trial.empty()) return race_trial(*options);
      return options->selftest ? race_selftest(*options, globals) : race_run(*options, globals);
    };
  });
}

}  // namespace faultline::cli
