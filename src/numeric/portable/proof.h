// Whether a device may be trusted with the portable arithmetic. A kind or format is tried there once, before its first
// use, on a small tensor of numbers of every sort, against the CPU's kernels; what differs is refused with a sentence
// that names the elementary operations that are at fault.
#pragma once

#include <string>
#include <vector>

#include "numeric/apply.h"

namespace faultline::numeric::portable {

struct Finding {
  std::string name;       // an elementary operation, a kind or a format
  std::string complaint;  // empty: it agrees
};

// Integer arithmetic, shifts, rounding, subnormal numbers, fp64, conversions, look-ups.
std::vector<Finding> elementary_findings(const at::Device& device);
// Every kind and format, the digest and the plain sum.
std::vector<Finding> kind_findings(const at::Device& device);

// Throws UsageError where the rule's kind or format, or the digest, differs on this device. Tried once a device; CPU
// and CUDA, whose arithmetic the tests know, are not tried.
void require_proof(const at::Device& device, const Rule& rule);
void require_digest_proof(const at::Device& device);
// What they would throw for any device.
std::string refusal(const at::Device& device, const std::string& kind);

// As in portable.h, without asking for a proof.
template <class Arguments>
void apply_unproven(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors);
void digest_unproven(const at::Tensor& contiguous, int64_t* state, int64_t pieces);
at::Tensor checksum_unproven(const at::Tensor& contiguous);

}  // namespace faultline::numeric::portable
