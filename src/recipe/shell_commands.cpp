#include "recipe/shell_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace faultline::recipe {
namespace {

class Splitter {
 public:
  Splitter(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  std::vector<ShellCommand> commands() {
    while (at_ < text_.size()) step();
    end_command();
    return std::move(commands_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
      at_ += 2, ++line_;
      end_word();
    } else if (c == '\n') {
      end_command();
      ++at_, ++line_;
      skip_heredoc();
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      end_word();
      ++at_;
    } else if (c == '#' && word_.empty()) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (text_.substr(at_, 2) == "<<" && text_.substr(at_, 3) != "<<<") {
      begin_heredoc();
    } else if (text_.substr(at_, 2) == ">&" || text_.substr(at_, 2) == "&>") {
      word_ += ">&", at_ += 2;
    } else if (c == ';' || c == '|' || c == '&') {
      const bool ends_case = text_.substr(at_, 2) == ";;";
      end_command();
      if (ends_case) commands_.push_back({{";;"}, line_});
      at_ += ends_case || text_.substr(at_, 2) == "&&" || text_.substr(at_, 2) == "||" ? 2 : 1;
    } else if (c == ')' && !word_.empty() && word_.back() != '(') {
      word_ += c, ++at_;  // a pattern of case
      end_command();
    } else {
      take_piece();
    }
  }

  // A quoted stretch, an expansion with braces, or one character.
  void take_piece() {
    const char c = text_[at_];
    size_t end = at_ + 1;
    if (c == '\'' || c == '"') {
      while (end < text_.size() && text_[end] != c) end += c == '"' && text_[end] == '\\' ? 2 : 1;
      if (end >= text_.size()) throw UsageError(fmt::format("{}:{}: a quote that nothing closes", file_, line_));
      ++end;
    } else if (text_.substr(at_, 2) == "${" || text_.substr(at_, 2) == "$(") {
      const char open = text_[at_ + 1], close = open == '{' ? '}' : ')';
      int depth = 0;
      for (end = at_ + 1; end < text_.size(); ++end) {
        depth += text_[end] == open ? 1 : text_[end] == close ? -1 : 0;
        if (depth == 0) break;
      }
      if (end >= text_.size()) throw UsageError(fmt::format("{}:{}: {} that nothing closes", file_, line_, open));
      ++end;
    } else if (c == '\\') {
      end = std::min(at_ + 2, text_.size());
    }
    if (command_.raw.empty() && word_.empty()) command_.line = line_;
    word_ += text_.substr(at_, end - at_);
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<long>(at_), text_.begin() + static_cast<long>(end), '\n'));
    at_ = end;
  }

  void begin_heredoc() {
    at_ += 2;
    while (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == ' ' || text_[at_] == '\'' || text_[at_] == '"'))
      ++at_;
    heredoc_.clear();
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_'))
      heredoc_ += text_[at_++];
    if (at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"')) ++at_;
  }

  void skip_heredoc() {
    while (!heredoc_.empty() && at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line = text_.substr(at_, end - at_);
      while (line.starts_with("\t")) line.remove_prefix(1);
      if (line == heredoc_) heredoc_.clear();
      at_ = std::min(end + 1, text_.size()), ++line_;
    }
  }

  void end_word() {
    if (word_.empty()) return;
    command_.raw.push_back(std::move(word_));
    word_.clear();
  }
  void end_command() {
    end_word();
    if (!command_.raw.empty()) commands_.push_back(std::move(command_));
    command_ = {};
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
  std::string word_, heredoc_;
  ShellCommand command_;
  std::vector<ShellCommand> commands_;
};

}  // namespace

std::vector<ShellCommand> shell_commands(std::string_view text, const std::string& file) {
  return Splitter(text, file).commands();
}

}  // namespace faultline::recipe
