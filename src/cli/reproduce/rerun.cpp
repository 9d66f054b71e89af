#include "cli/reproduce/rerun.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "cli/model_options.h"
#include "record/checkpoint_state.h"
#include "record/document.h"
#include "record/environment.h"
#include "report/field.h"

namespace faultline::cli {
namespace {

namespace fs = std::filesystem;
using report::LoadedRecord;

std::string text_at(const Json& json, const char* key) {
  const Json& value = report::at(json, key);
  return value.is_string() ? value.get<std::string>() : "";
}

// Who made it: in the result of a race, else beside the record. Null where nothing says.
Json made_by(const LoadedRecord& record) {
  if (record.kind == "race") return report::at(record.document, "made_by");
  std::error_code ignored;
  const fs::path file =
      record.kind == "campaign" ? record::provenance_of_store(store_of(record)) : record.path / "provenance.json";
  return fs::exists(file, ignored) ? record::read_document(file, "provenance") : Json();
}

// The words after `eval`, without those that say where results go and without the model, which the manifest knows.
std::vector<std::string> eval_words(const LoadedRecord& record, const Json& command,
                                    const std::vector<std::string>& commands) {
  std::vector<std::string> kept = {"eval"};
  std::string option;  // the one before, if it still takes a value
  bool seen = false;
  for (const Json& item : command) {
    const std::string word = item.is_string() ? item.get<std::string>() : "";
    if (word.find(record::kRedacted) != std::string::npos)
      refuse_rerun(record, "its command held a secret, which was not recorded");
    const bool is_option = word.starts_with("--") && word.size() > 2;
    const std::string name = is_option ? word.substr(0, word.find('=')) : option;
    const bool left_out = name == "--json" || name == "--quiet" || name == "--out" || name == "--model" ||
                          name == "--color" || name == "--version" || name == "--help";
    if (!is_option && option.empty() && word == "eval" && !seen) {
      seen = true;
      continue;
    }
    const bool hides = std::find(commands.begin(), commands.end(), word) != commands.end();
    if (!is_option && (option.empty() || (option == "--fault" && hides)))
      refuse_rerun(record, fmt::format("its command holds '{}', which no evaluation takes", word.substr(0, 80)));
    if (!left_out) kept.push_back(word);
    const bool flag = name == "--json" || name == "--quiet" || name == "--version" || name == "--help";
    const bool takes_more = is_option ? word.find('=') == std::string::npos && !flag : option == "--fault";
    option = takes_more ? name : "";
  }
  if (!seen) refuse_rerun(record, "its command is no evaluation");
  return kept;
}

void add_device(Rerun& rerun, const record::Manifest& manifest) {
  if (const std::string device = text_at(manifest.device, "name"); !device.empty())
    rerun.arguments.insert(rerun.arguments.end(), {"--device", device});
}

// Its supervised steps are another run's: a training of its recipe would not be this one.
bool began_with_a_shared_start(const LoadedRecord& record) {
  return std::any_of(record.events.begin(), record.events.end(), [](const Json& event) {
    return report::at(event, "kind") == "start" && event.contains("weights");
  });
}

Rerun of_run_directory(const LoadedRecord& record, const fs::path& folder, const std::vector<std::string>& commands,
                       const RerunChoice& choice) {
  if (began_with_a_shared_start(record))
    refuse_rerun(record,
                 "it is a trial of an experiment, which shares its supervised steps with other trials; reproduce the "
                 "experiment's folder, with --arms and --seeds for this trial alone");
  const record::Manifest& manifest = *record.manifest;
  Rerun rerun;
  rerun.result = folder / "runs";
  rerun.below = true;
  Json recipe = manifest.recipe;
  const Json known = model_of(record, choice);
  const std::string model = text_at(known, "path");
  if (recipe.contains("command") && recipe["command"].is_array()) {
    rerun.arguments = eval_words(record, recipe["command"], commands);
    if (!model.empty()) rerun.arguments.insert(rerun.arguments.end(), {"--model", model});
  } else {
    // Its run directory holds one run; such a section would make the command carry out something else.
    for (const char* section : {"diagnose", "experiment"})
      if (recipe.contains(section))
        refuse_rerun(record,
                     fmt::format("the recipe in its manifest has a section {}, which no run directory has", section));
    const std::string dtype = text_at(known, "dtype"), older = text_at(recipe, "dtype");
    recipe.erase("dtype");
    if (!model.empty()) recipe["model"] = model;
    const fs::path file = folder / (record::sanitized_run_name(manifest.recipe_name) + ".json");
    write_file_atomically(file, to_json_text(recipe, 2) + "\n");
    rerun.arguments = {record.kind == "train" ? "train" : "run", file.string()};
    if (!dtype.empty() || !older.empty())
      rerun.arguments.insert(rerun.arguments.end(), {"--dtype", dtype.empty() ? older : dtype});
    add_device(rerun, manifest);
  }
  rerun.arguments.insert(rerun.arguments.end(), {"--out", rerun.result.string()});
  return rerun;
}

Rerun of_race(const LoadedRecord& record, const fs::path& folder) {
  const Json how = made_by(record);
  const Json& config = report::at(how, "config");
  const Json& ranks = report::at(how, "ranks");
  if (!config.is_object() || !ranks.is_number_integer())
    refuse_rerun(record, "it does not say how it was made (races do since --out keeps made_by); run the race again");
  const fs::path file = folder / "race.json";
  write_file_atomically(file, to_json_text({{"race", config}}, 2) + "\n");
  Rerun rerun;
  rerun.result = folder / "result.json";
  rerun.arguments = {"race",
                     "--recipe",
                     file.string(),
                     "--ranks",
                     ranks.dump(),
                     "--transport",
                     text_at(how, "transport"),
                     "--device",
                     text_at(how, "device"),
                     "--seed",
                     text_at(how, "seed"),
                     "--out",
                     rerun.result.string()};
  if (const Json& imports = report::at(how, "imports"); imports.is_array() && !imports.empty())
    refuse_rerun(record,
                 "its ranks imported modules of Python, and a record chooses no code; run `python -m faultline.race` "
                 "with the --import that you want");
  if (const std::string backend = text_at(how, "backend"); !backend.empty())
    rerun.arguments.insert(rerun.arguments.end(), {"--backend", backend});
  return rerun;
}

Rerun of_triage(const LoadedRecord& record, const fs::path& folder) {
  if (const Json& command = report::at(report::at(record.document, "plan"), "command");
      command.is_array() && !command.empty())
    refuse_rerun(record,
                 "its trials were a command, and a record chooses none; run `faultline triage run --recipe "
                 "recipe.resolved.yaml -- COMMAND` with the command that you want");
  std::error_code error;
  const fs::path recipe = record.path / "recipe.resolved.yaml", copy = folder / "recipe.yaml";
  fs::copy_file(recipe, copy, error);
  if (error) refuse_rerun(record, fmt::format("recipe.resolved.yaml cannot be copied: {}", error.message()));
  Rerun rerun;
  rerun.result = folder / "triage";
  rerun.arguments = {"triage", "run", "--recipe", copy.string(), "--out", rerun.result.string()};
  return rerun;
}

// The hash of the final weights, where a checkpoint is left.
Json checkpoint_of(const LoadedRecord& record) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(record.path / "checkpoints", ignored))
    if (entry.path().filename().string().starts_with("step-")) found.push_back(entry.path());
  if (found.empty()) return nullptr;
  const fs::path newest = *std::max_element(found.begin(), found.end());
  const record::CheckpointState state = record::read_checkpoint_state(newest / "state.json");
  return {{"folder", newest.filename().string()}, {"tensors", state.tensors}};
}

