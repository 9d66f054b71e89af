#include "triage/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/override.h"
#include "base/text.h"

namespace faultline::triage {
namespace {

Schema count(int64_t min) { return Schema::integer({.min = min, .max = 1'000'000}); }

Schema safe_name() {
  return Schema::string().check([](const Node& n) -> std::string {
    return is_safe_name(n.as_string())
               ? ""
               : fmt::format("{} is no safe name: letters, digits, '_', '-', inner dots", describe_text(n.as_string()));
  });
}

Schema cell_schema() {
  return Schema::map()
      .field("name", safe_name(), {.required = true, .doc = "also the name of the cell's folder"})
      .field("description", Schema::string(), {.doc = "for people"})
      .field("mitigations", Schema::list(Schema::string()), {.default_value = Node::list(), .doc = "bundles, stacked"})
      .field("environment", Schema::string(), {.default_value = Node("default"), .doc = "one bundle"})
      .field("extra_env", environment_schema(), {.default_value = Node::map(), .doc = "further variables"})
      .field("trials", count(1), {.doc = "in place of the recipe's"})
      .field("steps", count(1), {.doc = "in place of the recipe's"})
      .field("workload_config", Schema::map().extra(Schema::anything()),
             {.default_value = Node::map(), .doc = "on top of the recipe's"});
}

std::string check_version(const Node& version) {
  if (version.as_integer() <= kSchemaVersion) return "";
  return fmt::format("this recipe has schema_version {}, this program reads up to {}; update faultline",
                     version.as_integer(), kSchemaVersion);
}

Schema confound_schema() {
  return Schema::map()
      .field("threshold", Schema::number({.min = 1, .max = 100}),
             {.default_value = Node(1.15),
              .doc = "slower than this by the step's time: the mitigation may work by its slowness alone"})
      .field("baseline_cell", Schema::string(), {.doc = "default: the cell 'baseline', else the first"});
}

Schema stop_schema() {
  return Schema::map()
      .field("events", count(0),
             {.default_value = Node(0), .doc = "a cell ends after so many trials of that verdict; 0: never"})
      .field("max_trials", count(0), {.default_value = Node(0), .doc = "of a cell; 0: its trials"})
      .field("event_verdict", Schema::choice({"fail", "pass", "error"}), {.default_value = Node("fail")});
}

// `override_config` on top of `base`, key by key.
Node layered(Node base, const Node& override_config) {
  for (const Node::Entry& entry : override_config.entries()) base.set(entry.key, entry.value);
  return base;
}

Node workload_of(const Node& recipe, const Node& cell) {
  Node config = layered(recipe.at("workload_config"), cell.at("workload_config"));
  const Node* steps = cell.find("steps") != nullptr ? cell.find("steps") : recipe.find("steps");
  if (steps == nullptr) return config;
  if (const Node* twice = config.find("verify_iterations"))
    throw twice->error("verify_iterations and steps say the same thing; keep steps");
  config.set("verify_iterations", *steps);
  return config;
}

Node validated_config(const Node& config) {
  // Wrapped, so that complaints carry the path that is written in the recipe.
  const Node wrapped = Node::map({{"workload_config", config, {}}});
  return validate(wrapped, Schema::map().field("workload_config", race::config_schema(), {.required = true}))
      .at("workload_config");
}

Cell read_cell(const Node& recipe, const Node& node, const Catalogue& catalogue, const Environment& ambient) {
  Cell cell;
  cell.name = node.at("name").as_string();
  for (const Node& name : node.at("mitigations").items()) cell.mitigations.push_back(catalogue.mitigation(name));
  cell.environment = catalogue.environment(node.at("environment"));
  Environment extra = read_environment(recipe.at("extra_env"));
  for (const auto& [key, value] : read_environment(node.at("extra_env"))) extra[key] = value;
  std::vector<Bundle> bundles = {cell.environment};
  bundles.insert(bundles.end(), cell.mitigations.begin(), cell.mitigations.end());
  bundles.push_back({"extra_env", "", extra, ""});
  cell.variables = merge_bundles(cell.name, bundles);
  cell.config = validated_config(workload_of(recipe, node));
  cell.race = race::read_config(cell.config);
  cell.trials = (node.find("trials") != nullptr ? node : recipe).at("trials").as_integer();
  for (const Bundle& mitigation : cell.mitigations)
    if (const std::string reason = no_op_reason(mitigation, ambient); !reason.empty()) cell.notes.push_back(reason);
  return cell;
}

size_t baseline_index(const Node& recipe, const std::vector<Cell>& cells) {
  const Node* wish = recipe.at("confound").find("baseline_cell");
  std::vector<std::string> names;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].name == (wish != nullptr ? wish->as_string() : "baseline")) return i;
    names.push_back(cells[i].name);
  }
  if (wish != nullptr)
    throw wish->error(
        fmt::format("no cell is called '{}'{}", wish->as_string(), did_you_mean(wish->as_string(), names)));
  return 0;
}

