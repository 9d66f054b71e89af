// This instruction set's kernels, gathered.
#include "model/cpu/kernels.h"

#define FL_STRING(name) #name
#define FL_NAME(name) FL_STRING(name)

namespace faultline::model::ops::cpu::FAULTLINE_ISA {

void rms_norm(const NormArguments&, int64_t, int64_t);
void swiglu(const SwigluArguments&, int64_t, int64_t);
void rotary(const RotaryArguments&, int64_t, int64_t);
void attend_cached(const AttentionArguments&, int64_t, int64_t);
int64_t linear_prepared_bytes(const LinearArguments&);
void linear_prepare(const LinearArguments&);
void linear(const LinearArguments&, int64_t, int64_t);
void sample(const SampleArguments&, int64_t, int64_t, const SampleScratch&);

extern const Kernels kKernels;
const Kernels kKernels = {FL_NAME(FAULTLINE_ISA), rms_norm,       swiglu, rotary, attend_cached,
                          linear_prepared_bytes,  linear_prepare, linear, sample};

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
