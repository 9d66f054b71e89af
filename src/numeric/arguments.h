// What a fault kernel is told: plain structs that travel to the device by value. A FaultSpec (fault.h) is what a person
// wrote; these are its numbers, lowered once per call for one tensor's shape and dtype.
#pragma once

#include "base/rng.h"
#include "numeric/dtype.h"
#include "numeric/gaussian.h"

namespace faultline::numeric {

enum class FaultKind : uint8_t {
  kRelativeGaussian,
  kAbsoluteGaussian,
  kScaledGaussian,
  kSystematicBias,
  kGain,
  kOffset,
  kTruncate,
  kDeadzone,
  kSaturate,
  kSpike,
  kBitflip,
  kStuckAt,
  kZero,
  kNan,
  kInf,
  kSwap,
  kNondeterministic,
  kProfile,
  kAccumulate,  // these three write a replacement that an operator tap has computed
  kApproximate,
  kStale,
  kQuantize,
};
inline constexpr int kFaultKinds = static_cast<int>(FaultKind::kQuantize) + 1;

constexpr bool is_replacement(FaultKind kind) {
  return kind == FaultKind::kAccumulate || kind == FaultKind::kApproximate || kind == FaultKind::kStale;
}

// Changes from step to step and lives in device memory where a CUDA graph must see it change (Note [Control]).
struct Control {
  uint32_t armed = 1;
  float strength = 0;  // the kind's leading parameter: strength, threshold, margin, probability or rate
  uint32_t step = 0;
  uint32_t call = 0;   // number of the first call of this step
  uint32_t phase = 0;  // 0 … 255
  uint32_t unused = 0;
  uint64_t row_base = 0;  // first global row of this rank, for keyed_by: row
  uint64_t progress = 0;  // kProgressPerCall a finished launch; zero at the start of a step
};
static_assert(sizeof(Control) == 40);

// Note [Control]
// A captured CUDA graph replays a kernel with the arguments it was captured with. Whatever may change without capturing
// again — arming, strength, step, call number, phase, row base — is therefore read from a small device row. Callers
// write (step, call, progress = 0) at the start of a step. The blocks of a launch together add kProgressPerCall to
// `progress`, each as it ends and none before it has read the row; so call + progress / kProgressPerCall is the same
// number for all blocks of a launch and one more for the next, with no block waiting for another. Replays draw fresh
// numbers and a resumed run draws the same ones as an uninterrupted one. Without a row the value in the arguments
// counts.
inline constexpr uint64_t kProgressPerCall = 4096;  // more than a launch has blocks

FL_HD Control started(Control control) {
  control.call += static_cast<uint32_t>(control.progress / kProgressPerCall);
  return control;
}

// kRegion: everything that the extent's region holds.
enum class Structure : uint8_t { kAll, kElement, kChannel, kRow, kTile, kLane, kRegion };

struct IndexRange {
  int64_t first = 0, last = 0;  // included
};
inline constexpr int kMaxRanges = 8;

// Rows, columns and elements (numbered through the tensor) outside of which nothing is touched; of none of them: all.
struct Region {
  int32_t rows = 0, columns = 0, elements = 0;  // how many ranges of each, in this order
  int64_t width = 1;                            // of a row
  IndexRange ranges[kMaxRanges];
};

struct Extent {
  Structure structure = Structure::kAll;
  uint32_t threshold = 0;  // selected where the top 32 bits of the hash are at most this
  int32_t tile_rows = 1;
  int32_t tile_columns = 1;
  int32_t period = 32;
  Region region;  // not looked at with kAll
};

enum class Lifetime : uint8_t { kPermanent, kTransient, kWindow };

struct LifetimeArguments {
  Lifetime kind = Lifetime::kPermanent;
  float probability = 1;      // of a transient fault, each call
  uint32_t from = 0, to = 0;  // steps of a window, the last excluded
};

enum class Axis : uint8_t { kToken, kTensor, kChannel };

enum class Reference : uint8_t { kNone, kMaxAbs, kMeanAbs, kStd };  // what a kind measures itself against

enum class TruncateMode : uint8_t { kZero, kNearest, kStochastic };
enum class NondeterministicMode : uint8_t { kAmplified, kInconsistent, kCorrelated };

inline constexpr int kMaxProfileKnots = 128;
struct ProfileTable {
  uint32_t knots = 0;
  float share_equal = 0;
  float probability[kMaxProfileKnots];  // increasing, 0 … 1
  float error[kMaxProfileKnots];
};

struct FaultArguments {
  FaultKind kind = FaultKind::kZero;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;
  int64_t columns = 1;  // length of the last dimension
  Control control;
  uint64_t noise_key = 0;
  uint64_t mask_key = 0;
  Extent extent;
  LifetimeArguments lifetime;
  bool stochastic_rounding = false;
  bool keyed_by_row = false;
  const int64_t* row_keys = nullptr;  // one a row, on the tensor's device; null: row_base + row
  // Parameters of the kind; each uses what it needs.
  float factor = 1;                 // spike, nondeterministic
  bool relative = false;            // deadzone, saturate: the threshold counts in units of the reference
  uint32_t mode = 0;                // TruncateMode, NondeterministicMode
  uint32_t drop_bits = 0;           // truncate: mantissa bits (of the compute type) cut off
  uint32_t bit = 0, bit_count = 1;  // bitflip: eligible bits [bit, bit + bit_count); stuck_at: bit
  uint32_t bit_value = 0;           // stuck_at
  uint64_t count = 0;               // bitflip: elements a call; swap: pairs
  int64_t region = 1;               // swap: elements of a region
  Permutation permutation;          // bitflip by count, swap
  uint64_t flip_threshold[64];      // bitflip by rate: P(first flip at or before eligible bit j), times 2^64
  Reference reference_kind = Reference::kNone;
  Axis axis = Axis::kToken;
  // Device pointers of one call.
  const float* reference = nullptr;  // one a row, one, or one a column
  const ProfileTable* profile = nullptr;
  const void* source = nullptr;  // swap: the tensor before; replacements: what is written
};

}  // namespace faultline::numeric
