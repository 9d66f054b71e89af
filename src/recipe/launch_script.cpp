#include "recipe/launch_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/config/config_reader.h"
#include "base/error.h"
#include "recipe/shell_commands.h"

namespace faultline::recipe {
namespace {

constexpr int kMaxDepth = 16;             // of functions that call functions
constexpr size_t kMaxWords = 100'000;     // of a whole script, loops by recursion included
constexpr size_t kMaxBytes = 1UL << 24U;  // of all expansions: a variable that doubles itself ends here

bool is_name(std::string_view text) {
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '_') &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

// "NAME=value" -> NAME; "" for anything else, trainer.key=value among them.
std::string assigned_name(std::string_view word) {
  const size_t equals = word.find('=');
  return equals != std::string_view::npos && is_name(word.substr(0, equals)) ? std::string(word.substr(0, equals)) : "";
}

class Reader {
 public:
  Reader(const std::vector<std::string>& arguments, const std::string& file) : file_(file) {
    for (size_t i = 0; i < arguments.size(); ++i) variables_[std::to_string(i + 1)] = arguments[i];
    variables_["@"] = variables_["*"] = fmt::format("{}", fmt::join(arguments, " "));
  }

  LaunchScript read(const std::vector<ShellCommand>& commands, int wanted) {
    run(commands, 0);
    if (found_.empty())
      throw UsageError(
          fmt::format("{}: no Python command with settings (key=value, --flag) is run by this script", file_));
    if (wanted == 0 && found_.size() > 1)
      throw UsageError(fmt::format(
          "{}: commands with different settings stand in the lines {}; say which one with --command 1 to {}", file_,
          fmt::join(lines_, ", "), found_.size()));
    if (wanted > std::ssize(found_))
      throw UsageError(fmt::format("--command {}: {} has {} with settings", wanted, file_, found_.size()));
    return std::move(found_[static_cast<size_t>(std::max(wanted - 1, 0))]);
  }

 private:
  void run(const std::vector<ShellCommand>& commands, int depth) {
    if (depth > kMaxDepth)
      throw UsageError(fmt::format("{}: functions call each other more than {} deep", file_, kMaxDepth));
    for (size_t i = 0; i < commands.size();) i = run_at(commands, i, depth);
  }

  // Runs one command or one whole construct; the index behind it.
  size_t run_at(const std::vector<ShellCommand>& commands, size_t i, int depth) {
    const std::string& first = commands[i].raw[0];
    if (first.ends_with("()") || (commands[i].raw.size() > 1 && commands[i].raw[1] == "()") || first == "function")
      return define(commands, i);
    if (first == "case") return choose(commands, i, depth);
    if (first == "if" || first == "for" || first == "while" || first == "until") return skip_construct(commands, i);
    execute(commands[i], depth);
    return i + 1;
  }

  size_t define(const std::vector<ShellCommand>& commands, size_t i) {
    std::string name =
        commands[i].raw[0] == "function" && commands[i].raw.size() > 1 ? commands[i].raw[1] : commands[i].raw[0];
    if (name.ends_with("()")) name.resize(name.size() - 2);
    std::vector<ShellCommand> body;
    for (++i; i < commands.size() && commands[i].raw[0] != "}"; ++i) body.push_back(commands[i]);
    functions_[name] = std::move(body);
    return std::min(i + 1, commands.size());
  }

  size_t choose(const std::vector<ShellCommand>& commands, size_t i, int depth) {
    const std::vector<std::string> subject =
        commands[i].raw.size() > 1 ? expand(commands[i].raw[1], commands[i].line) : std::vector<std::string>{};
    const std::string value = subject.empty() ? "" : subject[0];
    std::vector<ShellCommand> chosen;
    bool done = false, taking = false;
    const auto pattern_of = [](const ShellCommand& command) -> std::string {
      const std::string& last = command.raw.back();
      return last.ends_with(")") && last.find('(') == std::string::npos ? last.substr(0, last.size() - 1) : "";
    };
    // "case X in" and its first pattern may stand in one command.
    std::vector<std::string> alternatives;
    for (; i < commands.size() && commands[i].raw[0] != "esac"; ++i) {
      const ShellCommand& command = commands[i];
      if (command.raw[0] == ";;") {
        done |= taking, taking = false;
        alternatives.clear();
      } else if (const std::string pattern = pattern_of(command); !pattern.empty()) {
        alternatives.push_back(pattern);
        taking = !done && std::any_of(alternatives.begin(), alternatives.end(),
                                      [&](const std::string& one) { return one == "*" || unquoted(one) == value; });
      } else if (taking) {
        chosen.push_back(command);
      } else if (command.raw.size() == 1 && !done && command.raw[0] != "case") {
        alternatives.push_back(command.raw[0]);  // a|b): the pipe ended a command
      }
    }
    run(chosen, depth + 1);
    return std::min(i + 1, commands.size());
  }

  static std::string unquoted(std::string text) {
    std::erase_if(text, [](char c) { return c == '"' || c == '\''; });
    return text;
  }

