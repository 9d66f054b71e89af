#include "race/attribution.h"

#include <algorithm>
#include <array>

namespace faultline::race {
namespace {

constexpr KeyMask kIn = mask_of(Key::kCommInput), kOut = mask_of(Key::kCommOutput),
                  kReference = mask_of(Key::kComputeInput), kActivation = mask_of(Key::kComputeOutput);

struct CellState {
  KeyMask digest = 0, pattern = 0;
  bool ambiguous = false;
  std::vector<int> sources;  // of a wrong gathered buffer, where digests of the pieces tell
  KeyMask wrong() const { return digest | pattern; }
};

bool failed(const LayerRecord& layer, Check check) {
  return (layer.failed_checks >> static_cast<unsigned>(check) & 1u) != 0;
}

class Attribution {
 public:
  Attribution(const Config& config, const std::vector<RankRecord>& ranks, const std::vector<Deviation>& deviations)
      : config_(config), ranks_(ranks), layers_(ranks.empty() ? 0 : ranks[0].layers.size()) {
    cells_.assign(ranks.size(), std::vector<CellState>(layers_));
    for (const Deviation& deviation : deviations) {
      CellState& cell = cells_[static_cast<size_t>(deviation.rank)][static_cast<size_t>(deviation.layer)];
      cell.digest |= mask_of(deviation.key);
      cell.ambiguous |= deviation.ambiguous;
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (size_t layer = 0; layer < layers_; ++layer) read_checks(rank, layer);
  }

  std::vector<Event> events() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank].h2d_failed)
        events_.push_back({.cause = Cause::kH2dCopy, .rank = static_cast<int>(rank), .operation = "h2d"});
    for (size_t layer = 0; layer < layers_; ++layer) {
      judge_senders(layer);
      for (size_t rank = 0; rank < ranks_.size(); ++rank) judge_cell(rank, layer);
      for (size_t rank = 0; rank < ranks_.size(); ++rank)  // when the layer's events are all there
        if (cells_[rank][layer].wrong() != 0 && unexplained(rank, layer) == 0) add_consequence(rank, layer);
      judge_reduction(layer);
      judge_gradients(layer);
    }
    judge_optimizer();
    return std::move(events_);
  }

 private:
  void read_checks(size_t rank, size_t layer) {
    CellState& cell = cells_[rank][layer];
    const LayerRecord& record = ranks_[rank].layers[layer];
    if (failed(record, Check::kShard)) cell.pattern |= kIn;
    if (failed(record, Check::kGatherForward) || failed(record, Check::kGatherBackward)) cell.pattern |= kOut;
    if (config_.mode == Mode::kDdp) {  // a sum has no pieces
      if (failed(record, Check::kReduceOutput)) cell.pattern |= kOut;
      return;
    }
    for (size_t from = 0; from < ranks_.size(); ++from) {
      const uint64_t sent = ranks_[from].layers[layer].sent[rank], received = record.received[from];
      const bool by_digest = sent != 0 && received != 0 && sent != received;
      if (by_digest) cell.digest |= kOut;
      if (by_digest || (from < 64 && (record.failed_sources >> from & 1u) != 0))
        cell.sources.push_back(static_cast<int>(from));
    }
  }

  // A wrong shard explains what the others received, and is an event of its own (in judge_cell).
  void judge_senders(size_t layer) {
    bad_senders_.clear();
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if ((cells_[rank][layer].wrong() & kIn) != 0) bad_senders_.push_back(static_cast<int>(rank));
  }

  bool explained_by_senders(const CellState& cell) const {
    if (bad_senders_.empty()) return false;
    return std::all_of(cell.sources.begin(), cell.sources.end(), [&](int source) {
      return std::find(bad_senders_.begin(), bad_senders_.end(), source) != bad_senders_.end();
    });
  }

  // Drops from the wrong keys those that something already told explains.
  KeyMask unexplained(size_t rank, size_t layer) {
    const CellState& cell = cells_[rank][layer];
    const bool owns_bad_shard = (cell.wrong() & kIn) != 0;
    KeyMask wrong = cell.wrong();
    if ((wrong & kOut) != 0 && !owns_bad_shard && explained_by_senders(cell)) {
      wrong &= ~kOut;
      if (config_.consume_gathered) wrong &= ~kActivation;
    }
    const bool was_wrong = layer > 0 && (cells_[rank][layer - 1].wrong() & kReference) != 0;
    if (config_.shared_layer_weights && was_wrong && (wrong & kReference) != 0) wrong &= ~(kReference | kActivation);
    return wrong;
  }

  void judge_cell(size_t rank, size_t layer) {
    const CellState& cell = cells_[rank][layer];
    if (cell.wrong() == 0) return;
    const KeyMask left = unexplained(rank, layer);
    if (left == 0) return;
    Event event{.cause = cell.ambiguous && cell.pattern == 0 && cell.sources.empty()
                             ? Cause::kAmbiguous
                             : cause_of(left, config_.consume_gathered),
                .rank = static_cast<int>(rank),
                .layer = static_cast<int64_t>(layer),
                .operation = operation_of(left),
                .keys = cell.wrong(),
                .by_digest = cell.digest != 0,
                .by_pattern = cell.pattern != 0};
    if (event.cause == Cause::kCollective) event.sources = cell.sources;
    events_.push_back(event);
  }

