#include "numeric/portable/proof.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cfenv>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "numeric/apply_device.h"
#include "numeric/cpu/kernels.h"
#include "numeric/fault_cases.h"
#include "numeric/portable/portable.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kRows = 37, kColumns = 131;  // multiples of nothing, several tiles

// Normal numbers of many magnitudes with zeros of both signs, infinities, a NaN, the largest and subnormal numbers.
at::Tensor numbers(at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(17);
  const auto options = at::TensorOptions().dtype(at::kFloat);
  at::Tensor x = at::randn({kRows, kColumns}, generator, options);
  x.mul_(at::exp2(at::randint(-6, 7, {kRows, 1}, generator, options)));
  const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 3e38, -65504.0, 1e-40, -1e-42, 3e-6, 6.1e-5};
  float* values = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i += 41) values[i] = static_cast<float>(special[i / 41 % 11]);
  return x.to(dtype);
}

at::Tensor integers(at::ScalarType dtype) {  // of all bits
  at::Generator generator = at::detail::createCPUGenerator(23);
  const at::Tensor x = at::randint(INT64_MIN, INT64_MAX, {4099}, generator, at::TensorOptions().dtype(at::kLong));
  return dtype == at::kInt ? (x & 0xFFFFFFFFll).to(at::kInt) : x;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// What the host works out itself must not depend on this thread's settings: it may flush subnormal numbers.
class PlainArithmetic {
 public:
  PlainArithmetic() { std::fegetenv(&before_), std::fesetenv(FE_DFL_ENV); }
  ~PlainArithmetic() { std::fesetenv(&before_); }
  PlainArithmetic(const PlainArithmetic&) = delete;
  PlainArithmetic& operator=(const PlainArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

template <class Function>
auto on_host(const Function& function) {
  const PlainArithmetic plain;
  return function();
}

// An operation on an input, and what is said where its result is not the CPU's to the bit.
struct Elementary {
  const char* name;
  const char* complaint;
  at::Tensor input;
  std::function<at::Tensor(const at::Tensor&)> operation;
};

std::vector<Elementary> integer_operations() {
  const at::Tensor wide = integers(at::kLong), narrow = integers(at::kInt);
  return {
      {"integer products", "a product of int64 does not keep its low 64 bits", wide,
       [](const at::Tensor& x) { return x * static_cast<int64_t>(0x94D049BB133111EBull) + x.flip(0); }},
      {"integer shifts", "integers of 64 bits are not shifted as on a CPU", wide,
       [](const at::Tensor& x) {
         return at::bitwise_left_shift(x.bitwise_right_shift(31), x & 31) ^ at::bitwise_right_shift(x, x & 63);
       }},
      {"32-bit integers", "integers of 32 bits are not shifted or joined as on a CPU", narrow,
       [](const at::Tensor& x) { return ((x & 0x7FFFFFFF).neg().add(0x7F800000).bitwise_right_shift(31) | 5) ^ x; }},
      {"integer quotients", "integers are not divided as on a CPU", wide,
       [](const at::Tensor& x) {
         const at::Tensor y = x.bitwise_right_shift(13);
         return at::div(y.abs(), 12345, "floor") + y.remainder(977);
       }},
      {"cut integers", "an integer that is made narrower does not keep its low bits", wide,
       [](const at::Tensor& x) { return x.to(at::kShort).to(at::kInt) + x.to(at::kInt); }},
      {"sums of integers", "a sum of int64 is not exact", wide,
       [](const at::Tensor& x) { return x.bitwise_right_shift(14).sum(); }},
      {"look-ups", "a table is not looked up, or added to, as on a CPU", wide,
       [](const at::Tensor& x) {
         const at::Tensor place = x & 1023;
         return at::zeros({1024}, x.options()).index_add_(0, place, x.index_select(0, place));
       }},
  };
}

std::vector<Elementary> number_operations() {
  const at::Tensor single = numbers(at::kFloat),
                   ordinary = at::where(single.abs().lt(1e30), single, 1.5f).abs().add(1e-3);
  const at::Tensor tiny = at::arange(-999, 1000, at::TensorOptions().dtype(at::kFloat)) * 0x1p-140;
  const auto finite = [](const at::Tensor& x) { return at::where(x.abs().lt(INFINITY), x, at::ones_like(x)); };
  const at::Tensor clean = finite(single);
  return {
      {"fp32 sums and products", "fp32 sums and products are not rounded to nearest: the device loses precision",
       ordinary, [](const at::Tensor& x) { return x * x.flip(0) - (x + x.flip(1)); }},
      {"fp32 quotients", "fp32 quotients are not rounded to nearest: the device loses precision", ordinary,
       [](const at::Tensor& x) { return x / x.flip(1) + x / at::full({}, 448.0, x.options()); }},
      {"fp32 subnormal numbers", "fp32 numbers below 1.2e-38 are flushed to zero", tiny,
       [](const at::Tensor& x) { return at::stack({x * 0.5, x + x.flip(0) * 0x1p-3, (x * 0x1p-3).abs()}); }},
      {"subnormal numbers in comparisons", "fp32 numbers below 1.2e-38 count as zero in comparisons", tiny,
       [](const at::Tensor& x) { return at::stack({x.eq(0), x.lt(0), x.gt(0), x.abs().lt(INFINITY)}); }},
      {"comparisons", "numbers that are not finite are not compared as on a CPU", single,
       [](const at::Tensor& x) { return at::stack({x.abs().lt(INFINITY), x.eq(x), x.ne(0), x.ge(1)}); }},
      {"fp64 sums and products", "the device has no fp64, or does not round it to nearest", ordinary,
       [](const at::Tensor& x) {
         const at::Tensor y = x.to(at::kDouble);
         return (y * y.flip(0) + y / y.flip(1) * 1e-9).sub(y);
       }},
      {"fp64 roots", "the device has no square root of fp64, or one that is wrong in fp32", ordinary,
       // As it is used; torch's own on a CPU may be MKL's, whose last bit in fp64 is not always right.
       [](const at::Tensor& x) { return x.to(at::kDouble).sqrt().to(at::kFloat); }},
      {"fp64 to fp32", "fp64 is not rounded to the nearest fp32", clean,
       [](const at::Tensor& x) { return (x.to(at::kDouble) * 1.2345678912345678e-3).to(at::kFloat); }},
      {"fp64 to subnormal fp32", "fp64 becomes zero where fp32 has a subnormal number", tiny,
       [](const at::Tensor& x) { return (x.to(at::kDouble) * 0.3).to(at::kFloat); }},
      {"fp32 to bf16", "fp32 is not rounded to the nearest bf16", clean,
       [](const at::Tensor& x) { return x.to(at::kBFloat16); }},
      {"fp32 to fp16", "fp32 is not rounded to the nearest fp16, subnormal numbers included", clean,
       [](const at::Tensor& x) { return x.to(at::kHalf); }},
      {"bf16 and fp16 to fp32", "16-bit numbers do not become the same fp32", clean,
       [](const at::Tensor& x) { return x.to(at::kHalf).to(at::kFloat) + x.to(at::kBFloat16).to(at::kFloat); }},
      {"integers to fp32", "an integer does not become the nearest fp32", integers(at::kInt),
       [](const at::Tensor& x) { return x.to(at::kFloat) + x.to(at::kLong).to(at::kFloat); }},
      {"fp32 to integers", "fp32 does not become an integer by cutting", ordinary,
       [](const at::Tensor& x) { return x.clamp_max(1e6).to(at::kInt); }},
      {"bits of numbers", "numbers and integers do not share their memory", single,
       [](const at::Tensor& x) { return (x.view(at::kInt) & 0x7FFFFFFF).view(at::kFloat); }},
      {"maxima", "the largest of a row is not found as on a CPU", clean,
       [](const at::Tensor& x) { return at::stack({x.amax(-1), x.amin(-1), x.abs().amax(-1)}); }},
  };
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// What torch or the backend says where it has not got an operator.
template <class Function>
std::string said_by(Function&& function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    return fmt::format("torch says: {}", first_line(error.what_without_backtrace()));
  } catch (const UsageError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return fmt::format("the device says: {}", first_line(error.what()));
  }
}

std::string try_elementary(const Elementary& elementary, const at::Device& device) {
  return said_by([&]() -> std::string {
    const at::Tensor wanted = on_host([&] { return elementary.operation(elementary.input); });
    return same_bytes(wanted, elementary.operation(elementary.input.to(device))) ? "" : elementary.complaint;
  });
}

// --- kinds
// --------------------------------------------------------------------------------------------------------------
std::string name_of(const Rule& rule) {
  return rule.what.format_name.empty() ? std::string(kind_name(rule.what.kind)) : rule.what.format_name;
}

Rule made_rule(FaultKind kind) {
  Rule rule;
  rule.name = kind_name(kind);
  rule.what.kind = kind;
  if (kind != FaultKind::kProfile) return rule;
  const auto profile = std::make_shared<ProfileTable>();
  profile->knots = 5, profile->share_equal = 0.2f;
  const float probability[] = {0, 0.1f, 0.5f, 0.75f, 1}, error[] = {-0.1f, -1e-3f, 0.01f, 0.02f, 0.5f};
  std::copy_n(probability, 5, profile->probability);
  std::copy_n(error, 5, profile->error);
  rule.what.profile = profile;
  return rule;
}

std::vector<Rule> all_rules() {
  std::vector<Rule> rules;
  for (const auto* cases : {&fault_cases(), &format_cases()}) {
    for (const std::string& text : *cases) rules.push_back(parse_rule(text, RuleUse::kOnTensor));
  }
  for (const FormatInfo& info : format_infos())
    rules.push_back(parse_rule(fmt::format("quantize(format={})", info.name), RuleUse::kOnTensor));
  for (const FaultKind kind : {FaultKind::kProfile, FaultKind::kAccumulate, FaultKind::kApproximate, FaultKind::kStale})
    rules.push_back(made_rule(kind));
  return rules;
}

// A call with ledger and control row, in two halves of the same code.
template <class Run>
std::pair<at::Tensor, at::Tensor> outcome(const at::Tensor& input, const Rule& rule, const at::Device& device,
                                          const Run& run) {
  const at::Tensor x = input.to(device, input.scalar_type(), false, true);
  const at::Tensor ledger = make_ledger(device), control = make_control(device, rule, {5, 3, {}});
  CallTensors tensors{control, ledger, {}};
  if (is_replacement(rule.what.kind)) tensors.replacement = input.flip(0).contiguous().to(device);
  const Keys keys = make_keys({42, "layers.3.mlp.down_proj", 0}, rule.name);
  for (int call = 0; call < 2; ++call) {
    if (rule.what.kind == FaultKind::kQuantize) {
      run(x, rule, lower_format(rule, shape_of(x), keys, {}), tensors);
    } else {
      run(x, rule, lower_fault(rule, shape_of(x), keys, {}), tensors);
    }
  }
  return {x, ledger};
}

std::string try_rule(const Rule& rule, const at::Device& device) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::string complaint = said_by([&]() -> std::string {
      const at::Tensor input = on_host([&] { return numbers(dtype); });
      const auto wanted = on_host([&] {
        return outcome(input, rule, at::kCPU, [](const auto& x, const Rule& r, auto a, const auto& tensors) {
          apply_on_cpu(x, r, a, tensors);
        });
      });
      const auto found = outcome(input, rule, device, [](const auto& x, const Rule& r, auto a, const auto& tensors) {
        apply_unproven(x, r, a, tensors);
      });
      if (!same_bytes(wanted.first, found.first)) {
        const at::ScalarType bits = dtype == at::kFloat ? at::kInt : at::kShort;
        const int64_t differing = wanted.first.view(bits).ne(found.first.cpu().view(bits)).sum().item<int64_t>();
        return fmt::format("{} of {} elements of {} differ from the CPU's", differing, input.numel(),
                           c10::toString(dtype));
      }
      return same_bytes(wanted.second, found.second)
                 ? ""
                 : fmt::format("its ledger differs from the CPU's on {}", c10::toString(dtype));
    });
    if (!complaint.empty()) return complaint;
  }
  return "";
}

std::string try_kind(const std::string& name, const at::Device& device) {
  for (const Rule& rule : all_rules()) {
    if (name_of(rule) != name) continue;
    const std::string complaint = try_rule(rule, device);
    if (!complaint.empty()) return complaint;
  }
  return "";
}

int64_t cpu_digest_of(const at::Tensor& x) {
  const int64_t size = x.numel(), tiles = (size + kDigestTile - 1) / kDigestTile;
  const uint64_t sum = cpu::kernels().digest_tiles(x.const_data_ptr(), size, 0, tiles);
  return static_cast<int64_t>(finish_digest(sum, static_cast<uint64_t>(tiles), static_cast<uint64_t>(size)));
}
int64_t cpu_checksum_of(const at::Tensor& x) {
  return static_cast<int64_t>(cpu::kernels().checksum(x.const_data_ptr(), 1, 0, x.numel()));
}

std::string try_digest(const at::Device& device) {
  return said_by([&]() -> std::string {
    for (const int64_t size : {0, 1, 4099, 70001, 600001}) {
      const at::Tensor x = (at::arange(size, at::kLong) * 2654435761).bitwise_right_shift(7).to(at::kChar),
                       there = x.to(device);
      const at::Tensor state = at::zeros({kDigestStateWords}, there.options().dtype(at::kLong));
      digest_unproven(there, state.mutable_data_ptr<int64_t>(), 1);
      if (state.cpu()[0].item<int64_t>() != cpu_digest_of(x)) return "the digest differs from the CPU's";
      if (checksum_unproven(there).item<int64_t>() != cpu_checksum_of(x)) return "the plain sum differs from the CPU's";
    }
    return "";
  });
}

constexpr const char* kDigestName = "digest and plain sum";

const std::string& remembered(const at::Device& device, const std::string& name) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::string> answers;
  const std::pair key{device.str(), name};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = answers.find(key); found != answers.end()) return found->second;
  }
  const std::string answer = name == kDigestName ? try_digest(device) : try_kind(name, device);
  const std::lock_guard<std::mutex> lock(mutex);
  return answers.emplace(key, answer).first->second;
}

