#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/safetensors_header.h"
#include "base/json.h"
#include "diagnose/compare/compare.h"
#include "model/checkpoint/safetensors_writer.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

constexpr const char* kFormat = "faultline-trace-1";
constexpr std::size_t kLargestFile = std::size_t{1} << 36;

class Writer {
 public:
  bool add(const RecordedCall& call) {
    if (!call.op || call.results.empty() || !call.results[0].is_floating_point() || tap::family_of(call.name).empty() ||
        overwritten(call))
      return false;
    Json arguments = Json::array();
    for (const c10::IValue& value : call.arguments) {
      std::optional<Json> written = argument(value);
      if (!written) return false;
      arguments.push_back(std::move(*written));
    }
    const c10::OperatorName& name = call.op->operator_name();
    calls_.push_back({{"name", name.name},
                      {"overload", name.overload_name},
                      {"place", site::place_of(call.place).path},
                      {"arguments", arguments},
                      {"result", tensor(call.results[0])}});
    return true;
  }

  void write(const std::filesystem::path& path) const {
    model::write_safetensors(path, tensors_, {{"format", kFormat}, {"calls", to_json_text(calls_)}});
  }
  int64_t count() const { return std::ssize(calls_); }

 private:
  int64_t tensor(const at::Tensor& x) {
    const auto [found, fresh] =
        index_.try_emplace(std::tuple(x.data_ptr(), x.sizes().vec(), x.strides().vec()), std::ssize(tensors_));
    if (fresh) tensors_.emplace_back(fmt::format("t{}", tensors_.size()), x), kept_.push_back(x);
    return found->second;
  }

  std::optional<Json> argument(const c10::IValue& value) {
    if (value.isNone()) return Json(nullptr);
    if (value.isTensor())
      return value.toTensor().defined() ? Json{{"tensor", tensor(value.toTensor())}} : Json(nullptr);
    if (value.isBool()) return Json(value.toBool());
    if (value.isInt()) return Json(value.toInt());
    if (value.isDouble()) return Json{{"real", value.toDouble()}};
    if (value.isIntList()) return Json(value.toIntVector());
    return std::nullopt;
  }

  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::vector<at::Tensor> kept_;  // so that no address is used twice
  std::map<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>>, int64_t> index_;
  Json calls_ = Json::array();
};

std::optional<at::ScalarType> stored_type(const std::string& name) {
  static const std::map<std::string, at::ScalarType> types = {
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}, {"F64", at::kDouble}, {"I64", at::kLong}};
  const auto found = types.find(name);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), bytes_(read_file(path, kLargestFile)) {
    const std::string_view all = bytes_;
    const uint64_t size = safetensors_header_size(all.substr(0, kSafetensorsPrefix), all.size(), path);
    const std::string_view header = all.substr(kSafetensorsPrefix, size), data = all.substr(kSafetensorsPrefix + size);
    const Json json = parse_json_text(header, path.string());
    const auto said = [&](const char* name) {
      const auto metadata = json.find("__metadata__");
      const bool there = metadata != json.end() && metadata->is_object() && metadata->contains(name);
      return there && (*metadata)[name].is_string() ? (*metadata)[name].get<std::string>() : std::string();
    };
    if (said("format") != kFormat)
      throw UsageError(fmt::format("{}: no trace of `faultline compare --record`", path.string()));
    calls_ = parse_json_text(said("calls"), path.string() + ": calls");
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

  std::vector<RecordedCall> calls() const {
    std::vector<RecordedCall> all;
    try {
      for (const Json& one : calls_) all.push_back(call(one));
    } catch (const Json::exception& error) {
      throw RuntimeFailure(fmt::format("{}: a call is malformed: {}", path_.string(), error.what()));
    } catch (const c10::Error& error) {
      throw RuntimeFailure(
          fmt::format("{}: a call does not fit its operator: {}", path_.string(), error.what_without_backtrace()));
    }
    return all;
  }

 private:
  at::Tensor tensor(const Json& index) const {
    const auto found = tensors_.find(fmt::format("t{}", index.get<int64_t>()));
    if (found == tensors_.end()) throw RuntimeFailure(path_.string() + ": a call names a tensor that is not there");
    return found->second;
  }

  RecordedCall call(const Json& json) const {
    RecordedCall call;
    call.name = json.at("name").get<std::string>();
    if (tap::family_of(call.name).empty())
      throw RuntimeFailure(fmt::format("{}: '{}' is no operator that is compared", path_.string(), call.name));
    const auto op = c10::Dispatcher::singleton().findSchema({call.name, json.at("overload").get<std::string>()});
    if (!op) throw RuntimeFailure(fmt::format("{}: this torch has no operator '{}'", path_.string(), call.name));
    call.op = *op;
    call.place = site::place_id(json.at("place").get<std::string>());
    for (const Json& value : json.at("arguments")) call.arguments.push_back(argument(value));
    op->schema().checkAndNormalizeInputs(call.arguments, {});
    call.results = {tensor(json.at("result"))};
    return call;
  }

  c10::IValue argument(const Json& value) const {
    if (value.is_null()) return {};
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_integer()) return value.get<int64_t>();
    if (value.is_array()) return value.get<std::vector<int64_t>>();
    if (value.contains("real")) return number_from_json(value.at("real"), path_.string());
    return tensor(value.at("tensor"));
  }

  std::filesystem::path path_;
  std::string bytes_;
  Json calls_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace

int64_t write_trace(const std::filesystem::path& path, const std::vector<RecordedCall>& calls) {
  Writer writer;
  for (const RecordedCall& call : calls) writer.add(call);
  writer.write(path);
  return writer.count();
}

std::vector<RecordedCall> read_trace(const std::filesystem::path& path) { return Reader(path).calls(); }

bool is_trace(const std::string& name) { return name.ends_with(".safetensors"); }

}  // namespace faultline::diagnose
