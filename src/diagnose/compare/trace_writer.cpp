#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "diagnose/compare/probe_text.h"
#include "diagnose/compare/trace.h"
#include "diagnose/observation.h"
#include "model/checkpoint/safetensors_writer.h"
#include "numeric/apply.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kPartBytes = int64_t{1} << 26;
constexpr std::size_t kPartLines = 4096;
constexpr int64_t kChancesAtOnce = 512;  // rows
constexpr std::size_t kNoWeight = ~std::size_t{0};

std::string hexadecimal(int64_t digest) { return fmt::format("{:016x}", static_cast<uint64_t>(digest)); }

at::Tensor digest_of(const at::Tensor& x) { return numeric::digest(x.detach().contiguous()); }

// digest: of the bytes. rounded, small: of the values in bf16, and in fp16 and then bf16, which is what two types of
// one checkpoint have in common.
Json weights_json(const std::vector<NamedWeight>& weights) {
  const at::NoGradGuard no_gradients;
  Json json = Json::object();
  for (const NamedWeight& weight : weights) {
    const at::Tensor& x = weight.tensor;
    const auto said = [](const at::Tensor& values) { return hexadecimal(digest_of(values).item<int64_t>()); };
    Json& one = json[weight.name];
    one = {{"shape", x.sizes().vec()}, {"dtype", type_name(x.scalar_type())}, {"digest", said(x)}};
    one["rounded"] = said(x.is_floating_point() ? x.to(at::kBFloat16) : x);
    one["small"] = said(x.is_floating_point() ? x.to(at::kHalf).to(at::kBFloat16) : x);
  }
  return json;
}

std::string most_common_type(const std::vector<NamedWeight>& weights) {
  std::map<std::string, int64_t> elements;
  for (const NamedWeight& weight : weights) elements[type_name(weight.tensor.scalar_type())] += weight.tensor.numel();
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == elements.end() ? "" : most->first;
}

// As files hold it: what .safetensors of ours do not know becomes a type that loses nothing.
at::Tensor storable(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
    case at::kDouble:
    case at::kLong: return x;
    default: return x.to(x.is_floating_point() ? at::kFloat : at::kLong);
  }
}

// One copy of all small ones of a type, where thousands would each wait for the device.
void bring_to_host(std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  constexpr int64_t kSmall = 1 << 20;  // elements
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor*>> groups;
  for (auto& [name, tensor] : tensors)
    if (!tensor.device().is_cpu() && tensor.numel() <= kSmall)
      groups[{tensor.scalar_type(), tensor.device().str()}].push_back(&tensor);
  for (const auto& [key, group] : groups) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor* one : group) flat.push_back(one->reshape(-1));
    const at::Tensor all = at::cat(flat).to(at::kCPU);
    int64_t first = 0;
    for (at::Tensor* one : group) {
      const int64_t count = one->numel();
      *one = all.narrow(0, first, count).view(one->sizes());
      first += count;
    }
  }
}

// Numbers that a model computes: what only makes tensors or counts is left out.
bool is_computed(const RecordedCall& call) {
  return !call.results.empty() && call.results[0].is_floating_point() && call.results[0].numel() > 0;
}

}  // namespace

std::string tokens_digest(const std::vector<int64_t>& tokens) {
  return hexadecimal(digest_of(at::tensor(tokens, at::kLong)).item<int64_t>());
}

TraceWriter::TraceWriter(const std::filesystem::path& folder, TraceOptions options)
    : folder_(folder), options_(std::move(options)) {
  Json& header = options_.header;
  header["format"] = kTraceFormat, header["detail"] = detail_name(options_.detail);
  header["dtype"] = most_common_type(options_.weights), header["weights"] = weights_json(options_.weights);
  for (const NamedWeight& weight : options_.weights) {
    names_.emplace(weight.tensor.data_ptr(), weight.name);
    if (weight.tensor.dim() == 2) outputs_[weight.name] = weight.tensor.size(0);
    weights_.push_back(weight.tensor);
  }
  for (const PackedWeight& one : options_.packed) packed_.add(one.packed, one.original);
  options_.weights.clear(), options_.packed.clear();
  std::filesystem::create_directories(folder_);
  if (std::filesystem::exists(folder_ / "header.json")) {
    go_on();
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(folder_))  // folders may be other processes' traces
      if (!entry.is_directory())
        throw UsageError(folder_.string() + ": holds other files; a trace needs a folder of its own");
    write_file_atomically(folder_ / "header.json", to_json_text(options_.header, 1) + "\n");
  }
}

