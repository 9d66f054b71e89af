#include "race/asked.h"

#include <fmt/format.h>

#include "base/config/override.h"
#include "base/config/schema_data.h"
#include "base/machine.h"
#include "race/checks.h"
#include "race/run_processes.h"

namespace faultline::race {
namespace {

Node config_of(const Asked& asked) {
  Node given = asked.recipe.empty() ? smoke_config() : load_config(asked.recipe);
  if (const Node* section = given.find("race"))
    given = Node(*section);
  else if (const Node* workload = given.find("workload_config"))
    given = Node(*workload);
  const Schema schema = config_schema();
  return validate(apply_overrides(given, asked.overrides, &schema), schema);
}

std::string device_type(const RunOptions& run) {
  return run.python ? run.python->device_type() : c10::DeviceTypeName(run.device.type(), /*lower_case=*/true);
}

// The merged evidence, with what `faultline reproduce` needs to ask the same again.
void write_record(const Asked& asked, const Ready& ready, const RunResult& result, const record::Maker& maker) {
  Json json = to_json(result, ready.config);
  json["made_by"] = {{"config", faultline::to_json(ready.node)},
                     {"seed", std::to_string(ready.config.seed)},
                     {"ranks", result.ranks},
                     {"transport", asked.transport},
                     {"device", ready.run.python ? ready.run.python->device : ready.run.device.str()}};
  if (ready.run.python) {
    json["made_by"]["backend"] = ready.run.python->backend;
    json["made_by"]["imports"] = ready.run.python->imports;
  }
  if (!ready.run.launch.is_local()) json["made_by"]["launcher"] = to_json(ready.run.launch);
  record::write_result(asked.out, json, maker);
}

}  // namespace

Ready prepare_given(Node node, uint64_t seed, RunOptions run) {
  Ready ready{std::move(node), {}, std::move(run), false};
  ready.config = read_config(ready.node);
  if (!ready.config.deterministic) ready.config.seed = seed;
  ready.drill_left_out = leave_out_drill(ready.config);
  if (!ready.config.golden.empty())
    ready.run.reference = read_golden(ready.config.golden, ready.node, device_type(ready.run));
  return ready;
}

Ready prepare(const Asked& asked) {
  Ready ready = prepare_given(config_of(asked), asked.seed, asked.run);
  if (asked.overhead && ready.config.verify_iterations < kOverheadIterations)
    throw UsageError(fmt::format("--measure-overhead needs at least {} verified iterations; raise verify_iterations",
                                 kOverheadIterations));
  ready.run.alternate_digests = asked.overhead;
  check_ranks(ready.config, ready.run.ranks);
  check_transport(asked.transport, ready.run.device, ready.run.python);
  check_launch(ready.run.launch, asked.transport, ready.run.ranks);
  return ready;
}

RunResult carry_out(const Asked& asked, const Ready& ready, const record::Maker& maker) {
  RunResult result = run(asked.transport, ready.node, ready.config, ready.run);
  if (result.silent) return result;  // of ranks that are processes only the first has the evidence of all
  if (!asked.out.empty()) write_record(asked, ready, result, maker);
  if (!asked.write_golden.empty()) write_golden(asked.write_golden, ready.node, device_type(ready.run), result);
  return result;
}

RunResult join_launched(const std::string& place, const std::string& host, RunOptions run,
                        const std::function<at::Device(const std::string& name)>& open_device) {
  const cluster::Membership membership = cluster::joined_membership(place);
  const std::string name = host.empty() ? host_name() : host;
  try {
    const Node request = launched_request(membership);
    run.device = open_device(request.at("device").as_string());
    run.alternate_digests = request.at("alternate_digests").as_bool();
    const Ready ready = prepare_given(validate(request.at("config"), config_schema()),
                                      std::stoull(request.at("seed").as_string()), std::move(run));
    return run_launched(membership, name, ready.node, ready.config, ready.run);
  } catch (const std::exception& error) {
    refuse_launch(membership, name, error.what());
    throw;
  }
}

ExitCode exit_code(const RunResult& result) {
  if (result.verdict == Verdict::kPass) return ExitCode::kOk;
  if (result.verdict == Verdict::kFail) return ExitCode::kFound;
  return result.canary_missed() ? ExitCode::kEvidence : ExitCode::kRuntime;
}

std::string keys_text() {
  std::string text = "Keys of the configuration (default): what for; what it may be\n";
  const Schema schema = config_schema();
  for (const SchemaField& field : schema.data().fields) {
    const Node& value = field.options.default_value.value();
    text += fmt::format("  {} ({}): {}; {}\n", field.name,
                        value.is_string() ? value.as_string() : faultline::to_json(value).dump(), field.options.doc,
                        describe(field.schema));
  }
  return text;
}

}  // namespace faultline::race
