#include "triage/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/config/override.h"
#include "base/json.h"
#include "base/text.h"
#include "record/environment.h"
#include "triage/aorta.h"
#include "triage/trial_rules.h"

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
      .field("skip", Schema::string(), {.default_value = Node(""), .doc = "why this cell is not run; empty: it is"})
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
      .field("baseline_cell", Schema::string(),
             {.doc = "default: the cell 'baseline', else the first baseline-*, else the first without mitigations"});
}

Schema stop_schema() {
  return Schema::map()
      .field("events", count(0),
             {.default_value = Node(0), .doc = "a cell ends after so many trials of that verdict; 0: never"})
      .field("max_trials", count(0), {.default_value = Node(0), .doc = "of a cell; 0: its trials"})
      .field("event_verdict", Schema::choice({"fail", "pass", "error"}), {.default_value = Node("fail")});
}

bool is_race(const Node& recipe) {
  const Node* workload = recipe.find("workload");
  return workload == nullptr || !workload->is_string() || workload->as_string() == "race";
}

// `override_config` on top of `base`, key by key.
Node layered(Node base, const Node& override_config) {
  for (const Node::Entry& entry : override_config.entries()) base.set(entry.key, entry.value);
  return base;
}

// `steps` and `verify_iterations` are one setting. Where a recipe has both and they differ, its workload decides, as in
// AORTA; what was typed on the command line decides over both.
Node workload_of(const Node& recipe, const Node& cell, std::vector<std::string>& notes) {
  Node config = layered(recipe.at("workload_config"), cell.at("workload_config"));
  const Node* steps = cell.find("steps") != nullptr ? cell.find("steps") : recipe.find("steps");
  if (steps == nullptr) return config;
  const Node* twice = config.find("verify_iterations");
  if (twice != nullptr && !(*twice == *steps) && steps->position().text() != "command line") {
    notes.push_back(fmt::format("{} iterations: verify_iterations at {} decides over steps at {}", describe(*twice),
                                twice->position().text(), steps->position().text()));
    return config;
  }
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
  std::vector<Bundle> bundles = {cell.environment};
  bundles.insert(bundles.end(), cell.mitigations.begin(), cell.mitigations.end());
  bundles.push_back({"extra_env", "", read_environment(node.at("extra_env")), ""});
  cell.variables = merge_bundles(cell.name, bundles);
  cell.variables.merge(read_environment(recipe.at("extra_env")));  // what every cell has that says nothing else
  if (recipe.at("workload").as_string() == "race") {
    cell.config = validated_config(workload_of(recipe, node, cell.notes));
    cell.race = race::read_config(cell.config);
  } else {
    cell.config = Node::map();
    for (const Node* place : {&recipe, &node})
      if (place->at("workload_config").size() > 0 || place->find("steps") != nullptr)
        throw place->at("workload_config")
            .error("a command reads neither workload_config nor steps; write what it needs behind --");
  }
  cell.skip = node.at("skip").as_string();
  cell.trials = cell.skip.empty() ? (node.find("trials") != nullptr ? node : recipe).at("trials").as_integer() : 0;
  if (!cell.skip.empty()) cell.notes.push_back("not run: " + cell.skip);
  for (const Bundle& mitigation : cell.mitigations)
    if (const std::string reason = no_op_reason(mitigation, ambient); !reason.empty())
      cell.notes.push_back("no-op: " + reason);
  return cell;
}

// The one that is wished for; else the cell 'baseline', else the first that is called so or that changes nothing.
size_t baseline_index(const Node& recipe, const std::vector<Cell>& cells) {
  const Node* wish = recipe.at("confound").find("baseline_cell");
  const auto find = [&](const auto& is) -> std::optional<size_t> {
    const auto found = std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) { return is(cell); });
    return found == cells.end() ? std::nullopt : std::optional<size_t>(found - cells.begin());
  };
  if (wish != nullptr) {
    if (const auto found = find([&](const Cell& cell) { return cell.name == wish->as_string(); })) return *found;
    std::vector<std::string> names;
    for (const Cell& cell : cells) names.push_back(cell.name);
    throw wish->error(
        fmt::format("no cell is called '{}'{}", wish->as_string(), did_you_mean(wish->as_string(), names)));
  }
  if (const auto found = find([](const Cell& cell) { return cell.name == "baseline"; })) return *found;
  if (const auto found = find([](const Cell& cell) { return cell.name.starts_with("baseline-"); })) return *found;
  if (const auto found = find([](const Cell& cell) {
        return std::all_of(cell.mitigations.begin(), cell.mitigations.end(),
                           [](const Bundle& bundle) { return bundle.variables.empty(); });
      }))
    return *found;
  return 0;
}