  // Nobody knows whether it runs: it may hold no setting, and what it assigns is unknown from here on.
  size_t skip_construct(const std::vector<ShellCommand>& commands, size_t i) {
    const int line = commands[i].line;
    int depth = 0;
    for (; i < commands.size(); ++i) {
      const std::string& first = commands[i].raw[0];
      depth += first == "if" || first == "for" || first == "while" || first == "until" ? 1 : 0;
      depth -= first == "fi" || first == "done" ? 1 : 0;
      for (const std::string& word : commands[i].raw)
        if (const std::string name = assigned_name(word); !name.empty()) unknown_.insert(name);
      if (is_python(commands[i].raw) && has_settings(commands[i].raw))
        throw UsageError(
            fmt::format("{}:{}: whether this command runs is decided by the '{}' in line {}; hand over the words of "
                        "the command that you mean",
                        file_, commands[i].line, "if or loop", line));
      if (depth == 0) return i + 1;
    }
    return i;
  }

  void execute(const ShellCommand& command, int depth) {
    std::vector<std::string> words;
    std::map<std::string, std::string> own;
    for (const std::string& raw : command.raw) {
      const std::string name = assigned_name(raw);
      const bool leads = words.empty() || words[0] == "export" || words[0] == "local" || words[0] == "readonly";
      if (!name.empty() && leads) {
        const std::vector<std::string> value = expand("\"" + escaped(raw.substr(name.size() + 1)) + "\"", command.line);
        const std::string text = value.empty() ? "" : value[0];
        unknown_.erase(name);
        (words.empty() ? own : variables_)[name] = text;
        if (!words.empty() && words[0] == "export") exported_.insert(name);
        continue;
      }
      for (std::string& word : expand(raw, command.line)) words.push_back(std::move(word));
      count_ += words.size();
      if (count_ > kMaxWords) throw UsageError(fmt::format("{}: more than {} words", file_, kMaxWords));
    }
    if (words.empty() || words[0] == "export") {
      for (auto& [name, text] : own) variables_[name] = text;
      for (size_t i = 1; i < words.size(); ++i) exported_.insert(words[i]);
    } else if (words[0] == "unset") {
      for (size_t i = 1; i < words.size(); ++i) variables_.erase(words[i]), exported_.erase(words[i]);
    } else if (const auto function = functions_.find(words[0]); function != functions_.end()) {
      const std::vector<ShellCommand> body = function->second;
      run(body, depth + 1);
    } else if (is_python(words) && has_settings(words)) {
      found(command, words, own);
    }
  }

  static bool is_python(const std::vector<std::string>& words) {
    return std::any_of(words.begin(), words.end(),
                       [](const std::string& word) {
                         const std::string name =
                             word.substr(word.rfind('/') == std::string::npos ? 0 : word.rfind('/') + 1);
                         return name.starts_with("python") || name == "torchrun" || name == "accelerate";
                       }) &&
           words[0] != "echo";
  }

  // What stands behind the script or module: "python3 -m verl.trainer.main_ppo", "python scripts/x.py".
  static size_t first_setting(const std::vector<std::string>& words) {
    for (size_t i = 0; i + 1 < words.size(); ++i)
      if (words[i] == "-m") return i + 2;
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i].ends_with(".py")) return i + 1;
    return words.size();
  }
  static bool has_settings(const std::vector<std::string>& words) { return first_setting(words) < words.size(); }

  void found(const ShellCommand& command, const std::vector<std::string>& words,
             const std::map<std::string, std::string>& own) {
    LaunchScript launch;
    for (size_t i = first_setting(words); i < words.size(); ++i) {
      const std::string& word = words[i];
      if (word.starts_with(">") || word.starts_with("2>") || word.starts_with("<")) {
        i += word.ends_with(">") || word == "<" ? 1 : 0;  // the file behind it
      } else if (word.starts_with("--config-")) {
        i += word.find('=') == std::string::npos ? 1 : 0;  // Hydra's own: which file it starts from
      } else {
        launch.words.push_back(word);
      }
    }
    for (const std::string& name : exported_)
      if (const auto value = variables_.find(name); value != variables_.end()) launch.variables.insert(*value);
    for (const auto& entry : own) launch.variables.insert_or_assign(entry.first, entry.second);
    if (std::any_of(found_.begin(), found_.end(), [&](const LaunchScript& other) {
          return other.words == launch.words && other.variables == launch.variables;
        }))
      return;
    found_.push_back(std::move(launch));
    lines_.push_back(command.line);
  }

