// The portable arithmetic against the CPU kernels: every kind, format, dtype and extent, odd shapes, several calls
// under a control row, the ledger word for word; its building blocks beyond 2^32 blocks; digests; and what it says
// where a device is not as IEEE 754 has it.
#include "numeric/portable/portable.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files/file.h"
#include "base/json.h"
#include "numeric/apply_device.h"
#include "numeric/arithmetic.h"
#include "numeric/fault_cases.h"
#include "numeric/portable/deviates.h"
#include "numeric/portable/proof.h"

namespace faultline::numeric::portable {
namespace portable_test {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)).to(dtype);
}

// Normal data with zeros of both signs, infinities, NaNs, huge and subnormal values strewn in.
at::Tensor hostile(at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor x = normal(sizes, at::kFloat);
  float* values = x.mutable_data_ptr<float>();
  const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, 1e-40, -1e-42, 65504.0, 6.1e-5, 3e38, -2e-7};
  for (int64_t i = 0; i < x.numel(); i += 97) values[i] = static_cast<float>(special[i / 97 % 12]);
  return x.to(dtype);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

struct Outcome {
  at::Tensor x, ledger, control;
};

struct Setting {
  uint32_t step = 5, calls = 2;
  bool counted = true, controlled = false;
  bool row_keys = false;
};

template <class Run>
Outcome outcome(const at::Tensor& input, const Rule& rule, const Setting& setting, const Run& run) {
  const at::Device device = input.device();
  Outcome o{input.clone(), make_ledger(device), make_control(device, rule, {setting.step, 0, {}})};
  const Keys keys = make_keys({42, "layers.3.mlp.down_proj", 1}, rule.name);
  CallTensors tensors;
  if (setting.counted) tensors.ledger = o.ledger;
  if (setting.controlled) tensors.control = o.control;
  if (setting.row_keys)
    tensors.row_keys = at::arange(input.numel() / std::max<int64_t>(1, input.size(-1)), at::kLong) * 7919 - 5;
  if (is_replacement(rule.what.kind)) tensors.replacement = input.flip(0).contiguous();
  for (uint32_t call = 0; call < setting.calls; ++call) {
    Control control;
    control.strength = static_cast<float>(rule.what.strength);
    control.step = setting.step, control.call = call, control.phase = 1;
    if (rule.what.kind == FaultKind::kQuantize) {
      run(o.x, rule, lower_format(rule, shape_of(o.x), keys, control), tensors);
    } else {
      run(o.x, rule, lower_fault(rule, shape_of(o.x), keys, control), tensors);
    }
  }
  return o;
}

const auto native = [](const at::Tensor& x, const Rule& rule, auto arguments, const CallTensors& tensors) {
  apply_on_cpu(x, rule, arguments, tensors);
};
const auto portably = [](const at::Tensor& x, const Rule& rule, auto arguments, const CallTensors& tensors) {
  apply(x, rule, arguments, tensors);
};

void expect_equal(const Rule& rule, const at::Tensor& x, const Setting& setting = {}) {
  SCOPED_TRACE(fmt::format("{} on {} {}", rule.name, c10::toString(x.scalar_type()), c10::str(x.sizes())));
  Outcome wanted;
  try {
    wanted = outcome(x, rule, setting, native);
  } catch (const UsageError&) {
    EXPECT_THROW(outcome(x, rule, setting, portably), UsageError);
    return;
  }
  const Outcome found = outcome(x, rule, setting, portably);
  const at::ScalarType bits = x.element_size() == 2 ? at::kShort : at::kInt;
  EXPECT_TRUE(same_bytes(wanted.x, found.x))
      << wanted.x.view(bits).ne(found.x.view(bits)).sum().item<int64_t>() << " elements differ";
  EXPECT_TRUE(same_bytes(wanted.ledger, found.ledger)) << ledger_columns(wanted.ledger) << ledger_columns(found.ledger);
  EXPECT_TRUE(same_bytes(wanted.control, found.control));
}

Rule read(const std::string& text) {
  Rule rule = parse_rule(text, RuleUse::kOnTensor);
  rule.name = text;
  return rule;
}

