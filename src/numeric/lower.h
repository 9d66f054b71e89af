// A rule lowered for one tensor: the numbers its kernels need, checked against the tensor's dtype and shape. What is
// wrong for this dtype (a bit beyond its width, a mantissa cut that cuts nothing) is refused here, before anything
// runs.
#pragma once

#include "numeric/quantize_arguments.h"
#include "numeric/rule.h"

namespace faultline::numeric {

// Who draws: the random identity is (seed, rule name, site, phase); the extent's mask leaves out the phase, so that the
// same unit is broken in rollout, training and diagnosis.
struct Identity {
  uint64_t seed = 0;
  std::string site;
  uint32_t phase = 0;
};

struct Keys {
  uint64_t noise = 0;
  uint64_t mask = 0;
};
Keys make_keys(const Identity& identity, const std::string& rule_name);

struct TensorShape {
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;
  int64_t columns = 1;
};

FaultArguments lower_fault(const Rule& rule, const TensorShape& shape, const Keys& keys, const Control& control);
QuantizeArguments lower_format(const Rule& rule, const TensorShape& shape, const Keys& keys, const Control& control);

std::string_view dtype_name(Dtype dtype);
int dtype_width(Dtype dtype);
int dtype_mantissa_bits(Dtype dtype);

}  // namespace faultline::numeric
