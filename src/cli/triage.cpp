// `faultline triage`: a matrix of mitigations around the reproducer, with statistics; see docs/race.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>

#include "base/files/temporary_folder.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/pace.h"
#include "triage/bisect.h"
#include "triage/campaign.h"
#include "triage/command_trial.h"
#include "triage/repetitions.h"
#include "triage/statistics.h"
#include "triage/support_bundle.h"

namespace faultline::cli {
namespace {

struct BundleOptions {
  std::string folder, out, most_log_text = "1024";
  bool hide_names = false;
};

struct TriageOptions {
  std::string recipe, out, executor = "local", error_text = "0.05", baseline_text = "16", most_text = "2000";
  std::vector<std::string> overrides, mitigations, imports;
  LaunchOptions launch;
  bool dry_run = false;
};

triage::Plan load_plan(const TriageOptions& options, const Globals& globals) {
  triage::Plan plan = triage::load_plan(options.recipe, options.overrides, globals.command);
  if (options.launch.given()) plan.set_launch(options.launch.launch());
  plan.set_imports(options.imports);
  if (!plan.launch.is_local() && options.executor != "local")
    throw UsageError(
        "--executor ray runs each trial on one machine of its own; leave out the launcher, or the executor");
  return plan;
}

ExitCode dry_run(const triage::Plan& plan, const Globals& globals) {
  if (globals.json) {
    print_json(triage::to_json(plan));
    return ExitCode::kOk;
  }
  for (const std::string& line : triage::dry_run_lines(plan)) print(line + "\n");
  return ExitCode::kOk;
}

ExitCode triage_run(const TriageOptions& options, const Globals& globals) {
  const triage::Plan plan = load_plan(options, globals);
  if (options.dry_run) return dry_run(plan, globals);
  if (!plan.command.empty() && options.executor != "local")
    throw UsageError("--executor: a command runs on this machine; use local");
  triage::CampaignOptions campaign;
  campaign.folder = options.out.empty() ? std::filesystem::path("runs") / ("triage-" + plan.name)
                                        : std::filesystem::path(options.out);
  campaign.provenance = record::made_by(maker_of(globals));
  std::optional<Progress> progress;
  campaign.on_trial = [&](const triage::RecordedTrial& trial, int64_t done, int64_t total) {
    if (!progress)
      progress.emplace(
          "triage", total,
          ProgressOptions{.unit = "trial", .already_done = done - 1, .quiet = globals.quiet || globals.json});
    progress->set_postfix(fmt::format("{} {}", trial.cell, triage::verdict_name(trial.result.verdict)));
    progress->advance();
  };
  const auto executor = open_executor({.executor = options.executor});
  const triage::CampaignResult result = triage::run_campaign(plan, *executor, campaign);
  progress.reset();
  const Json cluster = cluster_json(*executor, result.lost);
  if (globals.json) {
    Json json = triage::to_json(result.matrix);
    json["folder"] = campaign.folder.string();
    json["ran"] = result.ran;
    json["resumed"] = result.resumed;
    json["interrupted"] = result.interrupted;
    if (!cluster.is_null()) json["ray"] = cluster;
    print_json(json);
  } else {
    print(triage::markdown(plan, result.matrix));
    print(fmt::format("\n{} trials, {} of them from an earlier run; {}\n", result.ran + result.resumed, result.resumed,
                      (campaign.folder / "matrix.html").string()));
    print(cluster_sentence(cluster));
  }
  return result.interrupted || result.matrix.disqualified ? ExitCode::kRuntime : ExitCode::kOk;
}

ExitCode triage_list(bool mitigations, const Globals& globals) {
  const triage::Catalogue catalogue;
  Json json = Json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "variables", "description"}};
  for (const triage::Bundle& bundle : mitigations ? catalogue.mitigations() : catalogue.environments()) {
    std::vector<std::string> variables;
    for (const auto& [key, value] : bundle.variables) variables.push_back(key + "=" + value);
    rows.push_back({bundle.name, variables.empty() ? "-" : joined(variables, " "), bundle.description});
    json.push_back({{"name", bundle.name},
                    {"variables", bundle.variables},
                    {"description", bundle.description},
                    {"require_log", bundle.require_log}});
  }
  globals.json ? print_json(json) : print(table(rows));
  return ExitCode::kOk;
}

