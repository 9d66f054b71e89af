// Reads a validated `what:` into a FaultSpec. Everything a schema can say has been checked by then; what is left are
// the combinations (count or rate, margin or limit) and the profile's file.
#include "numeric/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace faultline::numeric {
namespace {

bool is(const Node& what, std::string_view key, std::string_view value) { return what.at(key).as_string() == value; }

Axis read_axis(const Node& what) {
  return is(what, "axis", "token") ? Axis::kToken : is(what, "axis", "tensor") ? Axis::kTensor : Axis::kChannel;
}

std::shared_ptr<const ProfileTable> read_profile(const Node& what) {
  const std::string& file = what.at("file").as_string();
  static const Schema schema =
      Schema::map()
          .field("version", Schema::integer({.min = 1, .max = 1}), {.required = true})
          .field("dtype", Schema::string(), {.required = true})
          .field("share_equal", Schema::number({.min = 0, .max = 1, .exclusive_max = true}), {.required = true})
          .field(
              "quantiles",
              Schema::list(Schema::list(Schema::number(), {.min = 2, .max = 2}), {.min = 2, .max = kMaxProfileKnots}),
              {.required = true});
  const Node profile = validate(load_config(file), schema);
  auto table = std::make_shared<ProfileTable>();
  table->share_equal = static_cast<float>(profile.at("share_equal").as_number());
  double last = -1;
  for (const Node& knot : profile.at("quantiles").items()) {
    const double p = knot.at(std::size_t{0}).as_number();
    if (p <= last || p > 1 || (last < 0 && p != 0)) throw knot.error("probabilities must increase from 0 to 1");
    table->probability[table->knots] = static_cast<float>(p);
    table->error[table->knots++] = static_cast<float>(knot.at(std::size_t{1}).as_number());
    last = p;
  }
  if (last != 1) throw profile.at("quantiles").error("the last probability must be 1");
  return table;
}

void read_bitflip(const Node& what, FaultSpec& spec) {
  const Node *bit = what.find("bit"), *field = what.find("field"), *count = what.find("count"),
             *rate = what.find("rate");
  if (bit && field) throw what.error("give bit or field, not both");
  if ((count != nullptr) == (rate != nullptr))
    throw what.error("give count (elements per call) or rate (per bit), one of them");
  if (bit) spec.bit = bit->as_integer();
  if (field)
    spec.field = field->as_string() == "sign"       ? BitField::kSign
                 : field->as_string() == "exponent" ? BitField::kExponent
                                                    : BitField::kMantissa;
  if (count) spec.count = count->as_integer();
  if (rate) spec.strength = rate->as_number();
}

void read_saturate(const Node& what, FaultSpec& spec) {
  const Node *limit = what.find("limit"), *margin = what.find("margin");
  if (limit && margin) throw what.error("give margin (relative to the maximum) or limit (absolute), not both");
  spec.relative = limit == nullptr;
  spec.reference = spec.relative ? Reference::kMaxAbs : Reference::kNone;
  spec.strength = limit ? limit->as_number() : margin ? margin->as_number() : 0.3;
}

void read_granularity(const Node& what, FormatFamily family, FormatArguments& format) {
  const Node *granularity = what.find("granularity"), *block = what.find("block"), *bits = what.find("bits");
  const bool is_int = family == FormatFamily::kInteger, is_fp8 = family == FormatFamily::kFp8;
  if (granularity) {
    const std::string& name = granularity->as_string();
    const bool fits = (is_fp8 && (name == "tensor" || name == "row" || name == "tile")) ||
                      (is_int && (name == "tensor" || name == "channel" || name == "row" || name == "group"));
    if (!fits)
      throw granularity->error(
          fmt::format("'{}' does not apply to this format; see `faultline explain quantize`", name));
    format.granularity = name == "tensor"  ? Granularity::kTensor
                         : name == "tile"  ? Granularity::kTile
                         : name == "group" ? Granularity::kBlock
                                           : Granularity::kRow;
  }
  if (block) {
    if (family != FormatFamily::kBfp && !(is_int && format.granularity == Granularity::kBlock))
      throw block->error("only bfp and int with granularity: group take a block");
    format.block = static_cast<int32_t>(block->as_integer());
  }
  if (bits) {
    if (family != FormatFamily::kBfp) throw bits->error("only bfp takes bits; an integer format has them in its name");
    format.bits = static_cast<int32_t>(bits->as_integer());
    format.limit = (1 << format.bits) - 1;
  }
}

void read_rounding(const Node& what, FormatArguments& format) {
  const Node* own = what.at("format").is_map() ? what.at("format").find("rounding") : nullptr;
  const Node& node = own != nullptr ? *own : what.at("rounding");
  if (own != nullptr && !is(what, "rounding", "nearest"))
    throw own->error("rounding stands in the format and beside it; leave one out");
  const std::string& name = node.as_string();
  if (name == "nearest") return;  // the format's own
  format.rounding = name == "stochastic" ? Rounding::kStochastic : name == "away" ? Rounding::kAway : Rounding::kZero;
  if (format.element == ElementRule::kLevels)
    throw node.error("nf4 and fp4 take the nearest of their numbers; leave rounding out");
  if (format.element == ElementRule::kCast && format.rounding != Rounding::kStochastic)
    throw node.error("a cast rounds to nearest or stochastically");
}

void read_encoding_fault(const Node& what, FormatArguments& format) {
  const Node *flip = what.find("flip"), *stuck = what.find("stuck");
  if (flip && stuck) throw stuck->error("give flip or stuck; two faults are two rules");
  if (!flip && !stuck) return;
  const Node& node = flip ? *flip : *stuck;
  const bool codes = is(node, "where", "codes");
  format.faulty = codes ? Encoded::kCodes : Encoded::kScales;
  format.stuck = stuck != nullptr;
  if (const Node* bit = node.find("bit")) format.fault_bit = static_cast<int32_t>(bit->as_integer());
  if (flip) format.flip_rate = static_cast<float>(node.at("rate").as_number());
  if (stuck) format.stuck_value = node.at("value").as_integer() == 1;
  const bool bfp = format.element == ElementRule::kInteger && format.scale == ScaleRule::kPower;
  const bool table = format.element == ElementRule::kLevels && format.levels == Levels::kFp4;
  if (codes && (bfp || table || format.element == ElementRule::kTapered || format.element == ElementRule::kCast))
    throw node.error(
        "codes of minifloats (MX, NVFP4, FP8, FP6), integers, NF4 and HiF4 can be struck; this format's are not "
        "modelled");
  const bool stored = format.scale == ScaleRule::kPower || format.scale == ScaleRule::kNarrow ||
                      format.scale == ScaleRule::kReciprocal || format.scale == ScaleRule::kHierarchy;
  if (!codes && (bfp || !stored))
    throw node.error("scales of 8 bits (E8M0, E4M3, E5M3, E6M2) can be struck; for an fp32 scale use the kind gain");
  if (codes && format.fault_bit >= format.bits)
    throw node.error(fmt::format("bit {} does not exist in a code of {} bits", format.fault_bit, format.bits));
}

void read_quantize(const Node& what, FaultSpec& spec) {
  const Node& format = what.at("format");
  spec.format = read_format(format);
  spec.format_name = format.is_map() ? format.at("element").as_string() + " format" : format.as_string();
  const FormatInfo* info = format.is_map() ? nullptr : find_format(spec.format_name);
  const bool integer = info != nullptr
                           ? info->family == FormatFamily::kInteger
                           : spec.format.element == ElementRule::kInteger && spec.format.scale == ScaleRule::kQuotient;
  read_granularity(what, info != nullptr ? info->family : FormatFamily::kFixed, spec.format);
  read_rounding(what, spec.format);
  spec.format.nan_spreads = is(what, "nonfinite", "spec");
  if (is(what, "scheme", "affine")) {
    if (!integer) throw what.at("scheme").error("affine applies to the int formats");
    spec.format.scale = ScaleRule::kAffine;
    spec.format.limit = (1 << spec.format.bits) - 1;
  }
  spec.format.normal_scales = is(what, "scale_floor", "normal");
  if (spec.format.normal_scales && spec.format.scale != ScaleRule::kNarrow)
    throw what.at("scale_floor").error("scale_floor applies to scales eXmY, as nvfp4 has them");
  read_encoding_fault(what, spec.format);
}

void read_accumulate(const Node& what, AccumulateSpec& spec) {
  const std::string& dtype = what.at("dtype").as_string();
  spec.accumulator = dtype == "bf16" ? Dtype::kBFloat16 : dtype == "fp16" ? Dtype::kFloat16 : Dtype::kFloat32;
  spec.chunk = what.at("chunk").as_integer();
  spec.order = is(what, "order", "reverse") ? SumOrder::kReverse
               : is(what, "order", "tree")  ? SumOrder::kTree
                                            : SumOrder::kForward;
  if (const Node* drop = what.find("drop")) spec.drop = drop->as_integer();
}

void read_approximate(const Node& what, ApproximateSpec& spec) {
  constexpr std::array<const char*, 6> kFunctions = {"silu", "gelu", "sigmoid", "tanh", "exp", "rsqrt"};
  for (std::size_t f = 0; f < kFunctions.size(); ++f) {
    if (is(what, "function", kFunctions[f])) spec.function = static_cast<ApproximatedFunction>(f);
  }
  spec.method = is(what, "method", "table")        ? ApproximationMethod::kTable
                : is(what, "method", "polynomial") ? ApproximationMethod::kPolynomial
                                                   : ApproximationMethod::kPiecewise;
  spec.size = what.at("size").as_integer();
  if (spec.method == ApproximationMethod::kPolynomial && spec.size > 24)
    throw what.at("size").error("a polynomial's degree is at most 24");
}

}  // namespace

