#include "numeric/lower.h"

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"

namespace faultline::numeric {
namespace {

LifetimeArguments lower_lifetime(const LifetimeSpec& spec) {
  return {spec.kind, static_cast<float>(spec.probability), static_cast<uint32_t>(spec.from),
          static_cast<uint32_t>(spec.to)};
}

void lower_bits(const Rule& rule, Dtype dtype, FaultArguments& a) {
  const int width = dtype_width(dtype), mantissa = dtype_mantissa_bits(dtype);
  const FaultSpec& what = rule.what;
  if (what.bit && *what.bit >= width) {
    throw UsageError(fmt::format("rule '{}': bit {} does not exist in {}; its bits are 0 to {}", rule.name, *what.bit,
                                 dtype_name(dtype), width - 1));
  }
  a.bit = 0, a.bit_count = static_cast<uint32_t>(width);
  if (what.field == BitField::kSign) a.bit = static_cast<uint32_t>(width - 1), a.bit_count = 1;
  if (what.field == BitField::kExponent)
    a.bit = static_cast<uint32_t>(mantissa), a.bit_count = static_cast<uint32_t>(width - 1 - mantissa);
  if (what.field == BitField::kMantissa) a.bit_count = static_cast<uint32_t>(mantissa);
  if (what.bit) a.bit = static_cast<uint32_t>(*what.bit), a.bit_count = 1;
  a.bit_value = what.bit_value;
  // P(first flip at or before eligible bit j) = 1 - (1 - rate)^(j+1), without cancellation for small rates.
  for (uint32_t j = 0; j < a.bit_count; ++j) {
    const double p = -std::expm1((j + 1) * std::log1p(-what.strength));
    a.flip_threshold[j] = p >= 1 ? ~uint64_t{0} : static_cast<uint64_t>(std::ldexp(p, 64));
  }
}

void lower_truncate(const Rule& rule, Dtype dtype, FaultArguments& a) {
  const int mantissa = dtype_mantissa_bits(dtype);
  if (rule.what.bits >= mantissa) {
    throw UsageError(
        fmt::format("rule '{}': truncate to {} mantissa bits cuts nothing in {}, which has {}; use 0 to {}", rule.name,
                    rule.what.bits, dtype_name(dtype), mantissa, mantissa - 1));
  }
  const int compute = dtype == Dtype::kFloat64 ? 52 : 23;
  a.drop_bits = static_cast<uint32_t>(compute - rule.what.bits);
}

void lower_permutation(const Rule& rule, const Keys& keys, FaultArguments& a) {
  a.count = static_cast<uint64_t>(rule.what.count);
  if (rule.what.kind == FaultKind::kBitflip) {
    if (a.count > static_cast<uint64_t>(a.elements))
      throw UsageError(
          fmt::format("rule '{}': count {} is more than the tensor's {} elements", rule.name, a.count, a.elements));
    a.permutation = make_permutation(static_cast<uint64_t>(a.elements), keys.noise);
    return;
  }
  a.region = rule.what.length;
  const int64_t regions = a.elements / a.region;
  if (2 * rule.what.count > regions) {
    throw UsageError(
        fmt::format("rule '{}': {} pairs of regions of {} elements do not fit into {} elements; lower length or count",
                    rule.name, rule.what.count, a.region, a.elements));
  }
  a.permutation = make_permutation(static_cast<uint64_t>(regions), keys.mask);
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32: return "fp32";
    case Dtype::kBFloat16: return "bf16";
    case Dtype::kFloat16: return "fp16";
    case Dtype::kFloat64: return "fp64";
  }
  return "?";
}
int dtype_width(Dtype dtype) {
  return dispatch_dtype(dtype, [](auto type) { return decltype(type)::kWidth; });
}
int dtype_mantissa_bits(Dtype dtype) {
  return dispatch_dtype(dtype, [](auto type) { return decltype(type)::kMantissaBits; });
}

Keys make_keys(const Identity& identity, const std::string& rule_name) {
  const uint64_t unit = hash64(identity.site, hash64(rule_name, mix64(identity.seed, 0x6661756C74ull)));
  return {mix64(unit, 1), mix64(unit, 2)};
}

FaultArguments lower_fault(const Rule& rule, const TensorShape& shape, const Keys& keys, const Control& control) {
  FaultArguments a;
  const FaultSpec& what = rule.what;
  a.kind = what.kind;
  a.dtype = shape.dtype;
  a.elements = shape.elements;
  a.columns = shape.columns;
  a.control = control;
  a.noise_key = keys.noise;
  a.mask_key = keys.mask;
  a.extent = lower_extent(rule.extent, shape.columns == 0 ? 0 : shape.elements / shape.columns, shape.columns);
  a.lifetime = lower_lifetime(rule.lifetime);
  a.stochastic_rounding = rule.stochastic_rounding;
  a.keyed_by_row = rule.keyed_by_row;
  a.factor = static_cast<float>(what.factor);
  a.relative = what.relative;
  a.mode = what.mode;
  a.reference_kind = what.reference;
  a.axis = what.axis;
  if (what.kind == FaultKind::kBitflip || what.kind == FaultKind::kStuckAt) lower_bits(rule, shape.dtype, a);
  if (what.kind == FaultKind::kTruncate) lower_truncate(rule, shape.dtype, a);
  if (what.kind == FaultKind::kSwap || what.count > 0) lower_permutation(rule, keys, a);
  return a;
}

QuantizeArguments lower_format(const Rule& rule, const TensorShape& shape, const Keys& keys, const Control& control) {
  QuantizeArguments q;
  q.format = rule.what.format;
  q.dtype = shape.dtype;
  q.columns = shape.columns;
  q.rows = shape.columns == 0 ? 0 : shape.elements / shape.columns;
  q.chunks_per_row = padded_chunks(shape.columns, group_of(q.format));
  q.control = control;
  q.noise_key = keys.noise;
  q.mask_key = keys.mask;
  q.extent = lower_extent(rule.extent, q.rows, q.columns);
  q.lifetime = lower_lifetime(rule.lifetime);
  return q;
}

}  // namespace faultline::numeric
