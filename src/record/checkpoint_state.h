// state.json of a training checkpoint: where the run stands, what it belongs to, the hash of the tensors beside it.
// Here and not in train/, because it reads files: without torch it can be fuzzed, and a position that no run can have
// (negative, or more steps than the run has done) is refused before a tensor is touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/json.h"

namespace faultline::record {

struct CheckpointState {
  uint64_t stage = 0;
  int64_t step = 0;          // of this stage that are complete
  int64_t steps_done = 0;    // of all stages
  uint64_t event_lines = 0;  // in events.jsonl when the checkpoint was made
  int64_t optimizer_steps = 0;
  Json validation = Json::object();  // the last one's metrics
  Json evidence;                     // of the parts of the run so far; null where no plan was armed
  std::string model;                 // fingerprint of what is trained
  std::string tensors;               // hash of state.safetensors

  bool operator==(const CheckpointState&) const = default;
};

void write_checkpoint_state(const std::filesystem::path& path, const CheckpointState& state);

// RuntimeFailure: torn, damaged, of another kind, or impossible.
CheckpointState read_checkpoint_state(const std::filesystem::path& path);
CheckpointState parse_checkpoint_state(std::string_view text, const std::string& origin);

}  // namespace faultline::record
