#include <fmt/format.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/experiment_command.h"
#include "cli/output.h"
#include "lab/training_run.h"

namespace faultline::cli {
namespace {

std::string points(const Json& value) { return fmt::format("{:.1f}", 100 * value.get<double>()); }

std::string mean_text(const Json& value, double factor, const char* unit) {
  if (value.is_null()) return "";
  const std::string mean = fmt::format("{:.3g}", factor * value["mean"].get<double>());
  return value.contains("sd") ? fmt::format("{} ± {:.2g}{}", mean, factor * value["sd"].get<double>(), unit)
                              : mean + unit;
}

std::string difference_text(const Json& comparison) {
  if (!comparison.contains("interval")) return "";
  return fmt::format("{} [{}, {}]", points(comparison["difference"]), points(comparison["interval"][0]),
                     points(comparison["interval"][1]));
}

std::string overhead_text(const Json& overhead) {
  if (overhead.is_null()) return "";
  return fmt::format("{:+.1f} % [{}, {}]", 100 * overhead["mean"].get<double>(), points(overhead["interval"][0]),
                     points(overhead["interval"][1]));
}

std::string headed(const std::vector<std::vector<std::string>>& rows) {
  const std::string text = table(rows);
  const std::size_t heading = text.find('\n');
  return styled(Style::kHeading, text.substr(0, heading)) + text.substr(heading);
}

std::vector<std::string> arm_row(const Json& row) {
  return {row["arm"],
          fmt::format("{}", row["trials"].get<int64_t>()),
          mean_text(row["endpoint"], 100, " %"),
          mean_text(row["clean"], 100, " %"),
          mean_text(row["gain"], 100, ""),
          difference_text(row.value("against_control", Json::object())),
          fmt::format("{}/{}", row["died"].get<int64_t>(), row["evidence_missing"].get<int64_t>()),
          mean_text(row["roughness"], 1, ""),
          mean_text(row["seconds_a_step"], 1, " s"),
          overhead_text(row.value("overhead", Json()))};
}

void show_contrasts(const Json& contrasts) {
  std::vector<std::vector<std::string>> rows = {
      {"contrast", "pairs", "difference, 95 %", "p", "p (Holm)", "resolvable"}};
  for (const Json& one : contrasts) {
    const bool tested = one.contains("p");
    rows.push_back({one["name"], fmt::format("{}", one["pairs"].get<int64_t>()), difference_text(one),
                    tested ? fmt::format("{:.3g}", one["p"].get<double>()) : "",
                    tested ? fmt::format("{:.3g}", one["p_holm"].get<double>()) : "",
                    tested && !one["resolvable"].is_null() ? points(one["resolvable"]) : ""});
  }
  print("\n" + headed(rows));
}

void show_under(const Json& arms) {
  std::vector<std::vector<std::string>> rows = {
      {"final model under", "arm", "accuracy", "lost", "won back", "difference, 95 %"}};
  for (const Json& arm : arms)
    if (arm.contains("under"))
      for (const auto& [label, one] : arm["under"].items())
        rows.push_back({label, arm["arm"], mean_text(one["accuracy"], 100, " %"),
                        mean_text(one["degradation"], 100, ""), mean_text(one["recovery"], 100, " %"),
                        difference_text(one.value("against_control", Json::object()))});
  if (rows.size() > 1) print("\n" + headed(rows));
}

void show_earlier(const Json& analysis) {
  for (const Json& arm : analysis["arms"])
    if (const Json earlier = arm.value("earlier_attempts", Json::array()); !earlier.empty())
      print(fmt::format("\n{}: {} trials are later attempts; without proof before: {}\n", arm["arm"].get<std::string>(),
                        earlier.size(), earlier[0].get<std::string>()));
}

void show_alarms(const Json& analysis) {
  for (const Json& arm : analysis["arms"])
    if (const int64_t same = arm.value("identical_seeds", int64_t{0}); same > 0)
      print(fmt::format("\n{}: '{}' lost exactly what '{}' did, step by step, in {} seeds\n",
                        styled(Style::kBad, "alarm"), arm["arm"].get<std::string>(),
                        analysis["control"].get<std::string>(), same));
  for (const Json& one : analysis["contrasts"])
    if (const int64_t same = one.value("identical_seeds", int64_t{0});
        same > 0 && one["against"] != analysis["control"])
      print(fmt::format("\n{}: '{}' lost exactly what '{}' did, step by step, in {} seeds\n",
                        styled(Style::kBad, "alarm"), one["arm"].get<std::string>(), one["against"].get<std::string>(),
                        same));
  if (const Json starts = analysis.value("starts", Json::object()); starts.value("alarm", false))
    print(
        fmt::format("\n{}: what the seeds begin with rises or falls with their number (p = {:.2g}): they do not look "
                    "independent, so intervals and p-values do not hold\n",
                    styled(Style::kBad, "alarm"), starts["p_of_a_trend"].get<double>()));
}

void show_remarks(const Json& analysis) {
  for (const Json& remark : analysis["remarks"])
    print(fmt::format("\n{}: {}\n", styled(Style::kHeading, "remark"), remark.get<std::string>()));
}

std::string made_with_text(const Json& made_with) {
  std::vector<std::string> programs;
  for (const Json& one : made_with["versions"])
    programs.push_back(fmt::format("faultline {} (commit {}), torch {}", one.value("version", "?"),
                                   one.value("commit", "?"), one.value("torch", "?")));
  if (made_with["trials_without_versions"] > 0) programs.emplace_back("a version that the trials do not name");
  return fmt::format("trained on {} with {}\n", joined(made_with["devices"].get<std::vector<std::string>>(), ", "),
                     joined(programs, "; "));
}

std::string design_text(const Json& design) {
  std::string text =
      fmt::format("design: {} seeds, {} contrasts", design["seeds"].get<int64_t>(), design["contrasts"].size());
  if (design.contains("fewest_pairs_for_holm"))
    text += fmt::format("; {} seeds are the fewest with which Holm's first step can pass 0.05",
                        design["fewest_pairs_for_holm"].get<int64_t>());
  if (design["pilot"].is_null()) return text + "; no pilot\n";
  text += fmt::format("\npilot: {} pairs, SD of differences {} points", design["pilot"]["pairs"].get<int64_t>(),
                      points(design["pilot"]["sd_of_differences"]));
  if (design.contains("resolvable"))
    text += fmt::format("; {} points are resolved with 80 % power ({} for a single contrast)",
                        points(design["resolvable"]), points(design["resolvable_alone"]));
  if (design.contains("pairs_for_three_points"))  // designs of older versions did not ask what Holm's first step takes
    text += fmt::format("; 3 points need {} pairs", std::max(design["pairs_for_three_points"].get<int64_t>(),
                                                             design["fewest_pairs_for_holm"].get<int64_t>()));
  return text + "\n";
}

// Refuses what a trial of the arm would be refused for. -> what its training will cost
Json check_arm(lab::LoadedModel& loaded, const experiment::Arm& arm, const Node& recipe) {
  try {
    Json prediction = lab::TrainingRun(loaded, lab::read_training(recipe)).prediction();
    for (model::Linear* linear : loaded.model->linears()) linear->adapter = {};  // the next arm may have none
    return prediction;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("arm '{}': {}", arm.name, error.what()));
  } catch (const EvidenceError& error) {
    throw EvidenceError(fmt::format("arm '{}': ", arm.name), error.complaints());
  }
}

}  // namespace

