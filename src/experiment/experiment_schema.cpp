// The recipe section `experiment:` and what its arms make of a recipe.
#include <fmt/format.h>

#include <algorithm>

#include "base/config/override.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "experiment/experiment.h"
#include "recipe/recipe.h"

namespace faultline::experiment {
namespace {

std::vector<std::string> keys_of(const Node& map) {
  std::vector<std::string> names;
  for (const auto& entry : map.entries()) names.push_back(entry.key);
  return names;
}

std::string unknown_arm(const std::string& place, const std::string& name, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return "";
  return fmt::format("{}: '{}' is no arm{}", place, name, did_you_mean(name, known));
}

std::string check_experiment(const Node& experiment) {
  const std::vector<std::string> names = keys_of(experiment.at("arms"));
  if (names.empty()) return "arms: there must be at least one";
  for (const std::string& name : names)  // names become folders
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != std::string::npos)
      return fmt::format("arms: '{}': letters, digits, _ and - only", name);
  const Node* control = experiment.find("control");
  if (control != nullptr)
    if (std::string complaint = unknown_arm("control", control->as_string(), names); !complaint.empty())
      return complaint;
  std::vector<std::string> contrasts;
  for (const Node& contrast : experiment.at("contrasts").items()) {
    const std::string &arm = contrast.at("arm").as_string(), &against = contrast.at("against").as_string();
    for (const std::string& name : {arm, against})
      if (std::string complaint = unknown_arm("contrasts", name, names); !complaint.empty()) return complaint;
    if (arm == against) return fmt::format("contrasts: '{}' is compared with itself", arm);
    const std::string pair = arm + " - " + against;
    if (std::find(contrasts.begin(), contrasts.end(), pair) != contrasts.end())
      return fmt::format("contrasts: {} is named twice", pair);
    contrasts.push_back(pair);
  }
  return "";
}

// One flow value on one line, as overrides read it.
std::string flow_text(const Node& node) {
  const Json json = to_json(node);
  return json.is_string() ? "'" + json.get<std::string>() + "'" : json.dump();
}

std::string change_text(const std::string& key, const Node& value) {
  return value.is_null() ? "~" + key : fmt::format("++{}={}", key, flow_text(value));
}

Schema changes_schema() {
  return Schema::map().extra(Schema::anything()).described_as("changes: {aqn.schedule: constant}");
}

Schema calibration_schema() {
  const Schema positive = Schema::number({.min = 0, .exclusive_min = true});
  return Schema::map()
      .field("rule", Schema::string({.min = 1}), {.required = true, .doc = "the fault whose strength is looked for"})
      .field("parameter", Schema::string({.min = 1}), {.default_value = Node("threshold"), .doc = "of its what:"})
      .field("from", positive, {.required = true, .doc = "weakest value to try"})
      .field("to", positive, {.required = true, .doc = "strongest value to try"})
      .field("leave", Schema::list(Schema::number({.min = 0, .max = 1}), {.min = 2, .max = 2}),
             {.default_value = Node::list({Node(0.5), Node(0.75)}),
              .doc = "share of the clean measure that the fault alone leaves"})
      .field("measure", Schema::choice({"accuracy", "agreement"}),
             {.default_value = Node("accuracy"), .doc = "agreement: with the clean model's answers"})
      .field("problems", Schema::integer({.min = 1, .max = 1 << 20}), {.default_value = Node(256)})
      .field("trials", Schema::integer({.min = 2, .max = 100}), {.default_value = Node(12), .doc = "values to try"})
      .check([](const Node& node) -> std::string {
        if (node.at("from").as_number() >= node.at("to").as_number()) return "from must be below to";
        const Node& leave = node.at("leave");
        if (leave.at(std::size_t{0}).as_number() >= leave.at(1).as_number())
          return "leave: the first is the smaller one";
        return "";
      });
}

Calibration read_calibration(const Node& node) {
  Calibration calibration;
  calibration.rule = node.at("rule").as_string();
  calibration.parameter = node.at("parameter").as_string();
  calibration.low = node.at("from").as_number();
  calibration.high = node.at("to").as_number();
  calibration.leave_low = node.at("leave").at(std::size_t{0}).as_number();
  calibration.leave_high = node.at("leave").at(1).as_number();
  calibration.problems = node.at("problems").as_integer();
  calibration.trials = node.at("trials").as_integer();
  calibration.agreement = node.at("measure").as_string() == "agreement";
  return calibration;
}

// A seed that an arm set would be overwritten with the experiment's, without a word.
void refuse_own_seed(const std::string& arm, const std::string& key, const Node& changes) {
  if (key == "seed")
    throw changes.error(
        fmt::format("arm '{}': seed: the arms of an experiment share its seeds; change the recipe's", arm));
}

Arm read_arm(const std::string& name, const Node& changes) {
  Arm arm{name, {}, {}};
  for (const auto& change : changes.entries()) {
    refuse_own_seed(name, change.key, changes);
    if (change.key != "by_seed") {
      arm.overrides.push_back(change_text(change.key, change.value));
      continue;
    }
    if (!change.value.is_map()) throw changes.error("by_seed: a map from keys to lists of values");
    for (const auto& entry : change.value.entries()) {
      if (!entry.value.is_list() || entry.value.size() == 0)
        throw changes.error(fmt::format("by_seed: {}: a list of values that seeds take in turn", entry.key));
      refuse_own_seed(name, entry.key, changes);
      std::vector<std::string> values;
      for (const Node& value : entry.value.items()) values.push_back(change_text(entry.key, value));
      arm.by_seed.emplace_back(entry.key, std::move(values));
    }
  }
  return arm;
}

}  // namespace

