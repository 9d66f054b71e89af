#include "numeric/resolution.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "numeric/arithmetic.h"
#include "numeric/lower.h"

namespace faultline {
namespace {

constexpr int kMantissas = 128;  // all of bf16's; every eighth of fp16's

// The mean over all deviates, for x = mantissa in [1, 2).
template <class Type>
void add_mantissa(const Rule& rule, float strength, float x, double& changed, double& squared) {
  const bool noisy = rule.what.kind == FaultKind::kRelativeGaussian;
  const uint32_t draws = noisy ? 1u << 16 : 1u;
  const uint32_t stride = noisy ? 4 : 1;  // every fourth half word: 16,384 deviates, both signs
  double count = 0;
  changed = squared = 0;
  for (uint32_t draw = stride / 2; draw < draws || draw == stride / 2; draw += stride) {
    const float e = noisy ? gaussian16(draw, kGaussian16) * strength : strength;
    const float y = fused_multiply_add(e, x, x);
    // Stochastic rounding: the mean over a few evenly spread words.
    const int words = rule.stochastic_rounding ? 8 : 1;
    for (int k = 0; k < words; ++k) {
      const uint32_t word = static_cast<uint32_t>(k) * 0x20000000u + 0x10000000u;
      const float seen = Type::value(rule.stochastic_rounding ? Type::round_stochastic(y, word) : Type::round(y));
      const double relative = (static_cast<double>(seen) - x) / x;
      changed += (seen != x) / static_cast<double>(words);
      squared += relative * relative / words;
    }
    ++count;
  }
  changed /= count;
  squared /= count;
}

template <class Type>
Visibility integrate(const Rule& rule, double strength) {
  Visibility total;
  total.changed = 0;
  double weight_sum = 0, squared_sum = 0, low = INFINITY, high = 0;
  for (int m = 0; m < kMantissas; ++m) {
    const float x = 1.0f + static_cast<float>(m) / kMantissas;
    const double weight = std::log2(1 + 1.0 / (kMantissas + m));
    double changed = 0, squared = 0;
    add_mantissa<Type>(rule, static_cast<float>(strength), x, changed, squared);
    total.changed += weight * changed;
    squared_sum += weight * squared;
    weight_sum += weight;
    low = std::min(low, squared), high = std::max(high, squared);
  }
  total.changed /= weight_sum;
  total.relative_rms = std::sqrt(squared_sum / weight_sum);
  total.relative_rms_low = std::sqrt(low);
  total.relative_rms_high = std::sqrt(high);
  return total;
}

bool is_own_format(const FormatArguments& format, Dtype dtype) {
  if (format.kind != FormatKind::kCast) return false;
  if (format.cast == CastTarget::kTf32) return dtype == Dtype::kBFloat16 || dtype == Dtype::kFloat16;
  return (format.cast == CastTarget::kBf16 && dtype == Dtype::kBFloat16) || (format.cast == CastTarget::kFp16 && dtype == Dtype::kFloat16);
}

[[noreturn]] void refuse(const Rule& rule, Dtype dtype, std::string_view reason) {
  throw UsageError(fmt::format("rule '{}': {} cannot be seen in {}: {}; raise it, use fp32, set `rounding: stochastic`, or declare `expect: invisible`",
                               rule.name, kind_name(rule.what.kind), dtype_name(dtype), reason));
}

}  // namespace

std::optional<Visibility> predict_visibility(const Rule& rule, Dtype dtype, std::optional<double> given) {
  const bool gain = rule.what.kind == FaultKind::kGain;
  if (!gain && rule.what.kind != FaultKind::kRelativeGaussian) return {};
  const double strength = given.value_or(rule.what.strength);
  if (dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64) return Visibility{strength > 0 ? 1.0 : 0.0, strength, strength, strength};
  static std::mutex mutex;
  static std::map<std::tuple<bool, Dtype, double, bool>, Visibility> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_tuple(gain, dtype, strength, rule.stochastic_rounding);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const Visibility visibility = dtype == Dtype::kBFloat16 ? integrate<BFloat16>(rule, strength) : integrate<Float16>(rule, strength);
  if (known.size() > 1000) known.clear();
  return known[key] = visibility;
}

void check_visible(const Rule& rule, Dtype dtype) {
  if (rule.expect_invisible) return;
  const FaultKind kind = rule.what.kind;
  if (kind == FaultKind::kQuantize && is_own_format(rule.what.format, dtype)) refuse(rule, dtype, fmt::format("{} holds every one of its values", rule.what.format_name));
  const bool led = kind == FaultKind::kRelativeGaussian || kind == FaultKind::kAbsoluteGaussian || kind == FaultKind::kScaledGaussian || kind == FaultKind::kSystematicBias ||
                   kind == FaultKind::kGain || kind == FaultKind::kOffset || kind == FaultKind::kDeadzone || kind == FaultKind::kSpike || kind == FaultKind::kNondeterministic ||
                   (kind == FaultKind::kSaturate && rule.what.relative);
  if (led && rule.what.strength == 0 && !rule.schedule) {
    throw UsageError(fmt::format("rule '{}': {} with a strength of 0 changes nothing; raise it, or declare `expect: invisible`", rule.name, kind_name(kind)));
  }
  if (rule.schedule) return;  // judged step by step
  const auto visibility = predict_visibility(rule, dtype);
  if (visibility && visibility->changed == 0) {
    refuse(rule, dtype, fmt::format("a strength of {} is below half a unit in the last place of every element", rule.what.strength));
  }
}

}  // namespace faultline
