#include "cli/diagnose_campaign.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/files/temporary_folder.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/pace.h"
#include "diagnose/campaign/campaign_trial.h"
#include "model/build.h"
#include "record/document.h"

namespace faultline::cli {
namespace {

void show(const Json& summary, const CampaignOptions& options, const Globals& globals, const Json& cluster = nullptr) {
  if (globals.json) {
    Json json = {{"command", "diagnose"}, {"campaign", options.preset}, {"summary", summary}};
    if (!cluster.is_null()) json["ray"] = cluster;
    print_json(json);
    return;
  }
  print(options.markdown ? summary_markdown(summary) : summary_text(summary));
  if (!cluster.is_null()) print("\n" + cluster_sentence(cluster));
}

// Who began a store, and the recipe that makes its trials.
Json campaign_provenance(const diagnose::CampaignMachine& machine, const diagnose::CampaignSpec& spec,
                         const lab::LoadedModel& loaded, const Globals& globals) {
  Json provenance = record::made_by(maker_of(globals, &loaded));
  provenance["device"] = machine.device;
  provenance["recipe"] = {{"model", machine.model},
                          {"seed", spec.seed},
                          {"diagnose",
                           {{"campaign", spec.preset},
                            {"methods", spec.methods},
                            {"trials", spec.trials},
                            {"healthy", spec.healthy},
                            {"rare", spec.rare},
                            {"fading", spec.fading},
                            {"tokens", spec.tokens}}}};
  return provenance;
}

Json with_later(Json known, const Json& now) {
  for (const char* count : {"trials", "healthy", "rare", "fading"}) {
    Json& most = known.at("recipe").at("diagnose").at(count);
    most = std::max(most.get<int64_t>(), now.at("recipe").at("diagnose").at(count).get<int64_t>());
  }
  Json& later = known["later_versions"];
  if (known.at("versions") != now.at("versions") &&
      std::find(later.begin(), later.end(), now.at("versions")) == later.end())
    later.push_back(now.at("versions"));
  if (later.is_null()) known.erase("later_versions");
  return known;
}

// Beside the store: who began it and what makes its trials. Who goes on with it may make more of them, with another
// version; a store that was begun without stays without.
void keep_provenance(record::CampaignStore& trials, const std::filesystem::path& store, const Json& now) {
  const std::filesystem::path file = record::provenance_of_store(store);
  if (trials.empty()) return record::write_document(file, "provenance", now);
  if (!std::filesystem::exists(file)) return;
  const Json before = record::read_document(file, "provenance");
  try {
    if (const Json known = with_later(before, now); known != before) record::write_document(file, "provenance", known);
  } catch (const Json::exception& error) {
    throw UsageError(
        fmt::format("{}: does not say how the store was begun: {}; remove it, and the store goes on without",
                    file.string(), error.what()));
  }
}

}  // namespace

void add_campaign_run_options(CLI::App& command, CampaignOptions& options) {
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->group("Campaign of diagnoses")->type_name(type);
  };
  option("--records", options.records, "also write all trials of the store as JSON lines", "FILE");
  command.add_flag("--markdown", options.markdown, "the summary as Markdown tables")->group("Campaign of diagnoses");
}

void add_campaign_options(CLI::App& command, CampaignOptions& options) {
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->group("Campaign of diagnoses")->type_name(type);
  };
  offer(option("--campaign", options.preset, "measure the methods instead: smoke, full or edges", "PRESET"),
        {"smoke", "full", "edges"});
  option("--store", options.store, "trials are kept and continued here", "FILE")->capture_default_str();
  option("--summarise", options.summarise, "run nothing: rates from a store or from records", "FILE");
  add_pace_options(command, options.pace, "Campaign of diagnoses");
  add_campaign_run_options(command, options);
  command.add_flag("--worker", options.worker, "used by --jobs: trials from stdin, results to stdout")->group("");
}

