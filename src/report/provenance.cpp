// Where a record comes from and how to make it again: the command, the resolved recipe, seeds, versions, machine. All
// of it from the manifest; where that is missing the page says so.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

std::string quoted(const std::string& word) {
  const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

Html steps(const std::string& command, const std::string& before) {
  return (before.empty() ? Html() : paragraph(text(before))) + code_block(command);
}

std::string options_of(const record::Manifest& manifest) {
  const std::string device = string(manifest.device, "name"), dtype = string(manifest.recipe, "dtype");
  return (dtype.empty() ? "" : " --dtype " + quoted(dtype)) + (device.empty() ? "" : " --device " + quoted(device));
}

Html by_recipe(const LoadedRecord& record) {
  Json recipe = record.manifest->recipe;
  recipe.erase("dtype");  // an option, not a section
  const char* command = record.kind == "train" ? "train" : "run";
  return steps(fmt::format("faultline {} recipe.json{}", command, options_of(*record.manifest)),
               "Save the recipe below as recipe.json; every default is written out in it.") +
         folded(text("The resolved recipe"), code_block(to_json_text(recipe, 2)));
}

Html by_command(const Json& command) {
  std::vector<std::string> words = {"faultline"};
  for (const Json& word : command) words.push_back(quoted(shown(word)));
  return steps(fmt::format("{}", fmt::join(words, " ")), "");
}

std::string short_commit(const Json& versions) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : fields(versions).items()) parts.push_back(fmt::format("{} {}", key, shown(value)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

Html rerun(const LoadedRecord& record) {
  if (record.kind == "triage")
    return steps(
        fmt::format("faultline triage run --recipe {}", quoted((record.path / "recipe.resolved.yaml").string())),
        "The recipe lies beside the matrix, with every default written out.");
  if (record.kind == "campaign")
    return steps(
        fmt::format("faultline reproduce {}", quoted(record.path.string())),
        "Makes every trial again and compares. The same campaign (faultline diagnose --campaign NAME --store FILE, "
        "or faultline run with its recipe) goes on with a store: trials that are in it are not made again.");
  if (record.kind == "experiment")
    return steps(
        fmt::format("faultline reproduce {}", quoted(record.path.string())),
        "Makes its trials again and compares; --arms and --seeds choose some. Where trials are missing, the command "
        "that it was begun with makes them.");
  // A record that is one file says itself who made it.
  if (const Json& command = at(at(record.document, "made_by"), "command"); command.is_array())
    return by_command(command);
  if (!record.manifest) return paragraph(text("The record does not say how it was made."), "note");
  const Json& command = at(record.manifest->recipe, "command");
  return command.is_array() ? by_command(command) : by_recipe(record);
}

Html provenance(const LoadedRecord& record) {
  std::vector<std::vector<Cell>> rows = {{"record", record.path.string()}};
  if (record.manifest) {
    const record::Manifest& manifest = *record.manifest;
    rows.push_back({"made", time_text(manifest.created)});
    rows.push_back({"recipe", fmt::format("{} ({})", manifest.recipe_name, manifest.hash())});
    rows.push_back({"model", string(manifest.recipe, "model")});
    rows.push_back({"seeds", to_json_text(manifest.seeds)});
    rows.push_back({"versions", short_commit(manifest.versions)});
    rows.push_back({"machine", short_commit(manifest.host)});
    rows.push_back({"device", short_commit(manifest.device)});
  }
  if (const Json& made_by = at(record.document, "made_by"); made_by.is_object()) {
    rows.push_back({"seed", string(made_by, "seed")});
    rows.push_back({"versions", short_commit(at(made_by, "versions"))});
    rows.push_back({"machine", short_commit(at(made_by, "host"))});
    rows.push_back({"device", string(made_by, "device")});
  }
  if (record.summary && record.summary->steps_planned > 0)
    rows.push_back({"steps", fmt::format("{} of {}", record.summary->step_reached, record.summary->steps_planned)});
  if (!record.events.empty()) rows.push_back({"events", number_text(static_cast<double>(record.events.size()))});
  Html out = table({}, rows);
  if (record.manifest)
    out += paragraph(text("Manifest, summary and ledger carry a seal and every event a checksum; all that is shown "
                          "here passed them, except where the page says otherwise."),
                     "note");
  return out;
}

}  // namespace faultline::report
