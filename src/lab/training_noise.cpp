// The noise of a training run: on the norms, or as a rule of the plan on activations; the check that the model bears
// it; and the account of what it did.
#include <fmt/format.h>

#include <algorithm>

#include "aqn/aqn_section.h"
#include "base/error.h"
#include "lab/training_state.h"
#include "site/scope.h"
#include "train/step.h"

namespace faultline::lab {
namespace {

constexpr double kLeastShare = 0.8;           // of the clean accuracy, under the strongest noise
constexpr std::size_t kCheckProblems = 1024;  // of 128 chance alone refuses what a model bears

}  // namespace

void TrainingRun::State::make_noise() {
  if (!spec.aqn) return;
  if (validation.empty() && !spec.aqn->force)
    throw UsageError(
        "aqn: without validation problems nobody can check that the model bears the noise; set "
        "train.validation_problems, or say aqn.force: true");
  if (activation_noise()) return static_cast<void>(noisiest_step());  // refuses
  model::CausalLm& model = *loaded.model;
  std::vector<aqn::NoiseTarget> parameters;
  for (const model::CausalLm::Parameter& parameter : model.parameters())
    parameters.push_back({parameter.name, parameter.tensor, parameter.place});
  aqn::NormSelection selection = aqn::norm_selection(*spec.aqn, model.config().moe.experts > 0, model.config().layers);
  selection.norm_count = static_cast<int64_t>(model.norm_count());
  noise = std::make_unique<aqn::NormNoise>(*spec.aqn, aqn::select_norms(parameters, selection), model.config().layers,
                                           spec.seed, last_stage().steps);
}

int64_t TrainingRun::State::noisiest_step() const {
  return noise ? noise->strongest_step()
               : aqn::strongest_step(*spec.aqn, loaded.model->config().layers, last_stage().steps);
}

double TrainingRun::State::accuracy_under_noise(std::span<const task::Problem> some, int64_t step) {
  if (noise) {
    const std::shared_ptr<void> guard = noise->apply(step);
    const double share = accuracy(some);
    noise->check();
    return share;
  }
  Injection alone({{aqn::noise_rule(*spec.aqn)}, spec.plan.settings}, *loaded.model, site::Phase::kRollout,
                  [&] { return injection->censuses(); });
  const site::PhaseGuard phase(site::Phase::kRollout);
  alone.plan().begin_step(step);
  alone.arm();
  const double share = accuracy(some);
  Injection::Proof proof = alone.finish();
  for (Complaint& complaint : proof.complaints) complaint.sentence = "aqn: " + complaint.sentence;
  if (!proof.complaints.empty()) throw EvidenceError("", proof.complaints);
  return share;
}

// At the strongest noise, before the first step that samples: a policy that answers nothing teaches nothing.
void TrainingRun::State::check_noise() {
  if (!spec.aqn) return;
  const int64_t strongest = noisiest_step();
  const double sigma = strength_at(spec.aqn->schedule, strongest, last_stage().steps);
  const auto some = std::span<const task::Problem>(validation).first(std::min(kCheckProblems, validation.size()));
  line(noise
           ? fmt::format("[aqn] {} RMSNorm weights, sigma up to {:.4g}", noise->targets(), sigma)
           : fmt::format("[aqn] noise on {}, sigma up to {:.4g}",
                         spec.aqn->sites == aqn::AqnSites::kLayerOutput ? "layer outputs" : "matrix products", sigma));
  if (const std::string note = schedule_note(spec.aqn->schedule, last_stage().steps); !note.empty())
    line("[aqn] " + note);
  if (some.empty()) return line("[aqn] not checked whether the model bears it: no validation problems (aqn.force)");
  if (injection) injection->disarm();
  const double clean = accuracy(some);
  const double noisy_share = accuracy_under_noise(some, strongest);
  line(fmt::format("[aqn] accuracy on {} problems: clean {:.3f}, under the strongest noise {:.3f}", some.size(), clean,
                   noisy_share));
  if (noisy_share < kLeastShare * clean && !spec.aqn->force)
    throw UsageError(
        fmt::format("aqn: sigma {:g} takes accuracy from {:.1f} % to {:.1f} %, below four fifths; choose a "
                    "smaller sigma or sigma_scale: relative, or say aqn.force: true",
                    sigma, 100 * clean, 100 * noisy_share));
}

void TrainingRun::State::count_noise() {
  const aqn::NoiseApplied& last = noise->last();
  const bool sounded = last.changed > 0;
  const auto add = [&](const char* key, int64_t by) { noisy[key] = noisy.value(key, int64_t{0}) + by; };
  add("steps", 1), add("noisy_steps", sounded ? 1 : 0), add("changed", last.changed);
  noisy["weights"] = std::max(last.weights, noisy.value("weights", int64_t{0}));
  if (!sounded) return;
  noisy["sum_of_measured_over_expected"] =
      noisy.value("sum_of_measured_over_expected", 0.0) + last.measured / last.expected;
}

}  // namespace faultline::lab