// The baseline cell with a set of mitigations in place of its own.
triage::Cell with_mitigations(const triage::Plan& plan, const triage::Catalogue& catalogue,
                              const std::vector<std::string>& names) {
  triage::Cell cell = plan.baseline_cell();
  cell.name = "bisect";
  cell.mitigations.clear();
  std::vector<triage::Bundle> bundles = {{"baseline", "", cell.variables, ""}};
  for (const std::string& name : names) bundles.push_back(catalogue.mitigation(Node(name)));
  cell.variables = triage::merge_bundles("bisect of " + joined(names, " + "), bundles);
  return cell;
}

ExitCode triage_bisect(const TriageOptions& options, const Globals& globals) {
  const triage::Plan plan = load_plan(options, globals);
  triage::Catalogue catalogue;
  catalogue.add(plan.resolved.at("mitigations"), true);
  for (const std::string& name : options.mitigations) (void)catalogue.mitigation(Node(name));
  triage::BisectOptions search;
  search.mitigations = options.mitigations;
  search.error = parse_number("--error", options.error_text, 1e-6, 0.5);
  search.baseline_trials = static_cast<int64_t>(parse_count("--baseline-trials", options.baseline_text, 1, 100000));
  search.max_trials = static_cast<int64_t>(parse_count("--max-trials", options.most_text, 1, 1000000));
  if (!globals.quiet && !globals.json)
    search.say = [](const std::string& sentence) { fmt::print(stderr, "{}\n", sentence); };
  (void)with_mitigations(plan, catalogue, options.mitigations);  // a conflict shows before the first trial
  const auto executor = trials::local_executor(1);
  const TemporaryFolder folder("bisect");
  std::map<std::vector<std::string>, std::vector<triage::RecordedTrial>> of_set;  // to hold a trial against
  const auto trial = [&](const std::vector<std::string>& names, int64_t index) {
    const triage::AskedTrial asked = triage::ask(
        triage::make_request(plan, with_mitigations(plan, catalogue, names), index), folder.path() / "trial");
    const trials::TaskEnd end = trials::run_alone(*executor, asked.task());
    if (end.interrupted) throw RuntimeFailure("interrupted");
    std::vector<triage::RecordedTrial>& trials = of_set[names];
    trials.push_back({joined(names, " + "), index, asked.request.seed, triage::read_result(asked, end), ""});
    return triage::judge_repetitions(trials).back().result.verdict;
  };
  const triage::BisectResult result = triage::bisect(search, trial);
  if (globals.json) {
    Json steps = Json::array();
    for (const triage::BisectStep& step : result.steps)
      steps.push_back({{"mitigations", step.mitigations},
                       {"trials", step.trials},
                       {"failures", step.failures},
                       {"errors", step.errors},
                       {"stops", step.stops}});
    print_json({{"found", result.found},
                {"reproduced", result.reproduced},
                {"mitigations", result.mitigations},
                {"trials", result.trials},
                {"trials_each", result.trials_each},
                {"baseline_low", result.baseline_low},
                {"error", search.error},
                {"steps", steps},
                {"sentence", result.sentence}});
  } else {
    print(result.sentence + "\n");
  }
  return result.found ? ExitCode::kOk : ExitCode::kFound;
}

std::string counts_text(const Json& counts) {
  std::vector<std::string> words;
  for (const auto& [kind, count] : counts.items()) words.push_back(fmt::format("{} {}", count.get<int64_t>(), kind));
  return words.empty() ? "-" : joined(words, ", ");
}