void register_experiment_section() {
  const Schema contrast = Schema::map()
                              .field("arm", Schema::string({.min = 1}), {.required = true})
                              .field("against", Schema::string({.min = 1}), {.required = true})
                              .field("name", Schema::string({.min = 1}), {.doc = "what it asks"});
  const Schema count = Schema::integer({.min = 1, .max = 10000});
  SectionRegistry::global().add(
      "experiment",
      Schema::map()
          .field(
              "arms", Schema::map().extra(changes_schema()),
              {.required = true, .doc = "name: what it changes; null removes; by_seed: values that seeds take in turn"})
          .field("seeds", count, {.default_value = Node(3)})
          .field("pilot", Schema::integer({.min = 2, .max = 1000}),
                 {.default_value = Node(6), .doc = "seeds of a pilot, none of them an experiment's"})
          .field("control", Schema::string({.min = 1}), {.doc = "the arm that others are compared with"})
          .field("contrasts", Schema::list(contrast),
                 {.default_value = Node::list(), .doc = "named before the run: the family that Holm corrects"})
          .field("endpoint", Schema::string({.min = 1}), {.doc = "a metric of the end, one for all arms"})
          .field("question", Schema::string({.min = 1}), {.doc = "what the table answers"})
          .field("evaluate",
                 Schema::map().extra(Schema::list(numeric::rule_schema(numeric::RuleUse::kInPlan), {.min = 1})),
                 {.default_value = Node::map(), .doc = "label: faults that every arm's final model is judged under"})
          .field("draws", count, {.default_value = Node(1), .doc = "of the noise of evaluate"})
          .field("calibrate", calibration_schema(), {.doc = "find a fault's strength before the first trial"})
          .field("diagnose", Schema::choice({"classic", "self", "shadow"}),
                 {.doc = "diagnose the faulty model first; arms read {from_verdict: verdict.json}"})
          .field("scales", Schema::map().extra(changes_schema()),
                 {.default_value = Node::map(), .doc = "what --scale changes besides what is built in"})
          .check(check_experiment),
      {.doc = "arms times seeds, compared seed by seed"});
}

const Arm& ExperimentSpec::arm(const std::string& name) const {
  std::vector<std::string> names;
  for (const Arm& one : arms) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  throw UsageError(fmt::format("'{}' is no arm{}", name, did_you_mean(name, names)));
}

