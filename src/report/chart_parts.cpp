#include "report/chart_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/field.h"

namespace faultline::report {
namespace {

constexpr double kCharacter = 6.6;  // mean width at 12 px, a little generous

std::string svg(const std::string& title, const char* class_name, double width, const Drawing& drawing) {
  return fmt::format("<svg class=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
                     class_name, width, drawing.height, text(title).bytes(), drawing.content);
}

}  // namespace

Scale::Scale(double low, double high, double from, double to, bool log)
    : low_(log ? std::log10(low) : low), high_(log ? std::log10(high) : high), from_(from), to_(to), log_(log) {
  if (!(high_ > low_)) high_ = low_ + 1;
}

double Scale::operator()(double value) const {
  if (log_) value = value > 0 ? std::log10(value) : low_;
  return from_ + (to_ - from_) * std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
}

std::vector<double> Scale::ticks(int about) const {
  std::vector<double> found;
  if (log_ && high_ - low_ >= 0.5) {
    const double decades = high_ - low_, every = std::max(1.0, std::ceil(decades / about));
    for (double e = std::floor(low_); e <= high_ + 1e-9; e += every) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = e + std::log10(digit);
        if ((digit == 1 || decades < 2.5) && tick >= low_ - 1e-9 && tick <= high_ + 1e-9)
          found.push_back(digit * std::pow(10, e));
      }
    }
    return found;
  }
  const double low = log_ ? std::pow(10, low_) : low_, high = log_ ? std::pow(10, high_) : high_;
  const double rough = (high - low) / about, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double nice : {1.0, 2.0, 2.5, 5.0}) {
    if (nice * power >= rough) {
      step = nice * power;
      break;
    }
  }
  const double slack = (high - low) * 1e-9;
  for (double i = std::ceil((low - slack) / step); i * step <= high + slack && found.size() < 50; ++i)
    found.push_back(i == 0 ? 0 : i * step);
  return found;
}

void Extent::add(double value) {
  if (!std::isfinite(value) || std::abs(value) > 1e300) return;
  low_ = std::min(low_, value), high_ = std::max(high_, value);
}

Extent Extent::with_room(double share) const {
  Extent wider;
  if (empty()) {
    wider.add(0), wider.add(1);
    return wider;
  }
  const double room = high_ > low_ ? share * (high_ - low_) : low_ == 0 ? 1 : std::abs(low_) * 0.1;
  wider.add(low_ - room), wider.add(high_ + room);
  return wider;
}

std::string tick_text(double value, Unit unit) {
  if (unit == Unit::kShare) return fmt::format("{:.4g} %", 100 * value);
  if (value != 0 && (std::abs(value) >= 1e5 || std::abs(value) < 1e-3)) return fmt::format("{:.2g}", value);
  return fmt::format("{:.4g}", value);
}

std::string shortened(const std::string& text, double pixels) {
  const auto room = static_cast<std::size_t>(std::max(6.0, pixels / kCharacter));
  std::vector<std::size_t> starts;  // of characters
  for (std::size_t i = 0; i < text.size() && starts.size() < 100'000; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  if (starts.size() <= room) return text;
  const std::size_t head = (room - 1) / 2, tail = room - 1 - head;  // what differs is often at the end: strength=0.05
  return text.substr(0, starts[head]) + "…" + text.substr(starts[starts.size() - tail]);
}

std::string svg_text(double x, double y, const std::string& words, const char* anchor, const char* class_name) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>", x, y, anchor,
                     class_name, text(words).bytes());
}

std::string svg_line(double x1, double y1, double x2, double y2, const char* class_name) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>", x1, y1, x2, y2,
                     class_name);
}

std::string svg_title(const std::string& words) { return fmt::format("<title>{}</title>", text(words).bytes()); }

Html figure(const std::string& title, bool small, const std::function<Drawing(double)>& draw_at, const Html& legend) {
  std::string out = small ? "<figure class=\"small\">" : "<figure>";
  out += fmt::format("<figcaption>{}</figcaption>\n", text(title, 300).bytes());
  if (small) {
    out += svg(title, "only", kSmall, draw_at(kSmall));
  } else {
    out += svg(title, "wide", kWide, draw_at(kWide));
    out += svg(title, "narrow", kNarrow, draw_at(kNarrow));
  }
  return markup(out + legend.bytes() + "</figure>\n");
}

Html side_by_side(const std::vector<Html>& charts) {
  Html all;
  for (const Html& chart : charts) all += chart;
  return element("div", all, "many");
}

}  // namespace faultline::report
