// `faultline screen`: are the devices of this machine healthy, with an error rate. One record a device; records of many
// machines become one page with --merge.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/files/file.h"
#include "base/machine.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "numeric/apply.h"
#include "recipe/recipe.h"
#include "screen/between_ranks.h"
#include "screen/drill.h"
#include "screen/fleet.h"
#include "screen/screen.h"
#include "tap/operator_tap.h"

namespace faultline::cli {
namespace {

struct ScreenCommand {
  std::string load = "all", minutes = "5", seconds, memory_share, out, prometheus, instruction_set, trials = "60",
              healthy = "20", most_seconds = "3600";
  std::vector<std::string> merge, faults;
  bool quick = false, rates = false, selftest = false, large = false, between_ranks = false;
};

std::atomic<bool> screen_interrupted{false};
void on_screen_interrupt(int) { screen_interrupted = true; }

struct Devices {
  bool cpu = false;
  std::vector<int> gpus;
};

int gpu_count() {
  return at::globalContext().hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
}

// --device all | local | cpu,cuda:0,…; nothing given: all.
Devices devices_of(const Globals& globals, bool quiet) {
  const bool given = std::any_of(globals.arguments.begin(), globals.arguments.end(), [](const std::string& word) {
    return word == "--device" || word.starts_with("--device=");
  });
  const std::string text = given ? globals.device : "all";
  Devices devices;
  if (text == "local") {
    const char* rank = std::getenv("LOCAL_RANK");
    if (rank == nullptr) rank = std::getenv("SLURM_LOCALID");
    if (rank == nullptr)
      throw UsageError(
          "--device local: neither LOCAL_RANK (torchrun) nor SLURM_LOCALID (srun) is set; name the device");
    const std::string name = "cuda:" + std::to_string(parse_count("LOCAL_RANK", rank, 0, 127));
    devices.gpus.push_back(open_device(name).index());
    return devices;
  }
  if (text == "all") {
    devices.cpu = true;
    if (!numeric::has_cuda_kernels()) return devices;
    try {
      open_device("cuda");
    } catch (const RuntimeFailure&) {
      if (!quiet) fmt::print(stderr, "no CUDA device: the CPU alone is screened\n");
      return devices;
    }
    for (int index = 0; index < gpu_count(); ++index) devices.gpus.push_back(index);
    return devices;
  }
  for (const std::string& name : comma_separated(text)) {
    const c10::Device device = open_device(name);
    if (device.is_cpu())
      devices.cpu = true;
    else if (std::find(devices.gpus.begin(), devices.gpus.end(), device.index()) == devices.gpus.end())
      devices.gpus.push_back(device.index());
  }
  return devices;
}

screen::Load load_of(const std::string& name) {
  for (const screen::Load load :
       {screen::Load::kTraining, screen::Load::kInference, screen::Load::kMemory, screen::Load::kAll})
    if (name == screen::load_name(load)) return load;
  throw UsageError(fmt::format("--load: training, inference, memory or all; got '{}'", name));
}

screen::ScreenOptions options_of(const ScreenCommand& command, const Globals& globals) {
  screen::ScreenOptions options;
  options.load = load_of(command.load), options.seed = globals.seed(), options.rates = command.rates;
  options.seconds = 60 * parse_number("--minutes", command.minutes, 0.05, 10080);
  if (command.quick) options.seconds = 36;
  if (!command.seconds.empty()) options.seconds = parse_number("--seconds", command.seconds, 0.1, 604800);
  if (!command.memory_share.empty())
    options.memory_share = parse_number("--memory-share", command.memory_share, 0, 0.95);
  options.instruction_set = command.instruction_set;
  options.stop = &screen_interrupted;
  if (command.faults.empty()) options.program = own_program();
  return options;
}

// A fault planted in the operators that the screen calls, for who wants to see it find one.
class Planted {
 public:
  Planted(const std::vector<std::string>& faults, uint64_t seed) {
    if (faults.empty()) return;
    recipe::PlanSpec spec = recipe::read_plan_spec(recipe::recipe_of_rules(read_faults(faults), seed));
    plan_ = std::make_shared<tap::Plan>(std::move(spec.rules), spec.settings);
    tap::arm(plan_);
  }
  ~Planted() {
    if (plan_) tap::disarm();
  }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

