// `faultline census`: which operators a model runs in each kind of forward, how often, what they compute, and which
// family of a rule reaches them. It is taken from a live forward, never from a list.
#include "tap/census.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>

#include "base/json.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "lab/injection.h"
#include "tap/operators.h"

namespace faultline::cli {
namespace {

struct CensusOptions : ModelOptions {
  std::string kind = "all", rows = "1";
  bool places = false, all = false;
};

// A training step's forward and backward, told apart by phase.
tap::Census training_census(model::CausalLm& model) {
  const at::AutoGradMode gradients(true);
  for (const model::CausalLm::Parameter& parameter : model.parameters()) parameter.tensor->requires_grad_(true);
  const at::Tensor tokens =
      (at::arange(16, at::TensorOptions(at::kLong)) % model.config().vocabulary).unsqueeze(0).to(model.device());
  tap::begin_census();
  try {
    model.logits(model.hidden_states(tokens)).to(at::kFloat).logsumexp(-1).sum().backward();
  } catch (...) {
    tap::end_census();
    throw;
  }
  const tap::Census census = tap::end_census();
  for (const model::CausalLm::Parameter& parameter : model.parameters()) {
    parameter.tensor->requires_grad_(false);
    parameter.tensor->mutable_grad().reset();
  }
  return census;
}

struct Section {
  std::string name;
  tap::Census census;
};

std::vector<Section> take(const CensusOptions& options, const Globals& globals, lab::LoadedModel& loaded) {
  const auto rows = static_cast<int64_t>(parse_count("--rows", options.rows, 1, 4096));
  (void)globals;
  std::vector<Section> sections;
  const tap::Censuses censuses = lab::take_censuses(*loaded.model, site::Phase::kRollout, rows);
  const auto wanted = [&](const char* name) { return options.kind == "all" || options.kind == name; };
  if (wanted("prefill")) sections.push_back({"prefill", censuses.at(site::ForwardKind::kPrefill)});
  if (wanted("decode")) sections.push_back({"decode", censuses.at(site::ForwardKind::kDecode)});
  if (wanted("score")) sections.push_back({"score", censuses.at(site::ForwardKind::kWhole)});
  if (wanted("train")) {
    const tap::Census both = training_census(*loaded.model);
    Section forward{"actor_forward", {}}, backward{"actor_backward", {}};
    for (const tap::CensusEntry& entry : both)
      (entry.phase == site::Phase::kActorBackward ? backward : forward).census.push_back(entry);
    sections.push_back(std::move(forward));
    sections.push_back(std::move(backward));
  }
  if (sections.empty())
    throw UsageError(fmt::format("--kind: wanted all, prefill, decode, score or train; got '{}'", options.kind));
  return sections;
}

void show(const Section& section, bool places, bool all) {
  struct Sums {
    int64_t calls = 0;
    double flops = 0, bytes = 0;
    std::string shapes;
  };
  std::map<std::string, Sums> sums;
  int64_t hidden = 0;  // views, copies, bookkeeping
  for (const tap::CensusEntry& entry : section.census) {
    if (!all && tap::family_of(tap::base_name(entry.name)).empty()) {
      hidden += entry.calls;
      continue;
    }
    const std::string key = entry.name + (places ? "\t" + site::place_of(entry.place).path : "");
    Sums& sum = sums[key];
    sum.calls += entry.calls, sum.flops += entry.flops, sum.bytes += entry.bytes;
    if (sum.shapes.empty()) sum.shapes = entry.shapes;
  }
  std::vector<std::vector<std::string>> rows = {
      {"operator", "family", "calls", "MFLOP", "MB", places ? "place" : "first shapes"}};
  for (const auto& [key, sum] : sums) {
    const std::size_t tab = key.find('\t');
    const std::string name = key.substr(0, tab);
    rows.push_back({name, std::string(tap::family_of(tap::base_name(name))), fmt::format("{}", sum.calls),
                    fmt::format("{:.2f}", sum.flops / 1e6), fmt::format("{:.2f}", sum.bytes / 1e6),
                    places ? key.substr(tab + 1) : sum.shapes});
  }
  print("\n" + styled(Style::kHeading, section.name) + "\n" + table(rows));
  if (hidden > 0)
    print(fmt::format("and {} calls of no family (views, copies, bookkeeping); --all shows them\n", hidden));
}

ExitCode census(const CensusOptions& options, const Globals& globals) {
  lab::LoadedModel loaded = open_model(options, globals);
  const std::vector<Section> sections = take(options, globals, loaded);
  const model::ModelConfig& config = loaded.model->config();
  if (globals.json) {
    Json json = {{"command", "census"},
                 {"model", loaded.path.string()},
                 {"layers", config.layers},
                 {"norms", loaded.model->norm_count()}};
    for (const Section& section : sections) json["forwards"][section.name] = tap::to_json(section.census);
    print_json(json);
    return ExitCode::kOk;
  }
  print(fmt::format("{}: {}, {} layers, {} norms\n", loaded.path.string(),
                    model::architecture_name(config.architecture), config.layers, loaded.model->norm_count()));
  for (const Section& section : sections) show(section, options.places, options.all);
  if (!globals.quiet)
    print("\nA rule reaches an operator by its name or family: --fault '… @ operator=matmul,layer=3'.\n");
  return ExitCode::kOk;
}

}  // namespace

void add_census(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("census", "which operators a model runs, how often, what they compute");
  auto options = std::make_shared<CensusOptions>();
  add_model_options(*command, *options);
  offer(command
            ->add_option("--kind", options->kind,
                         "all, prefill, decode, score (a forward without cache) or train (forward and backward)")
            ->group("Census")
            ->type_name("NAME")
            ->capture_default_str(),
        {"all", "prefill", "decode", "score", "train"});
  command->add_option("--rows", options->rows, "sequences at once, 1 to 4096; few rows take other operators than many")
      ->group("Census")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--places", options->places, "a line for each place in the model")->group("Census");
  command->add_flag("--all", options->all, "operators of no family, too")->group("Census");
  command->footer(
      "Examples:\n  faultline census\n  faultline census --kind decode --rows 32 --places\n\nGlobal options (--device, "
      "--json, …): see "
      "`faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return census(*options, globals); }; });
}

}  // namespace faultline::cli
