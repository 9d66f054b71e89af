// A GGUF file under Hugging Face's names: the table says where each tensor is; of a tensor that holds all experts, each
// expert is a run of rows.
#include <fmt/format.h>

#include "base/error.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_blocks.h"
#include "model/checkpoint/table_checkpoint.h"

namespace faultline::model {
namespace {

class GgufCheckpoint final : public TableCheckpoint {
 public:
  explicit GgufCheckpoint(std::unique_ptr<GgufFile> file)
      : TableCheckpoint(file->path(), read_config(*file)), file_(std::move(file)) {
    std::set<std::string> stored, used;
    for (const auto& [name, tensor] : file_->tensors()) stored.insert(name);
    for (const TensorPlace& place : tensor_table(config_)) {
      const auto found = file_->tensors().find(place.gguf);
      if (found == file_->tensors().end()) missing(place, place.gguf);
      used.insert(place.gguf);
      weights_.emplace(place.name, stored_weight(place, found->second));
    }
    refuse_unknown(stored, used);
  }

 private:
  StoredWeight stored_weight(const TensorPlace& place, const GgufTensor& tensor) const {
    std::vector<int64_t> wanted = place.sizes;
    if (place.expert >= 0) wanted.insert(wanted.begin(), config_.moe.experts);
    if (wanted == std::vector<int64_t>{1, config_.hidden} && tensor.sizes.size() == 1) wanted.erase(wanted.begin());
    check_sizes(place.gguf, tensor.sizes, wanted);
    const std::size_t share =
        place.expert >= 0 ? tensor.bytes.size() / static_cast<std::size_t>(config_.moe.experts) : tensor.bytes.size();
    const std::size_t begin = place.expert >= 0 ? share * static_cast<std::size_t>(place.expert) : 0;
    const bool vector = place.sizes.size() == 1, permuted_bias = vector && place.permuted_heads > 0;
    if (permuted_bias && find_block_type(tensor.type)->values != 1) {
      throw UsageError(fmt::format("{}: tensor '{}': a bias must not be quantised", path().string(), place.gguf));
    }
    const int64_t columns = permuted_bias ? 1 : place.sizes.back();
    const int64_t rows = permuted_bias ? place.sizes[0] : vector ? 1 : place.sizes[0];
    return {place.sizes, {tensor.type, tensor.bytes.subspan(begin, share), rows, columns, place.permuted_heads}, 0};
  }

  std::filesystem::path file_path(std::size_t) const override { return path(); }
  void check_unchanged(std::size_t) const override { file_->check_unchanged(); }
  void forget(std::size_t, std::span<const std::byte> bytes) const override { file_->forget(bytes); }

  std::unique_ptr<GgufFile> file_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf_checkpoint(const std::filesystem::path& path) {
  return std::make_unique<GgufCheckpoint>(std::make_unique<GgufFile>(path));
}

}  // namespace faultline::model
