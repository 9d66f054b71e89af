// This instruction set's kernels, gathered.
#include "numeric/cpu/kernels.h"

#define FL_STRING(name) #name
#define FL_NAME(name) FL_STRING(name)

namespace faultline::numeric::cpu::FAULTLINE_ISA {

void fault(const FaultArguments&, const Traversal&, int64_t, int64_t, void*, SegmentPartial*);
void quantize(const QuantizeArguments&, const Traversal&, int64_t, int64_t, void*, SegmentPartial*);
void row_ranges(const QuantizeArguments&, const void*, int64_t, int64_t, UnitRange*);
void tile_ranges(const QuantizeArguments&, const void*, int64_t, int64_t, UnitRange*);
void row_reference(const ReferenceArguments&, const void*, int64_t, int64_t, float*);
void column_reference(const ReferenceArguments&, const void*, int64_t, int64_t, float*);
void segment_sums(const ReferenceArguments&, const Traversal&, int64_t, int64_t, const void*, double*);
uint64_t digest_tiles(const void*, int64_t, int64_t, int64_t);
uint64_t checksum(const void*, int, int64_t, int64_t);

extern const Kernels kKernels;
const Kernels kKernels = {FL_NAME(FAULTLINE_ISA), fault,        quantize,     row_ranges, tile_ranges, row_reference,
                          column_reference,       segment_sums, digest_tiles, checksum};

}  // namespace faultline::numeric::cpu::FAULTLINE_ISA
