#include "model/checkpoint/gguf.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/mapped_file.h"

namespace faultline::model {

struct GgufFile::State {
  explicit State(const std::filesystem::path& path) : file(path), content(parse_gguf(file.bytes(), path.string())) {}
  MappedFile file;
  GgufContent content;
};

GgufFile::GgufFile(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
GgufFile::~GgufFile() = default;

const std::filesystem::path& GgufFile::path() const { return state_->file.path(); }
const std::map<std::string, GgufValue>& GgufFile::values() const { return state_->content.values; }
const std::map<std::string, GgufTensor>& GgufFile::tensors() const { return state_->content.tensors; }

const GgufValue* GgufFile::find(const std::string& key) const {
  const auto found = values().find(key);
  return found == values().end() ? nullptr : &found->second;
}

namespace {

template <typename T>
const T& required(const GgufFile& file, const std::string& key, const char* wanted) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) throw UsageError(fmt::format("{}: the key '{}' is missing", file.path().string(), key));
  if (const T* typed = std::get_if<T>(value)) return *typed;
  throw UsageError(fmt::format("{}: the key '{}' is not {}", file.path().string(), key, wanted));
}

}  // namespace

int64_t GgufFile::integer(const std::string& key) const { return required<int64_t>(*this, key, "an integer"); }
const std::string& GgufFile::text(const std::string& key) const { return required<std::string>(*this, key, "a text"); }
const std::vector<std::string>& GgufFile::texts(const std::string& key) const {
  return required<std::vector<std::string>>(*this, key, "a list of texts");
}
double GgufFile::number(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value != nullptr && std::holds_alternative<int64_t>(*value)) {
    return static_cast<double>(std::get<int64_t>(*value));
  }
  return required<double>(*this, key, "a number");
}

void GgufFile::check_unchanged() const { state_->file.check_unchanged(); }
void GgufFile::forget(std::span<const std::byte> bytes) const { state_->file.forget(bytes); }

}  // namespace faultline::model
