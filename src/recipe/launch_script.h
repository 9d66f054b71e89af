// A shell script that launches a training, read for what it hands over: the words key=value and --flag of a Python
// command that it runs, and the variables that it exports. It is read, never run: assignments, quotes, ${NAME},
// ${NAME:-default}, positional arguments, functions and case are followed; a setting that depends on an if, a loop or
// a program's output is refused, because nobody can know its value without running it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace faultline::recipe {

struct LaunchScript {
  std::vector<std::string> words;                // key=value, --flag and their values, in order
  std::map<std::string, std::string> variables;  // exported when the command ran
};

// arguments: $1, $2, …; command: which of several with different settings, from 1; 0: there is one. UsageError with the
// line where there are several, or where nobody can know whether a command with settings runs.
LaunchScript read_launch_script(std::string_view text, const std::vector<std::string>& arguments,
                                const std::string& file, int command);

}  // namespace faultline::recipe
