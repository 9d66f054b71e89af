#include "diagnose/compare/trace.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/safetensors_header.h"

namespace faultline::diagnose {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 36;

const std::map<std::string, at::ScalarType>& types() {
  static const std::map<std::string, at::ScalarType> all = {{"fp32", at::kFloat},
                                                            {"bf16", at::kBFloat16},
                                                            {"fp16", at::kHalf},
                                                            {"fp64", at::kDouble},
                                                            {"int64", at::kLong},
                                                            {"int32", at::kInt},
                                                            {"bool", at::kBool},
                                                            {"int8", at::kChar},
                                                            {"uint8", at::kByte},
                                                            {"int16", at::kShort},
                                                            {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                            {"float8_e5m2", at::kFloat8_e5m2}};
  return all;
}

std::optional<at::ScalarType> stored_type(const std::string& name) {
  static const std::map<std::string, at::ScalarType> stored = {
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}, {"F64", at::kDouble}, {"I64", at::kLong}};
  const auto found = stored.find(name);
  return found == stored.end() ? std::nullopt : std::optional(found->second);
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& folder) : folder_(folder) {}

  Trace read() {
    trace_.path = folder_;
    trace_.header = read_header();
    for (int64_t part = 0; std::filesystem::exists(folder_ / fmt::format("part-{:06}.jsonl", part)); ++part) {
      const std::filesystem::path lines = folder_ / fmt::format("part-{:06}.jsonl", part);
      const std::filesystem::path tensors = folder_ / fmt::format("part-{:06}.safetensors", part);
      if (std::filesystem::exists(tensors)) read_tensors(tensors);
      read_lines(lines);
    }
    check_end();
    return std::move(trace_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(fmt::format("{}: {}", folder_.string(), what));
  }
  [[noreturn]] void damaged(const std::string& what) const {
    throw RuntimeFailure(fmt::format("{}: {}", folder_.string(), what));
  }

  Json read_header() const {
    const std::string remedy =
        "; record with `python -m faultline --trace DIR script.py` or `faultline compare --record DIR`";
    if (!std::filesystem::exists(folder_)) refuse("there is no such trace");
    if (!std::filesystem::is_directory(folder_)) {
      const std::string format = tensor_file_format(folder_);
      refuse(fmt::format("is no trace but a file{}; a trace is a folder with a header.json",
                         format.empty() ? "" : " of " + format) +
             remedy);
    }
    const std::filesystem::path path = folder_ / "header.json";
    if (!std::filesystem::exists(path)) {
      std::string inside;
      for (const auto& entry : std::filesystem::directory_iterator(folder_))
        if (entry.is_directory() && std::filesystem::exists(entry.path() / "header.json"))
          inside += (inside.empty() ? "" : ", ") + entry.path().string();
      if (!inside.empty()) refuse("is a folder of traces of several processes; give one of them: " + inside);
      refuse("is no trace of ours: it has no header.json (another library's dump?)" + remedy);
    }
    Json header = parse_json_text(read_file(path, kLargestFile), path.string());
    if (!header.is_object() || header.value("format", "") != kTraceFormat)
      refuse(fmt::format("is no trace of ours: the format in its header.json is not {} (another library's dump?)",
                         kTraceFormat) +
             remedy);
    (void)detail_by_name(header.value("detail", ""));
    if (!header.contains("weights") || !header["weights"].is_object()) damaged("header.json lists no weights");
    return header;
  }

  void check_end() {
    const std::filesystem::path path = folder_ / "end.json";
    if (!std::filesystem::exists(path))
      refuse(
          fmt::format("was cut off after {} calls: there is no end.json; let the recording go on in the same folder, "
                      "or record again",
                      trace_.calls.size()));
    const Json end = parse_json_text(read_file(path, kLargestFile), path.string());
    if (end.value("calls", int64_t{-1}) != std::ssize(trace_.calls) ||
        end.value("forwards", int64_t{-1}) != std::ssize(trace_.forwards))
      refuse(fmt::format("parts are missing: end.json promises {} calls, {} are there", end.value("calls", int64_t{-1}),
                         trace_.calls.size()));
    trace_.bounded = end.value("bounded", false);
  }

  void read_tensors(const std::filesystem::path& path) {
    const std::string bytes = read_file(path, kLargestFile);
    const std::string_view all = bytes;
    const uint64_t size = safetensors_header_size(all.substr(0, kSafetensorsPrefix), all.size(), path);
    const std::string_view header = all.substr(kSafetensorsPrefix, size), data = all.substr(kSafetensorsPrefix + size);
    for (const SafetensorsEntry& entry : parse_safetensors_header(header, data.size(), path)) {
      const std::optional<at::ScalarType> dtype = stored_type(entry.dtype);
      if (!dtype)
        throw RuntimeFailure(fmt::format("{}: {}: type {} is not expected", path.string(), entry.name, entry.dtype));
      check_safetensors_bytes(entry, at::elementSize(*dtype), path);
      at::Tensor tensor = at::empty(entry.sizes, *dtype);
      if (entry.end > entry.begin) std::memcpy(tensor.data_ptr(), data.data() + entry.begin, entry.end - entry.begin);
      tensors_[entry.name] = std::move(tensor);
    }
  }

  void read_lines(const std::filesystem::path& path) {
    std::istringstream lines(read_file(path, kLargestFile));
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::string where = fmt::format("{}:{}", path.string(), ++number);
      const Json json = parse_json_text(line, where);
      try {
        if (json.contains("call"))
          trace_.calls.push_back(call(json));
        else if (json.contains("logprobs"))
          take_chances(json);
        else
          read_forward(json);
      } catch (const Json::exception& error) {
        throw RuntimeFailure(fmt::format("{}: a line is malformed: {}", where, error.what()));
      } catch (const std::out_of_range&) {
        throw RuntimeFailure(where + ": belongs to a forward that is not there");
      } catch (const c10::Error& error) {
        throw RuntimeFailure(
            fmt::format("{}: a call does not fit its operator: {}", where, error.what_without_backtrace()));
      }
    }
  }

