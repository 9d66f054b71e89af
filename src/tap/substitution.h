// Faults on what goes into an operator. A weight is replaced by a faulted copy in forward, recomputation and backward
// alike, so that grad_x = g Q(W) while grad_W = g^T x and the master weight stays as it is. An input is replaced above
// autograd, so that the saved one is the faulty one: grad_W = g^T Q(x). Nothing of the caller's is changed in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "numeric/rule.h"
#include "tap/plan.h"
#include "tap/weight_identity.h"

namespace faultline::tap {

// Faulted copies of weights. An entry is good while the master's version stands and the epoch is the same;
// digests of the masters are compared when the evidence is read, because p.data.copy_() moves neither.
class WeightCache {
 public:
  // What rules earlier in the plan made of the same weight for the same call.
  struct Before {
    uint64_t rules = 0;  // one bit each; 0: the weight is the model's
    at::Tensor copy;     // whole
  };
  // A view of the faulted copy with the geometry of `argument`, which lies in `parameter`'s storage, or in that of a
  // cast copy of it: then the copy is what is faulted, as the operator reads it. `before` becomes this rule's.
  at::Tensor faulted(Plan& plan, Row& row, const at::Tensor& parameter, const std::optional<CastCopy>& cast,
                     const at::Tensor& argument, Before& before);
  // Weights were written: copies are made anew when they are next read. Those that a captured graph reads are made
  // anew now, where they are: a replay asks nobody.
  void new_epoch(Plan& plan);
  std::vector<std::string> changed_masters() const;  // names of masters whose bytes changed unnoticed

 private:
  struct Entry {
    at::Tensor master, copy;  // the master's storage is kept alive, so its address cannot come to mean another
    at::Tensor source;        // what the copy is made from: the master, a cast of it, or an earlier rule's copy
    at::Tensor digest;
    int64_t version = 0, epoch = 0;
    Row* row = nullptr;
    bool captured = false;
  };
  void make(Plan& plan, Entry& entry) const;  // fills the copy

  // By rule, the rules before it, the parameter's storage, and what of it was cast to which dtype (nothing: it is read
  // as it is). Copies that are made of others come behind them.
  using Key = std::tuple<uint32_t, uint64_t, const void*, at::ScalarType, int64_t, std::vector<int64_t>>;
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
  int64_t epoch_ = 0;
};

// Replaces arguments on the stack for the rules `named` (one bit each) with surface weight, or surface input where
// `above_autograd` or no wrapper above autograd has done so for this call.
void substitute(Plan& plan, uint64_t named, uint32_t target, const std::string& base, const c10::FunctionSchema& schema,
                const site::Location& location, torch::jit::Stack* stack, bool above_autograd);

// While it lives, wrappers below leave inputs alone.
class InputsDone {
 public:
  InputsDone();
  ~InputsDone();
  InputsDone(const InputsDone&) = delete;
  InputsDone& operator=(const InputsDone&) = delete;

 private:
  bool before_;
};

// Faults that replace what an operator computes: a matrix product summed in a narrow accumulator, a function looked up
// in a table. The replacement is computed beside the operator, from its arguments, and written over its result by the
// same kernel that counts every other fault.

// "": a rule of this kind (accumulate, approximate) replaces what this operator computes.
std::string why_not_replaced(const numeric::Rule& rule, const std::string& base);
// From the arguments of a call that has not run yet. `why`: set where the rule's kind has nothing to say about this
// operator; the result is then undefined. Throws UsageError where the parameters do not fit its shapes.
at::Tensor compute_replacement(const numeric::Rule& rule, const std::string& base, c10::ArrayRef<c10::IValue> arguments,
                               std::string& why);

}  // namespace faultline::tap
