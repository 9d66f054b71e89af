#include "triage/metrics_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <vector>

#include "base/config/config_reader.h"
#include "base/files/file.h"
#include "base/json.h"

namespace faultline::triage {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxShownValue = 80;

bool is_table(const std::string& name) { return fs::path(name).extension() == ".csv"; }

std::string check_trial_file(const Node& node) {
  const fs::path path = node.as_string();
  const bool leaves = std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  const bool odd = std::any_of(node.as_string().begin(), node.as_string().end(),
                               [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (path.is_absolute() || leaves || odd || path.filename().empty())
    return fmt::format("{} is no file within the trial's folder; name it relative to FAULTLINE_TRIAL_FOLDER",
                       describe_text(node.as_string()));
  return "";
}

std::string check_format(const Node& node) {
  const std::string ending = fs::path(node.as_string()).extension().string();
  if (ending == ".jsonl" || ending == ".ndjson" || ending == ".csv") return "";
  return fmt::format("{} ends in no format that is read: .jsonl or .ndjson (an object a line) or .csv (with a header)",
                     describe_text(node.as_string()));
}

// The numbers that JSON does not have and Python writes all the same, as the strings that our own records have for
// them.
std::string with_named_numbers(std::string_view line) {
  std::string text;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const std::string_view rest = line.substr(i);
    const std::string_view sign = !quoted && rest.starts_with('-') ? "-" : "";
    const std::string_view word = rest.substr(sign.size()).starts_with("NaN")        ? "NaN"
                                  : rest.substr(sign.size()).starts_with("Infinity") ? "Infinity"
                                                                                     : "";
    if (!quoted && !word.empty()) {
      text += fmt::format("\"{}{}\"", word == "NaN" ? "" : sign, word);
      i += sign.size() + word.size() - 1;
      continue;
    }
    text += line[i];
    if (line[i] == '\\' && quoted && i + 1 < line.size())
      text += line[++i];
    else if (line[i] == '"')
      quoted = !quoted;
  }
  return text;
}

std::optional<double> number_in(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range && end == text.data() + text.size())
    return text.starts_with('-') ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The cells of a line: separated by commas, in double quotes where they hold one.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += line[++i];
    else if (line[i] == '"')
      quoted = !quoted;
    else if (line[i] == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += line[i];
  }
  return cells;
}

// One line after another: finds out what each holds.
class MetricsReader {
 public:
  MetricsReader(std::string name, const std::function<void(const MetricRecord&)>& visit)
      : name_(std::move(name)), table_(is_table(name_)), visit_(visit) {}

  void feed(std::string_view block) {
    bytes_ += block.size();
    if (bytes_ > kMaxMetricsBytes)
      throw MetricsFileError(
          fmt::format("{}: larger than {} MiB, which is the most that is read; write fewer records, "
                      "or the deciding ones to a file of their own",
                      name_, kMaxMetricsBytes >> 20));
    for (size_t end = block.find('\n'); end != std::string_view::npos; end = block.find('\n')) {
      partial_ += block.substr(0, end);
      block.remove_prefix(end + 1);
      take(partial_);
      partial_.clear();
    }
    partial_ += block;
    if (partial_.size() > kMaxMetricsLine) too_long();
  }

  std::string finish() {
    if (partial_.empty()) return "";
    try {
      take(partial_);
    } catch (const MetricsFileError&) {
      return fmt::format("{}:{}: the last line was torn and is left out", name_, line_);
    }
    // A cell that was cut short may still be a number.
    return table_ ? fmt::format("{}:{}: the last line has no newline, so its last cell may be cut short", name_, line_)
                  : "";
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw MetricsFileError(fmt::format("{}:{}: {}", name_, line_, why));
  }
  [[noreturn]] void too_long() {
    ++line_;
    fail(fmt::format("a line longer than {} KiB: these are no {}", kMaxMetricsLine >> 10,
                     table_ ? "rows of a table" : "JSON lines"));
  }

  void take(std::string_view line) {
    if (line.size() > kMaxMetricsLine) too_long();
    if (++line_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    if (!is_valid_utf8(line)) fail("not UTF-8");
    table_ ? take_row(line) : take_object(line);
  }

  void take_object(std::string_view line) {
    MetricRecord record{fmt::format("{}:{}", name_, line_), nullptr};
    try {
      record.values = parse_json_text(with_named_numbers(line), record.place);
    } catch (const RuntimeFailure& error) {
      throw MetricsFileError(error.what());
    }
    if (!record.values.is_object()) fail("a line must hold one JSON object");
    visit_(record);
  }

  void take_row(std::string_view line) {
    std::vector<std::string> cells = cells_of(line);
    if (columns_.empty()) {
      columns_ = std::move(cells);
      return;
    }
    if (cells == columns_) return;  // a run that goes on may write its header again
    if (cells.size() != columns_.size())
      fail(fmt::format("the row has {} cells, the header {}", cells.size(), columns_.size()));
    MetricRecord record{fmt::format("{}:{}", name_, line_), Json::object()};
    for (size_t i = 0; i < cells.size(); ++i)
      if (!cells[i].empty()) record.values[columns_[i]] = cells[i];
    visit_(record);
  }

  std::string name_;
  bool table_;
  const std::function<void(const MetricRecord&)>& visit_;
  std::string partial_;
  std::vector<std::string> columns_;
  uint64_t bytes_ = 0;
  int64_t line_ = 0;
};

}  // namespace

std::optional<double> MetricRecord::number(const std::string& name) const {
  const Json* found = values.contains(name) ? &values.at(name) : nullptr;
  if (found == nullptr) {
    found = &values;
    for (size_t at = 0; at <= name.size();) {
      const size_t dot = std::min(name.find('.', at), name.size());
      const auto next = found->is_object() ? found->find(name.substr(at, dot - at)) : found->end();
      if (!found->is_object() || next == found->end()) return std::nullopt;
      found = &*next;
      at = dot + 1;
    }
  }
  if (found->is_number()) return found->get<double>();
  if (found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  const std::optional<double> number =
      found->is_string() ? number_in(found->get_ref<const std::string&>()) : std::nullopt;
  if (!number)
    throw MetricsFileError(
        fmt::format("{}: {} is {}, which is no number", place, name, to_json_text(*found).substr(0, kMaxShownValue)));
  return number;
}

Schema trial_file_schema() { return Schema::string({.min = 1, .max = 200}).check(check_trial_file); }
Schema metrics_file_schema() { return trial_file_schema().check(check_format); }

std::string complain_trial_file(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(folder / name, ignored);
  if (!fs::exists(status)) return fmt::format("{}: the trial left no such file in its folder", name);
  if (!fs::is_regular_file(status))
    return fmt::format("{}: no regular file, but a {}", name,
                       fs::is_directory(status) ? "folder"
                       : fs::is_symlink(status) ? "link"
                                                : "pipe, socket or device");
  return "";
}

std::string read_metrics(const fs::path& folder, const std::string& name,
                         const std::function<void(const MetricRecord& record)>& visit) {
  if (const std::string why = complain_trial_file(folder, name); !why.empty()) throw MetricsFileError(why);
  MetricsReader reader(name, visit);
  read_blocks(folder / name, [&](std::string_view block) { reader.feed(block); });
  return reader.finish();
}

std::string read_metrics_bytes(std::string_view bytes, size_t piece, const std::string& name,
                               const std::function<void(const MetricRecord& record)>& visit) {
  MetricsReader reader(name, visit);
  for (size_t at = 0; at < bytes.size(); at += piece) reader.feed(bytes.substr(at, piece));
  return reader.finish();
}

}  // namespace faultline::triage