  Json evidence() {
    double calls = 0, changed = 0;
    for (const tap::Plan::Evidence& one : plan_->read_evidence())
      calls += one.numbers.active_calls, changed += one.numbers.changed;
    if (changed == 0)
      throw EvidenceError(ComplaintCode::kNeverFired, "the planted fault changed nothing: no verdict stands on it");
    return {{"calls", calls}, {"elements_changed", changed}};
  }
  explicit operator bool() const { return plan_ != nullptr; }

 private:
  std::shared_ptr<tap::Plan> plan_;
};

std::string at_most(const Json& bound) {
  const auto most = bound["at_most_one_in"].get<int64_t>();
  return most == 0 ? "-" : fmt::format("1 in {}", format_count(most));
}

// cuda:0; of several hosts "node7 cuda:0".
std::string name_of(const Json& fleet, const Json& one) {
  const Json& host = one["identity"]["host"];
  const std::string device = one["device"].get<std::string>();
  const bool several = std::any_of(fleet["devices"].begin(), fleet["devices"].end(),
                                   [&](const Json& other) { return other["identity"]["host"] != host; });
  return several && host.is_string() ? host.get<std::string>() + " " + device : device;
}

void show_screens(const Json& fleet) {
  std::vector<std::vector<std::string>> rows = {{"device", "verdict", "launches", "wrong at most", "identity"}};
  for (const Json& one : fleet["devices"]) {
    const Json& identity = one["identity"];
    const Json name = identity.contains("name") ? identity["name"] : identity.value("model", Json());
    rows.push_back({name_of(fleet, one), one["verdict"],
                    format_count(one["bound"]["launches"]["tested"].get<int64_t>()), at_most(one["bound"]["launches"]),
                    name.is_string() ? name.get<std::string>() : "-"});
  }
  print(table(rows));
  for (const Json& one : fleet["devices"]) {
    const bool good = one["verdict"] == "healthy";
    print(fmt::format("{}: {}. {}\n", name_of(fleet, one),
                      styled(good ? Style::kGood : Style::kBad, one["verdict"].get<std::string>()),
                      one["sentence"].get<std::string>()));
    if (one.contains("rates"))
      for (const auto& [what, rate] : one["rates"].items())
        print(fmt::format("  {}: {:.4g} {} while screening, {:.1f} % of {:.4g} plain\n", what,
                          rate["screening"].get<double>(), rate["unit"].get<std::string>(),
                          100 * rate["share"].get<double>(), rate["plain"].get<double>()));
    for (const Json& sentence : one["not_tested"]) print("  not tested: " + sentence.get<std::string>() + "\n");
  }
}

ExitCode finish_screen(const Json& fleet, const ScreenCommand& command, const Globals& globals) {
  if (!command.prometheus.empty()) write_file_atomically(command.prometheus, screen::prometheus_text(fleet));
  if (globals.json)
    print_json(fleet);
  else
    show_screens(fleet);
  return static_cast<ExitCode>(fleet["exit_code"].get<int>());
}

ExitCode merge_screens(const ScreenCommand& command, const Globals& globals) {
  Json fleet = screen::merge(screen::read_records(command.merge));
  if (!command.out.empty()) record::write_result(command.out, fleet, maker_of(globals));
  return finish_screen(fleet, command, globals);
}

ExitCode run_drill(const ScreenCommand& command, const Globals& globals) {
  const Devices devices = devices_of(globals, true);
  screen::DrillOptions options;
  options.device = devices.gpus.empty() ? c10::Device(c10::kCPU)
                                        : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(devices.gpus[0]));
  options.seed = globals.seed();
  options.trials = static_cast<int64_t>(parse_count("--trials", command.trials, 0, 1000000));
  options.healthy = static_cast<int64_t>(parse_count("--healthy", command.healthy, 0, 1000000));
  options.large = command.large;
  options.most_seconds = parse_number("--most-seconds", command.most_seconds, 1, 604800);
  Progress progress("screen --selftest", options.trials + options.healthy,
                    {.unit = "trial", .quiet = globals.quiet || globals.json});
  options.progress = [&](int64_t, int64_t) { progress.advance(); };
  const screen::DrillResult result = screen::drill(options);
  progress.finish();
  Json json = screen::to_json(result);
  json["kind"] = "screen_selftest", json["device"] = options.device.str(), json["seed"] = options.seed;
  if (!command.out.empty()) record::write_result(command.out, json, maker_of(globals));
  if (globals.json) {
    print_json(json);
  } else {
    std::vector<std::vector<std::string>> rows = {{"side", "planted", "found", "at its place", "at its rate", "fault"}};
    for (const screen::DrillRow& row : result.rows)
      rows.push_back({row.source, std::to_string(row.planted), std::to_string(row.found), std::to_string(row.placed),
                      fmt::format("{} of {}", row.rate_right, row.rated), row.what});
    print(table(rows));
    using Row = screen::DrillRow;
    print(
        fmt::format("planted {}, found {}, at their place {}, at their rate {} of {}; healthy screens {}, accused {}\n",
                    result.sum(&Row::planted), result.sum(&Row::found), result.sum(&Row::placed),
                    result.sum(&Row::rate_right), result.sum(&Row::rated), result.healthy, result.accused));
    for (const std::string& one : result.not_planted) print("  not planted: " + one + "\n");
    for (const std::string& miss : result.misses) print("  " + miss + "\n");
  }
  return result.passed() ? ExitCode::kOk : ExitCode::kFound;
}

ExitCode run_screen(const ScreenCommand& command, const Globals& globals) {
  if (!command.merge.empty()) return merge_screens(command, globals);
  if (command.selftest) return run_drill(command, globals);
  screen::ScreenOptions options = options_of(command, globals);
  const Devices devices = devices_of(globals, globals.quiet || globals.json);
  std::signal(SIGINT, on_screen_interrupt);
  std::signal(SIGTERM, on_screen_interrupt);
  if (!globals.quiet && !globals.json)
    options.begins = [](const std::string& part, double seconds) {
      fmt::print(stderr, "{}{}\n", part, seconds > 0 ? fmt::format(" ({:.0f} s)", seconds) : "");
    };
  Planted planted(command.faults, globals.seed());
  std::optional<screen::BetweenRanks> ranks;
  if (command.between_ranks) {
    if (!screen::BetweenRanks::job() || devices.gpus.size() + (devices.cpu ? 1 : 0) != 1)
      throw UsageError(
          "--between-ranks: wanted one device in each of several ranks; start it with torchrun or srun and --device "
          "local or cpu");
    ranks.emplace(own_program(), devices.cpu ? "cpu" : fmt::format("cuda:{}", devices.gpus[0]), options.seconds,
                  globals.seed());
    options.under_load = [&] { ranks->start(); };
  }
  std::vector<Json> records(devices.gpus.size() + (devices.cpu ? 1 : 0));
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < devices.gpus.size(); ++i)
    running.emplace_back([&, i] {
      screen::ScreenOptions own = options;
      for (const int other : devices.gpus)
        if (other != devices.gpus[i]) own.peers.push_back(other);
      records[i] = screen::screen_gpu(devices.gpus[i], own);
    });
  for (std::thread& thread : running) thread.join();
  if (devices.cpu) records.back() = screen::screen_cpu(options);
  if (ranks) screen::add_between_ranks(records[0], ranks->finish());
  for (Json& one : records) {
    if (planted) one["planted"] = planted.evidence();
    if (command.out.empty()) continue;
    std::error_code ignored;
    std::filesystem::create_directories(command.out, ignored);
    screen::compare_with_earlier(one, screen::earlier_records(command.out, one["id"]));
    record::write_result(std::filesystem::path(command.out) / screen::file_name(one), one, maker_of(globals));
  }
  return finish_screen(screen::merge(records), command, globals);
}

}  // namespace

