// `faultline triage`: a matrix of mitigations around the reproducer, with statistics; see docs/race.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/provenance.h"
#include "cli/ray_options.h"
#include "cli/temporary_folder.h"
#include "triage/bisect.h"
#include "triage/campaign.h"
#include "triage/ray_executor.h"
#include "triage/report.h"

namespace faultline::cli {
namespace {

struct TriageOptions {
  std::string recipe, out, executor = "local", error_text = "0.05", baseline_text = "16", most_text = "2000";
  std::vector<std::string> overrides, mitigations;
  bool dry_run = false;
};

void print_any(const Json& json) { print_json(nlohmann::ordered_json::parse(to_json_text(json))); }

ExitCode dry_run(const triage::Plan& plan, const Globals& globals) {
  if (globals.json) {
    print_any(triage::to_json(plan));
    return ExitCode::kOk;
  }
  for (const std::string& line : triage::dry_run_lines(plan)) print(line + "\n");
  return ExitCode::kOk;
}

ExitCode triage_run(const TriageOptions& options, const Globals& globals) {
  const triage::Plan plan = triage::load_plan(options.recipe, options.overrides);
  if (options.dry_run) return dry_run(plan, globals);
  const bool on_ray = wants_ray(options.executor);
  triage::CampaignOptions campaign;
  campaign.folder = options.out.empty() ? std::filesystem::path("runs") / ("triage-" + plan.name)
                                        : std::filesystem::path(options.out);
  campaign.interrupted = interruption();
  campaign.provenance = provenance_json(globals);
  std::optional<Progress> progress;
  campaign.on_trial = [&](const triage::RecordedTrial& trial, int64_t done, int64_t total) {
    if (!progress)
      progress.emplace(
          "triage", total,
          ProgressOptions{.unit = "trial", .already_done = done - 1, .quiet = globals.quiet || globals.json});
    progress->set_postfix(fmt::format("{} {}", trial.cell, triage::verdict_name(trial.result.verdict)));
    progress->advance();
  };
  const std::unique_ptr<RayCluster> cluster = on_ray ? open_ray() : nullptr;
  const auto executor =
      cluster ? triage::ray_executor(*cluster) : triage::local_executor(own_program(), interruption());
  const triage::CampaignResult result = triage::run_campaign(plan, *executor, campaign);
  progress.reset();
  if (globals.json) {
    Json json = triage::to_json(result.matrix);
    json["folder"] = campaign.folder.string();
    json["ran"] = result.ran;
    json["resumed"] = result.resumed;
    json["interrupted"] = result.interrupted;
    if (cluster) json["ray"] = cluster->description();
    print_any(json);
  } else {
    print(triage::markdown(plan, result.matrix));
    print(fmt::format("\n{} trials, {} of them from an earlier run; {}\n", result.ran + result.resumed, result.resumed,
                      (campaign.folder / "matrix.html").string()));
    if (cluster) print(lost_sentence(*cluster));
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
  globals.json ? print_any(json) : print(table(rows));
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
  const triage::Plan plan = triage::load_plan(options.recipe, options.overrides);
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
  const auto executor = triage::local_executor(own_program(), interruption());
  const TemporaryFolder folder("bisect");
  const auto trial = [&](const std::vector<std::string>& names, int64_t index) {
    if (*interruption()) throw RuntimeFailure("interrupted");
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      std::filesystem::remove_all(entry.path());
    return executor->run(triage::make_request(plan, with_mitigations(plan, catalogue, names), index), folder.path())
        .verdict;
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
    print_any({{"found", result.found},
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

constexpr const char* kTriageFooter =
    "Examples:\n"
    "  faultline triage run --recipe recipes/race-smoke.yaml --dry-run\n"
    "  faultline triage run --recipe recipes/race-smoke.yaml --out runs/smoke trials=4\n"
    "  faultline triage bisect --recipe recipes/race-smoke.yaml --mitigation no-drill --mitigation ll-protocol\n"
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
    "  faultline triage run --recipe recipes/race-smoke.yaml --out runs/smoke trials=4\n\n"
    "`faultline report DIR` makes a page of the matrix. Global options: see `faultline --help`.";
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
  for (const bool mitigations : {true, false}) {
    CLI::App* list = command->add_subcommand(
        mitigations ? "list-mitigations" : "list-environments",
        mitigations ? "the built-in bundles a cell may stack" : "the built-in environments of a cell");
    list->callback(
        [&run, &globals, mitigations] { run = [&globals, mitigations] { return triage_list(mitigations, globals); }; });
  }
}

}  // namespace faultline::cli
