// The catalogue of fault kinds: one entry each, read by the parser, the schema, `list` and `explain`.
#include "numeric/fault.h"

namespace faultline::numeric {
namespace {

Schema probability() { return Schema::number({.min = 0, .max = 1}); }
Schema strength_range() { return Schema::number({.min = 0, .max = 1e6}); }
ParameterInfo required(std::string name, Schema schema, std::string meaning) {
  return {std::move(name), std::move(schema), {}, std::move(meaning), true};
}
ParameterInfo optional(std::string name, Schema schema, std::string meaning) {
  return {std::move(name), std::move(schema), {}, std::move(meaning), false};
}
ParameterInfo with_default(std::string name, Schema schema, Node value, std::string meaning) {
  return {std::move(name), std::move(schema), std::move(value), std::move(meaning), false};
}
std::string power_of_two_block(const Node& block) {
  const int64_t size = block.as_integer();
  return (size & (size - 1)) == 0 ? "" : "a block is 8, 16, 32, 64, 128 or 256 elements";
}
ParameterInfo axis() {
  return with_default("axis", Schema::choice({"token", "tensor", "channel"}), "token",
                      "over what the maximum, mean or deviation is taken; token keeps rollout and training alike");
}
// The axis of a kind that measures nothing once `parameter` is `absolute` (empty: once it is given).
ParameterInfo axis_unless(const std::string& parameter, const std::string& absolute, const std::string& remedy) {
  ParameterInfo info = axis();
  info.applies = [parameter, absolute](const Node& what) {
    const Node* value = what.find(parameter);
    return value == nullptr || (!absolute.empty() && !(value->is_string() && value->as_string() == absolute));
  };
  info.otherwise = "axis says over what a reference is measured, and with " + parameter +
                   (absolute.empty() ? "" : ": " + absolute) + " nothing is measured; leave axis out, or " + remedy;
  return info;
}

std::vector<KindInfo> gaussian_kinds() {
  return {
      {FaultKind::kRelativeGaussian,
       "relative_gaussian",
       "y = x + e*|x|*s,  e ~ N(0,1)",
       "the hardware-difference model, 1e-5 … 0.1",
       {required("strength", strength_range(), "s")},
       "relative_gaussian(strength=0.05) @ operator=matmul",
       "The deviate's sign is drawn relative to x's, so it is computed as x + (e*s)*x: the same law. In bf16 a "
       "strength "
       "below about 5e-4 changes nothing and is refused; see `rounding` and `expect`."},
      {FaultKind::kAbsoluteGaussian,
       "absolute_gaussian",
       "y = x + e*s,  e ~ N(0,1)",
       "fixed-point noise",
       {required("strength", strength_range(), "s, in the tensor's own unit")},
       "absolute_gaussian(strength=0.01)",
       ""},
      {FaultKind::kScaledGaussian,
       "scaled_gaussian",
       "y = x + e*s*R,  R = std(x) or mean|x|",
       "noise in proportion to a row's size",
       {required("strength", strength_range(), "s"),
        with_default("scale", Schema::choice({"std", "mean_abs"}), "std", "R"), axis()},
       "scaled_gaussian(strength=0.05, scale=mean_abs)",
       ""},
      {FaultKind::kNondeterministic,
       "nondeterministic",
       "y = x + e*0.01*v*std(x), fresh each call",
       "a unit whose result differs from call to call",
       {with_default("factor", Schema::number({.min = 0, .max = 1e6}), 1.0, "v"),
        with_default(
            "mode", Schema::choice({"amplified", "inconsistent", "correlated"}), "amplified",
            "amplified: v as given; inconsistent: v uniform in [0, 2v] per call; correlated: one deviate per channel"),
        axis()},
       "nondeterministic(factor=5, mode=correlated)",
       ""},
  };
}

std::vector<KindInfo> systematic_kinds() {
  return {
      {FaultKind::kSystematicBias,
       "systematic_bias",
       "y = x + sign(x)*s",
       "rounding bias, absolute; zero stays zero",
       {required("strength", strength_range(), "s")},
       "systematic_bias(strength=0.001)",
       ""},
      {FaultKind::kGain,
       "gain",
       "y = x*(1+s)",
       "a wrong scale factor",
       {required("strength", strength_range(), "s")},
       "gain(strength=0.01)",
       ""},
      {FaultKind::kOffset,
       "offset",
       "y = x + s*std(x), or x + s",
       "a constant added",
       {required("strength", strength_range(), "s"),
        with_default("scale", Schema::choice({"std", "absolute"}), "std", "unit of s"),
        axis_unless("scale", "absolute", "set scale: std")},
       "offset(strength=0.1)",
       ""},
      {FaultKind::kTruncate,
       "truncate",
       "mantissa cut to k bits",
       "a narrow datapath",
       {required("bits", Schema::integer({.min = 0, .max = 51}),
                 "k, below the dtype's own (bf16 7, fp16 10, fp32 23, fp64 52)"),
        with_default("mode", Schema::choice({"zero", "nearest", "stochastic"}), "zero", "how the rest is dropped")},
       "truncate(bits=3, mode=nearest)",
       ""},
      {FaultKind::kDeadzone,
       "deadzone",
       "y = 0 where |x| < T,  T = t*max|x| or t",
       "small signals are lost",
       {with_default("threshold", probability(), 0.01, "t"),
        with_default("relative_to", Schema::choice({"max", "none"}), "max", "unit of t"),
        axis_unless("relative_to", "none", "set relative_to: max")},
       "deadzone(threshold=0.04) @ module=layer_output,layer=15",
       "Relative noise after a dead zone cannot revive a zero; additive noise before it can lift signals over the "
       "threshold."},
      {FaultKind::kSaturate,
       "saturate",
       "y = clamp(x, -c, c),  c = (1-m)*max|x| or c = limit",
       "a range that is too small",
       {optional("margin", probability(), "m, default 0.3; not together with limit"),
        optional("limit", Schema::number({.min = 0, .max = 1e30}), "c, absolute"),
        axis_unless("limit", "", "give margin instead of limit")},
       "saturate(margin=0.3)",
       ""},
      {FaultKind::kProfile,
       "profile",
       "y = x*(1+e), e from a measured distribution",
       "replays a measured difference between two devices",
       {required("file", Schema::string({.min = 1}), "JSON {version, dtype, share_equal, quantiles: [[p, e], …]}")},
       "profile(file=npu.json)",
       "At most 128 quantiles, p increasing from 0 to 1; with probability share_equal e is 0."},
  };
}

std::vector<KindInfo> discrete_kinds() {
  const auto field = Schema::choice({"sign", "exponent", "mantissa"});
  return {
      {FaultKind::kSpike,
       "spike",
       "with probability p, y = k*max|x|*e,  e ~ N(0,1)",
       "rare huge values",
       {with_default("probability", probability(), 0.003, "p per element"),
        with_default("factor", Schema::number({.min = 0, .max = 1e6}), 10.0, "k"), axis()},
       "spike(probability=0.003, factor=10)",
       ""},
      {FaultKind::kBitflip,
       "bitflip",
       "xor of one bit in n elements, or of every bit with a rate",
       "an upset in memory or datapath, on the dtype's raw bits",
       {optional("bit", Schema::integer({.min = 0, .max = 63}), "which bit, 0 = lowest; below the dtype's width"),
        optional("field", field, "any bit of this field; neither bit nor field: any bit"),
        optional("count", Schema::integer({.min = 1, .max = int64_t{1} << 40}), "exactly n elements per call"),
        optional("rate", Schema::number({.min = 0, .max = 1, .exclusive_min = true}),
                 "probability per eligible bit and call")},
       "bitflip(field=exponent, count=1)",
       "Give count or rate, not both."},
      {FaultKind::kStuckAt,
       "stuck_at",
       "one bit forced to 0 or 1",
       "a stuck wire; the extent says at which positions",
       {required("bit", Schema::integer({.min = 0, .max = 63}), "which bit, below the dtype's width"),
        with_default("value", Schema::integer({.min = 0, .max = 1}), 0, "0 or 1")},
       "stuck_at(bit=14, value=1, extent.fraction=0.01, extent.structure=channel)",
       ""},
      {FaultKind::kZero,
       "zero",
       "y = 0",
       "a dead unit; the extent says which",
       {},
       "zero(extent.fraction=0.01, extent.structure=channel)",
       ""},
      {FaultKind::kNan,
       "nan",
       "y = NaN",
       "a poisoned unit; the extent says which",
       {},
       "nan(extent.fraction=0.001, extent.structure=row)",
       ""},
      {FaultKind::kInf,
       "inf",
       "y = infinity with x's sign",
       "an overflowing unit; the extent says which",
       {},
       "inf(extent.fraction=0.001, extent.structure=tile, extent.tile=16x16)",
       ""},
      {FaultKind::kSwap,
       "swap",
       "pairs of regions exchanged",
       "misrouted data: the sum stays, the order does not",
       {with_default("length", Schema::integer({.min = 1, .max = int64_t{1} << 40}), 2048,
                     "consecutive elements of a region"),
        with_default("count", Schema::integer({.min = 1, .max = int64_t{1} << 30}), 1,
                     "pairs; the same pairs at every call")},
       "swap(length=2048, count=1)",
       "Regions come from the whole tensor, so an extent is not accepted."},
  };
}

std::vector<KindInfo> replacement_kinds() {
  return {
      {FaultKind::kAccumulate,
       "accumulate",
       "y = sum over K in chunks, each added in a narrow accumulator",
       "a matrix product or sum with a short accumulator, another order, or a K-tile left out",
       {with_default("dtype", Schema::choice({"bf16", "fp16", "fp32"}), "bf16", "of the accumulator"),
        with_default("chunk", Schema::integer({.min = 1, .max = 1 << 20}), 64,
                     "products added exactly before each rounding"),
        with_default("order", Schema::choice({"forward", "reverse", "tree"}), "forward", "in which chunks are added"),
        optional("drop", Schema::integer({.min = 0}), "number of the chunk that is left out")},
       "accumulate(dtype=bf16, chunk=64) @ operator=matmul",
       "Replaces what an operator computes (matmul, sum, mean): it needs a plan."},
      {FaultKind::kApproximate,
       "approximate",
       "y = f~(x), f~ a table, straight pieces or a polynomial",
       "a function unit that looks values up",
       {required("function", Schema::choice({"silu", "gelu", "sigmoid", "tanh", "exp", "rsqrt"}),
                 "exp: inside softmax"),
        with_default("method", Schema::choice({"table", "piecewise", "polynomial"}), "piecewise", "how it is computed"),
        with_default("size", Schema::integer({.min = 2, .max = 65536}), 64,
                     "entries, knots, or the degree (at most 24)")},
       "approximate(function=silu, method=table, size=256) @ operator=activation",
       "Replaces what an operator computes: it needs a plan."},
      {FaultKind::kStale,
       "stale",
       "y = what this site gave at its previous call in the step",
       "a buffer that was not written; the extent says where",
       {},
       "stale(extent.fraction=0.25, extent.structure=tile, extent.tile=16x16) @ operator=matmul",
       "Acts where a site repeats with one shape: it needs a plan."},
  };
}

// A fault of the encoded form: `bit` counts from the lowest.
Schema encoding_fault(bool stuck) {
  Schema map = Schema::map()
                   .field("where", Schema::choice({"codes", "scales"}),
                          {.required = true, .doc = "elements' codes, or units' scales"})
                   .field("bit", Schema::integer({.min = 0, .max = 7}), {.required = stuck, .doc = "0 = lowest"});
  if (stuck)
    return map.field("value", Schema::integer({.min = 0, .max = 1}), {.default_value = Node(0), .doc = "0 or 1"});
  return map.field("rate", Schema::number({.min = 0, .max = 1, .exclusive_min = true}),
                   {.required = true, .doc = "probability a code or scale and call; without bit: any of its bits"});
}

KindInfo quantize_kind() {
  return {
      FaultKind::kQuantize,
      "quantize",
      "y = dequantise(quantise(x))",
      "a number format; gradients pass straight through",
      {required("format", format_schema(), "a name of `faultline list formats`, or a map {element, scale, block, …}"),
       with_default("rounding", Schema::choice({"nearest", "stochastic", "away", "zero"}), "nearest",
                    "to nearest, ties as the format has them (most: even); up with probability distance/gap; to "
                    "nearest, ties away from zero; toward zero"),
       optional("granularity", Schema::choice({"tensor", "row", "channel", "tile", "group"}),
                "fp8: tensor (default), row or 128x128 tile; int: tensor, channel (= row, default) or group"),
       optional("block", Schema::integer({.min = 8, .max = 256}).check(power_of_two_block),
                "int group or bfp block along the last dimension, a power of two; default 32"),
       optional("bits", Schema::integer({.min = 1, .max = 16}), "bfp: mantissa bits; default 8"),
       with_default("scheme", Schema::choice({"symmetric", "affine"}), "symmetric", "int only"),
       with_default("nonfinite", Schema::choice({"propagate", "spec"}), "propagate",
                    "spec: a NaN or Inf makes its block NaN, as OCP has it"),
       with_default("scale_floor", Schema::choice({"subnormal", "normal"}), "subnormal",
                    "scales eXmY (nvfp4): subnormal ones too, or at least 2^-6 as torchao has it"),
       optional("flip", encoding_fault(false), "{where: codes|scales, rate, bit}: one bit of a code or scale flipped"),
       optional("stuck", encoding_fault(true), "{where: codes|scales, bit, value}: one bit of all of them forced")},
      "quantize(format=mxfp4) @ operator=matmul,surface=weight",
      "Blocks run along the last dimension and never cross rows."};
}

std::vector<KindInfo> make_kinds() {
  std::vector<KindInfo> all = gaussian_kinds();
  for (auto part : {systematic_kinds(), discrete_kinds(), replacement_kinds()})
    all.insert(all.end(), part.begin(), part.end());
  all.push_back(quantize_kind());
  return all;
}

}  // namespace

std::span<const KindInfo> kind_infos() {
  static const std::vector<KindInfo> kinds = make_kinds();
  return kinds;
}

const KindInfo& kind_info(FaultKind kind) {
  for (const KindInfo& info : kind_infos()) {
    if (info.kind == kind) return info;
  }
  FL_ASSERT(!"a kind without an entry in the catalogue");
}

std::string_view kind_name(FaultKind kind) { return kind_info(kind).name; }

}  // namespace faultline::numeric
