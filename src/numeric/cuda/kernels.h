// The CUDA kernels behind plain functions: raw device pointers and a stream (a cudaStream_t passed as void*), so that
// neither side sees the other's headers. Nothing here synchronises; launch errors are thrown as RuntimeFailure.
#pragma once

#include "numeric/arguments.h"
#include "numeric/ledger.h"
#include "numeric/pattern.h"
#include "numeric/quantize_arguments.h"
#include "numeric/statistics.h"

namespace faultline::numeric::cuda {

// Where evidence goes. Device pointers, both optional: without `ledger` nothing is counted, without `control` the
// values in the arguments count.
struct Evidence {
  Control* control = nullptr;
  uint64_t* ledger = nullptr;
};

void fault(const FaultArguments& a, const Traversal& traversal, void* data, const Evidence& evidence, void* stream);
void quantize(const QuantizeArguments& q, const Traversal& traversal, void* data, const Evidence& evidence,
              void* stream);

// What the format needs beside its blocks: `units` (a row, tile or tensor each) where it scales by units, `tensor`
// (one) where it has a second level. Both hold zeros before.
void unit_ranges(const QuantizeArguments& q, const void* data, UnitRange* units, UnitRange* tensor, void* stream);

// scratch: reference_scratch() doubles, zeroed in its last one.
int64_t reference_scratch(const ReferenceArguments& r, Axis axis);
void reference(const ReferenceArguments& r, Axis axis, const void* data, double* scratch, float* out, void* stream);

bool is_capturing(void* stream);  // into a CUDA graph

// Memory of the current device, from the driver itself.
void* allocate(int64_t bytes);
void release(void* memory);  // nothing is said where the driver is shutting down already

// `pieces` pieces of `size` bytes, one after the other. keys: what fill_digest_keys() wrote, in device memory; state:
// kDigestStateWords 64-bit words a piece, the digest and then what is zero before and after.
void digest(const void* bytes, int64_t size, int64_t pieces, const uint32_t* keys, uint64_t* state, void* stream);
void checksum(const void* data, int element_size, int64_t elements, uint64_t* result, void* stream);  // result zeroed

// The pattern kernels of a GPU behind plain functions; see numeric/pattern.h. Nothing here synchronises.

void fill_pattern(const Pattern& pattern, int64_t elements, void* data, void* stream);
// Adds to `row`, which lies in device memory and starts as zeros.
void check_pattern(const Pattern& pattern, uint32_t poison, int64_t elements, const void* data, PatternCheck* row,
                   void* stream);

}  // namespace faultline::numeric::cuda
