// What the two devices' halves of apply_ share. The caller has checked the tensors, and `x` is contiguous.
#pragma once

#include "numeric/apply.h"

namespace faultline::numeric {

// Arguments: FaultArguments or QuantizeArguments.
template <class Arguments>
void apply_on_cpu(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors);
template <class Arguments>
void apply_on_cuda(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors);

[[noreturn]] void refuse_device(const at::Tensor& x);  // neither of the two

inline uint64_t* ledger_words(const at::Tensor& ledger) {
  return reinterpret_cast<uint64_t*>(ledger.mutable_data_ptr<int64_t>());
}

inline int64_t chunks_of(const FaultArguments& a) { return (a.elements + kChunk - 1) / kChunk; }
inline int64_t chunks_of(const QuantizeArguments& q) { return q.rows * q.chunks_per_row; }

template <class Arguments>
Traversal traversal_of(const Arguments& arguments, bool counted) {
  return counted ? make_traversal(chunks_of(arguments)) : make_uncounted_traversal(chunks_of(arguments));
}

// Puts what a fault reads besides its tensor into the arguments. `measure`: makes the reference of a kind that needs
// one.
// -> what must live until the kernel is queued
struct FaultInputs {
  at::Tensor reference, source;
};
template <class Measure>
FaultInputs put_inputs(FaultArguments& a, const at::Tensor& x, const CallTensors& tensors, const Measure& measure) {
  FaultInputs inputs;
  if (a.reference_kind != Reference::kNone && a.elements > 0) {
    if (tensors.reference != nullptr) inputs.reference = *tensors.reference;
    if (!inputs.reference.defined()) inputs.reference = measure();
    if (tensors.reference != nullptr) *tensors.reference = inputs.reference;
    a.reference = inputs.reference.const_data_ptr<float>();
  }
  if (a.kind == FaultKind::kSwap) {
    inputs.source = x.clone();
    a.source = inputs.source.const_data_ptr();
  }
  if (is_replacement(a.kind)) a.source = tensors.replacement->const_data_ptr();
  a.row_keys = tensors.row_keys ? tensors.row_keys->const_data_ptr<int64_t>() : nullptr;
  return inputs;
}

}  // namespace faultline::numeric
