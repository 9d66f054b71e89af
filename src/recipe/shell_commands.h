// A shell script as commands: split at newlines, ; & and |, words kept as they are written, with their quotes and
// expansions; comments and here-documents left out. What the words mean is launch_script.h's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace faultline::recipe {

struct ShellCommand {
  std::vector<std::string> raw;  // words as written; ";;" of a case is a command of its own
  int line = 1;
};

// UsageError with the line where a quote or a brace is never closed.
std::vector<ShellCommand> shell_commands(std::string_view text, const std::string& file);

}  // namespace faultline::recipe
