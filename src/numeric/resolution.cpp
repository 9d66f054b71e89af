#include "numeric/resolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "numeric/arithmetic.h"
#include "numeric/lower.h"

namespace faultline::numeric {
namespace {

// How many mantissas are gone through, evenly spread. Noise: all of bf16's, and enough of the others, since deviates
// smooth the effect. Gain moves every element by the same share, so the extreme mantissas matter: all of fp16's too.
template <class Type>
int mantissas_of(FaultKind kind) {
  return kind == FaultKind::kGain ? 1 << std::min(Type::kMantissaBits, 12) : 128;
}

// Mean and variance of the squared relative error, and the share changed, for x = mantissa in [1, 2).
struct MantissaEffect {
  double changed = 0;
  double squared = 0;  // mean of r^2, r = (seen - x) / x
  double fourth = 0;   // mean of r^4
};

// Adds one possible outcome with its weight.
void add_outcome(double seen, double x, double weight, MantissaEffect& effect) {
  const double relative = (seen - x) / x, square = relative * relative;
  effect.changed += seen != x ? weight : 0;
  effect.squared += weight * square;
  effect.fourth += weight * square * square;
}

template <class Type>
MantissaEffect mantissa_effect(const Rule& rule, float strength, float x) {
  MantissaEffect effect;
  const bool noisy = rule.what.kind == FaultKind::kRelativeGaussian;
  const uint32_t first = noisy ? 1u : 0u, last = noisy ? 1u << 16 : 1u,
                 stride = noisy ? 4u : 1u;  // every fourth word, both signs
  const uint32_t draws = (last - first + stride - 1) / stride;
  const double weight = 1.0 / draws;
  for (uint32_t draw = first; draw < last; draw += stride) {
    const float e = noisy ? gaussian16(draw, kGaussian16) * strength : strength;
    const float y = fused_multiply_add(e, x, x);
    if (!rule.stochastic_rounding) {
      add_outcome(Type::value(Type::round(y)), x, weight, effect);
      continue;
    }
    // Two neighbours, each with its exact probability.
    const double low = Type::value(Type::round_stochastic(y, 0)),
                 high = Type::value(Type::round_stochastic(y, 0xFFFFFFFFu));
    const double up = high == low ? 0 : (y - low) / (high - low);
    add_outcome(low, x, weight * (1 - up), effect);
    add_outcome(high, x, weight * up, effect);
  }
  return effect;
}

template <class Type>
Visibility integrate(const Rule& rule, double strength) {
  Visibility total;
  total.changed = 0;
  double weight_sum = 0, squared = 0, low = INFINITY, high = 0, spread = 0;
  const int mantissas = mantissas_of<Type>(rule.what.kind);
  for (int m = 0; m < mantissas; ++m) {
    const float x = 1.0f + static_cast<float>(m) / static_cast<float>(mantissas);
    const double weight = std::log2(1 + 1.0 / (mantissas + m));
    const MantissaEffect effect = mantissa_effect<Type>(rule, static_cast<float>(strength), x);
    total.changed += weight * effect.changed;
    squared += weight * effect.squared;
    weight_sum += weight;
    low = std::min(low, effect.squared), high = std::max(high, effect.squared);
    spread = std::max(spread, effect.fourth - effect.squared * effect.squared);
  }
  total.changed /= weight_sum;
  total.relative_rms = std::sqrt(squared / weight_sum);
  total.relative_rms_low = std::sqrt(low);
  total.relative_rms_high = std::sqrt(high);
  total.square_spread = std::sqrt(std::max(0.0, spread));
  return total;
}

bool is_own_format(const FormatArguments& format, Dtype dtype) {
  if (format.element != ElementRule::kCast) return false;
  if (format.cast == CastTarget::kTf32) return dtype == Dtype::kBFloat16 || dtype == Dtype::kFloat16;
  return (format.cast == CastTarget::kBf16 && dtype == Dtype::kBFloat16) ||
         (format.cast == CastTarget::kFp16 && dtype == Dtype::kFloat16);
}

[[noreturn]] void refuse(const Rule& rule, Dtype dtype, std::string_view reason) {
  const bool can_round = dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64 && !rule.stochastic_rounding &&
                         rule.what.kind != FaultKind::kQuantize;
  throw UsageError(fmt::format("rule '{}': {} cannot be seen in {}: {}; raise it, {}or declare `expect: invisible`",
                               rule.name, kind_name(rule.what.kind), dtype_name(dtype), reason,
                               can_round ? "use fp32, set `rounding: stochastic`, " : ""));
}

}  // namespace

std::optional<Visibility> predict_visibility(const Rule& rule, Dtype dtype, std::optional<double> given) {
  const bool gain = rule.what.kind == FaultKind::kGain;
  if (!gain && rule.what.kind != FaultKind::kRelativeGaussian) return {};
  const double strength = given.value_or(rule.what.strength);
  if (dtype == Dtype::kFloat64)
    return Visibility{strength > 0 ? 1.0 : 0.0, strength, strength, strength,
                      gain ? 0 : std::sqrt(2.0) * strength * strength};
  static std::mutex mutex;
  static std::map<std::tuple<bool, Dtype, double, bool>, Visibility> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_tuple(gain, dtype, strength, rule.stochastic_rounding);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const Visibility visibility = dtype == Dtype::kBFloat16  ? integrate<BFloat16>(rule, strength)
                                : dtype == Dtype::kFloat16 ? integrate<Float16>(rule, strength)
                                                           : integrate<Float32>(rule, strength);
  if (known.size() > 1000) known.clear();
  return known[key] = visibility;
}

void check_visible(const Rule& rule, Dtype dtype) {
  if (rule.expect_invisible) return;
  const FaultKind kind = rule.what.kind;
  if (kind == FaultKind::kQuantize && is_own_format(rule.what.format, dtype))
    refuse(rule, dtype, fmt::format("{} holds every one of its values", rule.what.format_name));
  const bool led = kind == FaultKind::kRelativeGaussian || kind == FaultKind::kAbsoluteGaussian ||
                   kind == FaultKind::kScaledGaussian || kind == FaultKind::kSystematicBias ||
                   kind == FaultKind::kGain || kind == FaultKind::kOffset || kind == FaultKind::kDeadzone ||
                   kind == FaultKind::kSpike || kind == FaultKind::kNondeterministic ||
                   (kind == FaultKind::kSaturate && rule.what.relative);
  if (led && rule.what.strength == 0 && !rule.schedule) {
    throw UsageError(
        fmt::format("rule '{}': {} with a strength of 0 changes nothing; raise it, or declare `expect: invisible`",
                    rule.name, kind_name(kind)));
  }
  if (rule.schedule) return;  // judged step by step
  const auto visibility = predict_visibility(rule, dtype);
  if (visibility && visibility->changed == 0) {
    refuse(rule, dtype,
           fmt::format("a strength of {} is below half a unit in the last place of every element", rule.what.strength));
  }
}

}  // namespace faultline::numeric