void TraceWriter::go_on() {
  if (std::filesystem::exists(folder_ / "end.json"))
    throw UsageError(folder_.string() + ": holds a whole trace; give another folder, or remove it");
  const std::filesystem::path path = folder_ / "header.json";
  const Json before = parse_json_text(read_file(path, std::size_t{1} << 28), path.string());
  for (const char* key : {"format", "detail", "engine", "role", "rank", "world", "device", "dtype", "weights"})
    if (before.value(key, Json()) != options_.header.value(key, Json()))
      throw UsageError(
          fmt::format("{}: holds a trace that was cut off and cannot be continued, its '{}' is another "
                      "one; remove it, or give another folder",
                      folder_.string(), key));
  while (std::filesystem::exists(folder_ / fmt::format("part-{:06}.jsonl", parts_))) {
    const std::filesystem::path part = folder_ / fmt::format("part-{:06}", parts_++);
    std::istringstream lines(read_file(part.string() + ".jsonl", std::size_t{1} << 32));
    for (std::string line; std::getline(lines, line);) {
      const Json json = parse_json_text(line, part.string() + ".jsonl");
      calls_ += json.contains("call"), forwards_ += json.contains("tokens");
    }
    std::error_code none;
    const auto size = std::filesystem::file_size(part.string() + ".safetensors", none);
    if (!none) bytes_ += static_cast<int64_t>(size);
  }
  ids_ = parts_ * 1'000'000'000;  // names of tensors that no part before has
}

bool TraceWriter::begin_forward(const std::string& kind, const at::Tensor& tokens, const at::Tensor& mask,
                                const at::Tensor& positions) {
  is_enough_ = options_.most_forwards > 0 && forwards_ >= options_.most_forwards;
  if (is_enough_) return false;
  rows_ = token_rows(kind, tokens, mask, positions, rows_);
  forward_choice_ = {tokens.defined() ? tokens.numel() : -1, chosen_rows(rows_, kSampledRows)};
  choice_ = forward_choice_, first_row_ = -1;
  const auto small = [&](const at::Tensor& x) { return x.defined() && x.dim() <= 2 ? stored(x, true, true) : Json(); };
  lines_.push_back({{"forward", forwards_++},
                    {"kind", kind},
                    {"tokens", small(tokens)},
                    {"mask", small(mask)},
                    {"positions", small(positions)}});
  in_forward_ = true;
  return true;
}

bool TraceWriter::go_on_with_forward(int64_t first_row, int64_t rows) {
  in_forward_ = forwards_ > 0 && !is_enough_;
  if (!in_forward_ || first_row < 0 || first_row + rows > std::ssize(rows_.keys)) return in_forward_;
  first_row_ = first_row;
  std::vector<int64_t> chosen;
  for (const int64_t row : forward_choice_.of_them)
    if (row >= first_row && row < first_row + rows) chosen.push_back(row - first_row);
  choice_ = {rows, chosen};
  return true;
}

void TraceWriter::end_forward() {
  in_forward_ = false;
  last_input_ = {}, first_row_ = -1, choice_ = forward_choice_;
  if (waiting_bytes_ > kPartBytes / 4 || lines_.size() > kPartLines / 4) flush();
}

void TraceWriter::finish() {
  flush();
  wait_for_part();
  write_file_atomically(
      folder_ / "end.json",
      to_json_text({{"calls", calls_}, {"forwards", forwards_}, {"parts", parts_}, {"bounded", bounded_}}) + "\n");
}