std::vector<Rule> rules_of_table() {
  std::vector<Rule> rules;
  for (const auto* cases : {&fault_cases(), &format_cases()}) {
    for (const std::string& text : *cases) rules.push_back(read(text));
  }
  Rule profile = read("gain(strength=0.1)");
  const auto table = std::make_shared<ProfileTable>();
  table->knots = 7, table->share_equal = 0.3f;
  for (int i = 0; i < 7; ++i) {
    table->probability[i] = static_cast<float>(i * i) / 36.0f;
    table->error[i] = static_cast<float>(i - 3) * 0.013f;
  }
  profile.name = "profile", profile.what.kind = FaultKind::kProfile, profile.what.profile = table;
  rules.push_back(profile);
  for (const FaultKind kind : {FaultKind::kAccumulate, FaultKind::kApproximate, FaultKind::kStale}) {
    Rule rule = read("zero(extent.fraction=0.5, extent.structure=tile, extent.tile=3x5)");
    rule.name = kind_name(kind), rule.what.kind = kind;
    rules.push_back(rule);
  }
  return rules;
}

TEST(Portable, GivesTheBitsAndLedgersOfTheCpuForEveryCaseDtypeAndShape) {
  const std::vector<std::vector<int64_t>> shapes = {{0},        {0, 5},    {1},        {7},       {8},
                                                    {3, 5, 33}, {64, 128}, {130, 257}, {5, 1000}, {1, 70000}};
  for (const Rule& rule : rules_of_table()) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const auto& shape : shapes) expect_equal(rule, hostile(shape, dtype));
    }
  }
}

TEST(Portable, AgreesWithoutALedgerAndAcrossTheBordersOfChunks) {
  for (const Rule& rule : rules_of_table()) {
    for (const at::ScalarType dtype : kDtypes) {
      expect_equal(rule, hostile({3, 47003}, dtype), {.calls = 1, .counted = false});
    }
  }
  // Two waves, the second one short.
  for (const char* text : {"relative_gaussian(strength=0.05)", "quantize(format=nvfp4)", "deadzone(threshold=0.1)",
                           "scaled_gaussian(strength=0.05, axis=tensor)", "zero"}) {
    for (const at::ScalarType dtype : kDtypes) expect_equal(read(text), hostile({2, 278533}, dtype), {.calls = 1});
  }
}

// Each structure of an extent with a kind of each sort.
TEST(Portable, AgreesInEveryExtent) {
  for (const char* kind : {"relative_gaussian(strength=0.05", "nan(", "deadzone(threshold=0.1, axis=channel",
                           "gain(strength=0.1, rule.rounding=stochastic", "quantize(format=mxfp4",
                           "quantize(format=int4, granularity=row"}) {
    for (const char* structure : {"element", "channel", "row", "tile, extent.tile=3x7", "lane, extent.period=48"}) {
      const std::string start = kind;
      const Rule rule = read(fmt::format("{}{}extent.fraction=0.3, extent.structure={})", start,
                                         start.ends_with("(") ? "" : ", ", structure));
      for (const at::ScalarType dtype : kDtypes) expect_equal(rule, hostile({130, 257}, dtype));
    }
  }
}

TEST(Portable, ReadsTheControlRowAndAdvancesIt) {
  for (const Rule& rule : rules_of_table()) {
    for (const at::ScalarType dtype : kDtypes)
      expect_equal(rule, hostile({33, 129}, dtype), {.step = 7, .calls = 3, .controlled = true});
  }
  const Rule window = read("gain(strength=0.1, lifetime.kind=window, lifetime.from=6, lifetime.to=8)");
  for (const uint32_t step : {5, 6, 7, 8}) {
    for (const bool controlled : {false, true})
      expect_equal(window, hostile({33, 129}, at::kFloat), {.step = step, .controlled = controlled});
  }
  const Rule rule = read("gain(strength=0.1)");
  at::Tensor x = normal({64}, at::kFloat), control = make_control(at::kCPU, rule, {}), ledger = make_ledger(at::kCPU);
  control[0].fill_(0);  // disarmed
  const at::Tensor before = x.clone(), row = control.clone();
  apply(x, rule, lower_fault(rule, shape_of(x), {}, {}), {control, ledger, {}});
  EXPECT_TRUE(same_bytes(x, before) && same_bytes(control, row));
  EXPECT_EQ(ledger.abs().sum().item<int64_t>(), 0);
}