void show_design(const Json& design, const std::string& folder, const Globals& globals) {
  if (globals.json) return print_json({{"command", "run"}, {"design", design}, {"record", folder}});
  print(design_text(design) + fmt::format("record: {}\n", folder));
}

void show_left(int64_t left, const std::string& folder, const Globals& globals) {
  if (globals.json) return print_json({{"command", "run"}, {"left", left}, {"record", folder}});
  print(
      fmt::format("{} trials of the pilot are left; --pilot goes on, and after the last the design is written\n"
                  "record: {}\n",
                  left, folder));
}

void show_analysis(const Json& analysis, const std::string& folder, int64_t left, int64_t merged,
                   const Globals& globals) {
  if (globals.json)
    return print_json(
        {{"command", "run"}, {"analysis", analysis}, {"left", left}, {"merged", merged}, {"record", folder}});
  if (!analysis["question"].get<std::string>().empty()) print(analysis["question"].get<std::string>() + "\n\n");
  std::vector<std::vector<std::string>> rows = {{"arm", "trials", "endpoint", "clean", "gain", "against control, 95 %",
                                                 "died/unproven", "roughness", "a step", "overhead"}};
  for (const Json& row : analysis["arms"]) rows.push_back(arm_row(row));
  print(headed(rows));
  if (!analysis["contrasts"].empty()) show_contrasts(analysis["contrasts"]);
  show_under(analysis["arms"]);
  show_earlier(analysis);
  show_alarms(analysis);
  show_remarks(analysis);
  print(fmt::format(
      "\nendpoint: {}\nmeans over seeds ± SD; differences in points, paired by seed; exact sign-flip tests, "
      "Holm over the contrasts\n",
      analysis["endpoint"].get<std::string>()));
  if (!analysis["made_with"]["devices"].empty()) print(made_with_text(analysis["made_with"]));
  if (analysis.contains("design")) print(design_text(analysis["design"]));
  if (merged > 0) print(fmt::format("{} trials were merged\n", merged));
  if (analysis.contains("ray"))
    print(fmt::format("on {} machines; {} lost workers, whose trials were run again\n",
                      analysis["ray"]["nodes"].get<int64_t>(), analysis["ray"]["lost"].get<int64_t>()));
  if (left > 0) print(fmt::format("{} trials are left; the same command goes on\n", left));
  print(fmt::format("record: {}\n", folder));
}

