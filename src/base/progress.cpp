// The progress line, after tqdm: "train:  45%|####      | 52/116 [00:35<00:42, 1.50 step/s, reward 0.61]". Text that
// comes from outside (names, postfix) is stripped of control characters, so that it cannot move the cursor.
#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace faultline {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLogSeconds = 10;
constexpr int kLeastBar = 5;  // columns; a narrower bar says nothing and is left out
constexpr int kLongestBar = 60;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && !(term != nullptr && std::string_view(term) == "dumb");
}

int stderr_width() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// As POSIX orders them: the first that is set decides.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text = value;
    return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
  }
  return false;
}

ProgressOptions with_defaults(ProgressOptions options) {
  if (options.out == nullptr) options.out = &std::cerr;
  if (!options.clock) options.clock = steady_seconds;
  if (!options.terminal) options.terminal = stderr_is_terminal();
  if (!options.width) options.width = stderr_width;
  if (!options.unicode) options.unicode = locale_is_utf8();
  return options;
}

std::string printable(std::string text) {
  std::ranges::replace_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return text;
}

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

int columns(std::string_view text) { return static_cast<int>(std::ranges::count_if(text, starts_character)); }

// The first `limit` characters, never half of one.
std::string cut_to(std::string text, int limit) {
  int seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (starts_character(text[i]) && ++seen > limit) return text.substr(0, i);
  }
  return text;
}

std::string bar(double fraction, int width, bool unicode) {
  const int steps = unicode ? 8 : 1;  // an eighth of a column, U+2588..U+258F
  const int filled = static_cast<int>(fraction * width * steps);
  std::string text;
  for (int i = 0; i < filled / steps; ++i) text += unicode ? "\u2588" : "#";
  if (filled % steps > 0) {
    const char* const kPartial[] = {"\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
    text += kPartial[filled % steps - 1];
  }
  return text + std::string(static_cast<size_t>(std::max(0, width - columns(text))), ' ');
}

std::string rate_text(double rate, const std::string& unit) {
  if (!(rate > 0) || !std::isfinite(rate)) return fmt::format("? {}/s", unit);
  if (rate < 1) return fmt::format("{:.2f} s/{}", 1 / rate, unit);
  return rate < 1000 ? fmt::format("{:.2f} {}/s", rate, unit)
                     : fmt::format("{} {}/s", format_count(std::llround(std::min(rate, 1e18))), unit);
}

}  // namespace

Progress::Progress(std::string description, int64_t total, ProgressOptions options)
    : description_(printable(std::move(description))),
      total_(total),
      options_(with_defaults(std::move(options))),
      exceptions_at_start_(std::uncaught_exceptions()),
      done_(options_.already_done) {
  FL_ASSERT(total >= 0 && done_ >= 0 && options_.batch >= 1);
  started_ = last_drawn_ = options_.clock();
  if (total_ > 0) last_tenth_ = done_ * 10 / total_;
  if (*options_.terminal) draw("");
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a broken output stream must not end the program
  }
}

void Progress::advance(int64_t count) {
  FL_ASSERT(count >= 0);
  const std::lock_guard lock(mutex_);
  done_ += count;
  if (begun_done_ < 0 && done_ - options_.already_done >= options_.batch)
    begun_done_ = done_, begun_at_ = options_.clock();
  draw_if_due();
}

void Progress::set_postfix(std::string text) {
  const std::lock_guard lock(mutex_);
  postfix_ = printable(std::move(text));
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  draw(std::uncaught_exceptions() > exceptions_at_start_ ? " stopped by an error\n" : "\n");
  finished_ = true;
}

void Progress::draw_if_due() {
  if (options_.quiet || finished_) return;
  const double since = options_.clock() - last_drawn_;
  const int64_t tenth = total_ > 0 ? std::min(done_, total_) * 10 / total_ : 0;
  if (*options_.terminal) {
    if (since >= kRedrawSeconds) draw("");
  } else if (since >= kLogSeconds || (tenth > last_tenth_ && tenth < 10)) {  // the last tenth is finish()'s line
    last_tenth_ = tenth;
    draw("\n");
  }
}

void Progress::draw(const char* ending) {
  if (options_.quiet) return;
  last_drawn_ = options_.clock();
  const std::string text = line(last_drawn_) + ending;
  // "\x1b[K" clears what a longer line left behind. One write, so that threads' lines do not mix.
  *options_.out << (*options_.terminal ? "\r\x1b[K" + text : text) << std::flush;
}

std::string Progress::time_left(double now) const {
  const auto left = static_cast<double>(std::max<int64_t>(0, total_ - done_));
  if (left == 0) return "00:00";
  const int64_t done = done_ - options_.already_done;
  if (done <= options_.batch) return "?";
  const bool enough = done_ - begun_done_ >= options_.batch && now > begun_at_;
  const double rate = enough ? static_cast<double>(done_ - begun_done_) / (now - begun_at_)
                             : static_cast<double>(done) / (now - started_);
  return rate > 0 ? format_duration(std::ceil(left / rate)) : "?";
}

std::string Progress::statistics(double now) const {
  const double elapsed = now - started_;
  const double rate = elapsed > 0 ? static_cast<double>(done_ - options_.already_done) / elapsed : 0;
  std::string times = format_duration(elapsed);
  if (total_ > 0) times += "<" + time_left(now);
  const std::string tail = postfix_.empty() ? "" : ", " + postfix_;
  return fmt::format("[{}, {}{}]", times, rate_text(rate, options_.unit), tail);
}

std::string Progress::line(double now) const {
  const std::string prefix = description_.empty() ? "" : description_ + ": ";
  std::string text;
  if (total_ == 0) {
    text = fmt::format("{}{} {} {}", prefix, format_count(done_), options_.unit, statistics(now));
    return *options_.terminal ? cut_to(std::move(text), options_.width() - 1) : text;
  }
  const double fraction = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  // In integers, rounded down: 100 % is shown when everything is done and not before.
  const std::string percent = fmt::format("{}{:3}%", prefix, std::min(done_, total_) * 100 / total_);
  const std::string rest = fmt::format("{}/{} {}", format_count(done_), format_count(total_), statistics(now));
  if (!*options_.terminal) return percent + " " + rest;
  const int width = options_.width() - 1;  // the last column makes some terminals wrap
  const int room = std::min(kLongestBar, width - columns(percent) - columns(rest) - 3);
  text = room < kLeastBar ? percent + " " + rest : percent + "|" + bar(fraction, room, *options_.unicode) + "| " + rest;
  return cut_to(std::move(text), width);
}

}  // namespace faultline
