#include "recipe/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "recipe/draft.h"
#include "recipe/recipe.h"

namespace faultline::recipe {

void Draft::note(std::string text) {
  if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(std::move(text));
}

std::string chosen(const Settings& settings, const std::string& slot, const std::string& word, const Choices& choices) {
  const auto found = choices.find(word);
  if (found != choices.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) names.push_back(name);
  const ForeignSetting* setting = settings.find(slot);
  throw UsageError(fmt::format("{}: '{}' is not known{}; known are {}", setting == nullptr ? slot : setting->key, word,
                               did_you_mean(word, names), fmt::join(names, ", ")));
}

Node map_of(std::initializer_list<std::pair<const char*, Node>> entries) {
  Node map = Node::map();
  for (const auto& [key, value] : entries) map.set(key, value);
  return map;
}

void add_rule(Draft& draft, const std::string& name, Node where, Node what, Node more) {
  Node rule = map_of({{"name", Node(name)}, {"where", std::move(where)}, {"what", std::move(what)}});
  const Node* strength = rule.at("what").find("strength");
  const bool is_relative = rule.at("what").at("kind").as_string() == "relative_gaussian";
  if (is_relative && strength->as_number() <= 3e-4 && strength->as_number() > 0) {
    rule.set("rounding", Node("stochastic"));
    draft.note(
        fmt::format("strength {} changes nothing in bf16 with nearest rounding, so rounding is stochastic; the old "
                    "code rounded to nearest",
                    strength->as_number()));
  }
  for (const auto& entry : more.entries()) rule.set(entry.key, entry.value);
  draft.faults.push_back(std::move(rule));
}

Node phases_of(bool rollout, bool training, bool backward) {
  return map_of({{"rollout", Node(rollout)},
                 {"actor_forward", Node(training)},
                 {"actor_backward", Node(backward)},
                 {"eval", Node("both")}});
}

namespace {

constexpr int64_t kGsm8kProblems = 7473;  // of the training split

// Only what was given: everything else keeps our default.
class Section {
 public:
  Section(const Settings& settings, Node& node) : settings_(settings), node_(node) {}
  void number(const char* slot, const char* key) {
    if (settings_.find(slot) != nullptr) node_.set(key, Node(settings_.number(slot, 0)));
  }
  void count(const char* slot, const char* key) {
    if (settings_.find(slot) == nullptr) return;
    const double value = settings_.number(slot, 0);
    if (value != std::floor(value)) throw Settings::wrong(*settings_.find(slot), "a whole number");
    if (value > 0) node_.set(key, Node(static_cast<int64_t>(value)));  // -1: never
  }
  void flag(const char* slot, const char* key) {
    if (settings_.find(slot) != nullptr) node_.set(key, Node(settings_.flag(slot)));
  }

