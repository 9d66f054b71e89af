#include "race/checks.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "numeric/apply.h"

namespace faultline::race {
namespace {

enum Column : int64_t { kExpected = kKeys, kGradient, kPieces };  // columns 0 … kKeys-1: the keys
enum LastRow : int64_t { kCopied, kParameters, kShadow };

at::Tensor odd_sums(const at::Tensor& buffer, int pieces) {  // (pieces)
  std::vector<at::Tensor> sums;
  for (const at::Tensor& piece : buffer.contiguous().view({pieces, -1}).view(at::kShort).unbind())
    sums.push_back(numeric::checksum(piece));
  return at::stack(sums).mul_(2).add_(1);
}

}  // namespace

Checks::Checks(const Config& config, int rank, int ranks, at::Device device)
    : config_(config), rank_(rank), ranks_(ranks), columns_(kPieces + 2 * ranks) {
  const auto words = at::TensorOptions().dtype(at::kLong).device(device);
  rows_ = at::zeros({1 + config.layers() * (3 * ranks + 2), numeric::kPatternCheckWords}, words);
  digests_ = at::zeros({config.layers() + 1, columns_, numeric::kDigestStateWords}, words);
}

void Checks::begin(int64_t iteration, bool patterns) {
  iteration_ = iteration;
  patterns_ = patterns;
  mismatches_.clear();
  if (!subjects_.empty()) rows_.narrow(0, 0, static_cast<int64_t>(subjects_.size())).zero_();
  if (digests_taken_) digests_.zero_();
  subjects_.clear();
  digests_taken_ = false;
  std::fill(std::begin(host_), std::end(host_), 0);
}

uint32_t Checks::poison(int64_t layer) const { return poison_word(config_.seed, iteration_, layer); }

void Checks::compare(const at::Tensor& buffer, const Subject& subject) {
  if (!patterns_) return;
  FL_ASSERT(static_cast<int64_t>(subjects_.size()) < rows_.size(0));
  const at::Tensor row = rows_.select(0, static_cast<int64_t>(subjects_.size()));
  subjects_.push_back(subject);
  subjects_.back().elements = buffer.numel();
  check(buffer, subject.pattern_at(subject.place), poison(subject.layer), row);
}

// The plain sum of each piece, where the digest would stand; odd, since 0 means that none was taken.
void Checks::put_sums(int64_t layer, int64_t column, const at::Tensor& buffer, int pieces) {
  const at::Tensor row = digests_.select(0, layer).select(1, 0).narrow(0, column, pieces);
  row.copy_(odd_sums(buffer, pieces));
}

void Checks::put(int64_t layer, int64_t column, const at::Tensor& buffer, int pieces) {
  digests_taken_ = true;
  if (config_.int16_checksum) return put_sums(layer, column, buffer, pieces);
  // Without the dispatcher, whose calls cost as much as a small digest.
  numeric::digest_into(
      buffer, digests_.mutable_data_ptr<int64_t>() + (layer * columns_ + column) * numeric::kDigestStateWords, pieces);
}

void Checks::take_key(int64_t layer, Key key, const at::Tensor& buffer) {
  put(layer, static_cast<int64_t>(key), buffer);
}

void Checks::take_pieces(int64_t layer, bool sent, const at::Tensor& buffer, int pieces) {
  put(layer, kPieces + (sent ? 0 : ranks_), buffer, pieces);
}

void Checks::take_expected(int64_t layer, const at::Tensor& expected) {
  put(config_.shared_layer_weights ? 0 : layer, kExpected, expected);
}
void Checks::take_gradient(int64_t layer, const at::Tensor& gradient) { put(layer, kGradient, gradient); }

void Checks::take_copied(const at::Tensor& copied) { put(config_.layers(), kCopied, copied); }
void Checks::take_host(const at::Tensor& host) {
  if (config_.int16_checksum)
    host_[0] = odd_sums(host, 1).item<int64_t>();
  else
    numeric::digest_into(host, host_);
}

void Checks::compare_optimizer(const at::Tensor& parameters, const at::Tensor& shadow) {
  put(config_.layers(), kParameters, parameters);
  put(config_.layers(), kShadow, shadow);
}

void Checks::read_patterns(RankRecord& record) {
  if (subjects_.empty()) return;
  const at::Tensor table = rows_.narrow(0, 0, static_cast<int64_t>(subjects_.size())).cpu();
  const auto* rows = reinterpret_cast<const numeric::PatternCheck*>(table.const_data_ptr<int64_t>());
  for (size_t i = 0; i < subjects_.size(); ++i) {
    const numeric::PatternCheck& row = rows[i];
    const Subject& subject = subjects_[i];
    if (row.count == 0) continue;
    if (subject.h2d) {
      record.h2d_failed = true;
    } else {
      LayerRecord& layer = record.layers[static_cast<size_t>(subject.layer)];
      layer.failed_checks |= uint64_t{1} << static_cast<unsigned>(subject.check);
      const bool gather = subject.check == Check::kGatherForward || subject.check == Check::kGatherBackward;
      if (gather && subject.source >= 0 && subject.source < 64) layer.failed_sources |= uint64_t{1} << subject.source;
    }
    if (mismatches_.size() >= kMaxDetails) continue;
    Mismatch& found = mismatches_.emplace_back();
    found.rank = rank_, found.iteration = iteration_, found.layer = subject.layer, found.source = subject.source;
    found.operation = subject.operation, found.backward = subject.backward;
    found.count = row.count, found.first = row.first(), found.last = row.last, found.changed_bits = row.changed_bits;
    found.histogram.assign(row.histogram, row.histogram + 8 * c10::elementSize(config_.dtype));
    found.observed = static_cast<uint32_t>(row.observed[0]);
    found.expected = expected_bits(subject.pattern_at(subject.place), row.index[0]);
    found.diagnosis = diagnose(row, {subject.place, subject.pattern_at, subject.elements, config_.layers(), ranks_});
  }
}

void Checks::read_digests(RankRecord& record) {
  if (!digests_taken_) return;
  const at::Tensor table = digests_.cpu().select(2, 0).contiguous();  // (layers + 1, columns)
  const auto* first = reinterpret_cast<const uint64_t*>(table.const_data_ptr<int64_t>());
  for (int64_t l = 0; l < config_.layers(); ++l) {
    const uint64_t* words = first + l * columns_;
    LayerRecord& layer = record.layers[static_cast<size_t>(l)];
    std::copy(words, words + kKeys, layer.keys.begin());
    layer.expected_input = (config_.shared_layer_weights ? first : words)[kExpected];
    layer.gradient = words[kGradient];
    const uint64_t* sent = words + kPieces;
    const bool same_to_all = config_.mode == Mode::kFsdp;
    layer.sent.assign(sent, sent + (same_to_all ? 1 : ranks_));
    layer.received.assign(sent + ranks_, sent + 2 * ranks_);
    if (layer.received[0] != 0) layer.keys[static_cast<size_t>(Key::kCommOutput)] = combined_digest(layer.received);
    if (same_to_all && layer.sent[0] != 0) layer.keys[static_cast<size_t>(Key::kCommInput)] = layer.sent[0];
  }
  const uint64_t* last = first + config_.layers() * columns_;
  record.h2d_failed |= last[kCopied] != static_cast<uint64_t>(host_[0]);
  if (last[kParameters] != last[kShadow])
    record.layers[0].failed_checks |= uint64_t{1} << static_cast<unsigned>(Check::kOptimizer);
}

RankRecord Checks::finish() {
  RankRecord record;
  record.layers.resize(static_cast<size_t>(config_.layers()));
  read_digests(record);
  read_patterns(record);
  return record;
}

}  // namespace faultline::race