void add_files(Catalogue& catalogue, const Node& files, const std::filesystem::path& folder) {
  const Schema schema = Schema::map()
                            .field("mitigations", bundles_schema(), {.default_value = Node::map()})
                            .field("environments", bundles_schema(), {.default_value = Node::map()});
  for (const Node& file : files.items()) {
    const Node definitions = validate(load_config(folder / file.as_string()), schema);
    catalogue.add(definitions.at("mitigations"), true);
    catalogue.add(definitions.at("environments"), false);
  }
}

std::string check_cells(const Node& cells) {
  std::set<std::string> seen;
  for (const Node& cell : cells.items()) {
    const Node* name = cell.find("name");
    if (name != nullptr && name->is_string() && !seen.insert(name->as_string()).second)
      return fmt::format("two cells are called '{}'", name->as_string());
  }
  return "";
}

}  // namespace

Schema recipe_schema() {
  return Schema::map()
      .field("schema_version", Schema::integer({.min = 1}).check(check_version), {.default_value = Node(1)})
      .field("name", safe_name(), {.doc = "default: the file's; also the name of the results' folder"})
      .field("description", Schema::string(), {.doc = "for people"})
      .field("ticket", Schema::string(), {.default_value = Node(""), .doc = "where the failure is tracked"})
      .field("workload", Schema::choice({"race"}), {.default_value = Node("race")})
      .field("trials", count(1),
             {.default_value = Node(16), .doc = "of each cell; 16 clean ones exclude a rate of 17.1 %"})
      .field("steps", count(1), {.doc = "verified iterations of a trial"})
      .field("ranks", Schema::integer({.min = 1, .max = 256}), {.default_value = Node(2), .doc = "of a trial"})
      .field("transport", Schema::choice({"threads", "gloo", "nccl"}), {.default_value = Node("threads")})
      .field("device", Schema::string(), {.default_value = Node("cpu"), .doc = "cpu, cuda or cuda:INDEX"})
      .field("seed", Schema::integer({.min = 0}),
             {.default_value = Node(0), .doc = "of the order of trials and of their patterns"})
      .field("workload_config", Schema::map().extra(Schema::anything()),
             {.default_value = Node::map(), .doc = "see docs/race.md"})
      .field("confound", confound_schema(), {.default_value = Node::map()})
      .field("stop_after", stop_schema(), {.default_value = Node::map()})
      .field("extra_env", environment_schema(), {.default_value = Node::map(), .doc = "of every cell"})
      .field("mitigations", bundles_schema(), {.default_value = Node::map(), .doc = "further bundles, by name"})
      .field("environments", bundles_schema(), {.default_value = Node::map(), .doc = "further bundles, by name"})
      .field("bundle_files", Schema::list(Schema::string({.min = 1})),
             {.default_value = Node::list(), .doc = "files of further bundles, beside the recipe"})
      .field("save_logs", Schema::boolean(), {.default_value = Node(true)})
      .field("warmup_trial", Schema::boolean(),
             {.default_value = Node(true), .doc = "one short trial first, not counted"})
      .field("timeout_per_trial", Schema::number({.min = 1, .max = 1e6}),
             {.default_value = Node(600.0), .doc = "seconds"})
      .field("cells", Schema::list(cell_schema(), {.min = 1, .max = 1000}).check(check_cells), {.required = true});
}

