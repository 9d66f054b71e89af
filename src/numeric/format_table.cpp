// The table of named formats, and the reader of described ones. A row is made from a few words (element, scale, unit),
// and so is a description: a name stands for nothing that a recipe could not write out, but for the casts and gguf's
// Q8_0.
#include "numeric/format_table.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "base/text.h"

namespace faultline::numeric {
namespace {

struct Word {
  Minifloat grid;
  Special special = Special::kNone;
  int exponent_bits = 0;
};

// eXmY with a rule for what is no finite number. `fn`: all codes are numbers below 8 bits; the last one is NaN with 8.
// `ieee`: the top exponent is infinity and NaN. `fnuz`: -0 is NaN, and the bias is one more.
Word minifloat(int exponent_bits, int mantissa_bits, std::string_view rule) {
  Word word{{}, Special::kNone, exponent_bits};
  const bool unsigned_zero = rule == "fnuz", ieee = rule == "ieee";
  const bool one_nan = rule == "fn" && 1 + exponent_bits + mantissa_bits >= 8;
  word.special = unsigned_zero ? Special::kUnsignedZero
                 : ieee        ? Special::kIeee
                 : one_nan     ? Special::kNan
                               : Special::kNone;
  const int bias = (1 << (exponent_bits - 1)) - (unsigned_zero ? 0 : 1);
  int top = (1 << exponent_bits) - 1 - bias, mantissa = (1 << mantissa_bits) - 1;
  if (ieee || (one_nan && mantissa_bits == 0)) --top;
  if (one_nan && mantissa_bits > 0) --mantissa;
  word.grid = {mantissa_bits, 1 - bias,
               std::ldexp(1.0f + std::ldexp(static_cast<float>(mantissa), -mantissa_bits), top)};
  return word;
}

std::optional<Word> read_minifloat(std::string_view name) {
  const auto digit = [&](std::size_t i) {
    return i < name.size() && name[i] >= '0' && name[i] <= '9' ? name[i] - '0' : -1;
  };
  if (name.size() < 4 || name[0] != 'e' || name[2] != 'm' || digit(1) < 2 || digit(3) < 0) return {};
  const int exponent = digit(1), mantissa = digit(3);
  if (exponent > 7 || 1 + exponent + mantissa > 8) return {};
  std::string_view rule = name.substr(4);
  if (rule.empty()) rule = exponent == 5 && mantissa == 2 ? "ieee" : "fn";
  if (rule != "fn" && rule != "ieee" && rule != "fnuz") return {};
  return minifloat(exponent, mantissa, rule);
}

std::optional<int> read_integer(std::string_view name) {
  if (name.size() != 4 || !name.starts_with("int") || name[3] < '2' || name[3] > '8') return {};
  return name[3] - '0';
}

int exponent_at_top(float max) { return std::ilogb(max); }

// --- Parts of a description: each sets what its word means. ---

void set_element(FormatArguments& f, std::string_view name) {
  if (const auto bits = read_integer(name)) {
    f.element = ElementRule::kInteger;
    f.bits = *bits;
    f.twos_complement = true;
    f.limit = (1 << (*bits - 1)) - 1;
    f.top = static_cast<float>(f.limit);
  } else if (name == "nf4" || name == "fp4") {
    f.element = ElementRule::kLevels;
    f.levels = name == "nf4" ? Levels::kNf4 : Levels::kFp4;
    f.bits = 4;
    f.top = 1;
  } else if (name == "hif8") {
    f.element = ElementRule::kTapered;
    f.rounding = Rounding::kAway;
  } else {
    const auto word = read_minifloat(name);
    FL_ASSERT(word.has_value());
    f.element = ElementRule::kMinifloat;
    f.grid = word->grid;
    f.special = word->special;
    f.bits = 1 + word->exponent_bits + word->grid.mantissa_bits;
    f.top = word->grid.max;
  }
}

void set_scale(FormatArguments& f, std::string_view name) {
  if (name == "e8m0" || name == "e8m0_up") {
    f.scale = ScaleRule::kPower;
    f.scale_up = name == "e8m0_up";
    if (f.element == ElementRule::kInteger) {  // MX: 1.xxx without exponents
      f.element = ElementRule::kMinifloat;
      f.grid = {f.bits - 2, 0, std::ldexp(static_cast<float>(f.limit), 2 - f.bits)};
    }
    f.top_exponent = exponent_at_top(f.element == ElementRule::kMinifloat ? f.grid.max : f.top);
  } else if (name == "fp32") {
    f.scale = ScaleRule::kQuotient;
  } else if (name == "none") {
    f.scale = ScaleRule::kNone;
    f.granularity = Granularity::kTensor;
  } else {
    const auto word = read_minifloat(name);  // a scale has no sign: E5M3 is 8 bits wide
    f.scale = ScaleRule::kNarrow;
    f.scale_grid = name == "e5m3" ? minifloat(5, 3, "fn").grid : word->grid;
  }
}

void set_block(FormatArguments& f, int64_t rows, int64_t columns) {
  const bool power = (columns & (columns - 1)) == 0;
  f.granularity = rows == 1 && columns <= 256 && power ? Granularity::kBlock : Granularity::kTile;
  f.block = static_cast<int32_t>(columns);
  f.tile_rows = static_cast<int32_t>(rows);
}

void set_second_level(FormatArguments& f) {
  f.second_level = true;
  f.tensor_top = f.scale_grid.max * f.top;
}

FormatArguments described(std::string_view element, std::string_view scale, int64_t rows, int64_t columns) {
  FormatArguments f;
  set_element(f, element);
  set_block(f, rows, columns);
  set_scale(f, scale);
  return f;
}
FormatArguments with_unit(FormatArguments f, Granularity granularity) {
  f.granularity = granularity;
  f.block = f.tile_rows = 128;  // of a tile
  return f;
}

// --- The table ---

constexpr const char* kOcp = "OCP Microscaling Formats (MX) 1.0";

void add_mx(std::vector<FormatInfo>& all) {
  const auto fixed = FormatFamily::kFixed;
  const auto add = [&](const char* name, const char* element, const char* scale, const char* scale_text,
                       const char* element_text, const char* follows) {
    all.push_back({name, fixed, described(element, scale, 1, 32), "32", scale_text, element_text, follows});
  };
  add("mxfp4", "e2m1", "e8m0", "E8M0, floor(log2 amax) - 2", "E2M1", kOcp);
  add("mxfp4_ceil", "e2m1", "e8m0_up", "E8M0, smallest 2^e with amax <= 6*2^e", "E2M1",
      "OCP MX elements, the scale of cuBLAS and cuDNN");
  add("mxfp8_e4m3", "e4m3", "e8m0", "E8M0, floor(log2 amax) - 8", "E4M3", kOcp);
  add("mxfp8_e5m2", "e5m2", "e8m0", "E8M0, floor(log2 amax) - 15", "E5M2", kOcp);
  add("mxfp6_e2m3", "e2m3", "e8m0", "E8M0, floor(log2 amax) - 2", "E2M3", kOcp);
  add("mxfp6_e3m2", "e3m2", "e8m0", "E8M0, floor(log2 amax) - 4", "E3M2", kOcp);
  add("mxint8", "int8", "e8m0", "E8M0, floor(log2 amax)", "INT8, steps of 1/64, at most 127/64", kOcp);
  add("mxint4", "int4", "e8m0", "E8M0, floor(log2 amax)", "INT4, steps of 1/4, at most 7/4", "microxcaling");
  add("mxint2", "int2", "e8m0", "E8M0, floor(log2 amax)", "INT2: -1, 0, 1", "microxcaling");
  add("mxfp8_e4m3_ceil", "e4m3", "e8m0_up", "E8M0, smallest 2^e with amax <= 448*2^e", "E4M3",
      "OCP MX elements, the scale of cuBLAS and cuDNN");
}

void add_nvfp4(std::vector<FormatInfo>& all) {
  const auto add = [&](const char* name, const FormatArguments& format, const char* block, const char* scale,
                       const char* follows) {
    all.push_back({name, FormatFamily::kFixed, format, block, scale, "E2M1", follows});
  };
  const FormatArguments single = described("e2m1", "e4m3", 1, 16);
  FormatArguments two = single;
  set_second_level(two);
  add("nvfp4", two, "16", "fp32 tensor scale amax/2688 and E4M3 block scale", "torchao's order of operations");
  add("nvfp4_single", single, "16", "E4M3 block scale alone (for comparison)", "some published simulators");
  FormatArguments square = described("e2m1", "e4m3", 16, 16);
  set_second_level(square);
  add("nvfp4_16x16", square, "16x16", "as nvfp4, one E4M3 scale for 16x16 weights",
      "Pretraining LLMs with NVFP4 (2509.25149)");
  FormatArguments te = two;
  te.scale = ScaleRule::kReciprocal;
  add("nvfp4_te", te, "16", "as nvfp4, by reciprocals", "Transformer Engine's reference quantiser");
  FormatArguments rotated = te;
  rotated.hadamard = true;
  add("nvfp4_hadamard", rotated, "16", "as nvfp4_te, after a Hadamard transform of 16",
      "Transformer Engine, its signs");
  FormatArguments adaptive = two;
  adaptive.four_over_six = true;
  adaptive.tensor_top = 256.0f * 6.0f;
  add("nvfp4_four_over_six", adaptive, "16", "amax/1536; E4M3 of amax/6 or amax/4, whichever errs less",
      "Four Over Six (2512.02010)");
  add("nvfp4_e5m3", described("e2m1", "e5m3", 1, 16), "16", "E5M3 block scale without sign, no tensor scale",
      "E5M3 scales as published for FP4 without a second level");
}

void add_fp8(std::vector<FormatInfo>& all) {
  const auto add = [&](const char* name, const char* element, Granularity unit, const char* block, const char* scale,
                       const char* element_text, const char* follows) {
    const bool free = unit == Granularity::kTensor;
    all.push_back({name, free ? FormatFamily::kFp8 : FormatFamily::kFixed,
                   with_unit(described(element, "fp32", 1, 32), unit), block, scale, element_text, follows});
  };
  const char* units = "tensor, row or 128x128 tile";
  add("fp8_e4m3", "e4m3", Granularity::kTensor, units, "fp32, amax/448", "E4M3, saturating", "OCP OFP8");
  add("fp8_e5m2", "e5m2", Granularity::kTensor, units, "fp32, amax/57344", "E5M2, saturating", "OCP OFP8");
  add("fp8_e4m3fnuz", "e4m3fnuz", Granularity::kTensor, units, "fp32, amax/240", "E4M3FNUZ, saturating",
      "AMD MI300, ml_dtypes");
  add("fp8_e5m2fnuz", "e5m2fnuz", Granularity::kTensor, units, "fp32, amax/57344", "E5M2FNUZ, saturating",
      "AMD MI300, ml_dtypes");
  add("fp8_e3m4", "e3m4ieee", Granularity::kTensor, units, "fp32, amax/15.5", "E3M4, saturating", "ml_dtypes");
  add("fp8_e4m3_128x128", "e4m3", Granularity::kTile, "128x128", "fp32, amax/448", "E4M3, saturating",
      "DeepSeek-V3 (2412.19437), weights");
  all.push_back({"fp8_e4m3_1x128", FormatFamily::kFixed, described("e4m3", "fp32", 1, 128), "128", "fp32, amax/448",
                 "E4M3, saturating", "DeepSeek-V3 (2412.19437), activations"});
  all.push_back({"fp8_e4m3_1x128_e8m0", FormatFamily::kFixed, described("e4m3", "e8m0_up", 1, 128), "128",
                 "E8M0, smallest 2^e with amax <= 448*2^e", "E4M3", "DeepSeek-V3.1 (UE8M0 scales)"});
  all.push_back({"fp8_e4m3_128x128_e8m0", FormatFamily::kFixed, described("e4m3", "e8m0_up", 128, 128), "128x128",
                 "E8M0, smallest 2^e with amax <= 448*2^e", "E4M3", "DeepSeek-V3.1 (UE8M0 scales)"});
}

void add_tables_and_integers(std::vector<FormatInfo>& all) {
  for (int bits = 2; bits <= 8; ++bits) {
    const std::string name = "int" + std::to_string(bits);
    FormatArguments f = described(name, "fp32", 1, 32);
    f.granularity = Granularity::kRow;
    all.push_back(
        {name, FormatFamily::kInteger, f, "tensor, channel or group", "fp32, symmetric or affine", "integer", ""});
  }
  FormatArguments bfp;
  bfp.element = ElementRule::kInteger;
  bfp.limit = 255;
  all.push_back(
      {"bfp", FormatFamily::kBfp, bfp, "8 … 256", "shared exponent of the block's largest", "integer mantissa", ""});
  const auto fixed = FormatFamily::kFixed;
  const auto add = [&](const char* name, const FormatArguments& f, const char* block, const char* scale,
                       const char* element,
                       const char* follows) { all.push_back({name, fixed, f, block, scale, element, follows}); };
  add("nf4", described("nf4", "fp32", 1, 64), "64", "fp32, amax", "NF4: 16 quantiles of a normal",
      "QLoRA (2305.14314), bitsandbytes' numbers");
  add("fp4_bnb", described("fp4", "fp32", 1, 64), "64", "fp32, amax", "FP4 of bitsandbytes: 0, 1/192, 1/6 … 1",
      "bitsandbytes");
  add("fp6_e2m3", with_unit(described("e2m3", "fp32", 1, 32), Granularity::kRow), "row", "fp32, amax/7.5", "E2M3",
      "FP6-LLM (2401.14112), E2M3");
  add("fp6_e3m2", with_unit(described("e3m2", "fp32", 1, 32), Granularity::kRow), "row", "fp32, amax/28", "E3M2",
      "FP6-LLM (2401.14112)");
  add("fp4_e2m1", with_unit(described("e2m1", "fp32", 1, 32), Granularity::kRow), "row", "fp32, amax/6", "E2M1",
      "one fp32 scale a row");
  FormatArguments half = described("int8", "fp32", 1, 32);
  half.scale = ScaleRule::kHalf;
  half.rounding = Rounding::kAway;
  add("q8_0", half, "32", "fp16, amax/127", "INT8", "gguf's Q8_0");
  add("hif8", described("hif8", "none", 1, 32), "-", "-", "HiF8, ties away, saturating", "HiFloat8 (2409.16626)");
  FormatArguments hierarchy = described("e2m1", "e4m3", 1, 64);
  hierarchy.scale = ScaleRule::kHierarchy;
  hierarchy.grid = {2, 0, 1.75f};
  hierarchy.scale_grid = e6m2();
  hierarchy.top = 7;
  hierarchy.rounding = Rounding::kAway;
  add("hif4", hierarchy, "64", "E6M2, a bit for 8 elements, a bit for 4", "S1P2: steps of 1/4, at most 7/4",
      "HiFloat4 (2602.11287), its published simulator");
}

void add_casts(std::vector<FormatInfo>& all) {
  for (const auto& [name, target] :
       {std::pair{"bf16", CastTarget::kBf16}, {"fp16", CastTarget::kFp16}, {"tf32", CastTarget::kTf32}}) {
    FormatArguments f;
    f.element = ElementRule::kCast;
    f.scale = ScaleRule::kNone;
    f.granularity = Granularity::kTensor;
    f.cast = target;
    all.push_back({name, FormatFamily::kFixed, f, "-", "-", "cast", ""});
  }
}

std::vector<FormatInfo> make_formats() {
  std::vector<FormatInfo> all;
  add_mx(all);
  add_nvfp4(all);
  add_fp8(all);
  add_tables_and_integers(all);
  add_casts(all);
  return all;
}

std::string check_element(const Node& node) {
  const std::string& name = node.as_string();
  const bool known = read_integer(name) || read_minifloat(name) || name == "nf4" || name == "fp4" || name == "hif8";
  return known ? ""
               : "an element is eXmY of 3 to 8 bits (e2m1, e4m3fn, e5m2ieee, e4m3fnuz), int2 to int8, nf4, fp4 or hif8";
}

std::string check_scale(const Node& node) {
  const std::string& name = node.as_string();
  const bool known =
      name == "e8m0" || name == "e8m0_up" || name == "fp32" || name == "none" || name == "e5m3" || read_minifloat(name);
  return known ? "" : "a scale is e8m0, e8m0_up, fp32, none or a minifloat without sign (e4m3, e5m3, e5m2)";
}

Schema description_schema() {
  const Schema unit = Schema::any_of({Schema::choice({"row", "tensor"}),
                                      Schema::list(Schema::integer({.min = 1, .max = 4096}), {.min = 2, .max = 2})});
  return Schema::map()
      .field("element", Schema::string().check(check_element),
             {.required = true, .doc = "eXmY with fn, ieee or fnuz; intN; nf4, fp4, hif8"})
      .field("scale", Schema::string().check(check_scale),
             {.default_value = Node("e8m0"), .doc = "e8m0 (floor), e8m0_up, fp32, none, or eXmY without sign"})
      .field("block", unit, {.doc = "[rows, columns], row or tensor; default [1, 32]"})
      .field("second_level", Schema::boolean(),
             {.default_value = Node(false), .doc = "an fp32 scale of the tensor beside narrow block scales"})
      .field("four_over_six", Schema::boolean(),
             {.default_value = Node(false), .doc = "e2m1 under e4m3: the largest becomes 6 or 4, whichever errs less"})
      .field("hadamard", Schema::integer({.min = 16, .max = 16}),
             {.doc = "16: neighbours are rotated before and back after"})
      .field("rounding", Schema::choice({"nearest", "away", "zero", "stochastic"}),
             {.doc = "as the kind's own; give it once"});
}

FormatArguments read_description(const Node& map) {
  const std::string &element = map.at("element").as_string(), &scale = map.at("scale").as_string();
  FormatArguments f;
  set_element(f, element);
  const Node* block = map.find("block");
  if (block != nullptr && block->is_list()) {
    const int64_t columns = block->at(std::size_t{1}).as_integer();
    if (columns % kRotation != 0 && (columns % 8 != 0 || map.find("hadamard")))
      throw block->error("a block's columns are a multiple of 8, and of 16 with hadamard");
    set_block(f, block->at(std::size_t{0}).as_integer(), columns);
  } else if (block != nullptr) {
    f.granularity = block->as_string() == "row" ? Granularity::kRow : Granularity::kTensor;
  }
  if (f.element == ElementRule::kTapered && scale != "none")
    throw map.at("scale").error("hif8 stands alone: scale: none");
  if (f.element == ElementRule::kLevels && scale.starts_with("e8m0"))
    throw map.at("scale").error(fmt::format("{} takes the scales fp32 or eXmY", element));
  if (f.element == ElementRule::kInteger && scale == "none") throw map.at("scale").error("integers need a scale");
  if (scale == "none" && block != nullptr) throw block->error("without a scale there is no block; leave block out");
  set_scale(f, scale);
  if (map.at("second_level").as_bool()) {
    if (f.scale != ScaleRule::kNarrow) throw map.at("second_level").error("only scales eXmY take a second level");
    set_second_level(f);
  }
  if (map.at("four_over_six").as_bool()) {
    if (f.scale != ScaleRule::kNarrow || element != "e2m1" || scale != "e4m3" || f.granularity != Granularity::kBlock)
      throw map.at("four_over_six").error("it is for e2m1 under e4m3 scales in blocks of one row, up to 256 elements");
    f.four_over_six = true;
    f.tensor_top = 256.0f * 6.0f;
  }
  if (map.find("hadamard")) {
    if (scale == "none") throw map.at("hadamard").error("it needs a scale");
    f.hadamard = true;
  }
  return f;
}

}  // namespace

std::span<const FormatInfo> format_infos() {
  static const std::vector<FormatInfo> formats = make_formats();
  return formats;
}

const FormatInfo* find_format(std::string_view name) {
  for (const FormatInfo& info : format_infos()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

Schema format_schema() {
  std::vector<std::string> names;
  for (const FormatInfo& info : format_infos()) names.push_back(info.name);
  return Schema::any_of({Schema::choice(names), description_schema()});
}

FormatArguments read_format(const Node& format) {
  if (format.is_map()) return read_description(format);
  const FormatInfo* info = find_format(format.as_string());
  FL_ASSERT(info != nullptr);  // the schema has seen the name
  return info->format;
}

}  // namespace faultline::numeric