  // Quotes that end where an assignment's value has its own: "a"'b' -> the value of both.
  std::string escaped(const std::string& raw) const {
    std::string text;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] == '"') continue;
      if (raw[i] != '\'') {
        text += raw[i];
        continue;
      }
      for (++i; i < raw.size() && raw[i] != '\''; ++i)
        text += (raw[i] == '$' || raw[i] == '\\') ? std::string("\\") + raw[i] : std::string(1, raw[i]);
    }
    return text;
  }

  std::vector<std::string> expand(const std::string& raw, int line) const {
    std::vector<std::string> words;
    std::string word;
    bool has_word = false;
    for (size_t i = 0; i < raw.size();) {
      const char c = raw[i];
      if (c == '\'') {
        const size_t end = std::min(raw.find('\'', i + 1), raw.size());
        word += raw.substr(i + 1, end - i - 1), has_word = true, i = end + 1;
      } else if (c == '"') {
        has_word = true;
        for (++i; i < raw.size() && raw[i] != '"';) {
          if (raw[i] == '\\' && i + 1 < raw.size()) {
            word += raw[i + 1], i += 2;
          } else if (raw[i] == '$') {
            word += variable(raw, i, line);
          } else {
            word += raw[i++];
          }
        }
        ++i;
      } else if (c == '$') {
        for (const char piece : variable(raw, i, line)) {
          if (std::isspace(static_cast<unsigned char>(piece)) == 0) {
            word += piece, has_word = true;
          } else if (has_word) {
            words.push_back(std::move(word));
            word.clear(), has_word = false;
          }
        }
      } else {
        if (c == '\\' && i + 1 < raw.size()) ++i;
        word += raw[i++], has_word = true;
      }
      if (bytes_ + word.size() > kMaxBytes)
        throw UsageError(fmt::format("{}:{}: the script's words add up to more than 16 MiB", file_, line));
    }
    if (has_word) words.push_back(std::move(word));
    for (const std::string& one : words) bytes_ += one.size();
    return words;
  }

  // The value of the $… at i, which moves behind it.
  std::string variable(const std::string& raw, size_t& i, int line) const {
    if (raw.substr(i, 2) == "$(") {
      size_t end = i + 1;
      for (int depth = 0; end < raw.size(); ++end) {
        depth += raw[end] == '(' ? 1 : raw[end] == ')' ? -1 : 0;
        if (depth == 0) break;
      }
      const std::string inside = raw.substr(i + 2, end - i - 2);
      i = std::min(end + 1, raw.size());
      // A program's output is not known; it stays a word that no setting takes for a value.
      return inside.starts_with("(") && inside.ends_with(")") ? product(inside.substr(1, inside.size() - 2)) : "$(...)";
    }
    std::string name, otherwise;
    if (raw.substr(i, 2) == "${") {
      int depth = 0;
      size_t end = i + 1;
      for (; end < raw.size(); ++end) {
        depth += raw[end] == '{' ? 1 : raw[end] == '}' ? -1 : 0;
        if (depth == 0) break;
      }
      name = raw.substr(i + 2, end - i - 2);
      i = end + 1;
      if (const size_t colon = name.find(":-"); colon != std::string::npos) {
        if (++nested_ > kMaxDepth)
          throw UsageError(fmt::format("{}:{}: more than {} expansions in each other", file_, line, kMaxDepth));
        const std::vector<std::string> words = expand(name.substr(colon + 2), line);
        --nested_;
        otherwise = fmt::format("{}", fmt::join(words, " "));
        name.resize(colon);
      }
    } else {
      size_t end = i + 1;
      if (end < raw.size() &&
          (std::isdigit(static_cast<unsigned char>(raw[end])) != 0 || raw[end] == '@' || raw[end] == '*'))
        ++end;
      else
        while (end < raw.size() && (std::isalnum(static_cast<unsigned char>(raw[end])) != 0 || raw[end] == '_')) ++end;
      name = raw.substr(i + 1, end - i - 1);
      i = end;
      if (name.empty()) return "$";
    }
    if (unknown_.contains(name)) return "${" + name + "}";
    const auto found = variables_.find(name);
    return found == variables_.end() || found->second.empty() ? otherwise : found->second;
  }

  // $((1024 * 8)): whole numbers and variables multiplied; other arithmetic is not known.
  std::string product(const std::string& expression) const {
    int64_t value = 1;
    for (size_t at = 0; at <= expression.size();) {
      const size_t end = std::min(expression.find('*', at), expression.size());
      std::string factor = expression.substr(at, end - at);
      std::erase_if(factor, [](char c) { return c == ' ' || c == '$'; });
      if (const auto known = variables_.find(factor); is_name(factor) && known != variables_.end())
        factor = known->second;
      if (factor.empty() || factor.size() > 9 || factor.find_first_not_of("0123456789") != std::string::npos ||
          value > 1'000'000'000)
        return "$((...))";
      value *= std::stoll(factor);
      at = end + 1;
    }
    return std::to_string(value);
  }

  const std::string& file_;
  std::map<std::string, std::string> variables_;
  std::set<std::string> exported_, unknown_;
  std::map<std::string, std::vector<ShellCommand>> functions_;
  std::vector<LaunchScript> found_;  // that differ
  std::vector<int> lines_;
  size_t count_ = 0;
  mutable size_t bytes_ = 0;  // that expansions have made
  mutable int nested_ = 0;    // expansions that stand in each other now
};

}  // namespace

LaunchScript read_launch_script(std::string_view text, const std::vector<std::string>& arguments,
                                const std::string& file, int command) {
  if (!is_valid_utf8(text)) throw UsageError(fmt::format("{} is not valid UTF-8 text", file));
  return Reader(arguments, file).read(shell_commands(text, file), command);
}

}  // namespace faultline::recipe