TEST(Portable, TakesRowKeys) {
  for (const char* text :
       {"relative_gaussian(strength=0.05, rule.keyed_by=row)", "spike(probability=0.1, rule.keyed_by=row)",
        "absolute_gaussian(strength=0.1, rule.keyed_by=row, rule.rounding=stochastic)"}) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const bool keys : {false, true}) expect_equal(read(text), hostile({130, 257}, dtype), {.row_keys = keys});
    }
  }
}

TEST(Portable, AgreesAtStrengthsOfAnySize) {
  for (const char* kind :
       {"relative_gaussian", "absolute_gaussian", "scaled_gaussian", "gain", "systematic_bias", "offset"}) {
    for (const double strength : {0.0, 1e-30, 3e-8, 1e-5, 0.7, 1e6}) {
      for (const at::ScalarType dtype : kDtypes)
        expect_equal(read(fmt::format("{}(strength={})", kind, strength)), hostile({130, 257}, dtype), {.calls = 1});
    }
  }
}

TEST(Portable, AgreesOnEveryPatternOf16Bits) {
  const at::Tensor all = at::arange(-32768, 32768, at::kInt).to(at::kShort);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Rule& rule : rules_of_table()) expect_equal(rule, all.view(dtype), {.calls = 1});
  }
}

TEST(Portable, DrawsTheWordsOfBlocksBeyond32Bits) {
  Control control;
  control.step = 0xFFFFFFFFu, control.call = 0x80000001u, control.phase = 255;
  const DeviceControl there{{},
                            scalar(0, at::kFloat, at::kCPU),
                            word_scalar(control.step, at::kCPU),
                            word_scalar(control.call, at::kCPU),
                            word_scalar(control.phase, at::kCPU),
                            word_scalar(0, at::kCPU)};
  const uint64_t key = 0xFEDCBA9876543210ull;
  Pool pool(at::kCPU);
  for (const uint64_t first :
       {uint64_t{0}, (uint64_t{1} << 32) - 5, (uint64_t{1} << 32) + 3, uint64_t{0xABCD00000000}}) {
    const at::Tensor words =
        flat_words(block_words(there, round_keys(key, at::kCPU), first, 17, kFlipStream, pool), pool);
    for (int64_t i = 0; i < words.numel(); ++i) {
      const uint32_t wanted =
          numeric::element_words(control, key, first + static_cast<uint64_t>(i / 4), kFlipStream).word[i % 4];
      EXPECT_EQ(static_cast<uint32_t>(words[i].item<int32_t>()), wanted) << first << ' ' << i;
    }
  }
}

TEST(Portable, MultipliesAndAddsWithOneRounding) {
  // Numbers of all bits, and such as make halves of fp32 with a rest far below.
  at::Generator generator = at::detail::createCPUGenerator(5);
  const auto drawn = [&] {
    return at::randint(INT32_MIN, INT32_MAX, {1 << 18}, generator, at::TensorOptions().dtype(at::kLong))
        .to(at::kInt)
        .view(at::kFloat);
  };
  at::Tensor a = drawn(), b = drawn(), c = drawn();
  const at::Tensor one = at::ones_like(a);
  const at::Tensor tie = one + at::randint(0, 1 << 20, {1 << 18}, generator, a.options()) * 0x1p-23;
  const at::Tensor rest = at::exp2(at::randint(-80, -20, {1 << 18}, generator, a.options()));
  a = at::cat({a, one * 0x1p-24 + rest * 0x1p-24, tie, tie}), b = at::cat({b, one, rest, one + 0x1p-12});
  c = at::cat({c, tie, one * 0x1p-24 * -1, rest});
  Pool pool(at::kCPU);
  const at::Tensor found = multiply_add(a, b, c, pool);
  int64_t tried = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const float x = a.const_data_ptr<float>()[i], y = b.const_data_ptr<float>()[i], z = c.const_data_ptr<float>()[i];
    if (!is_finite(x) || !is_finite(y) || !is_finite(z)) continue;
    ++tried;
    ASSERT_EQ(float_bits(found.const_data_ptr<float>()[i]), float_bits(std::fma(x, y, z))) << x << ' ' << y << ' ' << z;
  }
  EXPECT_GT(tried, 1000000);
}

