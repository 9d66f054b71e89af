// The machine and its CPU as the kernel describes them: who they are, and error counters, clocks and temperatures
// before and after. What a platform does not have is absent with its reason. `root` is "/" but in tests.
#pragma once

#include <filesystem>
#include <vector>

#include "base/json.h"

namespace faultline::screen {

Json cpu_identity(const std::filesystem::path& root = "/");
Json cpu_weather(const std::filesystem::path& root = "/");

std::vector<int> allowed_cores();  // this process may run on
std::vector<int> online_cores(const std::filesystem::path& root = "/");

// The calling thread runs on this core alone. False where it may not.
bool pin_to(int core);

}  // namespace faultline::screen