// Rows are of a run's last part; how many parts there were is no result.
Json joined_part_of(const Json& ledger) {
  Json joined = report::at(ledger, "joined");
  if (joined.is_object()) joined.erase("parts");
  return joined;
}

// Of complaints their sentences are compared: records of before they had codes hold nothing else.
Json with_sentences(Json tree) {
  if (!tree.is_structured()) return tree;
  for (auto one = tree.begin(); one != tree.end(); ++one) {
    if (tree.is_object() && one.key() == "complaints" && one->is_array())
      for (Json& complaint : *one) complaint = report::sentence_of(complaint);
    else
      *one = with_sentences(std::move(*one));
  }
  return tree;
}

Json recorded_content(const LoadedRecord& record, const Rerun& rerun) {
  if (record.kind == "race") return record.document;
  if (record.kind == "experiment") return content_of_experiment(record, rerun);
  if (record.kind == "campaign" || record.kind == "triage") return content_of_campaign(record);
  Json content = {{"events", record.events}};
  if (record.summary)
    content["summary"] = {{"step_reached", record.summary->step_reached},
                          {"steps_planned", record.summary->steps_planned},
                          {"results", record.summary->results}};
  if (!record.ledger.is_null()) content["ledger"] = rerun.resumed ? joined_part_of(record.ledger) : record.ledger;
  if (rerun.checkpoint && record.manifest)
    if (const Json checkpoint = checkpoint_of(record); !checkpoint.is_null()) content["checkpoint"] = checkpoint;
  return content;
}

}  // namespace