bool TraceWriter::wants(const OperatorFacts& facts) const {
  if (facts.is_cache_write) return in_forward_ && options_.detail != Detail::kDigest;
  if (!in_forward_ || facts.is_view || facts.name == "aten::_unsafe_view" ||  // a view that does not say so
      facts.name == "aten::scalar_tensor" || facts.name.find("::empty") != std::string::npos ||
      facts.name.find("::new_empty") != std::string::npos)  // numbers that nobody computed
    return false;
  if (options_.detail != Detail::kDigest) return true;
  return facts.name == "boundary" || (!facts.family.empty() && facts.family != "embedding" &&
                                      facts.family != "reduce" && facts.name != "aten::rsqrt");
}

Json TraceWriter::described(const at::Tensor& x) const {
  Json json = {{"dtype", type_name(x.scalar_type())}, {"shape", x.sizes().vec()}};
  const auto named = names_.find(x.data_ptr());
  if (named != names_.end()) json["parameter"] = named->second;
  return json;
}

// is_fresh: nobody else writes into it. is_always: beyond the limit, too, as tokens are.
Json TraceWriter::stored(const at::Tensor& x, bool is_fresh, bool is_always) {
  Json json = described(x);
  const int64_t size = x.numel() * static_cast<int64_t>(x.element_size());
  const std::tuple key(x.data_ptr(), x.sizes().vec(), x.strides().vec(), static_cast<int>(x.scalar_type()));
  if (const auto found = kept_.find(key); found != kept_.end()) {
    json["tensor"] = found->second.id;
    return json;
  }
  const std::string parameter = json.value("parameter", "");
  const std::string whole = parameter.empty() ? "" : fmt::format("{} {}", parameter, json["shape"].dump());
  if (const auto found = whole_weights_.find(whole); !whole.empty() && found != whole_weights_.end()) {
    json["tensor"] = found->second;
    return json;
  }
  if (!is_always && bytes_ + waiting_bytes_ + size > options_.most_bytes) {
    bounded_ = true;
    return json;
  }
  const std::string id = fmt::format("t{}", ids_++);
  tensors_.emplace_back(id, is_fresh || !parameter.empty() ? storable(x.detach()) : storable(x.detach()).clone());
  kept_[key] = {id, x};
  if (!whole.empty()) whole_weights_[whole] = id;
  waiting_bytes_ += size;
  json["tensor"] = id;
  return json;
}

Json TraceWriter::argument(const c10::IValue& value, bool is_fresh) {
  if (value.isNone()) return nullptr;
  if (value.isTensor()) return value.toTensor().defined() ? stored(value.toTensor(), is_fresh) : Json(nullptr);
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return Json{{"real", value.toDouble()}};
  if (value.isIntList()) return value.toIntVector();
  if (value.isDevice()) return Json{{"device", value.toDevice().str()}};
  if (value.isString()) return Json{{"text", value.toStringRef()}};
  if (value.isTensorList()) {
    Json list = Json::array();
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(stored(tensor, is_fresh));
    return Json{{"list", list}};
  }
  return Json{{"other", value.tagKind()}};
}

Json TraceWriter::line_of(const OperatorFacts& facts, const RecordedCall& call) const {
  const site::Place& place = site::place_of(call.place);
  Json line = {
      {"call", calls_},      {"forward", forwards_ - 1}, {"operator", facts.name}, {"overload", facts.overload},
      {"place", place.path}, {"layer", place.layer},     {"role", place.role},     {"family", facts.family},
      {"sample", nullptr}};
  if (first_row_ >= 0) line["first_row"] = first_row_;
  return line;
}

// The parts of a fused weight keep the columns that they would keep alone.
std::vector<int64_t> TraceWriter::columns_of(const std::string& place, int64_t count) const {
  const std::size_t dot = place.rfind('.');
  const std::string around = dot == std::string::npos ? "" : place.substr(0, dot + 1);
  std::vector<std::string> parts;
  if (place.ends_with("qkv_proj")) parts = {"q_proj", "k_proj", "v_proj"};
  if (place.ends_with("gate_up_proj")) parts = {"gate_proj", "up_proj"};
  std::vector<int64_t> columns;
  int64_t first = 0;
  for (const std::string& part : parts) {
    const auto known = outputs_.find(around + part + ".weight");
    if (known == outputs_.end()) break;
    for (const int64_t column : evenly(known->second, kSampledColumns)) columns.push_back(first + column);
    first += known->second;
  }
  return first == count && !columns.empty() ? columns : evenly(count, kSampledColumns);
}

