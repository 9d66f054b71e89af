// The CPU kernels of one instruction set, as a table of functions over raw pointers. Each works on a range of segments,
// rows or tiles, so that the caller decides how the work is spread over threads; no result depends on that choice.
#pragma once

#include "numeric/arguments.h"
#include "numeric/formats.h"
#include "numeric/ledger.h"
#include "numeric/quantize_arguments.h"
#include "numeric/statistics.h"

namespace faultline::numeric::cpu {

struct Kernels {
  const char* name;
  // Faults segments [first, last) of `data` in place; partials may be null: no ledger.
  void (*fault)(const FaultArguments&, const Traversal&, int64_t first, int64_t last, void* data,
                SegmentPartial* partials);
  void (*quantize)(const QuantizeArguments&, const Traversal&, int64_t first, int64_t last, void* data,
                   SegmentPartial* partials);
  // Largest magnitude, lowest and highest value of finite elements in each row, in rows [first, last).
  void (*row_ranges)(const QuantizeArguments&, const void* data, int64_t first, int64_t last, UnitRange* ranges);
  // The same for each of the format's tiles in tile rows [first, last).
  void (*tile_ranges)(const QuantizeArguments&, const void* data, int64_t first, int64_t last, UnitRange* ranges);
  void (*row_reference)(const ReferenceArguments&, const void* data, int64_t first, int64_t last, float* reference);
  void (*column_reference)(const ReferenceArguments&, const void* data, int64_t first, int64_t last, float* reference);
  // Sums (kSumColumns a segment) for the tensor's reference.
  void (*segment_sums)(const ReferenceArguments&, const Traversal&, int64_t first, int64_t last, const void* data,
                       double* sums);
  uint64_t (*digest_tiles)(const void* bytes, int64_t size, int64_t first, int64_t last);
  uint64_t (*checksum)(const void* data, int element_size, int64_t first, int64_t last);
};

const Kernels& kernels();  // of base/machine.h's choice

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}

}  // namespace faultline::numeric::cpu
