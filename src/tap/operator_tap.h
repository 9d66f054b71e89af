// The operator tap: backend kernels wrapped in place. A wrapper calls the original kernel and then lets the active
// plan's rules act on what the call wrote, forward and backward, eager and under torch.compile's extern kernels. Each
// (operator, backend) is wrapped once and stays wrapped; arming and disarming only change which plan is active.
// Operators never named keep their kernel.
#pragma once

#include <c10/core/DispatchKey.h>

#include <memory>

#include "tap/plan.h"

namespace faultline::tap {

// Wraps what the plan needs, makes it the active one and arms it. Throws UsageError where another plan is active, or a
// kernel would have to be wrapped while wrapped operators run on other threads (a registry must not change under them).
void arm(std::shared_ptr<Plan> plan);
void disarm();  // no plan is active any more; wrappers stay and cost about 100 ns a call

// Restores every original kernel. Only while no thread runs operators.
void unwrap_all();

struct WrappedOperator {
  std::string name;  // "aten::mm.out"
  std::string key;   // "CPU", "PrivateUse1 (npu)"
};
std::vector<WrappedOperator> wrapped_operators();

// Backends whose kernels came after the active plan was armed: they run without it. Empty where none is active.
std::vector<c10::DispatchKey> backends_since_arming();

// Operators of the active plan's rules that were registered after it was armed, on accelerators other than CUDA's,
// where libraries bring many that nobody calls: they run without it.
std::vector<WrappedOperator> operators_since_arming();

// The overloads a rule of the plan reaches on the backends of this process, for dry runs.
std::vector<std::string> operators_of(const PlanRule& rule);

// While it lives, no rule acts on what this thread runs: for the lab's own arithmetic.
class TapsSuspended {
 public:
  TapsSuspended();
  ~TapsSuspended();
  TapsSuspended(const TapsSuspended&) = delete;
  TapsSuspended& operator=(const TapsSuspended&) = delete;

 private:
  uint64_t before_;
};

// Called by at-fork handlers: a child inherits wrappers but not the evidence; its plan is dropped and says so.
void forget_plan_after_fork();
bool lost_plan_by_fork();

}  // namespace faultline::tap
