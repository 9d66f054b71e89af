// `faultline reproduce`; apart from the other commands' list, which everything includes.
#pragma once

#include "cli/command.h"

namespace faultline::cli {

void add_reproduce(CLI::App& app, const Globals& globals, Run& run);

}  // namespace faultline::cli