 private:
  const Settings& settings_;
  Node& node_;
};

std::string one_file(const Settings& settings, const char* slot) {
  const std::vector<std::string> files = settings.words(slot, {});
  if (files.size() > 1)
    throw UsageError(fmt::format("{}: one file is read here, got {}", settings.find(slot)->key, files.size()));
  return files.empty() ? "" : files[0];
}

void set_steps(Draft& draft, Node& train) {
  const Settings& settings = draft.settings;
  if (settings.find("run.steps") != nullptr) return Section(settings, train).count("run.steps", "steps");
  if (settings.find("run.epochs") == nullptr || settings.find("run.prompts") == nullptr) return;
  const auto prompts = static_cast<int64_t>(settings.number("run.prompts", 1)),
             epochs = static_cast<int64_t>(settings.number("run.epochs", 1));
  if (prompts < 1 || prompts > kGsm8kProblems || epochs < 1 || epochs > 100'000) return;
  train.set("steps", Node(kGsm8kProblems / prompts * epochs));
  draft.note(
      fmt::format("train.steps: {} x {}, epochs times steps of an epoch over GSM8K's {} problems; for other data give "
                  "trainer.total_training_steps",
                  epochs, kGsm8kProblems / prompts, kGsm8kProblems));
}

Node in_order(const Node& recipe) {
  Node ordered = Node::map();
  for (const char* key : {"model", "seed", "task", "train", "aqn", "faults"})
    if (const Node* section = recipe.find(key)) ordered.set(key, *section);
  FL_ASSERT(ordered.size() == recipe.size());
  return ordered;
}

}  // namespace

void add_training(Draft& draft) {
  const Settings& settings = draft.settings;
  if (settings.find("run.model") != nullptr) draft.recipe.set("model", Node(settings.word("run.model", "default")));
  // Does the input ask for training at all?
  const bool trains = settings.find("run.train_files") != nullptr || settings.find("run.prompts") != nullptr ||
                      settings.find("run.lr") != nullptr;
  if (!trains && draft.recipe.find("aqn") == nullptr) return;
  if (draft.faults.size() == 0 && draft.recipe.find("aqn") == nullptr)
    draft.note("no fault and no noise is on: a clean run");
  // The task.
  const std::string train_file = one_file(settings, "run.train_files"), test_file = one_file(settings, "run.val_files");
  if (!train_file.empty() || !test_file.empty()) {
    Node task = map_of({{"name", Node("gsm8k")}});
    if (!train_file.empty()) task.set("train_file", Node(train_file));
    if (!test_file.empty()) task.set("test_file", Node(test_file));
    draft.recipe.set("task", std::move(task));
  }
  (void)chosen(settings, "run.algorithm", settings.word("run.algorithm", "grpo"), {{"grpo", "grpo"}});
  // The section `train`: steps, sampling, optimizer, loss, validation.
  Node train = map_of({{"algorithm", Node("grpo")}});
  set_steps(draft, train);
  Section section(settings, train);
  section.count("run.prompts", "prompts");
  section.count("run.n", "n");
  if (settings.number("run.temperature", 1) > 0) section.number("run.temperature", "temperature");  // 0: only evaluates
  section.count("run.max_new_tokens", "max_new_tokens");
  section.number("run.lr", "lr");
  section.number("run.weight_decay", "weight_decay");
  section.number("run.grad_clip", "grad_clip");
  section.flag("run.use_kl_loss", "use_kl_loss");
  section.number("run.kl_loss_coef", "kl_loss_coef");
  if (settings.find("run.kl_loss_type") != nullptr)
    train.set(
        "kl_loss_type",
        Node(chosen(settings, "run.kl_loss_type", settings.word("run.kl_loss_type", ""),
                    {{"low_var_kl", "k3"}, {"k3", "k3"}, {"kl", "k1"}, {"k1", "k1"}, {"mse", "k2"}, {"k2", "k2"}})));
  section.number("run.clip_ratio_low", "clip_ratio_low");
  section.number("run.clip_ratio_high", "clip_ratio_high");
  section.number("run.clip_ratio_c", "clip_ratio_c");
  if (settings.find("run.loss_agg_mode") != nullptr)
    train.set("loss_agg_mode", Node(settings.word("run.loss_agg_mode", "")));
  section.flag("run.norm_adv_by_std", "norm_adv_by_std");
  section.flag("run.filter_groups", "filter_groups");
  section.count("run.validate_every", "validate_every");
  section.count("run.checkpoint_every", "checkpoint_every");
  // A mini-batch there is a number of updates here.
  if (settings.find("run.mini_batch") != nullptr && settings.find("run.prompts") != nullptr) {
    const auto prompts = static_cast<int64_t>(settings.number("run.prompts", 0)),
               mini = static_cast<int64_t>(settings.number("run.mini_batch", 0));
    if (mini < 1 || prompts % mini != 0)
      throw Settings::wrong(*settings.find("run.mini_batch"), "a divisor of data.train_batch_size");
    train.set("updates", Node(prompts / mini));
  }
  if (settings.number("run.lora_rank", 0) > 0) {
    Node lora = Node::map();
    Section(settings, lora).count("run.lora_rank", "rank");
    Section(settings, lora).number("run.lora_alpha", "alpha");
    train.set("lora", std::move(lora));
  }
  draft.recipe.set("train", std::move(train));
}

Conversion convert_settings(const std::vector<ForeignSetting>& given) {
  Conversion result;
  const Settings settings(given, result.left);
  Draft draft{settings};
  add_hw_errors(draft);
  add_noisy_operators(draft);
  add_dead_zone(draft);
  add_planted_fault(draft);
  add_norm_noise(draft);
  add_training(draft);
  const bool diagnoses = settings.has_any("fault.");
  const bool trains = draft.recipe.find("train") != nullptr;
  if (draft.faults.size() == 0 && !trains && !diagnoses)
    throw UsageError(
        "nothing about faults or noise is switched on in these settings; `faultline convert --keys` lists the keys "
        "that are known");
  if (draft.faults.size() > 0) draft.recipe.set("faults", std::move(draft.faults));
  draft.recipe = in_order(draft.recipe);
  (void)parse_recipe(to_yaml(draft.recipe), {});  // what it says must be a recipe
  result.command = diagnoses ? "diagnose --recipe" : trains ? "train" : "run";
  if (diagnoses && settings.find("fault.device") != nullptr)
    draft.note("device: a choice of the command line, --device");
  result.recipe = std::move(draft.recipe);
  result.notes = std::move(draft.notes);
  return result;
}

}  // namespace faultline::recipe
