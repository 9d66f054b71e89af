// The case table that tests share: every fault kind and number format in the forms that take different paths.
#pragma once

#include <string>
#include <vector>

namespace faultline::numeric {

inline const std::vector<std::string>& fault_cases() {
  static const std::vector<std::string> cases = {
      "relative_gaussian(strength=0.05)",
      "relative_gaussian(strength=0.01, rule.rounding=stochastic)",
      "relative_gaussian(strength=0.05, extent.fraction=0.1, extent.structure=channel)",
      "relative_gaussian(strength=0.05, rule.keyed_by=row)",
      "relative_gaussian(strength=0.05, lifetime.kind=transient, lifetime.probability=0.5)",
      "absolute_gaussian(strength=0.1)",
      "scaled_gaussian(strength=0.05)",
      "scaled_gaussian(strength=0.05, scale=mean_abs, axis=tensor)",
      "scaled_gaussian(strength=0.05, axis=channel)",
      "systematic_bias(strength=0.01)",
      "gain(strength=0.01)",
      "offset(strength=0.1)",
      "offset(strength=0.1, scale=absolute)",
      "offset(strength=0.1, axis=tensor)",
      "truncate(bits=3)",
      "truncate(bits=3, mode=nearest)",
      "truncate(bits=2, mode=stochastic)",
      "deadzone(threshold=0.05)",
      "deadzone(threshold=0.05, axis=tensor)",
      "deadzone(threshold=0.05, axis=channel)",
      "deadzone(threshold=0.3, relative_to=none)",
      "saturate(margin=0.3)",
      "saturate(limit=1.5)",
      "spike(probability=0.01, factor=10)",
      "bitflip(field=exponent, rate=0.01)",
      "bitflip(rate=0.001)",
      "bitflip(bit=3, count=1)",
      "stuck_at(bit=6, value=1, extent.fraction=0.2, extent.structure=lane)",
      "zero(extent.fraction=0.2, extent.structure=tile, extent.tile=4x16)",
      "nan(extent.fraction=0.2, extent.structure=row)",
      "inf(extent.fraction=0.1)",
      "stuck_at(bit=7, value=1, extent.rows=[0, '2-'], extent.columns=[1, '3-4', -1])",
      "gain(strength=0.5, extent.elements=['2-40', -2])",
      "bitflip(bit=4, rate=0.9, extent.at=[[0, 0], [2, 3], [-1, -1]])",
      "relative_gaussian(strength=0.05, extent.rows='0-1', extent.fraction=0.5, extent.structure=channel)",
      "swap(length=1, count=1)",
      "nondeterministic(factor=5)",
      "nondeterministic(factor=5, mode=inconsistent)",
      "nondeterministic(factor=5, mode=correlated)",
  };
  return cases;
}

inline const std::vector<std::string>& format_cases() {
  static const std::vector<std::string> cases = {
      "quantize(format=mxfp4)",
      "quantize(format=mxfp4, rounding=stochastic)",
      "quantize(format=mxfp4, nonfinite=spec)",
      "quantize(format=mxfp4, extent.rows=[1, -1], extent.columns='1-')",
      "quantize(format=mxfp4_ceil)",
      "quantize(format=mxfp8_e4m3)",
      "quantize(format=mxfp8_e5m2)",
      "quantize(format=nvfp4)",
      "quantize(format=nvfp4, scale_floor=normal)",
      "quantize(format=nvfp4_single)",
      "quantize(format=fp8_e4m3)",
      "quantize(format=fp8_e4m3, granularity=row)",
      "quantize(format=fp8_e5m2, granularity=tile)",
      "quantize(format=int4)",
      "quantize(format=int8, granularity=tensor)",
      "quantize(format=int4, granularity=group, block=64, scheme=affine)",
      "quantize(format=int2, scheme=affine, rounding=stochastic)",
      "quantize(format=bfp, block=16, bits=4)",
      "quantize(format=bfp, block=256, bits=8)",
      "quantize(format=bf16)",
      "quantize(format=fp16)",
      "quantize(format=tf32)",
      "quantize(format=mxfp6_e3m2)",
      "quantize(format=nvfp4_16x16)",
      "quantize(format=nvfp4_hadamard)",
      "quantize(format=nvfp4_four_over_six)",
      "quantize(format=fp8_e4m3_1x128)",
      "quantize(format=nf4)",
      "quantize(format=hif4)",
      "quantize(format=nvfp4, flip={where: codes, rate: 0.05})",
      "quantize(format=nvfp4, flip={where: scales, rate: 0.05})",
  };
  return cases;
}

}  // namespace faultline::numeric