// A call whose numbers are not kept.
void TraceWriter::list(const OperatorFacts& facts, const RecordedCall& call) {
  Json line = line_of(facts, call);
  line["shape"] = call.results[0].sizes().vec();
  line["results"] = Json::array({described(call.results[0])}), line["arguments"] = nullptr;
  lines_.push_back(std::move(line)), ++calls_;
}

void TraceWriter::take(const OperatorFacts& facts, RecordedCall&& call) {
  if (facts.is_cache_write) {
    pages_.note(call);
    return;
  }
  if (!is_computed(call)) return;
  const at::NoGradGuard no_gradients;
  if (lines_.size() > kPartLines || waiting_bytes_ > kPartBytes) flush();
  take_chances(call);
  if (options_.detail == Detail::kDigest) {
    take_digest(facts, call);
    return;
  }
  const bool is_sample = options_.detail == Detail::kSample;
  const std::optional<RecordedCall> plain = is_packed_product(call.name) ? packed_.unpacked(call) : std::nullopt;
  if (is_packed_product(call.name) && !plain) return list(facts, call);
  const RecordedCall& whole = plain ? *plain : call;
  std::optional<Sampled> part;
  const std::optional<int64_t> columns = product_columns(whole);
  std::size_t weight_at = kNoWeight;
  std::pair<const void*, std::size_t> weight;
  const auto known = [&] { return sampled_weights_.find(weight); };
  if (is_paged_attention(call.name)) {
    part = pages_.plain(call, choice_, /*all=*/!is_sample);
    if (!part) return list(facts, call);
  } else if (is_sample) {
    if (columns) {
      weight_at = product_arguments(whole)->weight;
      weight = {whole.tensor(weight_at).data_ptr(), static_cast<std::size_t>(*columns)};
    }
    part = sampled(whole, choice_,
                   columns ? columns_of(site::place_of(call.place).path, *columns) : std::vector<int64_t>{},
                   columns && known() != sampled_weights_.end() ? known()->second.second : at::Tensor());
    if (!part) return list(facts, call);
  }
  Json line = line_of(facts, call);
  line["shape"] = call.results[0].sizes().vec();
  if (part) line["sample"] = part->how;
  const RecordedCall& kept = part ? part->call : whole;
  const bool is_fresh = part && !part->how.is_null();
  Json arguments = Json::array(), results = Json::array();
  for (std::size_t i = 0; i < kept.arguments.size(); ++i) {
    if (i == weight_at) {  // the same columns of it at every call
      Json json = known() == sampled_weights_.end() ? stored(kept.tensor(i), true) : described(kept.tensor(i));
      if (known() != sampled_weights_.end())
        json["tensor"] = known()->second.first;
      else if (json.contains("tensor") && names_.contains(weight.first))
        sampled_weights_[weight] = {json["tensor"].get<std::string>(), kept.tensor(i)};
      arguments.push_back(std::move(json));
      continue;
    }
    arguments.push_back(argument(kept.arguments[i], is_fresh));
  }
  for (const at::Tensor& result : kept.results) results.push_back(stored(result, is_fresh || !facts.written.empty()));
  line["arguments"] = std::move(arguments), line["results"] = std::move(results);
  if (!facts.written.empty()) kept_.clear();  // an address that was written into means another tensor now
  lines_.push_back(std::move(line)), ++calls_;
}

