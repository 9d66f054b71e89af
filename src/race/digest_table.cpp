#include "race/digest_table.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace faultline::race {
namespace {

constexpr int kFixedWords = kKeys + 4;

uint64_t value_of(const std::vector<RankRecord>& ranks, size_t rank, int64_t layer, Key key) {
  return ranks[rank].layers[static_cast<size_t>(layer)].keys[static_cast<size_t>(key)];
}

Vote against(uint64_t value, const std::optional<uint64_t>& consensus) {
  if (!consensus) return Vote::kUnknown;
  return value == *consensus ? Vote::kAgrees : Vote::kDeviates;
}

// All values of a key that should be equal to the one at (rank, layer): a block of ranks and layers.
std::vector<uint64_t> block(const std::vector<RankRecord>& ranks, Key key, AxesOf axes, size_t rank, int64_t layer) {
  std::vector<uint64_t> values;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!axes.ranks && r != rank) continue;
    for (int64_t l = 0; l < static_cast<int64_t>(ranks[r].layers.size()); ++l)
      if (axes.layers || l == layer) values.push_back(value_of(ranks, r, l, key));
  }
  return values;
}

struct Cell {
  size_t rank;
  int64_t layer;
};

Axes axes_at(const std::vector<RankRecord>& ranks, Key key, AxesOf axes, Cell cell, std::optional<uint64_t> known) {
  const uint64_t value = value_of(ranks, cell.rank, cell.layer, key);
  Axes found;
  if (axes.layers)
    found.layers = against(value, plurality(block(ranks, key, {true, false, false}, cell.rank, cell.layer)));
  if (axes.ranks)
    found.ranks = against(value, plurality(block(ranks, key, {false, true, false}, cell.rank, cell.layer)));
  if (known) found.iterations = against(value, known);
  return found;
}

bool all_differ(const std::vector<uint64_t>& values, uint64_t from) {
  return values.size() > 1 && std::all_of(values.begin(), values.end(), [&](uint64_t v) { return v != from; });
}

Scope scope_at(const std::vector<RankRecord>& ranks, Key key, AxesOf axes, Cell cell, uint64_t consensus) {
  if (all_differ(block(ranks, key, axes, cell.rank, cell.layer), consensus)) return Scope::kEverywhere;
  if (axes.layers && all_differ(block(ranks, key, {true, false, false}, cell.rank, cell.layer), consensus))
    return Scope::kRank;
  if (axes.ranks && all_differ(block(ranks, key, {false, true, false}, cell.rank, cell.layer), consensus))
    return Scope::kLayer;
  return Scope::kCell;
}

// What the cell should hold: what is known beforehand, else what earlier iterations agreed on, else the vote of now.
struct Consensus {
  std::optional<uint64_t> known;  // independent of this iteration
  std::optional<uint64_t> value;
};

// What must have been gathered, from what the senders' patterns say.
std::optional<uint64_t> expected_output(const std::vector<RankRecord>& ranks, int64_t layer) {
  std::vector<uint64_t> pieces;
  for (const RankRecord& rank : ranks) {
    pieces.push_back(rank.layers[static_cast<size_t>(layer)].expected_input);
    if (pieces.back() == 0) return std::nullopt;
  }
  return combined_digest(pieces);
}

Consensus consensus_at(const Config& config, const std::vector<RankRecord>& ranks, Key key, Cell cell,
                       const Reference& reference) {
  const LayerRecord& record = ranks[cell.rank].layers[static_cast<size_t>(cell.layer)];
  Consensus found;
  if (key == Key::kCommInput && record.expected_input != 0) found.known = record.expected_input;
  if (key == Key::kCommOutput && config.mode == Mode::kFsdp) found.known = expected_output(ranks, cell.layer);
  if (!found.known) found.known = reference.find(key, cell.layer);
  found.value = found.known ? found.known : plurality(block(ranks, key, axes_of(config, key), cell.rank, cell.layer));
  return found;
}

// A tie between ranks is no suspicion of one whose every element was compared and found right.
bool patterns_say_right(const Config& config, const LayerRecord& record, Key key) {
  if (!config.patterns || key == Key::kComputeInput || key == Key::kComputeOutput) return false;
  const Check check = key == Key::kCommInput      ? Check::kShard
                      : config.mode == Mode::kDdp ? Check::kReduceOutput
                                                  : Check::kGatherForward;
  return (record.failed_checks >> static_cast<unsigned>(check) & 1u) == 0;
}

