// A screen of one device from start to verdict: identity and weather, the work, the bound, the record. A CPU is
// screened core by core, each by itself and then all at once, so that one bad core is named; then again with each
// narrower instruction set that its libraries can be held to, in processes of their own. The verdict is never healthy
// by absence: what the load asks for and nothing tested, a canary that was not seen, a device that was lost, each has
// a verdict of its own.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "screen/worker.h"

namespace faultline::screen {

struct ScreenOptions {
  double seconds = 300;
  Load load = Load::kAll;
  uint64_t seed = 0;
  double memory_share = -1;  // of the memory that is free; below 0: half of a GPU's, a twentieth of the host's
  bool rates = false;
  std::string instruction_set;    // this process is held to it: a part of another screen
  std::filesystem::path program;  // for such parts; "": they are left out
  std::vector<int> peers;         // further CUDA devices, for copies
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string& part, double seconds)> begins;  // a part of the work
  std::function<void()> under_load = {};                                // the device, or all cores, are busy now
  std::function<void(WorkList& list)> between = {};                     // for drills
};

Json screen_gpu(int index, const ScreenOptions& options);
Json screen_cpu(const ScreenOptions& options);

// What was seen -> "verdict", "sentence" and "exit_code" of the record.
enum class Verdict { kHealthy, kFaulty, kInconclusive, kUnproven };
const char* verdict_name(Verdict verdict);  // healthy, faulty, inconclusive; unproven is inconclusive, too, for exit 3
void judge(Json& record);

// The worst of several: faulty, unproven, inconclusive, healthy.
ExitCode exit_code_of(const std::vector<Json>& records);

// "at most 1 wrong in N": N, with 95 %; 0 where nothing was tested.
int64_t at_most_one_in(int64_t wrong, int64_t tested);

}  // namespace faultline::screen
