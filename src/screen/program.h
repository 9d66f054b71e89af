// A program that does a part of a screen: this one again, held to an instruction set, or among the ranks of a job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "record/environment.h"

namespace faultline::screen {

// What it prints, and its status; nothing where it could not be started. No shell is in between.
std::optional<int> run_program(std::vector<std::string> words, record::ChildEnvironment environment, std::string& text);

}  // namespace faultline::screen