TEST(Portable, HasTheDeviatesOfEveryWordOf16BitsAndManyOf32) {
  Pool pool(at::kCPU);
  for (const float scale : {1.0f, 0.05f, 1.7f, 1e-30f, 1e-44f, 1e30f}) {
    const at::Tensor strength = scalar(scale, at::kFloat, at::kCPU);
    const at::Tensor halves = at::arange(65536, at::kInt).to(at::kShort);
    const at::Tensor short_ones = Deviates(Dtype::kBFloat16, strength, at::kCPU).of_halves(halves, pool);
    Segment table16[kSegments16], table32[kSegments32];
    for (int i = 0; i < kSegments16; ++i) table16[i] = {kGaussian16[i].slope * scale, kGaussian16[i].base * scale};
    for (int i = 0; i < kSegments32; ++i) table32[i] = {kGaussian32[i].slope * scale, kGaussian32[i].base * scale};
    for (uint32_t word = 0; word < 65536; ++word)
      ASSERT_EQ(float_bits(short_ones.const_data_ptr<float>()[word]), float_bits(gaussian16(word, table16))) << word;
    const at::Tensor words = (at::arange(1 << 20, at::kLong) * 2654435761).to(at::kInt);
    at::Tensor wide =
        at::cat({words, at::exp2(at::arange(31, at::kDouble)).to(at::kInt) - 1, at::full({1}, INT32_MIN, at::kInt)});
    const at::Tensor long_ones = Deviates(Dtype::kFloat32, strength, at::kCPU).of(wide, pool);
    for (int64_t i = 0; i < wide.numel(); ++i)
      ASSERT_EQ(float_bits(long_ones.const_data_ptr<float>()[i]),
                float_bits(gaussian32(static_cast<uint32_t>(wide.const_data_ptr<int32_t>()[i]), table32)))
          << i;
  }
}

TEST(Portable, DigestAndChecksumEqualTheKernels) {
  for (const int64_t size : {0, 1, 2, 3, 17, 4096, 8191, 8192, 8193, 16384, 100003, 1048577, 5000011}) {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(size));
    const at::Tensor x = at::randint(-128, 128, {size}, generator, at::TensorOptions().dtype(at::kChar));
    for (const at::Tensor& tensor : {x, x.slice(0, std::min<int64_t>(size, 1)).clone(), x.to(at::kBFloat16),
                                     x.to(at::kDouble), x.to(at::kComplexFloat)}) {
      int64_t state[kDigestStateWords] = {};
      digest_into(tensor, state, 1);
      EXPECT_EQ(state[0], numeric::digest(tensor).item<int64_t>()) << size << ' ' << tensor.scalar_type();
      EXPECT_EQ(checksum(tensor).item<int64_t>(), numeric::checksum(tensor).item<int64_t>())
          << size << ' ' << tensor.scalar_type();
    }
  }
  const at::Tensor x = at::randint(-128, 128, {4 * 100003}, at::kChar);
  int64_t wanted[4 * kDigestStateWords] = {}, found[4 * kDigestStateWords] = {};
  numeric::digest_into(x, wanted, 4), digest_into(x, found, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(wanted[i * kDigestStateWords], found[i * kDigestStateWords]);
}

TEST(Portable, ProvesACpuKindByKind) {
  for (const Finding& finding : elementary_findings(at::kCPU)) EXPECT_EQ(finding.complaint, "") << finding.name;
  const std::vector<Finding> kinds = kind_findings(at::kCPU);
  EXPECT_EQ(kinds.size(), kind_infos().size() - 1 + format_infos().size() + 1);
  for (const Finding& finding : kinds) EXPECT_EQ(finding.complaint, "") << finding.name;
}

