// Which environment variables a recipe may set. A recipe is somebody's input, so the question is not who reads the
// variable but what its value could do there: one that makes a process load code, write a file or talk to another
// machine stays with the person at the keyboard. No list of good names could follow every version of every program, and
// people triage programs of their own; so every name is allowed that no row of one table speaks against, and outside
// the runtimes that we know a value must be a plain setting besides.
#pragma once

#include <string>

namespace faultline::triage {

// "" or why a recipe may not set it.
std::string complain_variable(const std::string& name, const std::string& value);

bool is_launcher_variable(const std::string& name);

}  // namespace faultline::triage
