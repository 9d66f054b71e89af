#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "base/files/file.h"
#include "cli/model_options.h"
#include "cli/reproduce/rerun.h"
#include "diagnose/campaign/campaign.h"
#include "recipe/recipe.h"
#include "report/field.h"

namespace faultline::cli {

namespace fs = std::filesystem;
using report::LoadedRecord;

fs::path store_of(const LoadedRecord& campaign) {
  std::error_code ignored;
  return fs::is_directory(campaign.path, ignored) ? campaign.path / "campaign.sqlite" : campaign.path;
}

namespace {

Rerun planned(const LoadedRecord& record, const Json& how, const std::string& model, const fs::path& folder) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: {}", record.path.string(), why));
  };
  const fs::path store = store_of(record);
  std::error_code ignored;
  if (fs::exists(store.parent_path() / "experiment.json", ignored))
    refuse("it belongs to an experiment; reproduce the experiment's folder, when it has an analysis.json");
  Json recipe = report::at(how, "recipe");
  if (!report::at(recipe, "diagnose").is_object())
    refuse(fmt::format("it does not say how it was made: there is no {} with its recipe",
                       record::provenance_of_store(store).filename().string()));
  if (recipe.at("seed").get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    refuse("its seed is larger than a recipe's can be");
  Rerun rerun;
  rerun.result = folder / "again.sqlite";
  recipe["model"] = model;
  recipe["diagnose"]["store"] = rerun.result.filename().string();
  const fs::path file = folder / "campaign.json";
  write_file_atomically(file, to_json_text(recipe, 2) + "\n");
  record::CampaignStore trials(store, record::StoreUse::kRead);
  if (const auto left =
          std::ssize(diagnose::pending_trials(diagnose::read_campaign(recipe::load_recipe(file, {})), trials));
      left > 0)
    refuse(fmt::format("{} of its trials are left to do; only a whole record can be reproduced", left));
  rerun.arguments = {"run", file.string(), "--dtype=" + how.at("model").at("dtype").get<std::string>(),
                     "--device=" + how.at("device").get<std::string>(), "--out=" + folder.string()};
  return rerun;
}

}  // namespace

Rerun rerun_of_campaign(const LoadedRecord& record, const Json& how, const std::string& model, const fs::path& folder) {
  try {
    return planned(record, how, model, folder);
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: does not say how it was made: {}; it was edited or damaged",
                                 record::provenance_of_store(store_of(record)).string(), error.what()));
  }
}

Json content_of_campaign(const LoadedRecord& record) {
  Json content = Json::object();
  for (const Json& event : record.events)
    content[fmt::format("{}/{}", event.at("cell").get<std::string>(), event.at("index").get<int64_t>())] = event;
  return content;
}

}  // namespace faultline::cli