  std::string operation_of(KeyMask wrong) const {
    if ((wrong & (kIn | kOut)) == 0) return "compute";
    return config_.mode == Mode::kFsdp ? "all_gather" : config_.mode == Mode::kDdp ? "all_reduce" : "all_to_all";
  }

  void add_consequence(size_t rank, size_t layer) {
    for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
      if (event->layer == static_cast<int64_t>(layer) || event->rank == static_cast<int>(rank)) {
        ++event->consequences;
        return;
      }
    }
  }

  void judge_reduction(size_t layer) {
    if (config_.mode == Mode::kDdp) return;  // judged as the layer's collective
    const auto has = [&](Check check, size_t rank) { return failed(ranks_[rank].layers[layer], check); };
    const char* operation = config_.mode == Mode::kFsdp ? "reduce_scatter" : "all_reduce";
    int64_t bad_inputs = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!has(Check::kReduceInput, rank)) continue;
      ++bad_inputs;
      events_.push_back({.cause = Cause::kLocalMemory,
                         .rank = static_cast<int>(rank),
                         .layer = static_cast<int64_t>(layer),
                         .operation = operation,
                         .by_pattern = true});
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!has(Check::kReduceOutput, rank)) continue;
      if (bad_inputs > 0) {
        add_consequence(rank, layer);
      } else {
        events_.push_back({.cause = Cause::kCollective,
                           .rank = static_cast<int>(rank),
                           .layer = static_cast<int64_t>(layer),
                           .operation = operation,
                           .by_pattern = true});
      }
    }
  }

  // Backward runs when all layers have gone forward: a reference buffer that layers share may be wrong for all of them.
  bool reference_was_wrong(size_t rank, size_t layer) const {
    const auto wrong = [](const CellState& cell) { return (cell.wrong() & (kReference | kActivation)) != 0; };
    const auto& row = cells_[rank];
    return config_.shared_layer_weights ? std::any_of(row.begin(), row.end(), wrong) : wrong(row[layer]);
  }

  // All ranks differentiate the same function at the same point.
  void judge_gradients(size_t layer) {
    std::vector<uint64_t> gradients;
    for (const RankRecord& rank : ranks_) gradients.push_back(rank.layers[layer].gradient);
    const auto consensus = plurality(gradients);
    const bool differ = std::any_of(gradients.begin(), gradients.end(), [&](uint64_t g) { return g != gradients[0]; });
    if (!differ) return;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (consensus && gradients[rank] == *consensus) continue;
      if (reference_was_wrong(rank, layer)) {
        add_consequence(rank, layer);
        continue;
      }
      events_.push_back({.cause = consensus ? Cause::kCompute : Cause::kAmbiguous,
                         .rank = static_cast<int>(rank),
                         .layer = static_cast<int64_t>(layer),
                         .operation = "backward",
                         .by_digest = true});
    }
  }

  void judge_optimizer() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (layers_ == 0 || !failed(ranks_[rank].layers[0], Check::kOptimizer)) continue;
      events_.push_back(
          {.cause = Cause::kCompute, .rank = static_cast<int>(rank), .operation = "optimizer", .by_digest = true});
    }
  }

  const Config& config_;
  const std::vector<RankRecord>& ranks_;
  size_t layers_;
  std::vector<std::vector<CellState>> cells_;
  std::vector<int> bad_senders_;
  std::vector<Event> events_;
};

}  // namespace

const char* cause_name(Cause cause) {
  constexpr std::array kNames = {"none",    "local_memory", "collective", "reference_buffer",
                                 "compute", "h2d_copy",     "ambiguous"};
  return kNames[static_cast<size_t>(cause)];
}

Cause cause_of(KeyMask wrong, bool consumes) {
  const bool communication = (wrong & (kIn | kOut)) != 0, reference = (wrong & kReference) != 0;
  const bool activation = (wrong & kActivation) != 0;
  if (wrong == 0) return Cause::kNone;
  if (communication && reference) return Cause::kAmbiguous;  // neither can cause the other
  if (reference) return Cause::kReferenceBuffer;
  if (!communication) return Cause::kCompute;
  // A wrong output of compute follows from communication only through what was gathered.
  if (activation && !(consumes && (wrong & kOut) != 0)) return Cause::kAmbiguous;
  return (wrong & kIn) != 0 ? Cause::kLocalMemory : Cause::kCollective;
}

std::vector<Event> attribute(const Config& config, const std::vector<RankRecord>& ranks,
                             const std::vector<Deviation>& deviations) {
  return Attribution(config, ranks, deviations).events();
}

}  // namespace faultline::race