Plan read_plan(const Node& given, const std::string& name, const std::filesystem::path& folder) {
  Plan plan;
  plan.resolved = validate(given, recipe_schema());
  const Node& recipe = plan.resolved;
  plan.name = recipe.find("name") != nullptr ? recipe.at("name").as_string() : name;
  plan.ticket = recipe.at("ticket").as_string();
  Catalogue catalogue;
  add_files(catalogue, recipe.at("bundle_files"), folder);
  catalogue.add(recipe.at("mitigations"), true);
  catalogue.add(recipe.at("environments"), false);
  plan.ranks = static_cast<int>(recipe.at("ranks").as_integer());
  const Environment ambient = ambient_environment();
  for (const Node& cell : recipe.at("cells").items()) {
    plan.cells.push_back(read_cell(recipe, cell, catalogue, ambient));
    race::check_ranks(plan.cells.back().race, plan.ranks);
  }
  plan.baseline = baseline_index(recipe, plan.cells);
  plan.confound_threshold = recipe.at("confound").at("threshold").as_number();
  const Node& stop = recipe.at("stop_after");
  plan.stop_after = {stop.at("events").as_integer(), stop.at("max_trials").as_integer(),
                     stop.at("event_verdict").as_string()};
  for (Cell& cell : plan.cells)
    if (plan.stop_after.max_trials > 0) cell.trials = std::min(cell.trials, plan.stop_after.max_trials);
  plan.save_logs = recipe.at("save_logs").as_bool();
  plan.warmup_trial = recipe.at("warmup_trial").as_bool();
  plan.timeout_per_trial = recipe.at("timeout_per_trial").as_number();
  plan.transport = recipe.at("transport").as_string();
  plan.device = recipe.at("device").as_string();
  if (plan.transport == "gloo" && plan.device != "cpu")
    throw recipe.at("transport").error("gloo carries CPU tensors; use threads or nccl on a GPU");
  if (plan.transport == "nccl" && plan.device != "cuda")
    throw recipe.at("transport")
        .error("nccl carries GPU tensors, each rank's on the GPU of its local rank; use device: cuda");
  plan.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  return plan;
}

Plan load_plan(const std::filesystem::path& path, std::span<const std::string> overrides) {
  Node given = load_config(path);
  if (const Node* section = given.find("triage"); section != nullptr && given.size() == 1) given = Node(*section);
  const Schema schema = recipe_schema();
  return read_plan(apply_overrides(given, overrides, &schema), path.stem().string(), path.parent_path());
}

int64_t Plan::total_trials() const {
  int64_t total = 0;
  for (const Cell& cell : cells) total += cell.trials;
  return total;
}

double excluded_rate(int64_t trials) { return 1 - std::pow(0.05, 1 / static_cast<double>(trials)); }

Json to_json(const Plan& plan) {
  Json cells = Json::array();
  for (const Cell& cell : plan.cells) {
    Json names = Json::array();
    for (const Bundle& mitigation : cell.mitigations) names.push_back(mitigation.name);
    cells.push_back({{"name", cell.name},
                     {"mitigations", names},
                     {"environment", cell.environment.name},
                     {"variables", cell.variables},
                     {"trials", cell.trials},
                     {"excluded_rate", excluded_rate(cell.trials)},
                     {"notes", cell.notes},
                     {"workload_config", Json::parse(faultline::to_json(cell.config).dump())}});
  }
  return {{"name", plan.name},
          {"ticket", plan.ticket},
          {"ranks", plan.ranks},
          {"transport", plan.transport},
          {"device", plan.device},
          {"baseline_cell", plan.baseline_cell().name},
          {"trials", plan.total_trials()},
          {"seed", plan.seed},
          {"cells", cells}};
}

std::vector<std::string> dry_run_lines(const Plan& plan) {
  std::vector<std::string> lines = {fmt::format("{}: {} cells, {} trials, {} ranks over {}, baseline '{}'", plan.name,
                                                plan.cells.size(), plan.total_trials(), plan.ranks, plan.transport,
                                                plan.baseline_cell().name)};
  for (const Cell& cell : plan.cells) {
    lines.push_back(fmt::format(
        "cell {}: {} trials x {} iterations; {} clean trials would exclude a failure rate of {:.1f} % and more with 95 "
        "% confidence",
        cell.name, cell.trials, cell.race.verify_iterations, cell.trials, 100 * excluded_rate(cell.trials)));
    for (const auto& [key, value] : cell.variables) lines.push_back(fmt::format("  {}={}", key, value));
    for (const std::string& note : cell.notes) lines.push_back("  no-op: " + note);
    std::string config = to_yaml(cell.config);
    for (size_t at = 0; at < config.size();) {
      const size_t end = std::min(config.find('\n', at), config.size());
      if (end > at) lines.push_back("  " + config.substr(at, end - at));
      at = end + 1;
    }
  }
  return lines;
}

}  // namespace faultline::triage
