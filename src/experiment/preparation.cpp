#include "experiment/preparation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "experiment/start.h"
#include "experiment/trial.h"
#include "lab/run_evidence.h"
#include "record/document.h"
#include "task/evaluate.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVerdict = "verdict.json";
constexpr const char* kCalibration = "calibration.json";
constexpr const char* kCalibrationKind = "calibration";
constexpr const char* kVerdictKind = "diagnose";  // as the page of a verdict is called

Node* calibrated_rule(Node& recipe, const std::string& name) {
  for (Node& rule : recipe.find("faults")->items())
    if (rule.at("name").as_string() == name) return &rule;
  throw UsageError(fmt::format("experiment.calibrate.rule: there is no fault '{}'", name));
}

Node with_value(const Node& recipe, const Calibration& calibration, double value) {
  Node changed = recipe;
  Node* what = calibrated_rule(changed, calibration.rule)->find("what");
  if (what->find(calibration.parameter) == nullptr)
    throw UsageError(fmt::format("experiment.calibrate.parameter: the fault '{}' has no '{}'", calibration.rule,
                                 calibration.parameter));
  what->set(calibration.parameter, value);
  return changed;
}

class Measure {
 public:
  Measure(lab::LoadedModel& loaded, const Node& recipe, int64_t problems)
      : loaded_(loaded), spec_(lab::read_training(recipe)) {
    problems_ = task::load_task(spec_.task).test;
    problems_.resize(std::min(problems_.size(), static_cast<std::size_t>(problems)));
    const train::StageSpec& stage = spec_.train.spec.stages.back();
    options_.max_new_tokens = stage.max_new_tokens;
    options_.slots = stage.slots;
    options_.scoring = spec_.task.scoring;
    options_.seed = spec_.seed;
    options_.fixed_batch = true;
    clean_ = answers();
  }

  double clean(bool agreement) const { return agreement ? 1 : accuracy(clean_); }

  // Share of the clean measure under the recipe's faults, and the proof.
  Json under(const Node& recipe, bool agreement) {
    const int64_t rows = std::min<int64_t>(options_.slots, std::ssize(problems_));
    lab::Injection injection(recipe::read_plan_spec(recipe), *loaded_.model, site::Phase::kEval, rows);
    injection.arm();
    const std::vector<task::Answer> faulty = answers();
    injection.disarm();
    const Json evidence = lab::part_evidence(injection.plan(), injection.censuses());
    double equal = 0;
    for (std::size_t i = 0; i < faulty.size(); ++i) equal += faulty[i].text == clean_[i].text;
    const double measure = agreement ? equal / static_cast<double>(faulty.size()) : accuracy(faulty);
    return {{"measure", measure},
            {"share", measure / clean(agreement)},
            {"accuracy", accuracy(faulty)},
            {"evidence", evidence},
            {"complaints", to_json(lab::missing_evidence(evidence, injection.plan()))}};
  }
  std::size_t problems() const { return problems_.size(); }

 private:
  std::vector<task::Answer> answers() const {
    return task::evaluate(*loaded_.model, loaded_.tokenizer, problems_, options_);
  }
  static double accuracy(const std::vector<task::Answer>& answers) {
    double sum = 0;
    for (const task::Answer& answer : answers) sum += answer.reward;
    return sum / static_cast<double>(answers.size());
  }

  lab::LoadedModel& loaded_;
  lab::TrainingSpec spec_;
  std::vector<task::Problem> problems_;
  task::EvaluateOptions options_;
  std::vector<task::Answer> clean_;
};

// Halves the interval on a logarithmic scale; a stronger fault leaves less.
Json calibrate(Measure& measure, const Node& recipe, const Calibration& wanted,
               const std::function<void(const std::string&)>& line) {
  const double clean = measure.clean(wanted.agreement);
  if (clean == 0)
    throw UsageError(
        "experiment.calibrate: the clean model answers no problem rightly, so no share of it can be left; train "
        "longer before (train.sft), or use measure: agreement");
  double low = wanted.low, high = wanted.high;
  Json sweep = Json::array();
  for (int64_t trial = 0; trial < wanted.trials; ++trial) {
    const double value = std::sqrt(low * high);
    Json one = measure.under(with_value(recipe, wanted, value), wanted.agreement);
    const double share = one["share"].get<double>();
    if (line)
      line(fmt::format("[calibrate] {} {} = {:.4g}: {:.1f} % of the clean model's {} left", wanted.rule,
                       wanted.parameter, value, 100 * share, wanted.agreement ? "answers" : "accuracy"));
    one["value"] = value;
    sweep.push_back(one);
    if (share >= wanted.leave_low && share <= wanted.leave_high && one["complaints"].empty())
      return {{"value", value}, {"share", share}, {"clean", clean}, {"problems", measure.problems()}, {"sweep", sweep}};
    (share > wanted.leave_high ? low : high) = value;
  }
  throw RuntimeFailure(
      fmt::format("experiment.calibrate: no {} between {:g} and {:g} left {:g} to {:g} of the clean measure in {} "
                  "trials (the last, "
                  "{:.4g}, left {:.2f}); widen from and to, or use more problems",
                  wanted.parameter, wanted.low, wanted.high, wanted.leave_low, wanted.leave_high, wanted.trials,
                  sweep.back()["value"].get<double>(), sweep.back()["share"].get<double>()));
}