void judge_key(const Config& config, const std::vector<RankRecord>& ranks, Key key, Reference& reference,
               std::vector<Deviation>& deviations) {
  const AxesOf axes = axes_of(config, key);
  std::vector<std::pair<int64_t, uint64_t>> agreed;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (int64_t layer = 0; layer < static_cast<int64_t>(ranks[rank].layers.size()); ++layer) {
      const uint64_t value = value_of(ranks, rank, layer, key);
      if (value == 0) continue;
      const Cell cell{rank, layer};
      const auto [known, consensus] = consensus_at(config, ranks, key, cell, reference);
      if (axes.iterations && consensus) agreed.emplace_back(layer, *consensus);
      if (consensus == value) continue;
      const std::vector<uint64_t> peers = block(ranks, key, axes, rank, layer);
      const bool differs = std::any_of(peers.begin(), peers.end(), [&](uint64_t v) { return v != value; });
      if (!consensus && !differs) continue;  // alone, and nothing to compare with
      if (!consensus && patterns_say_right(config, ranks[rank].layers[static_cast<size_t>(layer)], key)) continue;
      Deviation deviation{static_cast<int>(rank),
                          layer,
                          key,
                          axes_at(ranks, key, axes, cell, known),
                          Scope::kCell,
                          value,
                          consensus.value_or(0),
                          !consensus.has_value()};
      if (consensus) deviation.scope = scope_at(ranks, key, axes, cell, *consensus);
      deviations.push_back(deviation);
    }
  }
  for (const auto& [layer, value] : agreed)
    if (!reference.find(key, layer)) reference.set(key, layer, value);
}

}  // namespace

const char* check_name(Check check) {
  constexpr std::array kNames = {"shard",        "gather_forward", "gather_backward",
                                 "reduce_input", "reduce_output",  "optimizer"};
  return kNames[static_cast<size_t>(check)];
}
const char* vote_name(Vote vote) {
  constexpr std::array kNames = {"unknown", "agrees", "deviates"};
  return kNames[static_cast<size_t>(vote)];
}
const char* scope_name(Scope scope) {
  constexpr std::array kNames = {"cell", "rank", "layer", "everywhere"};
  return kNames[static_cast<size_t>(scope)];
}

int64_t record_words(int64_t layers, int ranks) { return 5 + layers * (kFixedWords + 2 * ranks); }

std::vector<int64_t> pack(const RankRecord& record, int ranks) {
  std::vector<int64_t> words = {record.h2d_failed, record.stop, record.call_microseconds, record.call_layer,
                                record.own_microseconds};
  const auto put = [&](uint64_t word) { words.push_back(static_cast<int64_t>(word)); };
  for (const LayerRecord& layer : record.layers) {
    for (const uint64_t key : layer.keys) put(key);
    put(layer.expected_input);
    put(layer.gradient);
    put(layer.failed_checks);
    put(layer.failed_sources);
    for (int r = 0; r < ranks; ++r)
      put(layer.sent.empty() ? 0 : layer.sent[layer.sent.size() == 1 ? 0 : static_cast<size_t>(r)]);
    for (int r = 0; r < ranks; ++r) put(layer.received.empty() ? 0 : layer.received[static_cast<size_t>(r)]);
  }
  FL_ASSERT(static_cast<int64_t>(words.size()) == record_words(static_cast<int64_t>(record.layers.size()), ranks));
  return words;
}

RankRecord unpack(const int64_t* words, int64_t layers, int ranks) {
  RankRecord record;
  const auto take = [&] { return static_cast<uint64_t>(*words++); };
  record.h2d_failed = take() != 0;
  record.stop = take() != 0;
  for (int64_t* word : {&record.call_microseconds, &record.call_layer, &record.own_microseconds})
    *word = static_cast<int64_t>(take());
  for (int64_t l = 0; l < layers; ++l) {
    LayerRecord& layer = record.layers.emplace_back();
    for (uint64_t& key : layer.keys) key = take();
    layer.expected_input = take();
    layer.gradient = take();
    layer.failed_checks = take();
    layer.failed_sources = take();
    for (int r = 0; r < ranks; ++r) layer.sent.push_back(take());
    for (int r = 0; r < ranks; ++r) layer.received.push_back(take());
  }
  return record;
}

AxesOf axes_of(const Config& config, Key key) {
  const bool layers = config.shared_layer_weights;
  switch (key) {
    case Key::kCommInput: return {layers, false, false};
    case Key::kCommOutput: return {layers, config.mode != Mode::kDefault, false};
    case Key::kComputeInput: return {layers, true, true};
    default: return {layers, true, !config.consume_gathered};
  }
}

std::optional<uint64_t> Reference::find(Key key, int64_t layer) const {
  const auto found = values_.find({key, layer});
  return found == values_.end() ? std::nullopt : std::optional<uint64_t>(found->second);
}

uint64_t combined_digest(const std::vector<uint64_t>& pieces) {
  uint64_t word = 0;
  for (const uint64_t piece : pieces) word = mix64(word, piece);
  return word;
}

std::optional<uint64_t> plurality(const std::vector<uint64_t>& values) {
  if (values.size() < 2) return std::nullopt;
  std::map<uint64_t, size_t> counts;
  for (const uint64_t value : values) ++counts[value];
  size_t most = 0;
  for (const auto& [value, count] : counts) most = std::max(most, count);
  std::optional<uint64_t> winner;
  for (const auto& [value, count] : counts) {
    if (count != most) continue;
    if (winner) return std::nullopt;
    winner = value;
  }
  return winner;
}

std::vector<Deviation> judge(const Config& config, const std::vector<RankRecord>& ranks, Reference& reference) {
  std::vector<Deviation> deviations;
  for (int key = 0; key < kKeys; ++key) judge_key(config, ranks, static_cast<Key>(key), reference, deviations);
  return deviations;
}

}  // namespace faultline::race
