// What a run of the reproducer is asked to do. The schema is the one list of fields: it serves the recipe, the command
// line and the trial's request, knows which field is read in which mode, and refuses one that would do nothing. The
// table of dtypes is likewise the only one.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config/schema.h"

namespace faultline::race {

enum class Mode { kDefault, kFsdp, kDdp };
enum class ComputeType { kGemm, kTransformer, kTransformerGemm };
enum class Optimizer { kNone, kSgd, kAdamw };
enum class DigestTiming { kBefore, kAfter, kOff };  // relative to the operation that consumes the record

// The four records of a layer, in the order of time.
enum class Key { kCommInput, kCommOutput, kComputeInput, kComputeOutput };
inline constexpr int kKeys = 4;
const char* key_name(Key key);

// Where a fault is planted: the four records, the result of a reduction, the copy from the host.
enum class Place { kCommInput, kCommOutput, kComputeInput, kComputeOutput, kReduce, kH2d };
inline constexpr int kPlaces = 6;
const char* place_name(Place place);

// kSkip (a rank leaves out a collective) and kExit (a rank ends) are drills for the watchdog.
enum class FaultType { kBitFlip, kZero, kStale, kSwap, kPartial, kNan, kDelay, kSkip, kExit };
const char* fault_type_name(FaultType type);

struct Injection {
  Place target = Place::kCommOutput;
  FaultType kind = FaultType::kBitFlip;
  std::optional<int64_t> layer, rank, iteration;  // absent: any
  double probability = 1;
  uint64_t seed = 0;
  std::optional<int64_t> element, bit;  // absent: drawn
  double delay_ms = 300;
};

struct Config {
  Mode mode = Mode::kDefault;
  int64_t warmup_iterations = 100;
  int64_t verify_iterations = 10000;
  bool stop_on_first_corruption = true;
  int64_t log_interval = 100;
  at::ScalarType dtype = at::kBFloat16;
  int64_t h2d_tensor_size = 1000000;
  int64_t alltoall_tensor_size = 100000;
  int64_t allreduce_tensor_size = 100000;
  int64_t fsdp_shard_size = 100000;
  bool simulate_compute = true;
  ComputeType compute_type = ComputeType::kGemm;
  int64_t gemm_size = 5120;
  int64_t gemm_layers = 26;
  int64_t model_dim = 2048;
  int64_t num_layers = 4;
  int64_t num_heads = 0;
  int64_t ffn_size = 0;
  int64_t seq_len = 512;
  int64_t batch_size = 1;
  bool include_backward_compute = true;
  bool real_backward = false;
  bool shared_layer_weights = false;
  Optimizer optimizer = Optimizer::kNone;
  double optimizer_lr = 1e-3, optimizer_weight_decay = 0.01, optimizer_eps = 1e-8;
  std::array<double, 2> optimizer_betas = {0.9, 0.999};
  bool deterministic = false;
  uint64_t seed = 42;  // deterministic_seed, or the run's
  bool ddp_bucketed = false;
  bool reuse_buffers = true;
  bool pin_memory = true;
  bool h2d_prefetch = false;
  bool same_stream_mode = false;
  bool consume_gathered = false;
  bool patterns = true;
  std::array<DigestTiming, kKeys> digest = {};  // all kBefore
  bool int16_checksum = false;                  // the plain sum in the digest's place
  std::string golden;                           // a file to compare with, or ""
  bool canary = true;
  double timeout_seconds = 60;
  std::vector<Injection> inject;

  int64_t layers() const { return compute_type == ComputeType::kGemm ? gemm_layers : num_layers; }
  bool digests() const;  // whether any key has one
  DigestTiming digest_of(Key key) const { return digest[static_cast<size_t>(key)]; }
};

Schema config_schema();
void register_race_section();  // of the recipe's schema; once
// The node as the schema leaves it, checked against what a schema cannot say; UsageError with the place.
Config read_config(const Node& node);
Config parse_config(const Node& given);  // validates first
// The run that `faultline race` does when nothing is asked: seconds on a laptop, every check on.
Node smoke_config();
// Wrong for this many ranks on this device: an exact sum that is not, shapes that do not divide. UsageError.
void check_ranks(const Config& config, int ranks);

// FAULTLINE_DRILL=off leaves planted faults out, so that a mitigation which works can be shown; true where it did.
bool leave_out_drill(Config& config);

// Names and aliases: bf16, bfloat16, fp16, …
std::vector<std::string> dtype_names();
at::ScalarType dtype_by_name(const std::string& name);
const char* dtype_name(at::ScalarType type);

// The words of the configuration, in the order of their enumerations: for its schema and its reader.

inline constexpr std::array kKeyNames = {"comm_input", "comm_output", "compute_input", "compute_output"};
inline constexpr std::array kPlaceNames = {"comm_input",     "comm_output", "compute_input",
                                           "compute_output", "reduce",      "h2d"};
inline constexpr std::array kFaultNames = {"bitflip", "zero",  "stale", "swap", "partial",
                                           "nan",     "delay", "skip",  "exit"};
inline constexpr std::array kModeNames = {"default", "fsdp", "ddp"};
inline constexpr std::array kComputeNames = {"gemm", "transformer", "transformer_gemm"};
inline constexpr std::array kOptimizerNames = {"none", "sgd", "adamw"};
inline constexpr std::array kTimingNames = {"before", "after", "off"};

}  // namespace faultline::race