void add_screen(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command =
      app.add_subcommand("screen", "is this machine healthy: known answers under load, with an error rate");
  auto options = std::make_shared<ScreenCommand>();
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command->add_option(name, value, text)->group("Screen")->type_name(type);
  };
  option("--minutes", options->minutes, "how long a device is worked, 0.05 to 10080; the CPU after the GPUs", "N")
      ->capture_default_str();
  option("--seconds", options->seconds, "the same in seconds", "N");
  command->add_flag("--quick", options->quick, "36 seconds a device")->group("Screen");
  offer(
      option("--load", options->load, "what is run: training, inference, memory or all", "NAME")->capture_default_str(),
      {"training", "inference", "memory", "all"});
  option("--memory-share", options->memory_share,
         "this share of the free memory holds patterns, 0 to 0.95 (default: 0.5 of a GPU's, 0.05 of the host's)", "P");
  command
      ->add_flag("--between-ranks", options->between_ranks,
                 "under torchrun or srun: known bytes through collectives meanwhile")
      ->group("Fleet");
  command->add_flag("--rates", options->rates, "run every batch a second time unjudged: what judging costs")
      ->group("Screen");
  command->add_option("--fault", options->faults, "break the operators that are screened; may be repeated")
      ->group("Faults")
      ->type_name("'KIND(…) @ WHERE'");
  option("--instruction-set", options->instruction_set, "", "NAME")->group("");  // of the CPU's parts, which set it
  command
      ->add_option("--out", options->out,
                   "a record a device into this folder, compared with earlier ones there; with "
                   "--merge or --selftest a file")
      ->group("Output")
      ->type_name("PATH");
  command->add_option("--prometheus", options->prometheus, "metrics for a textfile collector")
      ->group("Output")
      ->type_name("FILE");
  command->add_option("--merge", options->merge, "screen nothing: records of many devices as one fleet")
      ->group("Fleet")
      ->type_name("FILE…");
  command->add_flag("--selftest", options->selftest, "plant faults in the screen and count what it finds")
      ->group("Self-test");
  const auto drill = [&](const char* name, std::string& value, const char* text) {
    command->add_option(name, value, text)->group("Self-test")->type_name("N")->capture_default_str();
  };
  drill("--trials", options->trials, "planted faults");
  drill("--healthy", options->healthy, "screens without one");
  drill("--most-seconds", options->most_seconds, "of planted faults, and again of screens without one; then it stops");
  command->add_flag("--large", options->large, "with a GPU's shapes in place of a core's")->group("Self-test");
  command->footer(
      where_help() +
      "Examples:\n  faultline screen --quick\n  faultline screen --device cuda:0,cuda:1 --minutes 5 --load training "
      "--out "
      "screens\n  faultline screen --merge screens/*.json --out fleet.json --prometheus fleet.prom\n  faultline screen "
      "--quick --device cpu --fault 'bitflip(rate=0.001) @ operator=matmul'\n\n"
      "--device: all (the default), local (the GPU of this rank of torchrun or srun), or names with commas: "
      "cpu,cuda:0.\n\n"
      "Exit codes: 0 healthy, 1 faulty: drain it, 2 could not be tested to the end, 3 the screen could not prove that "
      "it\n"
      "sees, 64 usage. Several devices: the first of 1, 3, 2 that one of them has.\n\nGlobal options: see `faultline "
      "--help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return run_screen(*options, globals); }; });
}

}  // namespace faultline::cli
