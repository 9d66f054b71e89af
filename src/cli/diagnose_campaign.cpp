#include "cli/diagnose_campaign.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "cli/device.h"
#include "cli/output.h"

namespace faultline::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

CampaignSpec make_spec(const CampaignOptions& options, const std::vector<std::string>& methods,
                       const Globals& globals) {
  if (options.preset != "smoke" && options.preset != "full")
    throw UsageError(fmt::format("--campaign: smoke or full; got '{}'", options.preset));
  CampaignSpec spec = options.preset == "full" ? full_campaign() : smoke_campaign();
  spec.methods = methods;
  spec.seed = globals.seed();
  spec.seconds = parse_number("--seconds", options.seconds, 0, 1e9);
  spec.reference = open_device(globals.device);  // with the plan paused the machine under test is a clean one
  return spec;
}

std::string rate_text(const OrderedJson& rate) {
  const auto right = rate["right"].get<int64_t>(), trials = rate["trials"].get<int64_t>();
  return fmt::format("{}/{} ({:.1f}-{:.1f} %)", right, trials, 100 * rate["interval"][0].get<double>(),
                     100 * rate["interval"][1].get<double>());
}

void show(const OrderedJson& summary) {
  print(fmt::format("{} planted faults, {} diagnoses; {} seeds left out because their fault changed nothing\n",
                    summary["planted"].get<int64_t>(), summary["diagnoses"].get<int64_t>(),
                    summary["inactive"].get<int64_t>()));
  for (const auto& [method, one] : summary["methods"].items()) {
    print("\n" + styled(Style::kHeading, method) +
          fmt::format("  {:.2f} s, {:.1f} forward-equivalents a diagnosis\n", one["seconds"].get<double>(),
                      one["forward_equivalents"].get<double>()));
    if (one.contains("healthy"))
      print(fmt::format("  healthy: {} of {} flagged (at most {:.2f} %, 95 %)\n",
                        one["healthy"]["flagged"].get<int64_t>(), one["healthy"]["runs"].get<int64_t>(),
                        100 * one["healthy"]["upper"].get<double>()));
    if (one.contains("against_classic"))
      print(fmt::format("  layer named where classic did not: {}, the other way: {}, p = {:.2g}\n",
                        one["against_classic"]["only_this"].get<int64_t>(),
                        one["against_classic"]["only_classic"].get<int64_t>(),
                        one["against_classic"]["p"].get<double>()));
    std::vector<std::vector<std::string>> rows = {{"pool", "layer", "layer and operator", "kind"}};
    for (const auto& [pool, rates] : one["pools"].items())
      rows.push_back(
          {pool, rate_text(rates["layer"]), rate_text(rates["layer_and_operator"]), rate_text(rates["kind"])});
    print(table(rows));
  }
}

void write_records(CampaignStore& store, const std::string& path) {
  std::ofstream file(path);
  store.for_each([&](Trial&& trial) {
    const Json line = {{"cell", trial.key.cell},   {"index", trial.key.index},
                       {"seed", trial.seed},       {"status", to_string(trial.status)},
                       {"outcome", trial.outcome}, {"evidence", trial.evidence}};
    file << to_json_text(line) << "\n";
  });
  if (!file) throw RuntimeFailure(path + ": cannot be written");
}

}  // namespace

void add_campaign_options(CLI::App& command, CampaignOptions& options) {
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->group("Campaign")->type_name(type)->capture_default_str();
  };
  offer(option("--campaign", options.preset, "measure the methods instead: smoke or full", "PRESET"),
        {"smoke", "full"});
  option("--store", options.store, "trials are kept and continued here", "FILE");
  option("--seconds", options.seconds, "stop after so long; 0: when done", "S");
  option("--records", options.records, "also write the trials as JSON lines", "FILE");
}

ExitCode run_diagnosis_campaign(const ModelOptions& model, const CampaignOptions& options,
                                const std::vector<std::string>& methods, const Globals& globals) {
  return run_and_show_campaign(model, make_spec(options, methods, globals), options, globals);
}

ExitCode run_and_show_campaign(const ModelOptions& model, const CampaignSpec& spec, const CampaignOptions& options,
                               const Globals& globals) {
  LoadedModel loaded = open_model(model, globals);
  CampaignStore store(options.store);
  const auto cells = static_cast<int64_t>(spec.grid.entries.size() * spec.grid.extents.size() * spec.grid.sites.size());
  Progress progress("trials", cells * spec.trials + spec.healthy, {.unit = "", .quiet = globals.quiet});
  run_campaign(loaded, spec, store, [&](int64_t, int64_t) { progress.advance(1); });
  if (!options.records.empty()) write_records(store, options.records);
  const OrderedJson summary = summarise(store);
  if (globals.json) {
    print_json({{"command", "diagnose"}, {"campaign", options.preset}, {"summary", summary}});
  } else {
    show(summary);
  }
  return ExitCode::kOk;
}

}  // namespace faultline::cli
