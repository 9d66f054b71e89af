#include "triage/aorta.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "triage/bundles.h"

namespace faultline::triage {
namespace {

using Notes = std::vector<std::string>;

// --- mode: probe

struct InertKey {
  const char* key;
  const char* why;
};
// Known, checked, and without an effect here.
constexpr std::array kInertProbeKeys = {
    InertKey{"step_time_regex", "a trial's time is its whole run"},
    InertKey{
        "collect_paths",
        "stdout, stderr and what lies in FAULTLINE_TRIAL_FOLDER are kept beside the trial, other files stay where the "
        "command put them"},
    InertKey{"hang_window_sec", "a trial hangs when it takes longer than timeout_per_trial"},
    InertKey{"hang_grace_period_at_start", "a trial hangs when it takes longer than timeout_per_trial"},
    InertKey{"tier3_vram_growth", "the kernel's log and the GPU's memory are not watched"},
    InertKey{"redaction",
             "secrets by name never reach a record, and `faultline triage bundle` takes those that it recognises out "
             "of logs"}};

Schema optional_number(NumberRange range) { return Schema::any_of({Schema::null(), Schema::number(range)}); }

Node cell_of(const Node& mitigation, const Node& diagnostic) {
  Node cell = Node::map(), names = Node::list(), name(mitigation.as_string() + "-" + diagnostic.as_string());
  for (const Node* one : {&mitigation, &diagnostic})
    if (one->as_string() != "none" && (one == &mitigation || !(*one == mitigation))) names.push_back(*one);
  for (Node* made : {&cell, &names, &name}) made->set_position(mitigation.position());
  cell.set("name", std::move(name));
  cell.set("mitigations", std::move(names));
  return cell;
}

Node from_probe(const Node& given, Notes& notes) {
  const Node probe = validate(given, probe_schema());
  Node recipe = Node::map();
  recipe.set("workload", Node("command"));
  Node cells = Node::list();
  for (const Node& mitigation : probe.at("mitigation_axis").items())
    for (const Node& diagnostic : probe.at("diagnostic_axis").items()) cells.push_back(cell_of(mitigation, diagnostic));
  notes.push_back(
      fmt::format("mode: probe is workload: command; mitigation_axis x diagnostic_axis gives {} cells", cells.size()));
  std::set<std::string> gone = {"mode", "mitigation_axis", "diagnostic_axis"};
  for (const auto& [key, why] : kInertProbeKeys) {
    gone.insert(key);
    if (const Node* value = probe.find(key);
        value != nullptr && !value->is_null() && !(value->is_list() && value->size() == 0))
      notes.push_back(fmt::format("{} does nothing here: {}", key, why));
  }
  for (const Node::Entry& entry : probe.entries())
    if (!gone.contains(entry.key)) recipe.set(entry.key, entry.value);
  if (probe.find("timeout_per_trial") == nullptr) recipe.set("timeout_per_trial", Node());  // there: no limit
  recipe.set("cells", std::move(cells));
  return recipe;
}

// --- workload: llm_determinism

struct RenamedKey {
  const char* theirs;
  const char* ours;       // nullptr: does nothing here
  int64_t default_value;  // theirs, where ours differs; 0: none
  const char* why;        // for the note
};
constexpr std::array kDeterminismKeys = {
    RenamedKey{"hidden_size", "model_dim", 2048, ""},
    RenamedKey{"num_layers", "num_layers", 24, ""},
    RenamedKey{"ffn_size", "ffn_size", 5632, ""},
    RenamedKey{"num_heads", "num_heads", 16, ""},
    RenamedKey{"seq_len", "seq_len", 0, ""},
    RenamedKey{"batch_size", "batch_size", 0, ""},
    RenamedKey{"dtype", "dtype", 0, ""},
    RenamedKey{"seed", "deterministic_seed", 1234, ""},
    RenamedKey{"checksum_mode", nullptr, 0, "digests are compared within each rank and between ranks"},
    RenamedKey{"capture_dir", nullptr, 0, "a recipe chooses no files; digests that differ are in the trial's record"},
    RenamedKey{"model_label", nullptr, 0, "a label"},
    RenamedKey{"vocab_size", nullptr, 0, "the block has no vocabulary: its input is a fixed tensor"}};

constexpr const char* kExperts = "num_experts";

// Notes are about keys, not about cells: each once.
void note_once(Notes& notes, std::string note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
}

Node renamed_config(const Node& config, bool with_defaults, Notes& notes) {
  Node ours = Node::map();
  Node rest = config;
  for (const RenamedKey& key : kDeterminismKeys) {
    const Node* value = config.find(key.theirs);
    if (value != nullptr && key.ours == nullptr)
      note_once(notes, fmt::format("{} does nothing here: {}", key.theirs, key.why));
    else if (value != nullptr)
      ours.set(key.ours, *value);
    else if (with_defaults && key.default_value != 0)
      ours.set(key.ours, Node(key.default_value));
    if (value != nullptr && key.ours != nullptr && std::string_view(key.ours) != key.theirs)
      note_once(notes, fmt::format("{} is {} here", key.theirs, key.ours));
    rest.erase(key.theirs);
  }
  rest.erase(kExperts);
  for (const Node::Entry& entry : rest.entries())
    ours.set(entry.key, entry.value);  // ours, or a mistake: checked later
  return ours;
}

void double_steps(Node& place, Notes& notes) {
  Node* steps = place.find("steps");
  if (steps == nullptr || !steps->is_integer()) return;
  const int64_t wanted = steps->as_integer();
  if (wanted < 1 || wanted > 500'000) return;  // the schema's complaint
  Node doubled(2 * wanted);
  doubled.set_position(steps->position());
  place.set("steps", std::move(doubled));
  note_once(notes,
            fmt::format("steps: {} is {} here: an iteration is compared with the ones before it, there each step "
                        "is done twice",
                        wanted, 2 * wanted));
}

int64_t experts_of(const Node& config) {
  const Node* experts = config.find(kExperts);
  return experts != nullptr && experts->is_integer() ? experts->as_integer() : 1;
}

Node from_determinism(const Node& given, Notes& notes) {
  notes.emplace_back(
      "workload: llm_determinism is workload: race with one shared transformer block and a real backward");
  Node recipe = given;
  recipe.set("workload", Node("race"));
  const Node* theirs = given.find("workload_config");
  const Node common = theirs != nullptr && theirs->is_map() ? *theirs : Node::map();
  Node config = renamed_config(common, true, notes);
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, Node>>{{"mode", Node("fsdp")},
                                                           {"compute_type", Node("transformer")},
                                                           {"shared_layer_weights", Node(true)},
                                                           {"real_backward", Node(true)},
                                                           {"deterministic", Node(true)},
                                                           {"warmup_iterations", Node(0)},
                                                           {"stop_on_first_corruption", Node(false)}})
    if (config.find(key) == nullptr) config.set(key, value);
  recipe.set("workload_config", std::move(config));
  double_steps(recipe, notes);
  Node* cells = recipe.find("cells");
  if (cells == nullptr || !cells->is_list()) return recipe;
  for (Node& cell : cells->items()) {
    if (!cell.is_map()) continue;
    double_steps(cell, notes);
    const Node* own = cell.find("workload_config");
    const Node own_config = own != nullptr && own->is_map() ? *own : Node::map();
    const int64_t experts = experts_of(own_config.find(kExperts) != nullptr ? own_config : common);
    if (own != nullptr) cell.set("workload_config", renamed_config(own_config, false, notes));
    if (experts > 1)
      cell.set("skip", Node(fmt::format("num_experts: {}: the block here has no experts, and a dense one would say "
                                        "nothing about them",
                                        experts)));
  }
  return recipe;
}

// --- keys of every recipe

// gpu_max_hw_queues is a variable of the runtime; it is set before the trial starts.
void move_hardware_queues(Node& place, Notes& notes) {
  constexpr const char* kTheirs = "gpu_max_hw_queues";
  constexpr const char* kVariable = "GPU_MAX_HW_QUEUES";
  Node* config = place.find("workload_config");
  const Node* value = config == nullptr ? nullptr : config->find(kTheirs);
  if (value == nullptr) return;
  if (!value->is_null()) {
    if (!value->is_integer() || value->as_integer() < 1 || value->as_integer() > 1024)
      throw value->error(
          fmt::format("{}: wanted an integer from 1 to 1024 or null, got {}", kTheirs, describe(*value)));
    Node variables = place.find("extra_env") != nullptr ? *place.find("extra_env") : Node::map();
    Node text(std::to_string(value->as_integer()));
    text.set_position(value->position());
    const Node* twice = variables.is_map() ? variables.find(kVariable) : nullptr;
    if (twice != nullptr && !(*twice == text))
      throw value->error(fmt::format("{}: {}, but extra_env at {} sets {} to {}; keep one of them", kTheirs,
                                     value->as_integer(), twice->position().text(), kVariable, describe(*twice)));
    if (variables.is_map()) variables.set(kVariable, std::move(text));
    place.set("extra_env", std::move(variables));
    note_once(notes, fmt::format("{} is the variable {} of the trial", kTheirs, kVariable));
  }
  place.find("workload_config")->erase(kTheirs);
}

void refuse_container(const Node& cell) {
  const Node* environment = cell.find("environment");
  if (environment != nullptr && environment->is_map())
    throw environment->error(
        "environment: a trial here starts no container; start faultline inside the image and write environment: local");
}

}  // namespace

bool is_probe(const Node& given) {
  const Node* mode = given.find("mode");
  return mode != nullptr && mode->is_string() && mode->as_string() == "probe";
}

Schema probe_schema() {
  const Schema axis = Schema::list(Schema::string({.min = 1}), {.min = 1, .max = 100});
  const Schema anything = Schema::anything();
  return Schema::map()
      .field("mode", Schema::choice({"probe"}), {.required = true})
      .field("schema_version", anything, {.doc = "as in every recipe"})
      .field("name", anything)
      .field("description", anything)
      .field("ticket", anything)
      .field("trials", anything, {.required = true})
      .field("mitigation_axis", axis, {.required = true, .doc = "names of mitigations; a cell has one"})
      .field("diagnostic_axis", axis, {.required = true, .doc = "names of mitigations; a cell has one of these, too"})
      .field("timeout_per_trial", anything)
      .field("env_passthrough_mode", anything)
      .field("custom_patterns", anything)
      .field("metrics", anything, {.doc = "ours, not AORTA's: as in every recipe"})
      .field("same_between_trials", anything)
      .field("fault_evidence", anything)
      .field("confound", anything)
      .field("stop_after", anything)
      .field("seed", anything)
      .field("extra_env", anything)
      .field("mitigations", anything)
      .field("environments", anything)
      .field("bundle_files", anything)
      .field("save_logs", anything)
      .field("warmup_trial", anything)
      .field("step_time_regex", Schema::any_of({Schema::null(), Schema::string()}))
      .field("collect_paths", Schema::any_of({Schema::null(), Schema::list(Schema::string())}))
      .field("hang_window_sec", optional_number({.min = 0, .exclusive_min = true}))
      .field("hang_grace_period_at_start", optional_number({.min = 0}))
      .field("tier3_vram_growth", Schema::boolean())
      .field("redaction", Schema::map().extra(Schema::anything()));
}

Node from_aorta(const Node& given, Notes& notes) {
  if (!given.is_map()) return given;
  if (is_probe(given)) return from_probe(given, notes);
  const Node* workload = given.find("workload");
  const bool determinism = workload != nullptr && workload->is_string() && workload->as_string() == "llm_determinism";
  Node recipe = determinism ? from_determinism(given, notes) : given;
  move_hardware_queues(recipe, notes);
  if (Node* cells = recipe.find("cells"); cells != nullptr && cells->is_list())
    for (Node& cell : cells->items()) {
      if (!cell.is_map()) continue;
      refuse_container(cell);
      move_hardware_queues(cell, notes);
    }
  return recipe;
}

}  // namespace faultline::triage