ExitCode run_diagnosis_campaign(const ModelOptions& model, const CampaignOptions& options,
                                const std::vector<std::string>& methods, const Globals& globals) {
  if (options.preset != "smoke" && options.preset != "full" && options.preset != "edges")
    throw UsageError(fmt::format("--campaign: smoke, full or edges; got '{}'", options.preset));
  diagnose::CampaignSpec spec = diagnose::campaign_spec(options.preset);
  spec.methods = methods;
  spec.seed = globals.seed();
  return run_and_show_campaign(model, spec, options, globals);
}

int64_t trials_left(const ModelOptions& model, const diagnose::CampaignSpec& spec, const CampaignOptions& options,
                    const Globals& globals) {
  (void)options.pace.job_count(), (void)options.pace.seconds();  // refuse
  if (options.pace.on_ray()) refuse_gpus_on_ray(globals.device);
  const lab::LoadedModel loaded = open_model(model, globals);
  if (!std::filesystem::exists(options.store)) {
    int64_t trials = 0;
    for (const diagnose::CampaignCell& cell : diagnose::campaign_cells(spec)) trials += cell.trials;
    return trials;
  }
  record::CampaignStore store(options.store, record::StoreUse::kRead);
  const diagnose::CampaignMachine machine{model.model, model.dtype, globals.device,
                                          model::weights_fingerprint(*loaded.model)};
  diagnose::check_campaign(store, diagnose::campaign_fingerprint(machine, spec));
  return std::ssize(diagnose::pending_trials(spec, store));
}

ExitCode run_and_show_campaign(const ModelOptions& model, const diagnose::CampaignSpec& spec,
                               const CampaignOptions& options, const Globals& globals) {
  (void)options.pace.job_count();  // refuse
  if (options.pace.on_ray()) refuse_gpus_on_ray(globals.device);
  const TemporaryFolder folder("campaign");
  diagnose::CampaignRun run;
  run.folder = folder.path();
  run.time_limit = options.pace.seconds();
  diagnose::CampaignMachine machine{model.model, model.dtype, globals.device, ""};
  Json provenance;
  {
    const lab::LoadedModel loaded = open_model(model, globals);
    machine.weights = model::weights_fingerprint(*loaded.model);
    provenance = campaign_provenance(machine, spec, loaded, globals);
  }
  record::CampaignStore store(options.store);
  keep_provenance(store, options.store, provenance);
  const auto pending = std::ssize(diagnose::pending_trials(spec, store));
  diagnose::TrialServer here;
  const auto executor = open_executor(options.pace, [&](const std::string& line) { return here.answer(line); });
  diagnose::CampaignEnd end;
  {
    Progress progress("trials", pending, {.unit = "", .quiet = globals.quiet});
    run.progress = [&](int64_t, int64_t) { progress.advance(1); };
    end = diagnose::run_campaign(*executor, machine, spec, store, run);
  }
  if (end.interrupted) end_interrupted(end.done, options.store);
  if (!options.records.empty()) diagnose::write_records(store, options.records);
  const Json summary = diagnose::summarise(
      [&](const auto& visit) { store.for_each([&](record::Trial&& one) { visit(one); }); }, options.store);
  show(summary, options, globals, cluster_json(*executor, end.lost));
  if (!globals.json && end.left > 0)
    print(fmt::format("\n{} trials are left to do; the same command goes on\n", end.left));
  if (end.failures.empty()) return ExitCode::kOk;
  throw RuntimeFailure(fmt::format("{} trials could not be run and are left to do; the first: {}", end.failures.size(),
                                   end.failures.front()));
}

ExitCode summarise_campaign(const std::string& path, const CampaignOptions& options, const Globals& globals) {
  show(diagnose::summarise([&](const auto& visit) { diagnose::for_each_trial(path, visit); }, path), options, globals);
  return ExitCode::kOk;
}

ExitCode work_for_campaign() {
  diagnose::TrialServer server([](const diagnose::CampaignMachine& machine) { open_device(machine.device); });
  std::string line;
  while (std::getline(std::cin, line))
    if (const std::string answer = server.answer(line); !answer.empty()) std::cout << answer << "\n" << std::flush;
  return ExitCode::kOk;
}

}  // namespace faultline::cli