ExitCode triage_bundle(const BundleOptions& options, const Globals& globals) {
  triage::SupportBundleOptions bundle;
  bundle.folder = options.folder;
  const std::string name =
      (std::filesystem::absolute(bundle.folder) / "").lexically_normal().parent_path().filename().string();
  bundle.out = options.out.empty() ? name + "-bundle.tar.gz" : options.out;
  bundle.most_log = parse_count("--most-log", options.most_log_text, 1, 1 << 20) << 10;
  bundle.hide_names = options.hide_names;
  Json contents = triage::write_support_bundle(bundle);
  if (globals.json) {
    contents["out"] = bundle.out.string();
    print_json(contents);
    return ExitCode::kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"packed", "bytes", "left out of it", "replaced"}};
  for (const Json& file : contents["files"])
    rows.push_back({file["path"], std::to_string(file["packed"].get<uint64_t>()),
                    std::to_string(file["cut"].get<uint64_t>()), counts_text(file["replaced"])});
  print(table(rows));
  for (const Json& file : contents["left_out"])
    print(fmt::format("left out: {}: {}\n", file["path"].get<std::string>(), file["why"].get<std::string>()));
  print(
      fmt::format("\n{}: {} files; replaced: {}. What has no name and no form of a secret was not recognised: read it "
                  "before you send it.\n",
                  bundle.out.string(), contents["files"].size(), counts_text(contents["replaced"])));
  return ExitCode::kOk;
}

constexpr const char* kTriageFooter =
    "Examples:\n"
    "  faultline triage run --recipe recipes/race-smoke.yaml --dry-run\n"
    "  faultline triage run --recipe recipes/race-smoke.yaml --out runs/smoke trials=4\n"
    "  faultline triage bisect --recipe recipes/race-smoke.yaml --mitigation no-drill --mitigation ll-protocol\n"
    "  faultline triage run --recipe probe.yaml -- torchrun --nproc-per-node 8 train.py\n"
    "  faultline triage bundle runs/triage-probe\n"
    "  faultline triage list-mitigations\n\n"
    "--executor ray runs trials as tasks of the Ray cluster in RAY_ADDRESS (else of one on this machine), several at "
    "a\n"
    "time; FAULTLINE_PYTHON names a Python with ray. A trial whose worker is lost is run again, at most 4 times.\n"
    "A run that was ended goes on when the same command is given again.\n"
    "Exit codes: 0 done, 1 bisect found no set, 2 interrupted or the baseline did not run, 64 usage.\n"
    "Global options: see `faultline --help`.";

constexpr const char* kRunFooter =
    "Examples:\n"
    "  faultline triage run --recipe recipes/race-smoke.yaml --dry-run\n"
    "  faultline triage run --recipe recipes/race-smoke.yaml --out runs/smoke trials=4\n"
    "  faultline triage run --recipe probe.yaml -- torchrun --nproc-per-node 8 train.py\n\n"
    "A recipe with workload: command or mode: probe runs what stands behind --, as it is, without a shell;\n"
    "{trial_folder} among its words, and FAULTLINE_TRIAL_FOLDER, are the folder of the trial. The recipe's keys\n"
    "metrics, same_between_trials and fault_evidence judge what it writes there (docs/race.md).\n"
    "`faultline report DIR` makes a page of the matrix. Global options: see `faultline --help`.";
constexpr const char* kBundleFooter =
    "Examples:\n"
    "  faultline triage bundle runs/triage-probe\n"
    "  faultline triage bundle runs/triage-probe --out probe.tar --hide-names --most-log 64\n\n"
    "Replaced by (redacted): values of variables and fields that are called like secrets, tokens of known services,\n"
    "Authorization headers, passwords in URLs, private keys, and what this shell's own environment holds under such\n"
    "names. contents.json in the archive lists what was packed, replaced and left out.\n"
    "Global options: see `faultline --help`.";
constexpr const char* kBisectFooter =
    "Examples:\n"
    "  faultline triage bisect --recipe recipes/race-smoke.yaml --mitigation no-drill --mitigation ll-protocol\n"
    "  faultline triage bisect --recipe recipes/race-smoke.yaml --mitigation no-drill --error 0.01 --json\n\n"
    "Global options: see `faultline --help`.";

