#include "cli/experiment_output.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/progress.h"
#include "cli/output.h"
#include "experiment/experiment.h"
#include "record/document.h"

namespace faultline::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string points(const Json& value) { return fmt::format("{:.1f}", 100 * value.get<double>()); }

std::string mean_text(const Json& value, double factor, const char* unit) {
  if (value.is_null()) return "";
  const std::string mean = fmt::format("{:.3g}", factor * value["mean"].get<double>());
  return value.contains("sd") ? fmt::format("{} ± {:.2g}{}", mean, factor * value["sd"].get<double>(), unit)
                              : mean + unit;
}

std::vector<std::string> table_row(const Json& row) {
  std::vector<std::string> cells = {row["arm"], fmt::format("{}", row["trials"].get<int64_t>()),
                                    mean_text(row["endpoint"], 100, " %"), mean_text(row["clean"], 100, " %")};
  const Json comparison = row.value("against_control", Json::object());
  if (comparison.contains("p")) {
    cells.push_back(fmt::format("{} [{}, {}]", points(comparison["difference"]), points(comparison["interval"][0]),
                                points(comparison["interval"][1])));
    cells.push_back(fmt::format("{:.3g}", comparison["p"].get<double>()));
    cells.push_back(fmt::format("{:.3g}", comparison["p_holm"].get<double>()));
    cells.push_back(comparison.contains("resolvable") ? points(comparison["resolvable"]) : "");
  } else {
    cells.insert(cells.end(), 4, "");
  }
  cells.push_back(fmt::format("{}/{}", row["died"].get<int64_t>(), row["evidence_missing"].get<int64_t>()));
  cells.push_back(mean_text(row["seconds_a_step"], 1, " s"));
  return cells;
}

void show(const Json& analysis, const std::string& store) {
  if (!analysis["question"].get<std::string>().empty()) print(analysis["question"].get<std::string>() + "\n\n");
  std::vector<std::vector<std::string>> rows = {{"arm", "trials", "endpoint", "clean", "difference, 95 %", "p",
                                                 "p (Holm)", "resolvable", "died/unproven", "a step"}};
  for (const Json& row : analysis["arms"]) rows.push_back(table_row(row));
  const std::string text = table(rows);
  const std::size_t heading = text.find('\n');
  print(styled(Style::kHeading, text.substr(0, heading)) + text.substr(heading));
  print("\nmeans over seeds ± SD; differences from the control in points, paired by seed; exact sign-flip tests\n");
  if (analysis.contains("fewest_pairs_for_holm"))
    print(fmt::format("{} seeds are the fewest with which Holm's first step can pass 0.05 here\n",
                      analysis["fewest_pairs_for_holm"].get<int64_t>()));
  print(fmt::format("record: {}\n", store));
}

}  // namespace

ExitCode run_and_show_experiment(const ModelOptions& options, const Node& recipe,
                                 const std::filesystem::path& recipe_file, const std::filesystem::path& out,
                                 bool dry_run, const Globals& globals) {
  const ExperimentSpec spec = read_experiment(recipe.at("experiment"));
  for (const Arm& arm : spec.arms) (void)arm_recipe(recipe, arm, 0);
  const std::string hash = json_hash(Json::parse(to_json(recipe).dump()));
  const std::filesystem::path folder = out / fmt::format("{}-{}", recipe_file.stem().string(), hash.substr(0, 8));
  if (dry_run) {
    OrderedJson arms = OrderedJson::object();
    for (const Arm& arm : spec.arms) arms[arm.name] = to_json(arm_recipe(recipe, arm, 0));
    if (globals.json) {
      print_json({{"command", "run"}, {"dry_run", true}, {"record", folder.string()}, {"arms", arms}});
    } else {
      print(fmt::format("{} arms x {} seeds = {} trials; record: {}\n", spec.arms.size(), spec.seeds,
                        std::ssize(spec.arms) * spec.seeds, folder.string()));
      for (const Arm& arm : spec.arms) print(fmt::format("  {}: {}\n", arm.name, joined(arm.overrides, " ")));
    }
    return ExitCode::kOk;
  }
  LoadedModel loaded = open_model(options, globals);
  const auto total = static_cast<int64_t>(spec.arms.size()) * spec.seeds;
  const int64_t done = finished_trials(spec, folder);
  {
    Progress bar("trials", total, {.unit = "trial", .already_done = done, .quiet = globals.quiet});
    bool first = true;
    ExperimentProgress progress;
    progress.on_trial = [&](const TrialKey& key) {
      if (!std::exchange(first, false)) bar.advance();
      bar.set_postfix(fmt::format("{}, seed {}", key.cell, key.index));
    };
    run_experiment(loaded, recipe, spec, folder, progress);
    if (!first) bar.advance();
  }
  const Json analysis = analyse(spec, folder);
  write_document(folder / "analysis.json", "experiment", analysis);
  if (globals.json) {
    print_json({{"command", "run"}, {"analysis", analysis}, {"record", folder.string()}});
  } else {
    show(analysis, folder.string());
  }
  for (const Json& row : analysis["arms"])
    if (row["evidence_missing"].get<int64_t>() > 0)
      throw EvidenceError(fmt::format("arm '{}': the evidence of {} trials is missing; see {}",
                                      row["arm"].get<std::string>(), row["evidence_missing"].get<int64_t>(),
                                      folder.string()));
  return ExitCode::kOk;
}

}  // namespace faultline::cli