void diagnose_start(lab::LoadedModel& loaded, const Node& recipe, const ExperimentSpec& spec, const fs::path& folder,
                    const Diagnose& diagnose) {
  lab::Injection injection(recipe::read_plan_spec(recipe), *loaded.model, site::Phase::kDiagnose, 1);
  injection.arm();
  const Json verdict = diagnose(loaded, spec.diagnosis, injection.plan().settings().seed);
  if (const lab::Injection::Proof proof = injection.finish(); !proof.complaints.empty())
    throw EvidenceError("experiment.diagnose: ", proof.complaints);
  if (verdict.at("candidates").empty())
    throw EvidenceError(
        ComplaintCode::kUnproven,
        fmt::format("experiment.diagnose: method {} accuses no layer of the faulty model: an arm that is to be guided "
                    "by it cannot be; try another method or a stronger fault",
                    spec.diagnosis));
  Json sealed = verdict;
  sealed["diagnosis_version"] = sealed.at("version");
  sealed.erase("version");
  record::write_document(folder / kVerdict, kVerdictKind, sealed);
}

// Verdicts of experiments before they had a seal are made again: the trials' fingerprints say whether it is the same.
Json read_verdict(const fs::path& file) {
  const std::string text = read_file(file, std::size_t{1} << 24);
  if (const Json plain = parse_json_text(text, file.string()); plain.is_object() && !plain.contains("seal"))
    throw UsageError(
        fmt::format("{}: it has no seal, so nothing shows that it is the verdict that the trials followed; remove it, "
                    "and the next run diagnoses again",
                    file.string()));
  return record::parse_document(text, kVerdictKind, file.string());
}

}  // namespace

void check_calibration(const Node& recipe, const ExperimentSpec& spec) {
  if (spec.calibration) (void)with_value(recipe, *spec.calibration, spec.calibration->low);
}

Preparation read_preparation(const ExperimentSpec& spec, const fs::path& folder) {
  Preparation found;
  found.verdict = folder / kVerdict;
  if (spec.calibration) {
    found.complete = fs::exists(folder / kCalibration);
    if (found.complete)
      found.value = record::read_document(folder / kCalibration, kCalibrationKind).at("value").get<double>();
  }
  if (!spec.diagnosis.empty()) {
    if (!fs::exists(found.verdict)) {
      found.complete = false;
    } else {
      found.layer = read_verdict(found.verdict).at("candidates").at(0).at("layer").get<int64_t>();
    }
  }
  return found;
}

Preparation prepare(lab::LoadedModel& loaded, const std::string& weights, const Node& recipe,
                    const ExperimentSpec& spec, const fs::path& folder, const Diagnose& diagnose,
                    const std::function<void(const std::string&)>& line) {
  Node plain = recipe;
  plain.erase("experiment");
  if (const auto start = shared_start(loaded, weights, plain, folder)) load_start(loaded, plain, *start);
  if (spec.calibration && !fs::exists(folder / kCalibration)) {
    Measure measure(loaded, plain, spec.calibration->problems);
    record::write_document(folder / kCalibration, kCalibrationKind, calibrate(measure, plain, *spec.calibration, line));
  }
  Preparation now;
  if (spec.calibration)
    now.value = record::read_document(folder / kCalibration, kCalibrationKind).at("value").get<double>();
  if (!spec.diagnosis.empty() && !fs::exists(folder / kVerdict))
    diagnose_start(loaded, apply_preparation(plain, spec, now), spec, folder, diagnose);
  now = read_preparation(spec, folder);
  if (line && now.layer >= 0) line(fmt::format("[diagnose] {} accuses layer {}", spec.diagnosis, now.layer));
  return now;
}

Node apply_preparation(const Node& recipe, const ExperimentSpec& spec, const Preparation& preparation) {
  if (!spec.calibration || !preparation.value) return recipe;
  return with_value(recipe, *spec.calibration, *preparation.value);
}

bool reads_verdict(const Node& arm_recipe) {
  const Node* aqn = arm_recipe.find("aqn");
  const Node* file = aqn == nullptr ? nullptr : aqn->at("layers").find("from_verdict");
  return file != nullptr && file->as_string() == kVerdict;
}

void place_verdict(Node& arm_recipe, const Preparation& preparation) {
  if (!reads_verdict(arm_recipe)) return;
  arm_recipe.find("aqn")->find("layers")->set("from_verdict", preparation.verdict.string());
}

}  // namespace faultline::experiment
