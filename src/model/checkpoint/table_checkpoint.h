// What both kinds of checkpoint share: a map from names to where the bytes are, complete before the first read. A file
// must hold every tensor of its configuration, with the right sizes, and nothing that the model would leave unread.
#pragma once

#include <map>
#include <set>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/tensor_table.h"
#include "model/checkpoint/weight_rows.h"

namespace faultline::model {

struct StoredWeight {
  std::vector<int64_t> sizes;  // Hugging Face
  WeightRows rows;
  std::size_t file = 0;  // which of the checkpoint's files
};

class TableCheckpoint : public Checkpoint {
 public:
  const ModelConfig& config() const override { return config_; }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return weights_.contains(name); }
  std::vector<int64_t> sizes(const std::string& name) const override { return find(name).sizes; }
  at::Tensor read(const std::string& name, at::ScalarType dtype) const override;
  std::filesystem::path path() const override { return path_; }

 protected:
  TableCheckpoint(std::filesystem::path path, ModelConfig config)
      : config_(std::move(config)), path_(std::move(path)) {}

  virtual std::filesystem::path file_path(std::size_t file) const = 0;
  virtual void check_unchanged(std::size_t file) const = 0;
  virtual void forget(std::size_t file, std::span<const std::byte> bytes) const = 0;

  // UsageError naming the tensor that is missing, or present and unknown (`used`: stored names that were matched).
  [[noreturn]] void missing(const TensorPlace& place, const std::string& stored_name) const;
  void refuse_unknown(const std::set<std::string>& stored, const std::set<std::string>& used) const;
  void check_sizes(const std::string& stored_name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& wanted) const;

  const ModelConfig config_;
  std::map<std::string, StoredWeight> weights_;

 private:
  const StoredWeight& find(const std::string& name) const;

  std::filesystem::path path_;
};

std::unique_ptr<Checkpoint> open_gguf_checkpoint(const std::filesystem::path& path);
std::unique_ptr<Checkpoint> open_safetensors_folder(const std::filesystem::path& path);

}  // namespace faultline::model
