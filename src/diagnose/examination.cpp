#include "diagnose/examination.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "diagnose/methods.h"
#include "tap/plan.h"

namespace faultline::diagnose {

Examiner::Examiner(const model::CausalLm& model, const at::Device& reference, uint64_t seed, bool keep)
    : model_(model), device_(reference), seed_(seed) {
  reference_.device = reference;
  reference_.keep_weights = keep;
}

const std::map<site::PlaceId, KnownAnswers>& Examiner::answers() {
  if (answers_.empty()) {
    const PlanPause pause;
    answers_ = known_answers(model_, seed_, device_);
  }
  return answers_;
}

Diagnosis Examiner::run(const Examination& examination) {
  const at::Tensor tokens = examination.tokens.to(model_.device());
  if (examination.method == "self")
    return diagnose_self(model_, answers(), {tokens, examination.seed, examination.passes, true});
  if (examination.method == "shadow") return diagnose_shadow(model_, reference_, {tokens, examination.passes});
  if (examination.method == "classic")
    return diagnose_classic(model_, {tokens, examination.seed, !examination.whole_forwards});
  static const std::vector<std::string> methods = {"classic", "self", "shadow"};
  throw UsageError(
      fmt::format("there is no method '{}'{}", examination.method, did_you_mean(examination.method, methods)));
}

Planted planted_by(tap::Plan& plan) {
  Planted planted;
  for (const tap::Plan::Evidence& evidence : plan.read_evidence()) {
    planted.calls += static_cast<int64_t>(evidence.numbers.active_calls);
    planted.changed += static_cast<int64_t>(evidence.numbers.changed);
    planted.largest_error = std::max(planted.largest_error, evidence.numbers.max_abs_error);
    planted.mean_error = std::max(planted.mean_error, evidence.numbers.mean_abs_error);
  }
  return planted;
}

}  // namespace faultline::diagnose
