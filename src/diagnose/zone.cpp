#include "diagnose/zone.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/observation.h"

namespace faultline::diagnose {
namespace {

constexpr double kNarrow = 1.1;  // bounds this close are one number

std::string between(const Bounds& bounds) {
  if (!std::isfinite(bounds.kept)) return fmt::format("of at least {:.3g}", bounds.lost);
  if (bounds.kept > kNarrow * bounds.lost) return fmt::format("between {:.3g} and {:.3g}", bounds.lost, bounds.kept);
  return fmt::format("about {:.3g}", std::sqrt(bounds.lost * bounds.kept));
}

}  // namespace

void Bounds::add(double size, bool is_lost) {
  if (is_lost)
    lost = std::max(lost, size);
  else
    kept = std::min(kept, size);
}

void Bounds::add(const Bounds& other) {
  lost = std::max(lost, other.lost);
  kept = std::min(kept, other.kept);
}

bool Bounds::agree() const { return lost <= kept * (1 + 2 * kRoundedReference); }

std::string Zone::words() const {
  const bool row_survives = relative.lost < 1;  // a zone that is a share of the row's largest keeps that one
  if (row_survives && relative.agree()) return fmt::format("threshold {} of the row's largest", between(relative));
  if (absolute.agree()) return fmt::format("threshold {}, the same in every row", between(absolute));
  return "small values, by no one threshold";
}

}  // namespace faultline::diagnose
