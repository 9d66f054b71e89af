// The .safetensors files of a Hugging Face folder as one map of tensors: model.safetensors, or the files that
// model.safetensors.index.json names. Memory-mapped; torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"

namespace faultline::model {

struct SafetensorsTensor {
  std::vector<int64_t> sizes;
  std::string dtype;                 // as the file says
  std::span<const std::byte> bytes;  // as many as sizes and dtype say, for F32, F16 and BF16
  std::size_t file = 0;
};

class SafetensorsFolder {
 public:
  // UsageError where the folder does not hold what it should, RuntimeFailure where a file is damaged.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const std::map<std::string, SafetensorsTensor>& tensors() const { return tensors_; }
  const MappedFile& file(std::size_t index) const { return *files_[index]; }

 private:
  void add_file(const std::filesystem::path& path);
  void add_shards(const std::filesystem::path& index);

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::map<std::string, SafetensorsTensor> tensors_;
};

}  // namespace faultline::model
