#include <fmt/format.h>

#include <fstream>

#include "base/error.h"
#include "base/files/file.h"
#include "diagnose/campaign/campaign.h"

namespace faultline::diagnose {
namespace {

constexpr std::string_view kSqliteMagic = "SQLite format 3";

record::TrialStatus status_named(const std::string& name, const std::string& origin) {
  for (const record::TrialStatus status :
       {record::TrialStatus::kPass, record::TrialStatus::kFail, record::TrialStatus::kError})
    if (name == record::to_string(status)) return status;
  throw RuntimeFailure(fmt::format("{}: status: wanted pass, fail or error, found '{}'", origin, name));
}

}  // namespace

Json to_record(const record::Trial& trial) {
  return {{"cell", trial.key.cell},
          {"index", trial.key.index},
          {"seed", std::to_string(trial.seed)},
          {"status", std::string(record::to_string(trial.status))},
          {"started", trial.started},
          {"finished", trial.finished},
          {"fingerprint", trial.fingerprint},
          {"outcome", trial.outcome},
          {"evidence", trial.evidence}};
}

record::Trial trial_from_record(const Json& record, const std::string& origin) {
  try {
    record::Trial trial;
    trial.key = {record.at("cell").get<std::string>(), record.at("index").get<int64_t>()};
    trial.seed = std::stoull(record.at("seed").get<std::string>());
    trial.status = status_named(record.at("status").get<std::string>(), origin);
    trial.started = record.at("started").get<double>(), trial.finished = record.at("finished").get<double>();
    trial.fingerprint = record.at("fingerprint").get<std::string>();
    trial.outcome = record.at("outcome"), trial.evidence = record.at("evidence");
    if (!trial.outcome.is_object()) throw RuntimeFailure(origin + ": outcome: wanted a map");
    return trial;
  } catch (const Json::exception& error) {
    throw RuntimeFailure(fmt::format("{}: no record of a trial: {}", origin, error.what()));
  } catch (const std::logic_error& error) {  // stoull
    throw RuntimeFailure(fmt::format("{}: no record of a trial: seed: {}", origin, error.what()));
  }
}

Json campaign_request(const CampaignMachine& machine, const CampaignSpec& spec) {
  return {{"model", machine.model},
          {"dtype", machine.dtype},
          {"device", machine.device},
          {"weights", machine.weights},
          {"preset", spec.preset},
          {"methods", spec.methods},
          {"seed", std::to_string(spec.seed)},
          {"tokens", spec.tokens}};
}

std::pair<CampaignMachine, CampaignSpec> campaign_from_request(const Json& request) {
  try {
    CampaignMachine machine{request.at("model").get<std::string>(), request.at("dtype").get<std::string>(),
                            request.at("device").get<std::string>(), request.at("weights").get<std::string>()};
    CampaignSpec spec = campaign_spec(request.at("preset").get<std::string>());
    spec.methods = request.at("methods").get<std::vector<std::string>>();
    spec.seed = std::stoull(request.at("seed").get<std::string>());
    spec.tokens = request.at("tokens").get<int64_t>();
    return {machine, spec};
  } catch (const Json::exception& error) {
    throw UsageError(
        fmt::format("--worker: the first line of the input is no campaign: {}; a campaign starts its "
                    "workers itself, see `faultline run --help`",
                    error.what()));
  }
}

void write_records(record::CampaignStore& store, const std::filesystem::path& path) {
  std::string text;
  store.for_each([&](record::Trial&& trial) { text += to_json_text(to_record(trial)) + "\n"; });
  write_file_atomically(path, text);
}

void for_each_trial(const std::filesystem::path& path, const std::function<void(const record::Trial&)>& visit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(path.string() + ": cannot be read; give a campaign's store or its records");
  std::string line(kSqliteMagic.size(), '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  if (line == kSqliteMagic) {
    record::CampaignStore(path, record::StoreUse::kRead).for_each([&](record::Trial&& trial) { visit(trial); });
    return;
  }
  file.clear();
  file.seekg(0);
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const std::string origin = fmt::format("{}:{}", path.string(), number);
    visit(trial_from_record(parse_json_text(line, origin), origin));
  }
}

}  // namespace faultline::diagnose