void require(const at::Device& device, const std::string& name) {
  if (has_own_kernels(device)) return;
  const std::string sentence = refusal(device, name);
  if (!sentence.empty()) throw UsageError(sentence);
}

}  // namespace

std::vector<Finding> elementary_findings(const at::Device& device) {
  std::vector<Finding> findings;
  const auto all = on_host([] { return std::vector{integer_operations(), number_operations()}; });
  for (const auto& operations : all) {
    for (const Elementary& elementary : operations)
      findings.push_back({elementary.name, try_elementary(elementary, device)});
  }
  return findings;
}

std::vector<Finding> kind_findings(const at::Device& device) {
  std::vector<Finding> findings;
  for (const KindInfo& info : kind_infos()) {
    if (info.kind != FaultKind::kQuantize) findings.push_back({info.name, remembered(device, info.name)});
  }
  for (const FormatInfo& info : format_infos()) findings.push_back({info.name, remembered(device, info.name)});
  findings.push_back({kDigestName, remembered(device, kDigestName)});
  return findings;
}

std::string refusal(const at::Device& device, const std::string& kind) {
  const std::string& complaint = remembered(device, kind);
  if (complaint.empty()) return "";
  std::vector<std::string> causes;
  for (const Finding& finding : elementary_findings(device)) {
    if (!finding.complaint.empty()) causes.push_back(fmt::format("{} ({})", finding.complaint, finding.name));
  }
  return fmt::format("{} is refused on {}: {}{}{}; python -m faultline.selftest --device {} says what agrees there",
                     kind, device.str(), complaint, causes.empty() ? "" : "; ", fmt::join(causes, "; "), device.str());
}

void require_proof(const at::Device& device, const Rule& rule) { require(device, name_of(rule)); }
void require_digest_proof(const at::Device& device) { require(device, kDigestName); }

}  // namespace faultline::numeric::portable
