// What a command line asks of a race, be it the program's or `python -m faultline.race`: read, checked, carried out and
// recorded in one way. Printing is left to whoever asks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "race/run.h"
#include "record/run_record.h"

namespace faultline::race {

struct Asked {
  std::string recipe;  // a file; "": the built-in run
  std::vector<std::string> overrides;
  std::string transport = "threads", out, write_golden;
  uint64_t seed = 0;  // where the configuration has none of its own
  bool overhead = false;
  RunOptions run;  // ranks, device, launch, python
};

struct Ready {
  Node node;
  Config config;
  RunOptions run;
  bool drill_left_out = false;
};

Ready prepare(const Asked& asked);  // UsageError: whatever can be known before the first rank starts
// A configuration that somebody else has validated: a trial's, a launcher's.
Ready prepare_given(Node node, uint64_t seed, RunOptions run);
// Runs, and writes the files that were asked for.
RunResult carry_out(const Asked& asked, const Ready& ready, const record::Maker& maker);

// Be the rank that the environment says, of a launcher whose store is at "address:port" and who calls this machine
// `host` ("": by its own name). What goes wrong before the rank runs is told to the launcher and thrown.
RunResult join_launched(const std::string& place, const std::string& host, RunOptions run,
                        const std::function<at::Device(const std::string& name)>& open_device);

ExitCode exit_code(const RunResult& result);
std::string keys_text();  // every key with its default and what it may be, as the schema has them

}  // namespace faultline::race
