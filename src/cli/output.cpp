#include "cli/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/json.h"

namespace faultline::cli {
namespace {

int write_error = 0;
bool colored = false;

// Columns, not bytes: every byte of UTF-8 but the continuations.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void print(std::string_view text) {
  if (write_error != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) write_error = errno;
}

void print_now(std::string_view text) {
  print(text);
  if (write_error == 0 && std::fflush(stdout) != 0) write_error = errno;
}

void print_json(const Json& json) { print(to_json_text(json, 2) + "\n"); }

ExitCode finish_output() {
  if (write_error == 0 && std::fflush(stdout) != 0) write_error = errno;
  if (write_error == 0 || write_error == EPIPE) return ExitCode::kOk;
  fmt::print(stderr, "error: cannot write the output: {}\n", std::strerror(write_error));
  return ExitCode::kRuntime;
}

void choose_color(const std::string& when) {
  if (when != "auto" && when != "always" && when != "never") {
    throw UsageError(fmt::format("--color: wanted auto, always or never, got '{}'", when));
  }
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org: set and not empty
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::strcmp(terminal, "dumb") == 0;
  const bool wanted = (no_color == nullptr || *no_color == '\0') && !dumb && ::isatty(STDOUT_FILENO) != 0;
  colored = when == "always" || (when == "auto" && wanted);
}

std::string styled(Style style, std::string_view text) {
  if (!colored) return std::string(text);
  const int code = style == Style::kHeading ? 1 : style == Style::kGood ? 32 : 31;
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - width_of(row[i]) + 2, ' ');
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string number_text(double value) { return fmt::format("{:.6g}", value); }

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string share_text(double part, double whole) {
  return whole > 0 ? fmt::format("{:.4g} %", 100 * part / whole) : std::string("-");
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace faultline::cli
