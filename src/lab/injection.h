// A plan on our own model: checked against it, proven to act, armed while it is wanted, judged at the end. Every number
// that a command prints about a faulty run stands on the proof that finish() returns.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/causal_lm.h"
#include "record/json_text.h"
#include "tap/report.h"

namespace faultline {

// One forward of each kind, in this phase, as the model runs them with so many rows: what a plan can reach.
Censuses take_censuses(const CausalLm& model, Phase phase, int64_t rows);

class Injection {
 public:
  // Throws UsageError where a rule means no module, layer or operator of the model, or acts in none of its phases or
  // steps.
  Injection(PlanSpec spec, CausalLm& model, Phase phase, int64_t rows);
  // With other censuses: of a training step, for one. Those that `take` takes count what the plan's module rules mean.
  Injection(PlanSpec spec, CausalLm& model, Phase phase, const std::function<Censuses()>& take);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;

  // A/A: two forwards without faults are equal to the bit, and so is one with the plan armed but never active; canary:
  // one with the plan is not. Throws EvidenceError otherwise. Leaves no trace in the ledger.
  void self_check();

  void arm();
  void disarm();
  Plan& plan() { return *plan_; }
  const Censuses& censuses() const { return censuses_; }
  nlohmann::ordered_json prediction() const;  // matched sites and calls a forward, by kind of forward and rule

  struct Proof {
    std::vector<Complaint> complaints;  // empty: the faults happened as asked
    std::vector<std::string> log;
    nlohmann::ordered_json report;
  };
  Proof finish();  // disarms. In phase diagnose counts are held against what was issued, not against forwards.

 private:
  at::Tensor probe(int64_t first_token = 0) const;
  std::shared_ptr<Plan> make_plan() const;

  std::vector<Rule> rules_;
  PlanSettings settings_;
  CausalLm& model_;
  Phase phase_;
  Censuses censuses_;
  std::shared_ptr<Plan> plan_;
  bool armed_ = false;
};

}  // namespace faultline
