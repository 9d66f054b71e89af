// The command line. This file only parses, dispatches and turns the outcome into an exit code; what a command does is
// in the file of its name.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/reproduce/rerun.h"
#include "model/product.h"
#include "plugin/recipe_sections.h"
#include "site/torch_support.h"

// OpenMP's threads wait for work by spinning unless told otherwise, which ruins a machine that others use; its library
// reads this once, while it is loaded, which is before main.
extern "C" void wait_passively() { ::setenv("OMP_WAIT_POLICY", "PASSIVE", /*overwrite=*/0); }
__attribute__((section(".preinit_array"), used)) void (*const wait_passively_first)() = wait_passively;

namespace faultline::cli {
namespace {

constexpr const char* kIntroduction =
    "faultline plants numerical faults in tensors and models, counts the evidence\n"
    "that they happened, and finds them again.\n\n"
    "Start here:\n"
    "  faultline demo --quick                     the whole lab, and a page of it\n"
    "  faultline generate \"Why is the sky blue?\"  a language model; break it: --fault\n\n"
    "Your question (docs/tutorials/ has fp4, diagnose, aqn and network):\n"
    "  faultline eval --fault '…' --strengths …   does my model survive it?\n"
    "  faultline diagnose                         which layer is broken?\n"
    "  faultline train RECIPE                     does noise harden it?\n"
    "  faultline race                             was it the network?\n"
    "  faultline report DIR                       a page from the record of any run\n\n"
    "What there is:\n"
    "  faultline list faults                      also formats, schedules, tasks\n"
    "  faultline explain deadzone                 formula, parameters, an example\n"
    "  faultline apply 'gain(strength=0.05)'      a fault on made data, its ledger\n"
    "  faultline census                           which operators run, and how often\n"
    "  faultline selftest                         everything checked on this machine\n"
    "  faultline --help                           all commands and options\n";

void add_globals(CLI::App& app, Globals& globals, bool& version, bool& parse_only) {
  app.add_flag("--json", globals.json, "results as JSON, and nothing else on stdout")->group("Global options");
  app.add_flag("--quiet", globals.quiet, "results only: no hints, no progress")->group("Global options");
  app.add_option("--seed", globals.seed_text, "every random number follows from it; 0 to 2^64-1")
      ->group("Global options")
      ->capture_default_str()
      ->type_name("N");
  offer(app.add_option("--device", globals.device, "cpu, cuda or cuda:INDEX")
            ->group("Global options")
            ->capture_default_str()
            ->type_name("NAME"),
        {"cpu", "cuda"});
  offer(app.add_option("--color", globals.color, "auto, always or never; NO_COLOR is honoured")
            ->group("Global options")
            ->capture_default_str()
            ->type_name("WHEN"),
        {"auto", "always", "never"});
  app.add_flag("--version", version, "version, commit, torch, kernels")->group("Global options");
  app.add_flag("--parse-only", parse_only, "check the arguments, do nothing")->group("");  // for tests
  app.set_help_flag("-h,--help", "this text; also after a command")->group("Global options");
}

std::vector<std::string> known_words(const CLI::App& app, bool options) {
  std::vector<std::string> words;
  if (!options) {
    for (const CLI::App* command : app.get_subcommands({})) words.push_back(command->get_name());
    return words;
  }
  for (const CLI::App* level : {app.get_subcommands().empty() ? &app : app.get_subcommands().front(), &app}) {
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  }
  return words;
}

// What the parser could not place: an unknown command, option or one argument too many.
void refuse_extras(const CLI::App& app) {
  std::vector<std::string> extras = app.remaining(true);
  std::erase(extras, "--");  // the mark after which everything is an argument
  if (extras.empty()) return;
  const std::string& first = extras.front();
  const bool option = first.starts_with("-"), command = app.get_subcommands().empty() && !option;
  const std::string hint = option || command ? did_you_mean(first, known_words(app, option)) : "";
  throw UsageError(fmt::format("{} '{}'{}",
                               option    ? "unknown option"
                               : command ? "unknown command"
                                         : "unexpected argument",
                               first, hint.empty() ? "; see `faultline --help`" : hint));
}

// `faultline triage run … -- torchrun train.py`: the words behind the mark are somebody else's and are not parsed.
int take_command(int argc, char** argv, Globals& globals) {
  char** const end = argv + argc;
  char** const mark = std::find_if(argv + 1, end, [](const char* word) { return std::string_view(word) == "--"; });
  char** const triage =
      std::find_if(argv + 1, mark, [](const char* word) { return std::string_view(word) == "triage"; });
  if (mark == end || mark - triage < 2) return argc;
  const std::string_view what = triage[1];
  if (what != "run" && what != "bisect") return argc;
  globals.command.assign(mark + 1, end);
  return static_cast<int>(mark - argv);
}

ExitCode run_program(int argc, char** argv) {
  CLI::App app("faultline: numerical faults in tensors and models, planted, counted and found again", "faultline");
  Globals globals;
  globals.arguments.assign(argv + 1, argv + argc);
  argc = take_command(argc, argv, globals);
  Run run;
  bool version = false, parse_only = false;
  app.fallthrough();  // global options may stand after the command
  app.allow_extras();
  add_globals(app, globals, version, parse_only);
  for (const auto add :
       {add_demo,    add_generate, add_eval,   add_census,  add_diagnose,      add_scan,      add_compare,   add_run,
        add_train,   add_race,     add_screen, add_triage,  add_report,        add_reproduce, add_apply,     add_list,
        add_explain, add_check,    add_schema, add_convert, add_convert_model, add_selftest,  add_completion})
    add(app, globals, run);
  app.footer(
      "Examples:\n  faultline demo\n  faultline apply 'deadzone(threshold=0.04)' --shape 256x1024 --dtype bf16\n\n"
      "Exit codes: 0 fine, 1 a fault or failed check was found, 2 error at run time, 3 evidence missing, 64 usage.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  refuse_extras(app);
  choose_color(globals.color);
  (void)globals.seed();  // refused even where a command does not draw
  if (parse_only) return ExitCode::kOk;
  if (version) return print_version(globals);
  if (run) {
    plugin::register_recipe_sections();
    if (model::multiplies_bf16_slowly()) model::multiply_bf16_in_fp32();
    return run();
  }
  print(kIntroduction);
  return ExitCode::kOk;
}

// What to type next.
std::string next_step(const Error& error, int argc, char** argv) {
  if (const auto* missing = dynamic_cast<const EvidenceError*>(&error)) {
    const bool reached = std::none_of(missing->complaints().begin(), missing->complaints().end(), [](const auto& one) {
      return one.code == ComplaintCode::kNeverFired || one.code == ComplaintCode::kPartial;
    });
    return reached ? "" : "next: faultline census shows what a rule can reach\n";
  }
  if (error.code() != ExitCode::kUsage) return "";
  const std::string command = argc > 1 && argv[1][0] != '-' ? std::string(argv[1]) + " " : "";
  return fmt::format("next: faultline {}--help\n", command);
}

ExitCode guarded(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n{}", error.what(), next_step(error, argc, argv));
    return error.code();
  } catch (const site::UsageThroughTorch& error) {
    const UsageError ours(error.what_without_backtrace());
    fmt::print(stderr, "error: {}\n{}", ours.what(), next_step(ours, argc, argv));
    return ours.code();
  } catch (const c10::Error& error) {
    fmt::print(stderr, "error: torch: {}\n", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "error: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: internal: {}; please report this together with the command\n", error.what());
  }
  return ExitCode::kRuntime;
}

}  // namespace
}  // namespace faultline::cli

int main(int argc, char** argv) {
  using namespace faultline;
  std::signal(SIGPIPE, SIG_IGN);  // `faultline list faults | head -1` ends quietly
  const ExitCode code = cli::guarded(argc, argv);
  const ExitCode output = cli::finish_output();
  const int status = static_cast<int>(code == ExitCode::kOk ? output : code);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they report at a program's end
  // torch takes a third of a short command's time to undo its registrations one by one.
  std::fflush(nullptr);
  std::_Exit(status);
#endif
  return status;
}