Schema fault_schema() {
  std::vector<std::pair<std::string, Schema>> kinds;
  for (const KindInfo& info : kind_infos()) {
    Schema map = Schema::map();
    for (const ParameterInfo& p : info.parameters) {
      map = map.field(
          p.name, p.schema,
          {.required = p.required, .default_value = p.default_value, .doc = p.meaning, .default_if = p.applies});
      if (p.applies) {
        map = map.check([p](const Node& what) {
          return what.find(p.name) != nullptr && !p.applies(what) ? p.otherwise : std::string();
        });
      }
    }
    kinds.emplace_back(info.name, map.described_as(info.summary));
  }
  return Schema::tagged("kind", std::move(kinds));
}

FaultSpec read_fault(const Node& what) {
  FaultSpec spec;
  // The kind, and the fields that many kinds share.
  const std::string& name = what.at("kind").as_string();
  const auto infos = kind_infos();
  const auto info = std::find_if(infos.begin(), infos.end(), [&](const KindInfo& k) { return k.name == name; });
  FL_ASSERT(info != infos.end());
  spec.kind = info->kind;
  if (const Node* strength = what.find("strength")) spec.strength = strength->as_number();
  if (const Node* factor = what.find("factor")) spec.factor = factor->as_number();
  if (what.find("axis")) spec.axis = read_axis(what);
  // The fields of one kind.
  switch (spec.kind) {
    case FaultKind::kScaledGaussian:
      spec.reference = is(what, "scale", "std") ? Reference::kStd : Reference::kMeanAbs;
      break;
    case FaultKind::kOffset:
      spec.relative = is(what, "scale", "std");
      spec.reference = spec.relative ? Reference::kStd : Reference::kNone;
      break;
    case FaultKind::kTruncate:
      spec.bits = what.at("bits").as_integer();
      spec.mode = static_cast<uint32_t>(is(what, "mode", "zero")      ? TruncateMode::kZero
                                        : is(what, "mode", "nearest") ? TruncateMode::kNearest
                                                                      : TruncateMode::kStochastic);
      break;
    case FaultKind::kDeadzone:
      spec.strength = what.at("threshold").as_number();
      spec.relative = is(what, "relative_to", "max");
      spec.reference = spec.relative ? Reference::kMaxAbs : Reference::kNone;
      break;
    case FaultKind::kSaturate: read_saturate(what, spec); break;
    case FaultKind::kSpike:
      spec.strength = what.at("probability").as_number();
      spec.reference = Reference::kMaxAbs;
      break;
    case FaultKind::kBitflip: read_bitflip(what, spec); break;
    case FaultKind::kStuckAt:
      spec.bit = what.at("bit").as_integer();
      spec.bit_value = what.at("value").as_integer() == 1;
      break;
    case FaultKind::kSwap:
      spec.length = what.at("length").as_integer();
      spec.count = what.at("count").as_integer();
      break;
    case FaultKind::kNondeterministic:
      spec.reference = Reference::kStd;
      spec.strength = spec.factor;
      spec.mode = static_cast<uint32_t>(is(what, "mode", "amplified")      ? NondeterministicMode::kAmplified
                                        : is(what, "mode", "inconsistent") ? NondeterministicMode::kInconsistent
                                                                           : NondeterministicMode::kCorrelated);
      break;
    case FaultKind::kProfile: spec.profile = read_profile(what); break;
    case FaultKind::kAccumulate: read_accumulate(what, spec.accumulate); break;
    case FaultKind::kApproximate: read_approximate(what, spec.approximate); break;
    case FaultKind::kQuantize: read_quantize(what, spec); break;
    default: break;
  }
  return spec;
}

}  // namespace faultline::numeric