void refuse_rerun(const LoadedRecord& record, const std::string& why) {
  throw UsageError(fmt::format("{}: {}", record.path.string(), why));
}

Rerun plan_rerun(const LoadedRecord& record, const fs::path& folder, const std::vector<std::string>& commands,
                 const RerunChoice& choice) {
  Rerun rerun;
  if (record.kind == "experiment")
    rerun = rerun_of_experiment(record, text_at(model_of(record, choice), "path"), folder, choice);
  else if (!choice.arms.empty() || !choice.seeds.empty())
    refuse_rerun(record, "--arms and --seeds choose trials of an experiment, and it is none");
  else if (record.manifest)
    rerun = of_run_directory(record, folder, commands, choice);
  else if (record.kind == "race")
    rerun = of_race(record, folder);
  else if (record.kind == "triage")
    rerun = of_triage(record, folder);
  else if (record.kind == "campaign")
    rerun = rerun_of_campaign(record, made_by(record), text_at(model_of(record, choice), "path"), folder);
  else
    refuse_rerun(
        record,
        fmt::format(
            "a record of kind '{}' cannot be made again from itself alone; wanted a run directory "
            "(eval, run, train), the result of a race, the folder of a triage or of an experiment, or the store of a "
            "campaign of diagnoses",
            record.kind));
  rerun.resumed = report::at(report::at(record.ledger, "joined"), "parts").is_number() &&
                  report::at(record.ledger, "joined").at("parts") != 1;
  rerun.checkpoint = record.manifest && !checkpoint_of(record).is_null();
  rerun.arguments.emplace_back("--json");
  return rerun;
}

std::vector<Json> versions_of(const LoadedRecord& record, const RerunChoice& choice) {
  if (record.kind == "experiment") return versions_of_trials(record, choice);
  const Json who = made_by(record);
  const Json& versions = report::at(who, "versions");
  if (!versions.is_object()) return {};
  std::vector<Json> all = {versions};
  for (const Json& later : report::items(report::at(who, "later_versions"))) all.push_back(later);
  return all;
}

Json model_of(const LoadedRecord& record, const RerunChoice& choice) {
  Json model = report::at(made_by(record), "model");
  if (!model.is_object()) model = Json::object();
  if (!choice.model.empty()) model["path"] = choice.model;
  return model;
}

Json environment_of(const LoadedRecord& record) {
  const Json who = made_by(record);
  const Json& recorded = report::at(who, "environment");
  return recorded.is_object() ? recorded : Json::object();
}

Json content_of(const LoadedRecord& record, const Rerun& rerun) {
  return with_sentences(recorded_content(record, rerun));
}

}  // namespace faultline::cli