ExitCode show_dry_run(const experiment::Experiment& experiment, const experiment::CampaignPart& part, bool again,
                      lab::LoadedModel loaded, const Globals& globals) {
  Json arms = Json::object();
  Json prediction;
  const experiment::ExperimentSpec& spec = experiment.spec();
  for (const experiment::Arm& arm : spec.arms) {
    const Node recipe = experiment.trial_recipe({arm.name, 0});
    arms[arm.name] = to_json(recipe);
    if (experiment::reads_verdict(recipe)) continue;  // there is none yet
    if (prediction.is_null())
      prediction = check_arm(loaded, arm, recipe);
    else
      (void)lab::read_training(recipe);  // a step of every arm would take minutes on a CPU
  }
  const int64_t trials = std::ssize(experiment.keys(part)),
                left = std::ssize(experiment.pending(part)) + (again ? experiment.unproven(part) : 0);
  const double seconds = prediction.is_null() ? 0 : static_cast<double>(left) * prediction["seconds"].get<double>();
  if (globals.json) {
    print_json({{"command", "run"},
                {"dry_run", true},
                {"record", experiment.folder().string()},
                {"arms", arms},
                {"trials", trials},
                {"left", left},
                {"prediction", prediction},
                {"seconds", seconds}});
    return ExitCode::kOk;
  }
  print(fmt::format("{} arms x {} seeds: {} trials, {} left; record: {}\n", spec.arms.size(), spec.seeds, trials, left,
                    experiment.folder().string()));
  for (const experiment::Arm& arm : spec.arms) print(fmt::format("  {}: {}\n", arm.name, joined(arm.overrides, " ")));
  for (const experiment::Contrast& contrast : spec.contrasts)
    print(fmt::format("  contrast {}: {} - {}\n", contrast.name, contrast.arm, contrast.against));
  if (prediction.is_null()) return ExitCode::kOk;
  print(fmt::format("memory {:.2f} GiB; a trial at most about {}, all that are left {} in one process\n",
                    prediction["memory_bytes"]["total"].get<double>() / 0x1p30,
                    format_duration(prediction["seconds"].get<double>()), format_duration(seconds)));
  return ExitCode::kOk;
}

}  // namespace faultline::cli