  void take_chances(const Json& json) {
    TracedForward& forward = trace_.forwards.at(json.at("forward").get<std::size_t>());
    const at::Tensor some = tensor(json.at("logprobs")).to(at::kFloat).reshape(-1);
    const int64_t first = json.value("first_row", int64_t{0}), rows = std::ssize(forward.rows.keys);
    if (first < 0 || first + some.numel() > rows) throw std::out_of_range("rows");
    if (!forward.chances.defined()) forward.chances = at::full({rows}, std::nan(""), at::kFloat);
    at::Tensor there = forward.chances.narrow(0, first, some.numel());
    there.copy_(at::where(some.isnan(), there, some));
  }

  void read_forward(const Json& json) {
    TracedForward forward;
    forward.kind = json.at("kind").get<std::string>();
    const auto given = [&](const char* key) { return json.at(key).is_null() ? at::Tensor() : tensor(json.at(key)); };
    static const TokenRows none;
    forward.rows = token_rows(forward.kind, given("tokens"), given("mask"), given("positions"),
                              trace_.forwards.empty() ? none : trace_.forwards.back().rows);
    trace_.forwards.push_back(std::move(forward));
  }

  at::Tensor tensor(const Json& json) const {
    const auto found = tensors_.find(json.at("tensor").get<std::string>());
    if (found == tensors_.end()) throw RuntimeFailure(folder_.string() + ": a line names a tensor that is not there");
    const auto type = types().find(json.at("dtype").get<std::string>());
    if (type == types().end())
      throw RuntimeFailure(fmt::format("{}: type {} is not known", folder_.string(), json.at("dtype").dump()));
    return found->second.to(type->second);
  }

  TracedCall call(const Json& json) const {
    TracedCall traced;
    traced.number = json.at("call").get<int64_t>(), traced.forward = json.at("forward").get<int64_t>();
    if (traced.forward < 0 || traced.forward >= std::ssize(trace_.forwards)) throw std::out_of_range("forward");
    traced.family = json.at("family").get<std::string>();
    traced.sample = json.at("sample");
    traced.first_row = json.value("first_row", int64_t{-1});
    traced.shape = json.at("shape").get<std::vector<int64_t>>();
    RecordedCall& call = traced.call;
    call.name = json.at("operator").get<std::string>(), call.overload = json.at("overload").get<std::string>();
    call.place = site::place_id(json.at("place").get<std::string>());
    // Kernels of libraries are judged and never called again: what stands in a trace may be in another's layout.
    if (!call.name.starts_with("_")) call.op = c10::Dispatcher::singleton().findSchema({call.name, call.overload});
    if (trace_.header.value("device", "cpu").starts_with("cuda")) call.machine = at::Device(at::kCUDA, 0);
    if (json.contains("input")) traced.input_digest = json["input"].value("digest", "");
    const Json& results = json.at("results");
    if (!results.empty()) traced.result_digest = results[0].value("digest", "");
    if (json.at("arguments").is_null()) return traced;
    traced.is_stored = true;
    for (const Json& value : json.at("arguments")) call.arguments.push_back(argument(value, traced.is_stored));
    for (const Json& result : results) {
      traced.is_stored = traced.is_stored && result.contains("tensor");
      if (traced.is_stored) call.results.push_back(tensor(result));
    }
    if (traced.is_stored && call.op) call.op->schema().checkAndNormalizeInputs(call.arguments, {});
    return traced;
  }

  c10::IValue argument(const Json& value, bool& stored) const {
    if (value.is_null()) return {};
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_integer()) return value.get<int64_t>();
    if (value.is_array()) return value.get<std::vector<int64_t>>();
    if (value.contains("real")) return number_from_json(value.at("real"), folder_.string());
    if (value.contains("text")) return value.at("text").get<std::string>();
    if (value.contains("device")) return at::Device(at::kCPU);  // it is judged here
    if (value.contains("list")) {
      c10::List<at::Tensor> list;
      for (const Json& one : value.at("list")) {
        stored = stored && one.contains("tensor");
        if (stored) list.push_back(tensor(one));
      }
      return list;
    }
    stored = stored && value.contains("tensor");
    return stored ? c10::IValue(tensor(value)) : c10::IValue();
  }

  std::filesystem::path folder_;
  Trace trace_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace

Detail detail_by_name(const std::string& name) {
  if (name == "digest") return Detail::kDigest;
  if (name == "sample") return Detail::kSample;
  if (name == "full") return Detail::kFull;
  throw UsageError(fmt::format("the detail of a trace is digest, sample or full; got '{}'", name));
}

std::string detail_name(Detail detail) {
  return detail == Detail::kDigest ? "digest" : detail == Detail::kSample ? "sample" : "full";
}

std::string type_name(at::ScalarType type) {
  for (const auto& [name, one] : types())
    if (one == type) return name;
  return c10::toString(type);
}

std::string Trace::said(const char* key) const {
  const auto found = header.find(key);
  return found != header.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Trace read_trace(const std::filesystem::path& path) { return Reader(path).read(); }

bool is_trace(const std::string& name) {
  std::error_code none;
  if (std::filesystem::exists(name + "/header.json", none)) return true;
  const std::string device = name.substr(0, name.find(':'));
  for (const char* known : {"cpu", "cuda", "npu", "xpu", "hpu"})
    if (device == known) return false;
  return std::filesystem::exists(name, none) || name.find('/') != std::string::npos;
}

}  // namespace faultline::diagnose
