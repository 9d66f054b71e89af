// `faultline completion`: a script that completes the command line in bash, zsh or fish. It is made from the parser
// itself, so that a new command or option needs nothing here; words for values are given where the option is declared
// (`offer`). The words are written into the script, because starting the program for each TAB would be felt.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"

namespace faultline::cli {
namespace {

using Words = std::vector<std::string>;

std::map<const CLI::Option*, Words>& offers() {
  static std::map<const CLI::Option*, Words> words;
  return words;
}

Words offered(const CLI::Option* option) {
  const auto found = offers().find(option);
  return found == offers().end() ? Words() : found->second;
}

bool is_file(const CLI::Option* option) { return option->get_type_name() == "FILE"; }
bool takes_value(const CLI::Option* option) { return option->get_items_expected_max() > 0; }

Words dashed_names(const CLI::Option* option) {
  Words names;
  for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

Words option_names(const CLI::App& level) {
  Words names;
  for (const CLI::Option* option : level.get_options()) {
    if (option->get_group().empty()) continue;  // hidden: for launchers and tests
    const Words own = dashed_names(option);
    names.insert(names.end(), own.begin(), own.end());
  }
  return names;
}

std::vector<const CLI::Option*> positionals(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

Words command_names(const CLI::App& app) {
  Words names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::string list_text(Words words) {
  for (std::string& word : words) word = shell_quoted(word);
  return fmt::format("offered=({})", fmt::join(words, " "));
}

// `case` branches for the values of a level's options; bash and zsh read them alike.
std::string value_branches(const CLI::App& level, const std::string& command, std::string_view files) {
  std::string text;
  for (const CLI::Option* option : level.get_options()) {
    if (option->get_positional() || !takes_value(option)) continue;
    Words patterns = dashed_names(option);
    for (std::string& pattern : patterns) pattern.insert(0, command + ":");
    const Words words = offered(option);
    text += fmt::format("    ({}) {} ;;\n", fmt::join(patterns, "|"),
                        is_file(option) ? std::string(files)
                        : words.empty() ? "return"
                                        : list_text(words));
  }
  return text;
}

std::string word_branches(const CLI::App& app, const CLI::App& command, std::string_view files) {
  const std::string& name = command.get_name();
  Words options = option_names(command), plain, nested;
  for (const std::string& global : option_names(app)) {
    if (std::find(options.begin(), options.end(), global) == options.end()) options.push_back(global);
  }
  bool file = false;
  for (const CLI::Option* option : positionals(command)) {
    file = file || is_file(option);
    for (const std::string& word : offered(option))
      (word.find('(') == std::string::npos ? plain : nested).push_back(word);
  }
  std::string text = fmt::format("      ({}:-*) {} ;;\n", name, list_text(options));
  if (!nested.empty()) text += fmt::format("      ({}:*\\(*) {} ;;\n", name, list_text(nested));
  return text + fmt::format("      ({}:*) {} ;;\n", name, file ? std::string(files) : list_text(plain));
}

struct Shell {
  std::string_view head, files, tail;  // what is not said alike in bash and zsh
};

constexpr Shell kBash = {
    R"(_faultline() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' typed offered=()
  local typed_before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  if [[ $word == '=' ]]; then word=''; elif [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
  word=${word#[\'\"]}
)",
    "compopt -o default 2>/dev/null; return",
    R"(  mapfile -t COMPREPLY < <(compgen -W "${offered[*]}" -- "$word")
}
complete -F _faultline faultline
)"};

constexpr Shell kZsh = {R"(#compdef faultline
_faultline() {
  local word=$PREFIX before=$words[CURRENT-1] command='' typed
  local -a offered typed_before
  typed_before=(${words[2,CURRENT-1]})
  word=${word#[\'\"]}
)",
                        "_files; return",
                        R"(  compadd -- $offered
}
compdef _faultline faultline
)"};

std::string script(const CLI::App& app, const Shell& shell) {
  const Words commands = command_names(app);
  std::string text(shell.head);
  text += fmt::format(
      "  for typed in \"${{typed_before[@]}}\"; do\n"
      "    case $typed in ({}) command=$typed; break ;; esac\n  done\n  case $command:$before in\n",
      fmt::join(commands, "|"));
  text += value_branches(app, "*", shell.files);
  for (const CLI::App* command : app.get_subcommands({}))
    text += value_branches(*command, command->get_name(), shell.files);
  text += fmt::format("    (*) case $command:$word in\n      (:-*) {} ;;\n      (:*) {} ;;\n",
                      list_text(option_names(app)), list_text(commands));
  for (const CLI::App* command : app.get_subcommands({})) text += word_branches(app, *command, shell.files);
  return text + "    esac ;;\n  esac\n" + std::string(shell.tail);
}

std::string fish_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string fish_options(const CLI::App& level, const std::string& start) {
  std::string text;
  for (const CLI::Option* option : level.get_options()) {
    const Words words = offered(option);
    std::string line = start;
    for (const std::string& name : option->get_snames()) line += " -s " + name;
    for (const std::string& name : option->get_lnames()) line += " -l " + name;
    if (is_file(option))
      line += option->get_positional() ? " -F" : " -r -F";
    else if (!option->get_positional() && takes_value(option))
      line += " -x";
    if (!words.empty()) line += " -a " + fish_quoted(joined(words, " "));
    text += line + " -d " + fish_quoted(option->get_description()) + "\n";
  }
  return text;
}

std::string fish_script(const CLI::App& app) {
  std::string text = "complete -c faultline -f\n" + fish_options(app, "complete -c faultline");
  for (const CLI::App* command : app.get_subcommands({})) {
    text += fmt::format("complete -c faultline -n __fish_use_subcommand -a {} -d {}\n", command->get_name(),
                        fish_quoted(command->get_description()));
    text += fish_options(*command,
                         fmt::format("complete -c faultline -n '__fish_seen_subcommand_from {}'", command->get_name()));
  }
  return text;
}

ExitCode completion(const CLI::App& app, const std::string& shell, const Globals& globals) {
  const Words shells = {"bash", "zsh", "fish"};
  if (std::find(shells.begin(), shells.end(), shell) == shells.end())
    throw UsageError(
        fmt::format("completion: wanted bash, zsh or fish, got '{}'{}", shell, did_you_mean(shell, shells)));
  const std::string text = shell == "fish" ? fish_script(app) : script(app, shell == "bash" ? kBash : kZsh);
  if (globals.json) {
    print_json({{"shell", shell}, {"script", text}});
  } else {
    print(text);
  }
  return ExitCode::kOk;
}

}  // namespace

void offer(const CLI::Option* option, std::vector<std::string> words) { offers()[option] = std::move(words); }

void add_completion(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command =
      app.add_subcommand("completion", "a script that completes commands, options and names in a shell");
  auto shell = std::make_shared<std::string>();
  offer(command->add_option("shell", *shell, "bash, zsh or fish")->required()->type_name(""), {"bash", "zsh", "fish"});
  command->footer(
      "Examples:\n  faultline completion bash > ~/.local/share/bash-completion/completions/faultline\n"
      "  faultline completion fish > ~/.config/fish/completions/faultline.fish\n\n"
      "For this shell alone: source <(faultline completion bash). Global options: see `faultline --help`.");
  command->callback(
      [&app, &run, &globals, shell] { run = [&app, &globals, shell] { return completion(app, *shell, globals); }; });
}

}  // namespace faultline::cli