TEST(Portable, HasNoFp64) {
  const at::Tensor x = normal({8}, at::kDouble);
  const Rule rule = read("gain(strength=0.1)");
  EXPECT_THROW(apply(x, rule, lower_fault(rule, shape_of(x), {}, {}), {}), UsageError);
}

TEST(Portable, RefusesADeviceThatFlushesSubnormalNumbersWithASentence) {
  const at::Device device("cpu:0");  // not the name under which this CPU has been proven
  const bool can = at::globalContext().setFlushDenormal(true);
  const std::string sentence = can ? refusal(device, "relative_gaussian") : "";
  at::globalContext().setFlushDenormal(false);
  if (!can) GTEST_SKIP() << "this processor cannot flush subnormal numbers";
  EXPECT_NE(sentence.find("relative_gaussian is refused on cpu:0"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("fp32 numbers below 1.2e-38 are flushed to zero"), std::string::npos) << sentence;
  EXPECT_EQ(refusal(at::kCPU, "relative_gaussian"), "");
}

TEST(Portable, SaysWhatADeviceWithoutArithmeticLacks) {
  for (const Finding& finding : elementary_findings(at::kMeta)) EXPECT_NE(finding.complaint, "") << finding.name;
  const Rule rule = read("gain(strength=0.1)");
  EXPECT_THROW(require_proof(at::kMeta, rule), UsageError);
  EXPECT_THROW(require_digest_proof(at::kMeta), UsageError);
  EXPECT_FALSE(serves(at::kCPU));
  EXPECT_TRUE(serves(at::Device(at::kPrivateUse1, 0)));
}

// The figure of docs/results/numeric.md, on FAULTLINE_PORTABLE_DEVICE (the CPU); FAULTLINE_PORTABLE_RECORD names the
// file that it is written to.
TEST(Portable, GivesTheBitsOfTheCpuOnAsManyElementsAsAskedFor) {
  const char *wish = std::getenv("FAULTLINE_PORTABLE_ELEMENTS"), *record = std::getenv("FAULTLINE_PORTABLE_RECORD"),
             *place = std::getenv("FAULTLINE_PORTABLE_DEVICE");
  if (wish == nullptr) GTEST_SKIP() << "FAULTLINE_PORTABLE_ELEMENTS asks for it";
  const at::Device device(place == nullptr ? "cpu" : place);
  const int64_t rows = std::max<int64_t>(1, (std::strtoll(wish, nullptr, 10) + 2503) / 2504);
  Json cases = Json::array();
  int64_t differing = 0, ledgers = 0;
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = normal({rows, 2504}, dtype);
    const at::ScalarType bits = x.element_size() == 2 ? at::kShort : at::kInt;
    for (const Rule& rule : rules_of_table()) {
      const Outcome wanted = outcome(x, rule, {.calls = 1}, native),
                    found = outcome(x.to(device), rule, {.calls = 1}, portably);
      const int64_t elements = wanted.x.view(bits).ne(found.x.cpu().view(bits)).sum().item<int64_t>();
      const bool ledger = same_bytes(wanted.ledger, found.ledger.cpu());
      EXPECT_TRUE(elements == 0 && ledger) << rule.name << ' ' << dtype << ": " << elements;
      differing += elements, ledgers += ledger ? 0 : 1;
      cases.push_back(
          {{"rule", rule.name}, {"dtype", c10::toString(dtype)}, {"differing", elements}, {"ledger_equal", ledger}});
    }
  }
  if (record != nullptr) {
    const Json page = {{"elements", rows * 2504},
                       {"device", device.str()},
                       {"elements_differing", differing},
                       {"ledgers_differing", ledgers},
                       {"cases", cases}};
    write_file_atomically(record, page.dump(1) + "\n");
  }
}

}  // namespace portable_test
}  // namespace faultline::numeric::portable
