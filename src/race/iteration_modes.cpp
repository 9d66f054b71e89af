// The three modes of an iteration; see iteration.h.
#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "race/iteration.h"

namespace faultline::race {
namespace {

constexpr int64_t kBucketBytes = int64_t{25} << 20;

std::vector<at::Tensor> pieces_of(const at::Tensor& buffer, int ranks) { return buffer.chunk(ranks); }

}  // namespace

// Parameters: layers that share their weights must agree bit by bit, so they share their pattern; iterations stay
// different, or stale data would be right.
PatternAt Iteration::shard_patterns() const {
  return [this](PatternPlace place) {
    if (config_.shared_layer_weights) place.layer = 0;
    const numeric::PatternForm form =
        config_.consume_gathered ? numeric::PatternForm::kFinite : numeric::PatternForm::kRaw;
    return element_pattern(form, config_.dtype, place);
  };
}

// Gradients, piece by piece (a piece is what one rank will own): integers, so that their sum is exact.
PatternAt Iteration::gradient_patterns(int64_t piece, bool summed) const {
  return [this, piece, summed](PatternPlace place) {
    const bool alike = config_.shared_layer_weights && config_.mode == Mode::kDdp;
    place.layer = (alike ? 0 : place.layer) * numeric::kMaxPatternRanks + piece;
    return summed ? sum_pattern(config_.dtype, place, options_.ranks)
                  : integer_pattern(config_.dtype, place, options_.ranks);
  };
}

PatternAt Iteration::message_patterns(int64_t piece) const {
  return [this, piece](PatternPlace place) {
    place.layer = place.layer * numeric::kMaxPatternRanks + piece;
    return element_pattern(numeric::PatternForm::kRaw, config_.dtype, place);
  };
}

StaleContent Iteration::stale(const at::Tensor& buffer, const PatternAt& pattern_at, PatternPlace place,
                              int pieces) const {
  --place.iteration;
  return [=] {
    at::Tensor old = at::empty_like(buffer);
    const std::vector<at::Tensor> parts = old.chunk(pieces);
    for (PatternPlace piece = place; piece.rank < place.rank + pieces; ++piece.rank)
      fill(parts[static_cast<size_t>(piece.rank - place.rank)], pattern_at(piece));
    return old;
  };
}

bool Iteration::digests(Key key, DigestTiming timing) const {
  return step_.verify && step_.digests && config_.digest_of(key) == timing;
}

// ---- fsdp

void Iteration::run_fsdp() {
  const int64_t layers = config_.layers();
  const bool overlaps = !config_.same_stream_mode;
  start_gather(0, false);
  for (int64_t l = 0; l < layers; ++l) {
    const at::Tensor gathered = finish_gather(l, false);
    finish_deferred();
    if (overlaps && l + 1 < layers) start_gather(l + 1, false);
    forward_compute(l, gathered);
    if (digests(Key::kCommOutput, DigestTiming::kAfter)) checks_->take_pieces(l, false, gathered, options_.ranks);
    if (!overlaps && l + 1 < layers) start_gather(l + 1, false);
  }
  start_gather(layers - 1, true);
  for (int64_t l = layers - 1; l >= 0; --l) {
    const at::Tensor gathered = finish_gather(l, true);
    if (overlaps && l > 0) start_gather(l - 1, true);
    backward_compute(l, gathered);
    reduce_scatter_gradients(l);
    if (!overlaps && l > 0) start_gather(l - 1, true);
  }
}

void Iteration::fill_shard(int64_t layer) {
  at::Tensor& shard = shards_[static_cast<size_t>(layer)];
  const PatternPlace place = place_of(Stream::kParameters, layer, options_.rank);
  fill(shard, shard_patterns()(place));
  visit(Place::kCommInput, layer, shard, stale(shard, shard_patterns(), place, 1));
  if (!step_.verify) return;
  checks_->compare(
      shard,
      {.check = Check::kShard, .layer = layer, .operation = "shard", .place = place, .pattern_at = shard_patterns()});
  if (digests(Key::kCommInput, DigestTiming::kBefore)) checks_->take_pieces(layer, true, shard);
  expect_input(layer, shard, shard_patterns()(place));
}

// The digest the record must have, from memory of its own.
void Iteration::expect_input(int64_t layer, const at::Tensor& like, const numeric::Pattern& pattern) {
  if (!step_.digests || config_.digest_of(Key::kCommInput) == DigestTiming::kOff) return;
  if (config_.shared_layer_weights && expected_for_ == iteration_) return;
  if (!scratch_.defined()) scratch_ = at::empty_like(like);
  fill(scratch_, pattern);
  checks_->take_expected(layer, scratch_);
  expected_for_ = iteration_;
}

void Iteration::start_gather(int64_t layer, bool backward) {
  if (!backward) fill_shard(layer);
  at::Tensor& shard = shards_[static_cast<size_t>(layer)];
  at::Tensor& output = gathered_[layer & 1];
  poison(output, checks_->poison(layer));
  gather_[layer & 1] = start_collective(backward ? Place::kReduce : Place::kCommOutput, layer, "all_gather", output,
                                        [&] { return data_->_allgather_base(output, shard); });
}

at::Tensor Iteration::finish_gather(int64_t layer, bool backward) {
  Pending& pending = gather_[layer & 1];
  finish_collective(pending, layer, "all_gather");
  const at::Tensor gathered = pending.output;
  if (digests(Key::kCommInput, DigestTiming::kAfter) && !backward)
    checks_->take_pieces(layer, true, shards_[static_cast<size_t>(layer)]);
  if (!backward)
    visit(Place::kCommOutput, layer, gathered,
          stale(gathered, shard_patterns(), place_of(Stream::kParameters, layer, 0), options_.ranks));
  if (!step_.verify) return gathered;
  const std::vector<at::Tensor> pieces = pieces_of(gathered, options_.ranks);
  for (int source = 0; source < options_.ranks; ++source)
    checks_->compare(pieces[static_cast<size_t>(source)],
                     {.check = backward ? Check::kGatherBackward : Check::kGatherForward,
                      .layer = layer,
                      .source = source,
                      .operation = "all_gather",
                      .backward = backward,
                      .place = place_of(Stream::kParameters, layer, source),
                      .pattern_at = shard_patterns()});
  if (!backward && digests(Key::kCommOutput, DigestTiming::kBefore))
    checks_->take_pieces(layer, false, gathered, options_.ranks);
  return gathered;
}

void Iteration::reduce_scatter_gradients(int64_t layer) {
  const std::vector<at::Tensor> pieces = pieces_of(gradients_, options_.ranks);
  const PatternPlace place = place_of(Stream::kGradients, layer, options_.rank);
  for (int64_t piece = 0; piece < options_.ranks; ++piece) {
    fill(pieces[static_cast<size_t>(piece)], gradient_patterns(piece, false)(place));
    if (step_.verify)
      checks_->compare(pieces[static_cast<size_t>(piece)], {.check = Check::kReduceInput,
                                                            .layer = layer,
                                                            .operation = "gradient",
                                                            .backward = true,
                                                            .place = place,
                                                            .pattern_at = gradient_patterns(piece, false)});
  }
  poison(reduced_, checks_->poison(layer));
  Pending pending = start_collective(Place::kReduce, layer, "reduce_scatter", reduced_,
                                     [&] { return data_->_reduce_scatter_base(reduced_, gradients_); });
  finish_collective(pending, layer, "reduce_scatter");
  check_reduced(layer, reduced_, "reduce_scatter", gradient_patterns(options_.rank, true));
}

void Iteration::check_reduced(int64_t layer, const at::Tensor& result, const char* operation,
                              const PatternAt& pattern_at) {
  const PatternPlace place = place_of(Stream::kGradients, layer, 0);
  visit(Place::kReduce, layer, result, stale(result, pattern_at, place, 1));
  if (step_.verify)
    checks_->compare(result, {.check = Check::kReduceOutput,
                              .layer = layer,
                              .operation = operation,
                              .backward = true,
                              .place = place,
                              .pattern_at = pattern_at});
}

// ---- ddp

void Iteration::run_ddp() {
  const int64_t layers = config_.layers(), size = config_.allreduce_tensor_size;
  for (int64_t l = 0; l < layers; ++l) {
    forward_compute(l, {});
    finish_deferred();
  }
  const int64_t per_bucket =
      config_.ddp_bucketed
          ? std::max<int64_t>(1, kBucketBytes / (size * static_cast<int64_t>(c10::elementSize(config_.dtype))))
          : 1;
  int64_t last = layers;  // the bucket holds layers [l, last)
  for (int64_t l = layers - 1; l >= 0; --l) {
    backward_compute(l, {});
    fill_ddp_gradient(l);
    if (last - l == per_bucket || l == 0) {
      all_reduce_bucket(l, last);
      last = l;
    }
  }
}

void Iteration::fill_ddp_gradient(int64_t layer) {
  const at::Tensor slice = gradients_.narrow(0, layer * config_.allreduce_tensor_size, config_.allreduce_tensor_size);
  const PatternPlace place = place_of(Stream::kGradients, layer, options_.rank);
  const PatternAt patterns = gradient_patterns(0, false);
  fill(slice, patterns(place));
  visit(Place::kCommInput, layer, slice, stale(slice, patterns, place, 1));
  if (!step_.verify) return;
  checks_->compare(slice, {.check = Check::kShard,
                           .layer = layer,
                           .operation = "gradient",
                           .backward = true,
                           .place = place,
                           .pattern_at = patterns});
  if (step_.digests && config_.digest_of(Key::kCommInput) != DigestTiming::kOff)
    checks_->take_key(layer, Key::kCommInput, slice);
  expect_input(layer, slice, patterns(place));
}

void Iteration::all_reduce_bucket(int64_t first, int64_t last) {
  const int64_t size = config_.allreduce_tensor_size;
  std::vector<at::Tensor> bucket = {gradients_.narrow(0, first * size, (last - first) * size)};
  Pending pending =
      start_collective(Place::kCommOutput, first, "all_reduce", bucket[0], [&] { return data_->allreduce(bucket); });
  finish_collective(pending, first, "all_reduce");
  for (int64_t l = first; l < last; ++l) {
    const at::Tensor slice = gradients_.narrow(0, l * size, size);
    visit(Place::kCommOutput, l, slice,
          stale(slice, gradient_patterns(0, true), place_of(Stream::kGradients, l, 0), 1));
    check_reduced(l, slice, "all_reduce", gradient_patterns(0, true));
    if (step_.verify && step_.digests && config_.digest_of(Key::kCommOutput) != DigestTiming::kOff)
      checks_->take_key(l, Key::kCommOutput, slice);
  }
}

// ---- default: all-to-all and all-reduce

void Iteration::run_default() {
  for (int64_t l = 0; l < config_.layers(); ++l) {
    all_to_all(l);
    finish_deferred();
    forward_compute(l, {});
    const PatternPlace place = place_of(Stream::kGradients, l, options_.rank);
    fill(gradients_, gradient_patterns(0, false)(place));
    if (step_.verify)
      checks_->compare(gradients_, {.check = Check::kReduceInput,
                                    .layer = l,
                                    .operation = "gradient",
                                    .place = place,
                                    .pattern_at = gradient_patterns(0, false)});
    std::vector<at::Tensor> whole = {gradients_};
    Pending pending =
        start_collective(Place::kReduce, l, "all_reduce", gradients_, [&] { return data_->allreduce(whole); });
    finish_collective(pending, l, "all_reduce");
    check_reduced(l, gradients_, "all_reduce", gradient_patterns(0, true));
  }
}

void Iteration::all_to_all(int64_t layer) {
  const std::vector<at::Tensor> outgoing = pieces_of(exchange_input_, options_.ranks),
                                incoming = pieces_of(exchange_output_, options_.ranks);
  const PatternPlace mine = place_of(Stream::kAllToAll, layer, options_.rank);
  for (int to = 0; to < options_.ranks; ++to) fill(outgoing[static_cast<size_t>(to)], message_patterns(to)(mine));
  visit(Place::kCommInput, layer, exchange_input_, stale(exchange_input_, message_patterns(0), mine, 1));
  for (int to = 0; step_.verify && to < options_.ranks; ++to)
    checks_->compare(outgoing[static_cast<size_t>(to)], {.check = Check::kShard,
                                                         .layer = layer,
                                                         .operation = "shard",
                                                         .place = mine,
                                                         .pattern_at = message_patterns(to)});
  if (digests(Key::kCommInput, DigestTiming::kBefore))
    checks_->take_pieces(layer, true, exchange_input_, options_.ranks);
  poison(exchange_output_, checks_->poison(layer));
  std::vector<int64_t> even;
  Pending pending = start_collective(Place::kCommOutput, layer, "all_to_all", exchange_output_, [&] {
    return data_->alltoall_base(exchange_output_, exchange_input_, even, even);
  });
  finish_collective(pending, layer, "all_to_all");
  if (digests(Key::kCommInput, DigestTiming::kAfter))
    checks_->take_pieces(layer, true, exchange_input_, options_.ranks);
  visit(
      Place::kCommOutput, layer, exchange_output_,
      stale(exchange_output_, message_patterns(options_.rank), place_of(Stream::kAllToAll, layer, 0), options_.ranks));
  if (!step_.verify) return;
  for (int source = 0; source < options_.ranks; ++source)
    checks_->compare(incoming[static_cast<size_t>(source)], {.check = Check::kGatherForward,
                                                             .layer = layer,
                                                             .source = source,
                                                             .operation = "all_to_all",
                                                             .place = place_of(Stream::kAllToAll, layer, source),
                                                             .pattern_at = message_patterns(options_.rank)});
  if (step_.digests && config_.digest_of(Key::kCommOutput) != DigestTiming::kOff)
    checks_->take_pieces(layer, false, exchange_output_, options_.ranks);
}

}  // namespace faultline::race
