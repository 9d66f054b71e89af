#include "cli/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <utility>

#include "base/json.h"

namespace faultline::cli {
namespace {

int write_error = 0;
bool colored = false;

// Columns, not bytes: every byte of UTF-8 but the continuations.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

constexpr std::size_t kBetweenColumns = 2, kLongestWord = 24;

std::size_t terminal_width() {
  winsize size = {};
  const bool known = ::isatty(STDOUT_FILENO) != 0 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : std::numeric_limits<std::size_t>::max();
}

// A column is no narrower than its longest word, within reason.
std::size_t least_width(const std::string& cell) {
  std::istringstream words(cell);
  std::size_t least = 0;
  for (std::string word; words >> word;) least = std::max(least, width_of(word));
  return std::min(least, kLongestWord);
}

// The widest columns give way, one after another, until the table is narrow enough or no column can.
void fit(std::vector<std::size_t>& widths, const std::vector<std::size_t>& least, std::size_t most) {
  for (;;) {
    std::size_t sum = kBetweenColumns * (widths.size() - 1), widest = widths.size();
    for (std::size_t i = 0; i < widths.size(); ++i) {
      sum += widths[i];
      if (widths[i] > least[i] && (widest == widths.size() || widths[i] > widths[widest])) widest = i;
    }
    if (sum <= most || widest == widths.size()) return;
    --widths[widest];
  }
}

// The lines of a cell; what it is indented by, all of them are.
std::vector<std::string> lines_of(const std::string& cell, std::size_t width) {
  if (width_of(cell) <= width) return {cell};
  const std::string indent(std::min(cell.find_first_not_of(' '), width / 2), ' ');
  std::vector<std::string> lines = wrapped(cell, width - indent.size());
  for (std::string& line : lines) line.insert(0, indent);
  return lines;
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

std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::istringstream paragraphs(text);
  for (std::string paragraph; std::getline(paragraphs, paragraph);) {
    std::istringstream words(paragraph);
    std::string line;
    for (std::string word; words >> word;) {
      while (width_of(word) > width) {  // a word that fits no line is cut between characters
        std::size_t end = 0, count = 0;
        while (end < word.size() && (count < width || (word[end] & 0xC0) == 0x80)) {
          count += (word[end] & 0xC0) != 0x80;
          ++end;
        }
        if (!line.empty()) lines.push_back(std::exchange(line, ""));
        lines.push_back(word.substr(0, end));
        word.erase(0, end);
      }
      if (!line.empty() && width_of(line) + 1 + width_of(word) > width) lines.push_back(std::exchange(line, ""));
      line += (line.empty() ? "" : " ") + word;
    }
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths, least;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0), least.resize(widths.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i]));
      least[i] = std::max(least[i], least_width(row[i]));
    }
  }
  if (!widths.empty()) fit(widths, least, terminal_width());
  std::string text;
  for (const auto& row : rows) {
    std::vector<std::vector<std::string>> cells;  // lines of each
    std::size_t lines = 1;
    for (std::size_t i = 0; i < row.size(); ++i) {
      cells.push_back(lines_of(row[i], widths[i]));
      lines = std::max(lines, cells.back().size());
    }
    for (std::size_t number = 0; number < lines; ++number) {
      std::string line;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const std::string part = number < cells[i].size() ? cells[i][number] : "";
        line += part;
        if (i + 1 < cells.size()) line.append(widths[i] - width_of(part) + kBetweenColumns, ' ');
      }
      line.resize(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
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
