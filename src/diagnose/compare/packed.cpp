#include "diagnose/compare/packed.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "diagnose/compare/token_rows.h"
#include "diagnose/recomputation.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kMostMask = int64_t{1} << 26;  // rows times keys of one call

const c10::IValue* named(const RecordedCall& call, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const int64_t index = argument_index(call, name); index >= 0)
      return &call.arguments.at(static_cast<std::size_t>(index));
  return nullptr;
}

at::Tensor tensor_of(const c10::IValue* value) {
  return value != nullptr && value->isTensor() ? value->toTensor() : at::Tensor();
}

int64_t number_of(const c10::IValue* value, int64_t otherwise) {
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}

// What an attention over pages was asked, whichever library's.
struct Question {
  at::Tensor q, keys, values, pages;     // (T, H, D); caches; (B, pages of a sequence)
  std::vector<int64_t> begins, lengths;  // of the sequences: rows of q, B + 1; keys, B
  int64_t page_size = 0, left = -1, right = -1;
  double scale = 0;
  bool is_causal = false, is_opaque = false;  // opaque: the cache's layout is the kernel's own
};

std::optional<Question> question_of(const RecordedCall& call) {
  Question asked;
  asked.q = tensor_of(named(call, {"query", "q"}));
  asked.keys = tensor_of(named(call, {"key_cache", "k"})), asked.values = tensor_of(named(call, {"value_cache", "v"}));
  asked.pages = tensor_of(named(call, {"block_table", "page_table", "block_table_"}));
  const at::Tensor begins = tensor_of(named(call, {"query_start_loc", "cu_seqlens_q"}));
  const at::Tensor lengths = tensor_of(named(call, {"seq_lens", "seqused_k"}));
  const c10::IValue* scale = named(call, {"scale", "softmax_scale"});
  const c10::IValue* causal = named(call, {"causal", "is_causal"});
  for (const at::Tensor& one : {asked.q, asked.keys, asked.values, asked.pages, begins, lengths})
    if (!one.defined()) return std::nullopt;
  if (scale == nullptr || !scale->isDouble() || causal == nullptr || !causal->isBool()) return std::nullopt;
  for (const char* more : {"alibi_slopes", "s_aux", "dynamic_causal", "q_v", "k_new"})
    if (tensor_of(named(call, {more})).defined()) return std::nullopt;
  if (const c10::IValue* cap = named(call, {"softcap"}); cap != nullptr && cap->isDouble() && cap->toDouble() != 0)
    return std::nullopt;
  if (asked.q.dim() != 3 || asked.keys.dim() != 4 || asked.keys.scalar_type() != asked.q.scalar_type())
    return std::nullopt;
  asked.is_opaque = call.name.starts_with("_C::cpu_");
  asked.page_size = asked.keys.size(asked.is_opaque ? 2 : 1);
  asked.begins = on_host(begins), asked.lengths = on_host(lengths);
  asked.left = number_of(named(call, {"sliding_window_left", "window_size_left"}), -1);
  asked.right = number_of(named(call, {"sliding_window_right", "window_size_right"}), -1);
  asked.scale = scale->toDouble(), asked.is_causal = causal->toBool();
  return asked;
}

// Of some rows: the keys of their sequences one after another, and which of them each row sees.
struct Seen {
  std::vector<int64_t> slots;                       // of all keys
  std::vector<std::pair<int64_t, int64_t>> ranges;  // by row: the first of them, the end
};

Seen seen_by(const Question& asked, const std::vector<int64_t>& rows) {
  Seen seen;
  std::map<std::size_t, int64_t> first_of;  // key of each sequence
  const std::vector<int64_t> pages = on_host(asked.pages);
  const int64_t most = asked.pages.size(1);
  for (const int64_t row : rows) {
    const auto after = std::upper_bound(asked.begins.begin(), asked.begins.end(), row);
    const auto sequence = static_cast<std::size_t>(after - asked.begins.begin()) - 1;
    const int64_t length = asked.lengths.at(sequence);
    if (first_of.try_emplace(sequence, std::ssize(seen.slots)).second)
      for (int64_t key = 0; key < length; ++key)
        seen.slots.push_back(
            pages.at(sequence * static_cast<std::size_t>(most) + static_cast<std::size_t>(key / asked.page_size)) *
                asked.page_size +
            key % asked.page_size);
    const int64_t own = length - (asked.begins.at(sequence + 1) - row);
    int64_t last = asked.is_causal ? own : length - 1;
    if (asked.right >= 0) last = std::min(last, own + asked.right);
    const int64_t begin = asked.left >= 0 ? std::max<int64_t>(0, own - asked.left) : 0;
    seen.ranges.emplace_back(first_of[sequence] + begin, first_of[sequence] + last + 1);
  }
  return seen;
}

}  // namespace

bool is_packed_product(const std::string& name) {
  return name == "_C::onednn_mm" || name == "_C::weight_packed_linear";
}

