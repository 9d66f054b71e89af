// What one iteration left behind, rank by rank and layer by layer: digests of the four records, digests of the pieces
// that went through the network, and which pattern checks failed. The table is plain numbers, filled on the device,
// brought home once an iteration and exchanged between the ranks, so that every rank judges the same whole.
// A digest is judged on up to three axes: against the other layers (where all layers must agree), the other ranks, and
// earlier iterations or a stored golden. No layer and no rank is the reference by itself: values vote, and a tie is
// said to be one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "race/config.h"

namespace faultline::race {

// Checks of a layer that need no other rank: patterns, and the optimizer's step done twice.
enum class Check { kShard, kGatherForward, kGatherBackward, kReduceInput, kReduceOutput, kOptimizer };
const char* check_name(Check check);

struct LayerRecord {
  std::vector<uint64_t> keys = std::vector<uint64_t>(kKeys);  // 0: not taken
  uint64_t expected_input = 0;                                // digest of the pattern itself; 0: not taken
  uint64_t gradient = 0;
  uint64_t failed_checks = 0;      // bit per Check
  uint64_t failed_sources = 0;     // bit per rank whose piece of a gathered buffer failed (up to 64 ranks)
  std::vector<uint64_t> sent;      // digest of what goes to each rank; one entry: the same to all
  std::vector<uint64_t> received;  // of what came from each rank
};

struct RankRecord {
  bool h2d_failed = false;
  bool stop = false;  // this rank wants to end
  // The longest call that started a collective, where the transport's calls need not wait for the others, and the
  // longest time that this rank took between two collectives: who is late explains why another's call was long.
  int64_t call_microseconds = 0, call_layer = -1, own_microseconds = 0;
  std::vector<LayerRecord> layers;
};

int64_t record_words(int64_t layers, int ranks);
std::vector<int64_t> pack(const RankRecord& record, int ranks);
RankRecord unpack(const int64_t* words, int64_t layers, int ranks);

enum class Vote { kUnknown, kAgrees, kDeviates };  // unknown: the axis does not apply, or the vote was a tie
const char* vote_name(Vote vote);

struct Axes {
  Vote layers = Vote::kUnknown;
  Vote ranks = Vote::kUnknown;
  Vote iterations = Vote::kUnknown;  // or what is known beforehand: the pattern's digest, the golden
};

enum class Scope { kCell, kRank, kLayer, kEverywhere };  // one cell; all layers of a rank; a layer on all ranks; all
const char* scope_name(Scope scope);

struct Deviation {
  int rank = 0;
  int64_t layer = 0;
  Key key = Key::kCommInput;
  Axes axes;
  Scope scope = Scope::kCell;
  uint64_t observed = 0;
  uint64_t reference = 0;
  bool ambiguous = false;  // values differ, but none has a majority
};

// Which axes a key has under a configuration.
struct AxesOf {
  bool layers, ranks, iterations;
};
AxesOf axes_of(const Config& config, Key key);

// The consensus of earlier iterations (or the golden), by key and layer; filled by the first iteration without a tie.
class Reference {
 public:
  std::optional<uint64_t> find(Key key, int64_t layer) const;
  void set(Key key, int64_t layer, uint64_t value) { values_[{key, layer}] = value; }
  bool empty() const { return values_.empty(); }
  const std::map<std::pair<Key, int64_t>, uint64_t>& values() const { return values_; }

 private:
  std::map<std::pair<Key, int64_t>, uint64_t> values_;
};

// Everything that deviates, and, where `reference` lacks it, what to remember for the next iterations.
std::vector<Deviation> judge(const Config& config, const std::vector<RankRecord>& ranks, Reference& reference);

// One word for a buffer that was judged piece by piece.
uint64_t combined_digest(const std::vector<uint64_t>& pieces);

// The value that occurs most often; nullopt on a tie, or where there are fewer than two.
std::optional<uint64_t> plurality(const std::vector<uint64_t>& values);

}  // namespace faultline::race
