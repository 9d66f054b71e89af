#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "task/gsm8k.h"

namespace faultline::task {
namespace {

constexpr std::string_view kVerlSource = "openai/gsm8k";

// One record with the words for its place.
struct Record {
  const Json& json;
  std::string place;

  [[noreturn]] void refuse(std::string_view field, std::string_view complaint) const {
    throw UsageError(fmt::format("{}: {}: {}", place, field, complaint));
  }
};

std::string shown(const Json& value) {
  if (value.is_structured() && value.size() > 4) return value.is_object() ? "a large object" : "a long list";
  const std::string text = to_json_text(value);
  return text.size() <= 60 ? text : fmt::format("a {} of {} bytes", value.type_name(), text.size());
}

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> names;
  for (const auto& entry : object.items()) {
    if (names.size() < 8) names.push_back(describe_text(entry.key()));
  }
  return names;
}

// The value at a dotted path, "reward_model.ground_truth".
const Json& value_at(const Record& record, const Json& object, std::string_view path) {
  const Json* value = &object;
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    const std::string key(path.substr(start, end - start));
    if (!value->is_object()) {
      record.refuse(path.substr(0, start == 0 ? 0 : start - 1),
                    fmt::format("wanted an object with '{}', found {}", key, shown(*value)));
    }
    const auto found = value->find(key);
    if (found == value->end()) {
      record.refuse(path.substr(0, end),
                    fmt::format("the field is missing; there are {}",
                                value->empty() ? "none" : fmt::format("{}", fmt::join(keys(*value), ", "))));
    }
    value = &*found;
    start = end + 1;
  }
  return *value;
}

std::string text_at(const Record& record, const Json& object, std::string_view path) {
  const Json& value = value_at(record, object, path);
  if (!value.is_string()) record.refuse(path, fmt::format("wanted a string, found {}", shown(value)));
  std::string text = value.get<std::string>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) record.refuse(path, "the text is empty");
  return text;
}

// A ground truth that no response could equal would be a problem without a right answer.
void check_answer(const Record& record, std::string_view field, const std::string& answer) {
  const std::string_view digits = std::string_view(answer).substr(answer.starts_with('-') ? 1 : 0);
  const bool possible = digits.find_first_of("0123456789") != std::string_view::npos &&
                        digits.find_first_not_of("0123456789.") == std::string_view::npos;
  if (!possible) {
    record.refuse(field, fmt::format("{} can never be scored right: the answer is compared with digits, '.' and a "
                                     "leading '-' (write 72000 for 72,000)",
                                     describe_text(answer)));
  }
}

void check_solution(const Record& record, std::string_view field, const Problem& problem) {
  const std::string found = extract_answer(problem.solution, Scoring::kStrict);
  if (found == problem.answer) return;
  record.refuse(field,
                fmt::format("the worked text itself would not be scored right: it ends with {}, the answer is {}",
                            found.empty() ? "no '#### N' in its last 300 characters" : describe_text(found),
                            describe_text(problem.answer)));
}

Problem original_problem(const Record& record) {
  Problem problem;
  problem.question = text_at(record, record.json, "question") + std::string(kPromptSuffix);
  problem.solution = text_at(record, record.json, "answer");
  problem.answer = extract_answer(problem.solution, Scoring::kStrict);
  if (problem.answer.empty()) {
    record.refuse("answer", "no '#### N' in the last 300 characters; GSM8K's answers end with '#### 72'");
  }
  check_answer(record, "answer", problem.answer);
  return problem;
}

std::string only_user_message(const Record& record) {
  const Json& prompt = value_at(record, record.json, "prompt");
  if (!prompt.is_array() || prompt.size() != 1) {
    record.refuse("prompt", fmt::format("wanted a list of one message, found {}", shown(prompt)));
  }
  const Record message{prompt[0], record.place + ": prompt[0]"};
  const std::string role = text_at(message, message.json, "role");
  if (role != "user") message.refuse("role", fmt::format("wanted 'user', found {}", describe_text(role)));
  return text_at(message, message.json, "content");
}

Problem verl_problem(const Record& record) {
  const std::string source = text_at(record, record.json, "data_source");
  if (source != kVerlSource) {
    record.refuse("data_source", fmt::format("wanted '{}', whose scoring this task has, found {}", kVerlSource,
                                             describe_text(source)));
  }
  Problem problem;
  problem.question = only_user_message(record);
  problem.answer = text_at(record, record.json, "reward_model.ground_truth");
  check_answer(record, "reward_model.ground_truth", problem.answer);
  const auto extra = record.json.find("extra_info");
  if (extra != record.json.end() && extra->is_object() && extra->contains("answer") && !extra->at("answer").is_null()) {
    problem.solution = text_at(record, record.json, "extra_info.answer");
    check_solution(record, "extra_info.answer", problem);
  }
  return problem;
}

Json parsed(std::string_view line, const std::string& place, bool torn) {
  if (line.size() > kMaxRecordBytes) {
    throw UsageError(
        fmt::format("{}: a line of {} bytes; a problem has at most {}", place, line.size(), kMaxRecordBytes));
  }
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
    throw UsageError(fmt::format("{}: an empty line; each line is one problem", place));
  }
  try {
    Json json = parse_json_text(line, place);
    if (!json.is_object()) throw UsageError(fmt::format("{}: wanted a JSON object, found {}", place, shown(json)));
    return json;
  } catch (const RuntimeFailure& failure) {  // here it is the user's file
    throw UsageError(
        fmt::format("{}{}", failure.what(), torn ? "; the last line has no newline: was the file cut off?" : ""));
  }
}

}  // namespace

std::vector<Problem> parse_gsm8k(std::string_view text, const std::string& file, const std::string& split,
                                 RecordPlace place) {
  std::vector<Problem> problems;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const size_t number = problems.size() + 1;
    const std::string where =
        place == RecordPlace::kRow ? fmt::format("{}: row {}", file, number) : fmt::format("{}:{}", file, number);
    const Json json = parsed(text.substr(0, end), where, end == text.size());
    const Record record{json, where};
    Problem problem =
        json.contains("prompt") || json.contains("data_source") ? verl_problem(record) : original_problem(record);
    problem.id = fmt::format("gsm8k/{}/{}", split, problems.size());
    problems.push_back(std::move(problem));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (problems.empty()) throw UsageError(fmt::format("{}: holds no problem; wanted one JSON object a line", file));
  return problems;
}

}  // namespace faultline::task