void TraceWriter::take_digest(const OperatorFacts& facts, const RecordedCall& call) {
  Json line = line_of(facts, call);
  line["results"] = Json::array({described(call.results[0])});
  line["shape"] = call.results[0].sizes().vec(), line["arguments"] = nullptr;
  const auto product = product_arguments(call);
  const std::size_t number = lines_.size();
  if (product || facts.name == "boundary") {
    const at::Tensor x = call.tensor(product ? product->x : 0);
    if (!last_input_.first.defined() || last_input_.first.data_ptr() != x.data_ptr() ||
        last_input_.first.numel() != x.numel())
      last_input_ = {x, digest_of(x)};
    line["input"] = described(x);
    pending_.push_back({number, Json::json_pointer("/input/digest"), last_input_.second});
  } else {
    last_input_ = {};  // what it reads may be written by now
  }
  pending_.push_back({number, Json::json_pointer("/results/0/digest"), digest_of(call.results[0])});
  lines_.push_back(std::move(line)), ++calls_;
}

// What the head's logits give to the token that follows, in fp32.
void TraceWriter::take_chances(const RecordedCall& call) {
  if (site::place_of(call.place).role != "lm_head" || !product_arguments(call)) return;
  const at::Tensor logits = flat(call.results[0]);
  const int64_t first_row = std::max<int64_t>(0, first_row_), count = logits.size(0);
  if (count == 0 || (first_row_ < 0 && count != std::ssize(rows_.keys))) return;
  std::vector<int64_t> next(static_cast<std::size_t>(count));
  for (std::size_t row = 0; row < next.size(); ++row) {
    const int64_t after = rows_.following[static_cast<std::size_t>(first_row) + row];
    next[row] = after < 0 ? -1 : rows_.tokens[static_cast<std::size_t>(after)];
  }
  const at::Tensor token = at::tensor(next, at::kLong).to(logits.device());
  std::vector<at::Tensor> all;
  for (int64_t first = 0; first < logits.size(0); first += kChancesAtOnce) {
    const int64_t count = std::min(kChancesAtOnce, logits.size(0) - first);
    const at::Tensor piece = logits.narrow(0, first, count).to(at::kFloat);
    const at::Tensor index = token.narrow(0, first, count);
    all.push_back(piece.gather(1, index.clamp(0, logits.size(1) - 1).unsqueeze(1)).squeeze(1) - piece.logsumexp(1));
  }
  const at::Tensor chances = at::cat(all).masked_fill(token.lt(0), std::nan(""));
  lines_.push_back({{"logprobs", stored(chances, true, true)}, {"forward", forwards_ - 1}, {"first_row", first_row}});
}

void TraceWriter::flush() {
  if (lines_.empty()) return;
  if (!pending_.empty()) {
    std::vector<at::Tensor> digests;
    for (const Pending& one : pending_) digests.push_back(one.digest.reshape({}));
    const at::Tensor all = at::stack(digests).to(at::kCPU);
    for (std::size_t i = 0; i < pending_.size(); ++i)
      lines_[pending_[i].line][pending_[i].where] = hexadecimal(all.const_data_ptr<int64_t>()[i]);
    pending_.clear();
  }
  wait_for_part();
  const bool from_device =
      std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) { return !one.second.device().is_cpu(); });
  bring_to_host(tensors_);
  auto write = [part = folder_ / fmt::format("part-{:06}", parts_), tensors = std::move(tensors_),
                lines = std::move(lines_)]() -> int64_t {
    if (!tensors.empty()) model::write_safetensors(part.string() + ".safetensors", tensors, {{"format", kTraceFormat}});
    std::string text;
    for (const Json& line : lines) text += to_json_text(line) + "\n";
    write_file_atomically(part.string() + ".jsonl", text);
    return std::ssize(text);
  };
  bytes_ += waiting_bytes_;
  // On a CPU a thread beside it would only take from what is measured.
  part_ = std::async(from_device ? std::launch::async : std::launch::deferred, std::move(write));
  if (!from_device) wait_for_part();
  lines_.clear(), tensors_.clear(), kept_.clear();
  waiting_bytes_ = 0, ++parts_;
}

// Parts appear in their order, one being written at a time. What went wrong there is said here.
void TraceWriter::wait_for_part() {
  if (part_.valid()) bytes_ += part_.get();
}

}  // namespace faultline::diagnose
