#include "triage/metric_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/json.h"

namespace faultline::triage {
namespace {

std::string check_rule(const Node& rule) {
  const Node& wrong = rule.at("wrong_if");
  const Node *above = wrong.find("above"), *below = wrong.find("below");
  if (!wrong.at("not_finite").as_bool() && !wrong.at("missing").as_bool() && above == nullptr && below == nullptr)
    return "wrong_if holds no condition, so the rule decides nothing; remove it or name one";
  if (above != nullptr && below != nullptr && below->as_number() > above->as_number())
    return fmt::format("every number is below {} or above {}; exchange the two", below->as_number(),
                       above->as_number());
  return "";
}

bool is_at_step(const Node& rule) { return rule.find("at") != nullptr && rule.at("at").is_integer(); }

std::string name_of_place(const MetricRule& rule) {
  return rule.at == MetricAt::kAny    ? "any"
         : rule.at == MetricAt::kLast ? "last"
                                      : fmt::format("{} {}", rule.step_key, rule.step);
}

// "" or how the value breaks the rule: "nan, which is not finite"
std::string complaint_about(const MetricRule& rule, double value) {
  if (!std::isfinite(value) && rule.not_finite) return fmt::format("{}, which is not finite", value);
  if (rule.above && value > *rule.above) return fmt::format("{}, above {}", value, *rule.above);
  if (rule.below && value < *rule.below) return fmt::format("{}, below {}", value, *rule.below);
  return "";
}

// A rule while its file is read.
class RuleState {
 public:
  explicit RuleState(const MetricRule& rule) : rule_(&rule) {}

  void look_at(const MetricRecord& record) {
    if (!wrong_.empty()) return;
    if (rule_->at == MetricAt::kStep) {
      const std::optional<double> step = record.number(rule_->step_key);
      if (!step || *step != static_cast<double>(rule_->step)) return;
    }
    const std::optional<double> value = record.number(rule_->metric);
    if (!value) return;
    ++values_, value_ = value, place_ = record.place;
    if (rule_->at == MetricAt::kAny) judge();
  }

  void break_with(const std::string& sentence) {
    if (wrong_.empty()) wrong_ = sentence;
  }

  void finish() {
    if (!wrong_.empty()) return;
    if (value_ && rule_->at != MetricAt::kAny) judge();
    if (!value_ && rule_->missing)
      wrong_ = rule_->at == MetricAt::kStep ? fmt::format("{}: no record of {} {} holds {}", rule_->file,
                                                          rule_->step_key, rule_->step, rule_->metric)
                                            : fmt::format("{}: no record holds {}", rule_->file, rule_->metric);
  }

  Json json(const std::string& note) const {
    return {{"file", rule_->file},
            {"metric", rule_->metric},
            {"at", name_of_place(*rule_)},
            {"values", values_},
            {"value", value_ ? Json(*value_) : Json(nullptr)},
            {"place", place_},
            {"wrong", wrong_},
            {"note", note}};
  }

  const MetricRule& rule() const { return *rule_; }

 private:
  void judge() {
    if (const std::string why = complaint_about(*rule_, *value_); !why.empty())
      wrong_ = fmt::format("{}: {} is {}", place_, rule_->metric, why);
  }

  const MetricRule* rule_;
  int64_t values_ = 0;
  std::optional<double> value_;
  std::string place_, wrong_;
};

// Each file once, for all the rules about it. -> a note about its end
std::string apply_rules(std::vector<RuleState*>& states, const std::filesystem::path& folder) {
  const std::string& file = states.front()->rule().file;
  std::string note;
  if (const std::string why = complain_trial_file(folder, file); !why.empty()) {
    for (RuleState* state : states)
      if (state->rule().missing) state->break_with(why);
    return why;
  }
  try {
    note = read_metrics(folder, file, [&](const MetricRecord& record) {
      for (RuleState* state : states) try {
          state->look_at(record);
        } catch (const MetricsFileError& error) {  // of this one metric
          state->break_with(error.what());
        }
    });
  } catch (const RuntimeFailure& error) {
    for (RuleState* state : states) state->break_with(error.what());
  }
  for (RuleState* state : states) state->finish();
  return note;
}

}  // namespace

Schema metric_rules_schema() {
  const Schema wrong_if =
      Schema::map()
          .field("not_finite", Schema::boolean(), {.default_value = Node(true), .doc = "NaN, an infinity, null"})
          .field("missing", Schema::boolean(),
                 {.default_value = Node(true), .doc = "the file, or the value in all of it or at that step"})
          .field("above", Schema::number(), {.doc = "a larger value"})
          .field("below", Schema::number(), {.doc = "a smaller value"});
  const Schema rule =
      Schema::map()
          .field("file", metrics_file_schema(),
                 {.required = true, .doc = ".jsonl, .ndjson or .csv, relative to FAULTLINE_TRIAL_FOLDER"})
          .field("metric", Schema::string({.min = 1, .max = 200}),
                 {.required = true, .doc = "key of the objects (a.b: within a map), column of the table"})
          .field("at", Schema::any_of({Schema::choice({"any", "last"}), Schema::integer({.min = 0})}),
                 {.default_value = Node("any"), .doc = "any value, the last one, or the one at this step"})
          .field("step_key", Schema::string({.min = 1, .max = 200}),
                 {.default_value = Node("step"), .doc = "what `at: STEP` looks for", .default_if = is_at_step})
          .field("wrong_if", wrong_if, {.default_value = Node::map(), .doc = "what makes the trial wrong"})
          .check(check_rule);
  return Schema::list(rule, {.max = 100});
}

std::vector<MetricRule> read_metric_rules(const Node& node) {
  std::vector<MetricRule> rules;
  for (const Node& one : node.items()) {
    MetricRule rule{.file = one.at("file").as_string(), .metric = one.at("metric").as_string()};
    const Node &at = one.at("at"), &wrong = one.at("wrong_if");
    rule.at = at.is_integer() ? MetricAt::kStep : at.as_string() == "last" ? MetricAt::kLast : MetricAt::kAny;
    if (rule.at == MetricAt::kStep) rule.step = at.as_integer(), rule.step_key = one.at("step_key").as_string();
    rule.not_finite = wrong.at("not_finite").as_bool(), rule.missing = wrong.at("missing").as_bool();
    if (const Node* above = wrong.find("above")) rule.above = above->as_number();
    if (const Node* below = wrong.find("below")) rule.below = below->as_number();
    rules.push_back(std::move(rule));
  }
  return rules;
}

std::string describe(const MetricRule& rule) {
  std::vector<std::string> conditions;
  if (rule.not_finite) conditions.emplace_back("not finite");
  if (rule.missing) conditions.emplace_back("missing");
  if (rule.above) conditions.push_back(fmt::format("above {}", *rule.above));
  if (rule.below) conditions.push_back(fmt::format("below {}", *rule.below));
  return fmt::format("wrong if {} of {} ({}) is {}", rule.metric, rule.file, name_of_place(rule),
                     fmt::join(conditions, " or "));
}

Json judge_metrics(const std::vector<MetricRule>& rules, const std::filesystem::path& folder) {
  std::vector<RuleState> states(rules.begin(), rules.end());
  std::map<std::string, std::vector<RuleState*>> by_file;
  for (RuleState& state : states) by_file[state.rule().file].push_back(&state);
  std::map<std::string, std::string> notes;
  for (auto& [file, of_file] : by_file) notes[file] = apply_rules(of_file, folder);
  Json judged = Json::array();
  for (const RuleState& state : states) judged.push_back(state.json(notes[state.rule().file]));
  return judged;
}

}  // namespace faultline::triage
