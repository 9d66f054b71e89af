#include "diagnose/shadow.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "diagnose/accusations.h"
#include "lab/injection.h"

namespace faultline {

Diagnosis diagnose_shadow(const CausalLm& model, Recomputation& reference, const ShadowOptions& options) {
  const at::NoGradGuard no_gradients;
  const PhaseGuard phase(Phase::kDiagnose);
  const auto start = std::chrono::steady_clock::now();
  Diagnosis diagnosis;
  diagnosis.method = "shadow";
  Accusations accusations;
  std::map<std::string, int64_t> without_reference;
  int64_t not_finite = 0, pass = 0;
  try {
    for (; pass < options.passes && !accusations.any(); ++pass) {
      const std::vector<RecordedCall> calls =
          record_calls([&] { model.logits(model.hidden_states(options.tokens).narrow(0, 0, 1)); });
      diagnosis.operator_calls += std::ssize(calls);
      const PlanPause pause;
      for (const RecordedCall& call : calls) {
        std::vector<Observation> observations;
        if (reference.check(call, observations) == Checked::kNoReference) ++without_reference[call.name];
        for (const Observation& observation : observations) {
          not_finite += observation.expected.isfinite().all().item<bool>() ? 0 : 1;
          accusations.add(observation, pass);
        }
      }
    }
  } catch (const c10::Error& error) {
    diagnosis.broken_off = true;
    diagnosis.not_tested.push_back(
        fmt::format("the machine failed in the middle, after {} relations; what was not asked by then: {}",
                    accusations.relations(), error.what_without_backtrace()));
  }
  diagnosis.passes = pass;
  diagnosis.forwards = diagnosis.layer_forwards = static_cast<double>(pass);
  diagnosis.candidates = accusations.candidates();
  diagnosis.relations = accusations.relations();
  diagnosis.elements = accusations.elements();
  for (const auto& [name, count] : without_reference)
    diagnosis.not_tested.push_back(fmt::format("{} calls of {}: no reference for it", count, name));
  if (not_finite > 0)
    diagnosis.not_tested.push_back(
        fmt::format("{} calls whose right answer is not a finite number: what came in was broken already", not_finite));
  if (!diagnosis.fault_found())
    diagnosis.not_excluded.push_back(
        fmt::format("a fault that acts in less than {:.2g} of the forwards (95 %)",
                    1 - std::pow(0.05, 1.0 / static_cast<double>(std::max<int64_t>(1, pass)))));
  diagnosis.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return diagnosis;
}

}  // namespace faultline
