// The cores of this machine's CPU, each screened by a thread that runs on it alone.
#pragma once

#include "screen/screen.h"

namespace faultline::screen {

// Adds what the cores did to the record.
void screen_cores(Json& record, const ScreenOptions& options);

// Names of the instruction sets below the best one, which the libraries can be held to: "avx2", …
std::vector<std::string> narrower_instruction_sets();

}  // namespace faultline::screen
