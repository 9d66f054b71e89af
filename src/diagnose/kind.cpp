#include "diagnose/kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>

#include "base/stats/stats.h"

namespace faultline::diagnose {
namespace {

// A channel whose values all lie below this share of the row's largest and are lost: a dead zone, as far as can be
// seen.
constexpr double kSmallInItsRow = 0.1;

bool is_single_bit(uint64_t bits) { return std::has_single_bit(bits); }

bool name_not_finite(const Picture& picture, Kind& kind) {
  const double nan = share(picture, true, [](const Element& e) { return std::isnan(e.observed); });
  const double infinite = share(picture, true, [](const Element& e) { return std::isinf(e.observed); });
  if (nan + infinite < 0.5) return false;
  kind.name = nan >= infinite ? "nan" : "inf";
  return true;
}

// One bit is the same in all that came, and turned round it gives what was wanted. Where the right answer is known only
// within rounding its last bits are not, so values are compared and not patterns.
bool name_stuck_bit(const Picture& picture, Kind& kind) {
  for (int i = 0; i < picture.width; ++i) {
    const uint64_t bit = uint64_t{1} << i;
    const double ones = share(picture, false, [&](const Element& e) { return (e.observed_bits & bit) != 0; });
    if (std::max(ones, 1 - ones) < 0.99) continue;
    const double undone = share(picture, true, [&](const Element& e) {
      if (e.tolerance == 0) return (e.expected_bits ^ e.observed_bits) == bit;
      return std::abs(e.expected) > e.tolerance &&  // else any small number would do
             std::abs(value_of_bits(picture, e.observed_bits ^ bit) - e.expected) <= 1.001 * e.tolerance;
    });
    if (undone < kNearlyAll) continue;
    kind.name = "stuck_at";
    kind.detail = fmt::format("bit {} forced to {}", i, ones > 0.5 ? 1 : 0);
    return true;
  }
  return false;
}

bool name_zeros(const Picture& picture, Kind& kind) {
  if (share(picture, true, [](const Element& e) { return e.observed == 0; }) < 0.99) return false;
  int64_t lost = 0, kept = 0;
  for (const Element& element : picture.touched) {
    if (!element.changed && element.observed == 0) continue;  // nothing was there to lose
    const double size = std::abs(element.expected);
    kind.zone.relative.add(size / picture.row_max[static_cast<std::size_t>(element.row)], element.changed);
    kind.zone.absolute.add(size, element.changed);
    ++(element.changed ? lost : kept);
  }
  kind.name = kept * 100 < lost && kind.zone.relative.lost > kSmallInItsRow ? "zero" : "deadzone";
  if (kind.name == "deadzone") kind.detail = kind.zone.words();
  return true;
}

bool name_quantisation(const Picture& picture, Kind& kind) {
  std::vector<int> used;
  bool zeros = false;
  for (const Element& element : picture.touched) {
    if (!element.changed) continue;
    const uint64_t mantissa = element.observed_bits & ((uint64_t{1} << picture.mantissa) - 1);
    zeros |= element.observed == 0;
    used.push_back(mantissa == 0 ? 0 : picture.mantissa - std::countr_zero(mantissa));
  }
  if (used.size() < 8) return false;
  const auto high = used.begin() + std::ssize(used) * 99 / 100;
  std::nth_element(used.begin(), high, used.end());
  if (*high > 3 || *high >= picture.mantissa) return false;
  const double smaller =
      share(picture, true, [](const Element& e) { return std::abs(e.observed) <= std::abs(e.expected); });
  kind.name = smaller > 0.99 && !zeros ? "truncate" : "quantize";
  kind.detail = fmt::format("{} mantissa bit{} left{}", *high, *high == 1 ? "" : "s",
                            *high <= 1 ? ": a 4-bit float such as mxfp4" : "");
  return true;
}

// Nothing but zero was expected: what came has no value to be compared with, only a size and a sign.
bool name_from_nothing(const Picture& picture, Kind& kind) {
  std::vector<double> sizes;
  int64_t positive = 0;
  for (const Element& element : picture.touched) {
    if (!element.changed || std::isnan(element.observed)) continue;
    sizes.push_back(std::abs(element.observed)), positive += element.observed > 0;
  }
  const double size = upper_median(sizes);
  const double same =
      share(picture, true, [&](const Element& e) { return std::abs(std::abs(e.observed) - size) <= 0.02 * size; });
  if (same < kNearlyAll) return false;
  const bool one_sign = positive == 0 || positive == std::ssize(sizes);
  kind.name = one_sign ? "offset" : "systematic_bias";
  kind.detail = fmt::format("{:.3g}", size);
  return true;
}

// A part of the elements only, each far from what it was: a spike; by one bit: a flip.
bool name_rare(const Picture& picture, Kind& kind) {
  if (picture.changed * 2 > std::ssize(picture.touched) && picture.changed > 2) return false;
  const double bits =
      share(picture, true, [](const Element& e) { return is_single_bit(e.expected_bits ^ e.observed_bits); });
  if (bits > 0.9) {
    kind.name = "bitflip";
    for (const Element& element : picture.touched)
      if (element.changed)
        kind.detail = fmt::format("bit {}", std::countr_zero(element.expected_bits ^ element.observed_bits));
    return true;
  }
  std::vector<double> sizes, moved;
  for (const Element& element : picture.touched) {
    if (!element.changed || std::isnan(element.observed)) continue;  // a NaN has no size, and no order among others
    const double largest = picture.row_max[static_cast<std::size_t>(element.row)];
    sizes.push_back(std::abs(element.observed) / largest);
    moved.push_back(std::abs(element.observed - element.expected) /
                    std::max(std::abs(element.expected), 0.01 * largest));
  }
  if (upper_median(moved) < 0.5) return false;
  kind.name = "spike";
  kind.detail = fmt::format("about {:.3g} times the row's largest", upper_median(sizes));
  return true;
}

// Noise is what two calls were seen to do differently. The same wrong values again have a cause that no formula of ours
// finds in this output: a fault in front of a product looks so behind it.
void name_rest(const Picture& picture, Kind& kind) {
  std::vector<double> relative;
  for (const Element& element : picture.touched)
    if (element.changed && element.expected != 0 && !std::isnan(element.observed))
      relative.push_back(std::abs(element.observed - element.expected) / std::abs(element.expected));
  kind.name = kind.fresh || kind.intermittent ? "noise" : "unexplained";
  kind.detail = fmt::format("{}median error {:.3g} of the value",
                            kind.fresh          ? "fresh at every call; "
                            : kind.intermittent ? "not at every call; "
                            : kind.repeats      ? "repeatable; perhaps in its input; "
                                                : "",
                            upper_median(relative));
}

}  // namespace

Kind classify(const Observation& observation, int64_t first, int64_t size) {
  std::vector<at::Tensor> given = {observation.observed};
  given.insert(given.end(), observation.repetitions.begin(), observation.repetitions.end());
  Kind kind;
  Picture picture;
  std::vector<at::Tensor> wrong;
  for (const at::Tensor& one : given) {
    Picture now = picture_of(observation, one, first, size);
    if (now.changed > 0) wrong.push_back(one.narrow(1, first, size));
    if (now.changed > picture.changed) picture = std::move(now);
  }
  if (picture.changed == 0) return kind;
  kind.intermittent = wrong.size() < given.size();
  kind.fresh = std::any_of(wrong.begin(), wrong.end(), [&](const at::Tensor& one) { return !one.equal(wrong[0]); });
  kind.repeats = wrong.size() > 1 && !kind.fresh;
  kind.weight = std::log2(1 + static_cast<double>(picture.changed));
  const bool whole_calls = !kind.fresh || kind.intermittent;  // the same at every call in which it acts
  if (name_not_finite(picture, kind)) return kind;
  if (whole_calls) {
    if (name_stuck_bit(picture, kind)) return kind;
    if (picture.expected_zero && name_from_nothing(picture, kind)) {
      kind.weight *= 0.3;
      return kind;
    }
    if (name_zeros(picture, kind) || name_quantisation(picture, kind) || name_formula(picture, kind)) return kind;
  }
  kind.weight *= 0.1;
  if (name_rare(picture, kind)) return kind;
  kind.fresh |= observation.relation == kRepetition;
  name_rest(picture, kind);
  return kind;
}

}  // namespace faultline::diagnose
