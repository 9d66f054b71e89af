// A plan on our own model: checked against it, proven to act, armed while it is wanted, judged at the end. Every number
// that a command prints about a faulty run stands on the proof that finish() returns.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/causal_lm.h"
#include "tap/plan.h"
#include "tap/report.h"

namespace faultline::lab {

// One forward of each kind, in this phase, as the model runs them with so many rows: what a plan can reach.
tap::Censuses take_censuses(const model::CausalLm& model, site::Phase phase, int64_t rows);

class Injection {
 public:
  // Throws UsageError where a rule means no module, layer or operator of the model, or acts in none of its phases or
  // steps.
  Injection(recipe::PlanSpec spec, model::CausalLm& model, site::Phase phase, int64_t rows);
  // With other censuses: of a training step, for one. Those that `take` takes count what the plan's module rules mean.
  Injection(recipe::PlanSpec spec, model::CausalLm& model, site::Phase phase,
            const std::function<tap::Censuses()>& take);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;

  // A/A: two forwards without faults are equal to the bit, and so is one with the plan armed but never active; canary:
  // one with the plan is not. Throws EvidenceError otherwise. Leaves no trace in the ledger.
  void self_check();

  void arm();
  void disarm();
  tap::Plan& plan() { return *plan_; }
  const tap::Censuses& censuses() const { return censuses_; }
  Json prediction() const;  // matched sites and calls a forward, by kind of forward and rule

  struct Proof {
    std::vector<Complaint> complaints;  // empty: the faults happened as asked
    std::vector<std::string> log;
    Json report;
  };
  Proof finish();  // disarms. In phase diagnose counts are held against what was issued, not against forwards.

 private:
  at::Tensor probe(int64_t first_token = 0) const;
  std::shared_ptr<tap::Plan> make_plan() const;

  std::vector<numeric::Rule> rules_;
  recipe::PlanSettings settings_;
  model::CausalLm& model_;
  site::Phase phase_;
  tap::Censuses censuses_;
  std::shared_ptr<tap::Plan> plan_;
  bool armed_ = false;
};

// Whether what a rule means can be counted in advance, and whether its time comes: evidence stands on calls held
// against a census.

// Throws UsageError where a rule means some of the operators that compute a product without gradients on this device,
// and the number of rows decides which of them runs. scores: the actor also runs forwards without gradients.
void refuse_operators_chosen_by_rows(const tap::Plan& plan, const c10::Device& device, bool scores = false);

// Throws UsageError where a rule on modules or on products, which compute in the model's own type, cannot change one
// bit of a tensor of that type.
void refuse_invisible(const std::vector<numeric::Rule>& rules, at::ScalarType dtype);

// Throws UsageError where a rule's lifetime or its schedule leaves it silent in every step of the run.
void refuse_rules_without_a_step(const tap::Plan& plan);

// Throws UsageError where a rule's `when` means kinds of forward of which none runs.
void refuse_rules_without_a_forward(const tap::Plan& plan, const tap::Censuses& censuses);

}  // namespace faultline::lab
