// What the two devices' halves of apply_ share. The caller has checked the tensors, and `x` is contiguous.
#pragma once

#include "numeric/apply.h"

namespace faultline {

void apply_on_cpu(const at::Tensor& x, const Rule& rule, const FaultArguments& arguments, const CallTensors& tensors);
void apply_on_cpu(const at::Tensor& x, const Rule& rule, const QuantizeArguments& arguments,
                  const CallTensors& tensors);
void apply_on_cuda(const at::Tensor& x, const Rule& rule, const FaultArguments& arguments, const CallTensors& tensors);
void apply_on_cuda(const at::Tensor& x, const Rule& rule, const QuantizeArguments& arguments,
                   const CallTensors& tensors);

[[noreturn]] void refuse_device(const at::Tensor& x);  // neither of the two

inline uint64_t* ledger_words(const at::Tensor& ledger) {
  return reinterpret_cast<uint64_t*>(ledger.mutable_data_ptr<int64_t>());
}

inline bool needs_ranges(const FormatArguments& format) {
  return format.kind == FormatKind::kNvfp4 ||
         (format.granularity != Granularity::kBlock && format.kind != FormatKind::kCast);
}

inline int64_t chunks_of(const FaultArguments& a) { return (a.elements + kChunk - 1) / kChunk; }
inline int64_t chunks_of(const QuantizeArguments& q) { return q.rows * q.chunks_per_row; }

template <class Arguments>
Traversal traversal_of(const Arguments& arguments, bool counted) {
  return counted ? make_traversal(chunks_of(arguments)) : make_uncounted_traversal(chunks_of(arguments));
}

}  // namespace faultline