void check_command(const Node& workload, bool given) {
  const bool wanted = workload.as_string() == "command";
  if (wanted && !given)
    throw workload.error(
        "the recipe runs a command, and a recipe is data and chooses none; give it behind --: faultline triage run "
        "--recipe "
        "FILE -- torchrun --nproc-per-node 8 train.py");
  if (!wanted && given)
    throw workload.error("the recipe runs the race, which takes no command; remove -- and what stands behind it");
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

void read_command_keys(const Node& recipe, Plan& plan) {
  const Node* patterns = recipe.find("custom_patterns");
  const Node* passing = recipe.find("env_passthrough_mode");
  std::vector<const Node*> keys = {patterns, passing};
  for (const char* key : kRuleKeys) keys.push_back(recipe.find(key));
  if (plan.command.empty())
    for (const Node* key : keys)
      if (key != nullptr) throw key->error("is read with workload: command only; remove it");
  plan.rules_as_given = rules_as_given(recipe);
  plan.patterns_as_given = patterns != nullptr && !patterns->is_null() ? faultline::to_json(*patterns) : Json::array();
  if (patterns != nullptr && !patterns->is_null()) plan.patterns = read_patterns(*patterns);
  plan.environment_file = passing != nullptr && passing->as_string() == "file";
}

void read_backend(const Node& recipe, Plan& plan) {
  const Node* backend = recipe.find("backend");
  if (plan.transport != "torch") {
    if (backend != nullptr) throw backend->error("is read with transport: torch only; remove it");
    return;
  }
  if (backend == nullptr)
    throw recipe.at("transport")
        .error("torch needs a backend of torch.distributed; add backend: nccl, hccl, gloo or ucc");
  plan.python = race::PythonRanks{backend->as_string(), plan.device, {}, ""};
  try {
    race::check_python_ranks(*plan.python);
  } catch (const UsageError& error) {
    throw backend->error(error.what());
  }
}

bool names_network(const Node& recipe) {
  std::vector<const Node*> places = {&recipe};
  for (const Node& cell : recipe.at("cells").items()) places.push_back(&cell);
  return std::any_of(places.begin(), places.end(), [](const Node* place) {
    const auto& entries = place->at("extra_env").entries();
    return std::any_of(entries.begin(), entries.end(), [](const Node::Entry& entry) {
      return entry.key.starts_with("NCCL_") || entry.key.starts_with("RCCL_");
    });
  });
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

Schema section_schema() {
  return with_rule_keys(Schema::map())
      .field("schema_version", Schema::integer({.min = 1}).check(check_version), {.default_value = Node(1)})
      .field("name", safe_name(), {.doc = "default: the file's; also the name of the results' folder"})
      .field("description", Schema::string(), {.doc = "for people"})
      .field("ticket", Schema::string(), {.default_value = Node(""), .doc = "where the failure is tracked"})
      .field("workload", Schema::choice({"race", "command"}),
             {.default_value = Node("race"), .doc = "command: what stands behind -- on the command line"})
      .field("trials", count(1),
             {.default_value = Node(16), .doc = "of each cell; 16 clean ones exclude a rate of 17.1 %"})
      .field("steps", count(1), {.doc = "verified iterations of a trial"})
      .field("ranks", Schema::integer({.min = 1, .max = 256}), {.default_value = Node(2), .doc = "of a trial"})
      .field("transport", Schema::choice({"threads", "gloo", "nccl", "torch"}), {.default_value = Node("threads")})
      .field("backend", Schema::string({.min = 1}),
             {.doc = "of torch.distributed, where the transport is torch: nccl, hccl, gloo, ucc …"})
      .field("device", Schema::string(),
             {.default_value = Node("cpu"), .doc = "cpu, cuda or cuda:INDEX; with transport torch any that torch has"})
      .field("launcher", race::launch_schema(),
             {.default_value = Node::map(), .doc = "who starts the ranks, and on which machines"})
      .field("seed", Schema::integer({.min = 0}),
             {.default_value = Node(0), .doc = "of the order of trials and of their patterns"})
      .field("workload_config", Schema::map().extra(Schema::anything()),
             {.default_value = Node::map(), .doc = "see docs/race.md"})
      .field("confound", confound_schema(), {.default_value = Node::map()})
      .field("stop_after", stop_schema(), {.default_value = Node::map()})
      .field("extra_env", environment_schema(),
             {.default_value = Node::map(), .doc = "of every cell whose mitigations and extra_env say nothing else"})
      .field("mitigations", bundles_schema(), {.default_value = Node::map(), .doc = "further bundles, by name"})
      .field("environments", bundles_schema(), {.default_value = Node::map(), .doc = "further bundles, by name"})
      .field("bundle_files", Schema::list(Schema::string({.min = 1})),
             {.default_value = Node::list(), .doc = "files of further bundles, beside the recipe"})
      .field("save_logs", Schema::boolean(), {.default_value = Node(true)})
      .field("warmup_trial", Schema::boolean(),
             {.default_value = Node(true), .doc = "one short trial first, not counted", .default_if = is_race})
      .field("timeout_per_trial", Schema::any_of({Schema::null(), Schema::number({.min = 0.1, .max = 1e6})}),
             {.default_value = Node(600.0), .doc = "seconds; null: no limit"})
      .field("custom_patterns", Schema::any_of({Schema::null(), patterns_schema()}),
             {.doc = "workload command: what its output says"})
      .field("env_passthrough_mode", Schema::choice({"inherit", "file"}),
             {.doc = "workload command; file: the cell's variables also in the file that AORTA_ENV_FILE names"})
      .field("cells", Schema::list(cell_schema(), {.min = 1, .max = 1000}).check(check_cells), {.required = true});
}

void register_triage_sections() {
  race::register_race_section();
  SectionRegistry::global().add("triage", section_schema(), {.doc = "a matrix of mitigations; `faultline triage run`"});
}

Plan read_plan(const Node& given, const std::string& name, const std::filesystem::path& folder,
               std::span<const std::string> command) {
  Plan plan;
  plan.resolved = validate(from_aorta(given, plan.notes), section_schema());
  const Node& recipe = plan.resolved;
  check_command(recipe.at("workload"), !command.empty());
  plan.command.assign(command.begin(), command.end());
  read_command_keys(recipe, plan);
  plan.name = recipe.find("name") != nullptr ? recipe.at("name").as_string() : name;
  plan.ticket = recipe.at("ticket").as_string();
  Catalogue catalogue;
  add_files(catalogue, recipe.at("bundle_files"), folder);
  catalogue.add(recipe.at("mitigations"), true);
  catalogue.add(recipe.at("environments"), false);
  plan.ranks = static_cast<int>(recipe.at("ranks").as_integer());
  const Environment ambient = record::whole_environment();
  for (const Node& cell : recipe.at("cells").items()) {
    plan.cells.push_back(read_cell(recipe, cell, catalogue, ambient));
    if (plan.command.empty()) race::check_ranks(plan.cells.back().race, plan.ranks);
  }
  plan.baseline = baseline_index(recipe, plan.cells);
  plan.confound_threshold = recipe.at("confound").at("threshold").as_number();
  const Node& stop = recipe.at("stop_after");
  plan.stop_after = {stop.at("events").as_integer(), stop.at("max_trials").as_integer(),
                     stop.at("event_verdict").as_string()};
  for (Cell& cell : plan.cells)
    if (plan.stop_after.max_trials > 0) cell.trials = std::min(cell.trials, plan.stop_after.max_trials);
  plan.save_logs = recipe.at("save_logs").as_bool();
  const Node* warmup = recipe.find("warmup_trial");
  plan.warmup_trial = warmup != nullptr && warmup->as_bool();
  const Node& timeout = recipe.at("timeout_per_trial");
  plan.timeout_per_trial = timeout.is_null() ? 0 : timeout.as_number();
  plan.transport = recipe.at("transport").as_string();
  plan.device = recipe.at("device").as_string();
  read_backend(recipe, plan);
  if (plan.transport == "gloo" && plan.device != "cpu")
    throw recipe.at("transport").error("gloo carries CPU tensors; use threads or nccl on a GPU");
  if (plan.transport == "nccl" && plan.device != "cuda")
    throw recipe.at("transport")
        .error("nccl carries GPU tensors, each rank's on the GPU of its local rank; use device: cuda");
  try {
    plan.set_launch(race::read_launch(recipe.at("launcher")));
  } catch (const UsageError& error) {
    throw recipe.at("launcher").error(error.what());
  }
  plan.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  if (given.find("transport") == nullptr && plan.command.empty() && names_network(recipe))
    plan.notes.emplace_back(
        "NCCL_* and RCCL_* are read over transports nccl and torch alone, and the recipe names none: the ranks are "
        "threads of this machine; transport=nccl device=cuda ranks=N takes its GPUs");
  return plan;
}

Plan load_plan(const std::filesystem::path& path, std::span<const std::string> overrides,
               std::span<const std::string> command) {
  Node given = load_config(path);
  if (const Node* section = given.find("triage"); section != nullptr && given.size() == 1) given = Node(*section);
  const Schema schema = is_probe(given) ? probe_schema() : section_schema();
  return read_plan(apply_overrides(given, overrides, &schema), path.stem().string(), path.parent_path(), command);
}

void Plan::set_launch(race::Launch wanted) {
  if (!command.empty() && !wanted.is_local())
    throw UsageError("a command is its own launcher; remove the launcher, or put it before the command");
  if (command.empty()) race::check_launch(wanted, transport, ranks);
  launch = std::move(wanted);
}

void Plan::set_imports(const std::vector<std::string>& modules) {
  if (modules.empty()) return;
  if (!python) throw UsageError("--import: modules are imported by ranks of transport torch; this recipe has none");
  python->imports = modules;
  race::check_python_ranks(*python);
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
                     {"skip", cell.skip},
                     {"workload_config", faultline::to_json(cell.config)}});
  }
  Json json = {{"name", plan.name},
               {"ticket", plan.ticket},
               {"command", record::recorded_words(plan.command)},
               {"notes", plan.notes},
               {"ranks", plan.ranks},
               {"transport", plan.transport},
               {"device", plan.device},
               {"baseline_cell", plan.baseline_cell().name},
               {"trials", plan.total_trials()},
               {"launcher", race::to_json(plan.launch)},
               {"seed", plan.seed},
               {"cells", cells}};
  if (plan.python) json["backend"] = plan.python->backend, json["imports"] = plan.python->imports;
  if (!plan.rules_as_given.empty()) json["rules"] = plan.rules_as_given;
  return json;
}

