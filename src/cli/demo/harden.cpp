// The act of the demo that trains: supervised steps teach the answer's format once; from that model two short GRPO runs
// start under the planted fault, one with noise on the norms of the diagnosed layer (guided), one with noise on all of
// them (global). Both are judged on the same problems under the same fault. With so few steps and one seed nothing but
// `inconclusive` can be expected, and that is what the act must be able to say.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/json.h"
#include "base/stats/stats.h"
#include "cli/command.h"
#include "cli/demo/demo.h"
#include "cli/output.h"
#include "lab/evaluation.h"
#include "lab/training_run.h"
#include "recipe/recipe.h"

namespace faultline::cli {
namespace {

constexpr int64_t kAnswerTokens = 40;

class Weights {  // as they were
 public:
  explicit Weights(model::CausalLm& model) : model_(model) {
    for (const model::CausalLm::Parameter& parameter : model.parameters())
      values_.push_back(parameter.tensor->detach().clone());
  }
  void restore() const {
    const at::NoGradGuard no_gradients;
    const std::vector<model::CausalLm::Parameter> parameters = model_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor->copy_(values_[i]);
  }

 private:
  model::CausalLm& model_;
  std::vector<at::Tensor> values_;
};

// The seed of a recipe is a signed number.
int64_t recipe_seed(uint64_t seed) { return static_cast<int64_t>(seed & 0x7fffffff); }

constexpr const char* kCommon =
    "task: {{name: arithmetic, difficulty: 1, train: 256, test: 64}}\nseed: {}\n"
    "phases: {{rollout: true, actor_forward: true, actor_backward: true, eval: both}}\n";
constexpr const char* kSupervised =
    "train: {{algorithm: sft, steps: {}, prompts: 8, lr: 1.0e-4, validation_problems: 0, checkpoint_every: 0}}\n";
constexpr const char* kReinforced =
    "train: {{algorithm: grpo, steps: {}, prompts: 3, n: 4, lr: 1.0e-5, max_new_tokens: 40, slots: 12, "
    "validation_problems: 0, checkpoint_every: 0}}\n";
constexpr const char* kNoise =
    "aqn: {{schedule: linear, sigma_start: 0.05, sigma_end: 0.005, sigma_scale: relative, layers: {}, force: true}}\n";

struct Trained {
  std::string folder;  // of its record, below the demo's
  lab::TrainingOutcome outcome;
  Json rewards = Json::array();
};

Trained train(const Stage& stage, const std::string& name, const std::string& text, const Node& faults) {
  Node recipe = recipe::parse_recipe(text, {});
  recipe.set("faults", faults);
  const lab::TrainingSpec spec = lab::read_training(recipe);
  record::RunDirectory directory =
      record::begin_run(stage.folder / "runs", {name, to_json(recipe), spec.seed, to_json(faults)}, stage.maker);
  lab::TrainingRun run(stage.loaded, spec);
  Trained trained;
  trained.folder = (std::filesystem::path("runs") / directory.path().filename()).string();
  lab::TrainingProgress progress;
  progress.on_event = [&](const Json& event) {
    if (event["kind"] != "step") return;
    const Json& metrics = event["metrics"];
    const char* shown = metrics.contains("train/loss") ? "train/loss" : "critic/score/mean";
    trained.rewards.push_back(metrics.value(shown, 0.0));
    stage.progress(fmt::format("{}: step {} of {}, {} {:.3f}", name, event["step"].get<int64_t>(),
                               spec.train.spec.total_steps(), shown, metrics.value(shown, 0.0)));
  };
  trained.outcome = run.run(directory, progress);
  if (!trained.outcome.complaints.empty())
    throw EvidenceError(fmt::format("demo, {}: ", name), trained.outcome.complaints);
  return trained;
}

struct Judged {
  std::vector<double> clean, faulty;  // reward of each problem
  Json rows;
};

Judged judge_model(const Stage& stage, const PlantedFault& fault, int64_t problems, const std::string& name) {
  stage.progress(fmt::format("{}: {} additions, clean and broken", name, problems));
  lab::EvaluationSpec spec;
  spec.task.arithmetic = {static_cast<uint64_t>(recipe_seed(stage.seed)), 1};
  spec.limit = problems;
  spec.generation.max_new_tokens = kAnswerTokens;
  spec.generation.slots = problems;
  spec.generation.seed = stage.seed;
  const std::vector<lab::EvaluationRow> rows =
      lab::Evaluation(stage.loaded, spec, {{fault.text, fault.recipe(stage.seed)}}).run({});
  if (!rows[1].proof->complaints.empty())
    throw EvidenceError(fmt::format("demo, {}: ", name), rows[1].proof->complaints);
  Judged judged;
  for (const task::Answer& answer : rows[0].answers) judged.clean.push_back(answer.reward);
  for (const task::Answer& answer : rows[1].answers) judged.faulty.push_back(answer.reward);
  judged.rows = lab::evaluation_json(rows);
  return judged;
}

Json share_record(const std::vector<double>& rewards) {
  int64_t right = 0;
  for (const double reward : rewards) right += reward > 0;
  const Interval range = wilson_interval(right, std::ssize(rewards));
  return {{"right", right},
          {"problems", rewards.size()},
          {"accuracy", static_cast<double>(right) / static_cast<double>(rewards.size())},
          {"interval", {range.low, range.high}}};
}

std::string share_text(const Json& share) {
  return fmt::format("{} ({}/{})", percent(share["accuracy"]), share["right"].get<int64_t>(),
                     share["problems"].get<int64_t>());
}

Json arm_record(const std::string& name, const Judged& judged, const Trained* trained) {
  Json arm = {{"arm", name},
              {"clean", share_record(judged.clean)},
              {"faulty", share_record(judged.faulty)},
              {"changed", judged.rows[1]["evidence"]["rules"][0]["changed"]}};
  if (trained == nullptr) return arm;
  arm["record"] = trained->folder, arm["curve"] = trained->rewards;
  if (trained->outcome.proof) arm["training_rules"] = trained->outcome.proof->report["rules"];
  return arm;
}

// treated - control in points, of the same problems under the same fault.
Json comparison(const char* treated_name, const std::vector<double>& treated, const char* control_name,
                const std::vector<double>& control) {
  const MeanInterval difference = paired_t_interval(treated, control);
  const bool inconclusive = difference.low <= 0 && difference.high >= 0;
  return {{"treated", treated_name},
          {"control", control_name},
          {"difference", difference.mean},
          {"interval", {difference.low, difference.high}},
          {"verdict", inconclusive          ? "inconclusive"
                      : difference.mean > 0 ? "better"
                                            : "worse"}};
}

}  // namespace

// Of the whole act 37 % were SFT, 42 % GRPO and 21 % judging on two x86-64 cores with AMX.
double Lesson::share() const {
  constexpr Lesson kWhole;
  return 0.37 * static_cast<double>(taught) / static_cast<double>(kWhole.taught) +
         0.42 * static_cast<double>(reinforced) / static_cast<double>(kWhole.reinforced) +
         0.21 * static_cast<double>(problems) / static_cast<double>(kWhole.problems);
}

Lesson lesson_for(double whole, double seconds) {
  constexpr Lesson kLessons[] = {{}, {6, 2, 24}, {5, 2, 16}, {3, 1, 16}, {2, 1, 8}};
  for (const Lesson& lesson : kLessons)
    if (lesson.share() * whole <= seconds) return lesson;
  return kLessons[std::size(kLessons) - 1];
}

Act hardening_act(Stage& stage, const PlantedFault& fault, std::optional<int64_t> guided_layer, const Lesson& lesson) {
  Act act{.name = "hardening"};
  const std::string common = fmt::format(kCommon, recipe_seed(stage.seed));
  const Trained taught = train(stage, "sft", common + fmt::format(kSupervised, lesson.taught), Node::list());
  const Weights start(*stage.loaded.model);
  const Judged before = judge_model(stage, fault, lesson.problems, "after SFT");
  act.record["arms"] = Json::array({arm_record("sft", before, &taught)});
  act.lines.push_back(fmt::format("SFT, {} steps: additions without examples {} clean, {} under the fault",
                                  taught.rewards.size(), share_text(act.record["arms"][0]["clean"]),
                                  share_text(act.record["arms"][0]["faulty"])));
  std::vector<std::pair<std::string, std::vector<double>>> judged;
  const Node faults = fault.recipe(stage.seed).at("faults");
  const auto run_arm = [&](const std::string& name, const std::string& layers) {
    start.restore();
    const Trained trained =
        train(stage, name, common + fmt::format(kReinforced, lesson.reinforced) + fmt::format(kNoise, layers), faults);
    const Judged result = judge_model(stage, fault, lesson.problems, name);
    const Json arm = arm_record(name, result, &trained);
    act.lines.push_back(fmt::format(
        "{}, {} GRPO steps, noise on {}: {} clean, {} under the fault (proof: {:.0f} faulted calls in training)", name,
        trained.rewards.size(), layers == "all" ? "all norms" : "the norms of layer " + layers,
        share_text(arm["clean"]), share_text(arm["faulty"]), arm["training_rules"][0]["calls"].get<double>()));
    act.record["arms"].push_back(arm);
    judged.emplace_back(name, result.faulty);
  };
  run_arm("global", "all");
  if (guided_layer) run_arm("guided", fmt::format("{}", *guided_layer));
  start.restore();
  if (judged.size() < 2) {
    act.lines.emplace_back("no layer was accused: there is nothing that guided noise could be guided by");
    return act;
  }
  act.record["comparison"] = comparison("guided", judged[1].second, "global", judged[0].second);
  const Json& said = act.record["comparison"];
  act.lines.push_back(fmt::format("guided against global: {:+.1f} points ({:+.1f} to {:+.1f}): {}",
                                  100 * said["difference"].get<double>(), 100 * said["interval"][0].get<double>(),
                                  100 * said["interval"][1].get<double>(),
                                  styled(Style::kHeading, said["verdict"].get<std::string>())));
  act.lines.emplace_back("(one seed, few steps: the interval is of the problems alone; experiments use many seeds)");
  return act;
}

}  // namespace faultline::cli