ExperimentSpec read_experiment(const Node& experiment) {
  ExperimentSpec spec;
  for (const auto& entry : experiment.at("arms").entries()) spec.arms.push_back(read_arm(entry.key, entry.value));
  spec.seeds = experiment.at("seeds").as_integer();
  spec.pilot = experiment.at("pilot").as_integer();
  spec.draws = experiment.at("draws").as_integer();
  const auto text = [&](const char* key, std::string& value) {
    if (const Node* node = experiment.find(key)) value = node->as_string();
  };
  text("control", spec.control), text("endpoint", spec.endpoint), text("question", spec.question);
  text("diagnose", spec.diagnosis);
  for (const Node& contrast : experiment.at("contrasts").items()) {
    const std::string &arm = contrast.at("arm").as_string(), &against = contrast.at("against").as_string();
    const Node* name = contrast.find("name");
    spec.contrasts.push_back({name != nullptr ? name->as_string() : arm + " - " + against, arm, against});
  }
  if (spec.contrasts.empty() && !spec.control.empty())
    for (const Arm& arm : spec.arms)
      if (arm.name != spec.control) spec.contrasts.push_back({arm.name + " - " + spec.control, arm.name, spec.control});
  for (const auto& entry : experiment.at("evaluate").entries()) {
    lab::FaultCase one{entry.key, Node::map()};
    one.recipe.set("faults", entry.value);
    for (const Node& rule : entry.value.items()) (void)numeric::read_rule(rule);  // refuses what no schema can
    spec.evaluations.push_back(std::move(one));
  }
  if (const Node* calibration = experiment.find("calibrate")) spec.calibration = read_calibration(*calibration);
  return spec;
}

Node arm_recipe(const Node& recipe, const Arm& arm, int64_t seed_index) {
  Node changed = recipe;
  changed.erase("experiment");
  const Schema schema = recipe::recipe_schema();
  std::vector<std::string> overrides = arm.overrides;
  for (const auto& [key, values] : arm.by_seed)
    overrides.push_back(values[static_cast<std::size_t>(seed_index % kPilotSeeds) % values.size()]);
  try {
    changed = apply_overrides(std::move(changed), overrides, &schema);
    if (changed.find("experiment") != nullptr)
      throw UsageError(
          "an arm changes a training, not the experiment; write experiment's keys below experiment itself");
    changed.set("seed", recipe.at("seed").as_integer() + seed_index);
    return validate(changed, schema);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("arm '{}': {}", arm.name, error.what()));
  }
}

// Note [Scales]: what a scale changes is the same for every recipe (how large the task, how many steps), so it is
// written once, here; a recipe adds what only it knows (which layers a model of two layers has).
std::vector<std::string> scale_overrides(const Node& recipe, const std::string& scale) {
  std::vector<std::string> changes;
  const Node* train = recipe.find("train");
  const bool sft = train != nullptr && train->find("sft") != nullptr;
  if (scale == "tiny") {
    changes = {"++task={name: arithmetic, difficulty: 1, train: 32, test: 8}",
               "++train.steps=2",
               "++train.prompts=2",
               "++train.n=2",
               "++train.micro_batch=4",
               "++train.lr=1.0e-4",
               "++train.max_new_tokens=4",
               "++train.slots=4",
               "++train.validation_problems=2",
               "++train.validation_draws=1",
               "++train.checkpoint_every=1",
               "++experiment.seeds=2",
               "++experiment.pilot=2"};
    if (sft) changes.insert(changes.end(), {"++train.sft={steps: 2, prompts: 4, lr: 1.0e-3}"});
  } else if (scale == "short") {  // a fifth of default's tokens: more seeds in the same time, less learning in each
    changes = {"++train.steps=20",
               "++train.prompts=24",
               "++train.n=8",
               "++train.micro_batch=96",
               "++train.lr=2.0e-5",
               "++train.max_new_tokens=48",
               "++train.slots=512",
               "++train.validation_problems=512",
               "++train.validation_draws=4",
               "++experiment.draws=1"};
  } else if (scale == "paper") {
    changes = {"++task={name: gsm8k}",
               "++train.steps=116",
               "++train.prompts=128",
               "++train.n=5",
               "++train.micro_batch=16",
               "++train.lr=1.0e-6",
               "++train.max_new_tokens=512",
               "++train.slots=256",
               "++train.validation_problems=1319",
               "++train.validate_every=20",
               "++train.checkpoint_every=20"};
    if (sft) changes.emplace_back("~train.sft");
  } else if (scale != "default") {
    const std::vector<std::string> known = {"tiny", "short", "default", "paper"};
    throw UsageError(
        fmt::format("--scale: tiny, short, default or paper; got '{}'{}", scale, did_you_mean(scale, known)));
  }
  const Node* experiment = recipe.find("experiment");
  if (experiment == nullptr) return changes;
  if (const Node* own = experiment->at("scales").find(scale))
    for (const auto& change : own->entries()) changes.push_back(change_text(change.key, change.value));
  return changes;
}

}  // namespace faultline::experiment
