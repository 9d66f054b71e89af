#include "model/checkpoint/safetensors_folder.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/json.h"

namespace faultline::model {
namespace {

constexpr std::size_t kMaxIndexBytes = std::size_t{256} << 20;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& complaint) {
  throw UsageError(fmt::format("{}: {}", path.string(), complaint));
}

// A file beside the index, never a path out of the folder.
std::filesystem::path shard_path(const std::filesystem::path& index, const std::string& tensor, const Json& file) {
  const std::string name = file.is_string() ? file.get<std::string>() : "";
  const bool plain = name.ends_with(".safetensors") && name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
  if (!plain) refuse(index, fmt::format("weight_map: '{}': wanted the name of a .safetensors file", tensor));
  return index.parent_path() / name;
}

uint64_t element_size(const std::string& dtype) {
  return dtype == "F32" ? 4 : dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

[[noreturn]] void refuse_without_weights(const std::filesystem::path& folder) {
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (std::filesystem::exists(folder / pickle)) {
      refuse(folder,
             fmt::format("holds {}, a pickle, which can run code and is never loaded; save it as safetensors", pickle));
    }
  }
  refuse(folder, "holds neither model.safetensors nor model.safetensors.index.json");
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  const auto single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(index)) {
    add_shards(index);
  } else if (std::filesystem::exists(single)) {
    add_file(single);
  } else {
    refuse_without_weights(folder);
  }
}

void SafetensorsFolder::add_file(const std::filesystem::path& path) {
  auto file = std::make_unique<MappedFile>(path);
  const std::size_t size = file->bytes().size();
  const std::string_view prefix = file->text(0, std::min<std::size_t>(size, kSafetensorsPrefix));
  const uint64_t header_size = safetensors_header_size(prefix, size, path);
  const uint64_t data = kSafetensorsPrefix + header_size;
  const auto entries = parse_safetensors_header(file->text(kSafetensorsPrefix, header_size), size - data, path);
  for (const SafetensorsEntry& entry : entries) {
    if (const uint64_t bytes = element_size(entry.dtype); bytes != 0) check_safetensors_bytes(entry, bytes, path);
    SafetensorsTensor tensor{entry.sizes, entry.dtype,
                             file->bytes().subspan(data + entry.begin, entry.end - entry.begin), files_.size()};
    if (!tensors_.emplace(entry.name, std::move(tensor)).second) {
      refuse(path, fmt::format("tensor '{}' is in {} too", entry.name,
                               files_[tensors_.at(entry.name).file]->path().filename().string()));
    }
  }
  files_.push_back(std::move(file));
}

void SafetensorsFolder::add_shards(const std::filesystem::path& index) {
  const Json json = parse_json_text(read_file(index, kMaxIndexBytes), index.string());
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    refuse(index, "weight_map: wanted an object from tensors to files");
  }
  std::map<std::string, std::filesystem::path> places;
  std::set<std::filesystem::path> shards;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    shards.insert(places[tensor] = shard_path(index, tensor, file));
  }
  for (const std::filesystem::path& shard : shards) {
    if (!std::filesystem::exists(shard)) refuse(index, fmt::format("weight_map: {} is not there", shard.string()));
    add_file(shard);
  }
  for (const auto& [tensor, shard] : places) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || file(found->second.file).path() != shard) {
      refuse(index, fmt::format("weight_map: {} does not hold the tensor '{}'", shard.string(), tensor));
    }
  }
}

}  // namespace faultline::model