void PackedWeights::add(const at::Tensor& packed, const at::Tensor& original) {
  all_[packed.data_ptr()] = {packed, original};
}

std::optional<RecordedCall> PackedWeights::unpacked(const RecordedCall& call) const {
  const auto where = product_arguments(call);
  if (!where || where->weight >= call.arguments.size() || !call.arguments[where->weight].isTensor()) return {};
  const auto found = all_.find(call.tensor(where->weight).data_ptr());
  if (found == all_.end()) return std::nullopt;
  RecordedCall plain = call;
  plain.arguments[where->weight] = found->second.original;
  return plain;
}

void Pages::note(const RecordedCall& write) {
  const at::Tensor keys = tensor_of(named(write, {"key"})), values = tensor_of(named(write, {"value"}));
  const at::Tensor cache = tensor_of(named(write, {"key_cache"})), slots = tensor_of(named(write, {"slot_mapping"}));
  for (const at::Tensor& one : {keys, values, cache, slots})
    if (!one.defined()) return;
  if (!write.name.starts_with("_C::cpu_") || keys.dim() != 3 || cache.dim() != 4 || slots.numel() == 0) return;
  Cache& mine = caches_[cache.data_ptr()];
  if (!mine.keys.defined()) {
    const int64_t count = cache.size(0) * cache.size(2);
    mine.original = cache;
    mine.keys = at::empty({count, keys.size(1), keys.size(2)}, keys.options());  // memory that is written is used
    mine.values = at::empty({count, values.size(1), values.size(2)}, values.options());
    mine.known = at::zeros({count}, at::kBool);
  }
  const at::Tensor at = slots.to(at::kLong), real = at.ge(0).nonzero().squeeze(1);
  const at::Tensor there = at.index_select(0, real);
  mine.keys.index_copy_(0, there, keys.index_select(0, real));
  mine.values.index_copy_(0, there, values.index_select(0, real));
  mine.known.index_fill_(0, there, true);
}

std::optional<Sampled> Pages::plain(const RecordedCall& attention, const RowChoice& choice, bool all) const {
  const std::optional<Question> asked = question_of(attention);
  if (!asked || attention.results.empty()) return std::nullopt;
  const int64_t count = std::min(asked->q.size(0), asked->begins.back()), heads = asked->q.size(1);
  if (count < 1 || asked->lengths.size() + 1 != asked->begins.size()) return std::nullopt;
  std::vector<int64_t> rows = all ? evenly(count, count) : rows_of(count, choice);
  Seen seen = seen_by(*asked, rows);
  if (std::ssize(rows) * std::ssize(seen.slots) > kMostMask)
    rows = rows_of(count, choice), seen = seen_by(*asked, rows);
  const at::Device device = asked->q.device();
  const at::Tensor slots = index_of(seen.slots, device);
  at::Tensor keys, values;  // (keys, heads, D)
  if (asked->is_opaque) {
    const auto found = caches_.find(asked->keys.data_ptr());
    if (found == caches_.end() || !found->second.known.index_select(0, slots).all().item<bool>()) return std::nullopt;
    keys = found->second.keys.index_select(0, slots), values = found->second.values.index_select(0, slots);
  } else {
    const at::Tensor page = slots.div(asked->page_size, "floor"), place = slots.remainder(asked->page_size);
    keys = asked->keys.index({page, place}), values = asked->values.index({page, place});
  }
  const int64_t group = heads / keys.size(1);
  std::vector<int64_t> of_q = evenly(heads, all ? heads : 2), of_k;
  for (const int64_t head : of_q) of_k.push_back(head / group);
  if (all) of_k = evenly(keys.size(1), keys.size(1));
  const auto by_head = [&](const at::Tensor& x, const std::vector<int64_t>& which) {  // -> (1, heads, rows, D)
    return x.index_select(1, index_of(which, device)).transpose(0, 1).unsqueeze(0).contiguous();
  };
  const at::Tensor at_rows = index_of(rows, device);
  at::Tensor mask = at::zeros({std::ssize(rows), std::ssize(seen.slots)}, at::kBool);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto [begin, end] = seen.ranges[row];
    mask.select(0, static_cast<int64_t>(row)).narrow(0, begin, end - begin).fill_(true);
  }
  Sampled plain;
  plain.call = attention;
  plain.call.op.reset();
  plain.call.arguments = {by_head(asked->q.index_select(0, at_rows), of_q), by_head(keys, of_k), by_head(values, of_k),
                          mask.unsqueeze(0).unsqueeze(0).to(device), asked->scale};
  const at::Tensor out = attention.results[0].reshape({-1, heads, values.size(2)}).index_select(0, at_rows);
  plain.call.results = {by_head(out, of_q)};
  plain.how = {{"kind", "pages"}, {"rows", rows}, {"heads", of_q}};
  return plain;
}

}  // namespace faultline::diagnose