namespace {

std::string headline(const Plan& plan) {
  std::string runs = plan.command.empty() ? fmt::format("{} ranks over {}", plan.ranks, plan.transport)
                                          : fmt::format("command '{}'", fmt::join(plan.command, " "));
  if (plan.python) runs += fmt::format(" ({} on {})", plan.python->backend, plan.python->device);
  if (!plan.launch.is_local()) runs += " by " + race::describe(plan.launch);
  return fmt::format("{}: {} cells, {} trials, {}, baseline '{}'", plan.name, plan.cells.size(), plan.total_trials(),
                     runs, plan.baseline_cell().name);
}

std::string headline(const Plan& plan, const Cell& cell) {
  if (!cell.skip.empty()) return fmt::format("cell {}: not run", cell.name);
  const std::string length = plan.command.empty() ? fmt::format(" x {} iterations", cell.race.verify_iterations) : "";
  return fmt::format(
      "cell {}: {} trials{}; {} clean trials would exclude a failure rate of {:.1f} % and more with 95 % confidence",
      cell.name, cell.trials, length, cell.trials, 100 * excluded_rate(cell.trials));
}

}  // namespace

std::vector<std::string> dry_run_lines(const Plan& plan) {
  std::vector<std::string> lines = {headline(plan)};
  for (const std::string& note : plan.notes) lines.push_back("note: " + note);
  for (std::string& line : describe(read_rules(plan.rules_as_given))) lines.push_back(std::move(line));
  for (const Cell& cell : plan.cells) {
    lines.push_back(headline(plan, cell));
    for (const auto& [key, value] : cell.variables) lines.push_back(fmt::format("  {}={}", key, value));
    for (const std::string& note : cell.notes) lines.push_back("  " + note);
    if (!plan.command.empty()) continue;
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