void add_common(CLI::App* command, TriageOptions& options) {
  command->add_option("--recipe", options.recipe, "the YAML or JSON file")
      ->group("Recipe")
      ->required()
      ->type_name("FILE");
  add_launch_options(*command, options.launch, "Recipe");
  command
      ->add_option("--import", options.imports, "with transport torch: a module that registers the backend or device")
      ->group("Recipe")
      ->type_name("MODULE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("overrides", options.overrides, "a.b=v changes, +a.b=v adds, ~a.b removes")->type_name("");
}

}  // namespace

void add_triage(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("triage", "a matrix of mitigations around the race, judged with statistics");
  command->require_subcommand(1);
  command->footer(kTriageFooter);
  auto options = std::make_shared<TriageOptions>();
  CLI::App* runs = command->add_subcommand("run", "run the recipe's matrix, or go on with it");
  add_common(runs, *options);
  runs->footer(kRunFooter);
  runs->add_flag("--dry-run", options->dry_run, "validate, and show what every cell would do")->group("Run");
  runs->add_option("--out,--output", options->out, "folder of the results; default runs/triage-NAME")
      ->group("Run")
      ->type_name("DIR");
  add_executor_option(*runs, options->executor, "Run");
  runs->callback([&run, &globals, options] { run = [&globals, options] { return triage_run(*options, globals); }; });
  CLI::App* search = command->add_subcommand("bisect", "find a smallest set of mitigations that stops the failure");
  add_common(search, *options);
  search->footer(kBisectFooter);
  search->add_option("--mitigation", options->mitigations, "a candidate; give it several times")
      ->group("Search")
      ->required()
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  search
      ->add_option("--error", options->error_text, "probability that a set that does not stop it is named, 1e-6 to 0.5")
      ->group("Search")
      ->capture_default_str()
      ->type_name("P");
  search->add_option("--baseline-trials", options->baseline_text, "to measure how often it fails, 1 to 100000")
      ->group("Search")
      ->capture_default_str()
      ->type_name("N");
  search->add_option("--max-trials", options->most_text, "of the whole search, 1 to 1000000")
      ->group("Search")
      ->capture_default_str()
      ->type_name("N");
  search->callback(
      [&run, &globals, options] { run = [&globals, options] { return triage_bisect(*options, globals); }; });
  auto folder = std::make_shared<std::string>();
  CLI::App* trial = command->add_subcommand("trial", "one trial of a command")->group("");  // what a campaign starts
  trial->add_option("folder", *folder)->required();
  trial->callback([&run, folder] {
    run = [folder] {
      triage::run_command_trial(*folder);
      return ExitCode::kOk;
    };
  });
  auto bundle_options = std::make_shared<BundleOptions>();
  CLI::App* bundle = command->add_subcommand("bundle", "pack a triage's folder for others, without secrets");
  bundle->footer(kBundleFooter);
  bundle->add_option("folder", bundle_options->folder, "of the triage")->required()->type_name("DIR");
  bundle->add_option("--out", bundle_options->out, ".tar.gz, .tgz or .tar; default NAME-bundle.tar.gz here")
      ->group("Bundle")
      ->type_name("FILE");
  bundle
      ->add_option("--most-log", bundle_options->most_log_text,
                   "KiB of a log or of a command's file; its middle is left out beyond; 1 to 1048576")
      ->group("Bundle")
      ->capture_default_str()
      ->type_name("N");
  bundle->add_flag("--hide-names", bundle_options->hide_names, "replace home folder, user and machine, too")
      ->group("Bundle");
  bundle->callback([&run, &globals, bundle_options] {
    run = [&globals, bundle_options] { return triage_bundle(*bundle_options, globals); };
  });
  for (const bool mitigations : {true, false}) {
    CLI::App* list = command->add_subcommand(
        mitigations ? "list-mitigations" : "list-environments",
        mitigations ? "the built-in bundles a cell may stack" : "the built-in environments of a cell");
    list->callback(
        [&run, &globals, mitigations] { run = [&globals, mitigations] { return triage_list(mitigations, globals); }; });
  }
}

}  // namespace faultline::cli
