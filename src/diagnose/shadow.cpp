#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "diagnose/accusations.h"
#include "diagnose/methods.h"
#include "site/scope.h"
#include "site/torch_support.h"

namespace faultline::diagnose {

namespace {

constexpr std::size_t kCallsAtOnce = 64;

class ShadowPass {
 public:
  ShadowPass(const model::CausalLm& model, Recomputation& reference, const at::Tensor& tokens, Accusations& accusations)
      : model_(model), reference_(reference), tokens_(tokens), accusations_(accusations) {}

  void run(int64_t pass);

  int64_t forwards = 0, calls = 0;
  std::map<std::string, int64_t> without_reference;

 private:
  struct Broken {
    std::size_t call, number;  // of the call's observations
    Observation observation;
    int64_t pass;
  };
  std::vector<RecordedCall> record() {
    ++forwards;
    return record_calls([&] { model_.logits(model_.hidden_states(tokens_).narrow(0, 0, 1)); });
  }
  void compare(const std::vector<RecordedCall>& calls, std::size_t first, std::size_t last, int64_t pass);
  void repeat(const std::vector<RecordedCall>& again);

  const model::CausalLm& model_;
  Recomputation& reference_;
  const at::Tensor& tokens_;
  Accusations& accusations_;
  std::vector<Broken> broken_;
};

// The device is waited for once for many calls.
void ShadowPass::compare(const std::vector<RecordedCall>& calls, std::size_t first, std::size_t last, int64_t pass) {
  std::vector<Observation> observations;
  std::vector<std::pair<std::size_t, std::size_t>> whose;
  for (std::size_t i = first; i < last; ++i) {
    const std::size_t before = observations.size();
    if (reference_.check(calls[i], observations) == Checked::kNoReference) ++without_reference[calls[i].name];
    for (std::size_t n = before; n < observations.size(); ++n) whose.emplace_back(i, n - before);
  }
  const std::vector<Glance> seen = glance(observations);
  for (std::size_t i = 0; i < observations.size(); ++i) {
    if (!seen[i].suspect) {
      accusations_.note_kept(observations[i], seen[i]);
      continue;
    }
    broken_.push_back({whose[i].first, whose[i].second, std::move(observations[i]), pass});
  }
}

// What a second forward gives where the same went in: noise is known by it.
void ShadowPass::repeat(const std::vector<RecordedCall>& again) {
  for (Broken& one : broken_) {
    if (one.call >= again.size()) continue;
    std::vector<Observation> observations;
    (void)reference_.check(again[one.call], observations);
    if (one.number < observations.size() && observations[one.number].expected.equal(one.observation.expected))
      one.observation.repetitions.push_back(observations[one.number].observed);
  }
}

void ShadowPass::run(int64_t pass) {
  const std::vector<RecordedCall> recorded = record();
  calls += std::ssize(recorded);
  {
    const PlanPause pause;
    for (std::size_t i = 0; i < recorded.size(); i += kCallsAtOnce)
      compare(recorded, i, std::min(i + kCallsAtOnce, recorded.size()), pass);
  }
  if (broken_.empty()) return;
  const std::vector<RecordedCall> again = record();
  calls += std::ssize(again);
  const PlanPause pause;
  repeat(again);
  for (Broken& one : broken_) accusations_.add(std::move(one.observation), one.pass);
  broken_.clear();
}

}  // namespace

Diagnosis diagnose_shadow(const model::CausalLm& model, Recomputation& reference, const ShadowOptions& options) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  const auto start = std::chrono::steady_clock::now();
  Diagnosis diagnosis;
  diagnosis.method = "shadow";
  Accusations accusations;
  ShadowPass machine(model, reference, options.tokens, accusations);
  int64_t pass = 0;
  try {
    for (; pass < options.passes && !accusations.any(); ++pass) machine.run(pass);
    accusations.settle();
  } catch (const site::UsageThroughTorch&) {  // of the planted fault, not of the machine
    throw;
  } catch (const c10::Error& error) {
    diagnosis.broken_off = true;
    accusations.settle_what_can_be();
    diagnosis.not_tested.push_back(
        fmt::format("the machine failed in the middle, after {} relations; what was not asked by then: {}",
                    accusations.relations(), error.what_without_backtrace()));
  }
  diagnosis.passes = pass;
  diagnosis.forwards = diagnosis.layer_forwards = static_cast<double>(machine.forwards);
  diagnosis.operator_calls = machine.calls;
  diagnosis.candidates = accusations.candidates();
  diagnosis.relations = accusations.relations();
  diagnosis.elements = accusations.elements();
  diagnosis.untested = accusations.untested();
  say_untested(diagnosis);
  for (const auto& [name, count] : machine.without_reference)
    diagnosis.not_tested.push_back(fmt::format("{} calls of {}: no reference for it", count, name));
  if (!diagnosis.fault_found())
    diagnosis.not_excluded.push_back(
        fmt::format("a fault that acts in less than {:.2g} of the forwards (95 %)",
                    1 - std::pow(0.05, 1.0 / static_cast<double>(std::max<int64_t>(1, pass)))));
  diagnosis.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return diagnosis;
}

}  // namespace faultline::diagnose
