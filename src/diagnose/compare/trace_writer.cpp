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
  options_.weights.clear();
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
  choice_ = {tokens.defined() ? tokens.numel() : -1, chosen_rows(rows_, kSampledRows)};
  const auto small = [&](const at::Tensor& x) { return x.defined() && x.dim() <= 2 ? stored(x, true, true) : Json(); };
  lines_.push_back({{"forward", forwards_++},
                    {"kind", kind},
                    {"tokens", small(tokens)},
                    {"mask", small(mask)},
                    {"positions", small(positions)}});
  in_forward_ = true;
  return true;
}

bool TraceWriter::go_on_with_forward() {
  in_forward_ = forwards_ > 0 && !is_enough_;
  return in_forward_;
}

void TraceWriter::end_forward() {
  in_forward_ = false;
  last_input_ = {};
  if (waiting_bytes_ > kPartBytes / 4 || lines_.size() > kPartLines / 4) flush();
}

void TraceWriter::finish() {
  flush();
  write_file_atomically(
      folder_ / "end.json",
      to_json_text({{"calls", calls_}, {"forwards", forwards_}, {"parts", parts_}, {"bounded", bounded_}}) + "\n");
}

bool TraceWriter::wants(const OperatorFacts& facts) const {
  if (!in_forward_ || facts.is_view || facts.name.find("::empty") != std::string::npos ||
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
  return {{"call", calls_},      {"forward", forwards_ - 1}, {"operator", facts.name}, {"overload", facts.overload},
          {"place", place.path}, {"layer", place.layer},     {"role", place.role},     {"family", facts.family},
          {"sample", nullptr}};
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

void TraceWriter::take(const OperatorFacts& facts, RecordedCall&& call) {
  if (!is_computed(call)) return;
  const at::NoGradGuard no_gradients;
  if (lines_.size() > kPartLines || waiting_bytes_ > kPartBytes) flush();
  take_chances(call);
  if (options_.detail == Detail::kDigest) {
    take_digest(facts, call);
    return;
  }
  Json line = line_of(facts, call);
  line["shape"] = call.results[0].sizes().vec();
  const bool is_sample = options_.detail == Detail::kSample;
  std::optional<Sampled> part;
  std::optional<int64_t> columns = product_columns(call);
  const void* weight = nullptr;
  std::size_t weight_at = 0;
  if (is_sample) {
    if (columns) {
      weight_at = *product_input(call.name) + 1;
      weight = call.tensor(weight_at).data_ptr();
    }
    part = sampled(call, choice_,
                   columns ? columns_of(site::place_of(call.place).path, *columns) : std::vector<int64_t>{});
    if (!part) {
      line["results"] = Json::array({described(call.results[0])});
      line["arguments"] = nullptr;
      lines_.push_back(std::move(line)), ++calls_;
      return;
    }
    line["sample"] = part->how;
  }
  const RecordedCall& kept = part ? part->call : call;
  Json arguments = Json::array(), results = Json::array();
  for (std::size_t i = 0; i < kept.arguments.size(); ++i) {
    if (weight != nullptr && i == weight_at) {  // the same rows of it at every call
      const auto known = sampled_weights_.find({weight, columns ? static_cast<std::size_t>(*columns) : 0});
      if (known != sampled_weights_.end()) {
        Json json = described(kept.tensor(i));
        json["tensor"] = known->second;
        arguments.push_back(std::move(json));
        continue;
      }
      Json json = stored(kept.tensor(i), true);
      if (json.contains("tensor") && names_.contains(weight))
        sampled_weights_[{weight, static_cast<std::size_t>(*columns)}] = json["tensor"].get<std::string>();
      arguments.push_back(std::move(json));
      continue;
    }
    arguments.push_back(argument(kept.arguments[i], is_sample));
  }
  for (const at::Tensor& result : kept.results) results.push_back(stored(result, is_sample || !facts.written.empty()));
  line["arguments"] = std::move(arguments), line["results"] = std::move(results);
  if (!facts.written.empty()) kept_.clear();  // an address that was written into means another tensor now
  lines_.push_back(std::move(line)), ++calls_;
}

void TraceWriter::take_digest(const OperatorFacts& facts, const RecordedCall& call) {
  Json line = line_of(facts, call);
  line["results"] = Json::array({described(call.results[0])});
  line["shape"] = call.results[0].sizes().vec(), line["arguments"] = nullptr;
  const auto input = product_input(facts.name);
  const std::size_t number = lines_.size();
  if (input || facts.name == "boundary") {
    const at::Tensor x = call.tensor(input.value_or(0));
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
  if (site::place_of(call.place).role != "lm_head" || !product_columns(call)) return;
  const at::Tensor logits = flat(call.results[0]);
  if (logits.size(0) != std::ssize(rows_.keys) || logits.size(0) == 0) return;
  std::vector<int64_t> next(rows_.keys.size());
  for (std::size_t row = 0; row < next.size(); ++row)
    next[row] = rows_.following[row] < 0 ? -1 : rows_.tokens[static_cast<std::size_t>(rows_.following[row])];
  const at::Tensor token = at::tensor(next, at::kLong).to(logits.device());
  std::vector<at::Tensor> all;
  for (int64_t first = 0; first < logits.size(0); first += kChancesAtOnce) {
    const int64_t count = std::min(kChancesAtOnce, logits.size(0) - first);
    const at::Tensor piece = logits.narrow(0, first, count).to(at::kFloat);
    const at::Tensor index = token.narrow(0, first, count);
    all.push_back(piece.gather(1, index.clamp(0, logits.size(1) - 1).unsqueeze(1)).squeeze(1) - piece.logsumexp(1));
  }
  const at::Tensor chances = at::cat(all).masked_fill(token.lt(0), std::nan(""));
  lines_.push_back({{"logprobs", stored(chances, true, true)}, {"forward", forwards_ - 1}});
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
  const std::filesystem::path part = folder_ / fmt::format("part-{:06}", parts_);
  if (!tensors_.empty()) {
    model::write_safetensors(part.string() + ".safetensors", tensors_, {{"format", kTraceFormat}});
    bytes_ += static_cast<int64_t>(std::filesystem::file_size(part.string() + ".safetensors"));
  }
  std::string text;
  for (const Json& line : lines_) text += to_json_text(line) + "\n";
  write_file_atomically(part.string() + ".jsonl", text);
  bytes_ += std::ssize(text);
  lines_.clear(), tensors_.clear(), kept_.clear();
  waiting_bytes_ = 0, ++parts_;
}

}  // namespace faultline::diagnose
