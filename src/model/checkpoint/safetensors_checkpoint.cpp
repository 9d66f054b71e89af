// A Hugging Face folder. Experts may be stored one by one or, as transformers 5 keeps them in memory, all in one tensor
// with gate and up side by side: mlp.experts.gate_up_proj (E, 2I, H) and down_proj (E, H, I); either way each expert
// has names of its own here. Phi-3 keeps q, k and v in one matrix, gate and up in another.
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "model/checkpoint/gguf_blocks.h"
#include "model/checkpoint/safetensors_folder.h"
#include "model/checkpoint/table_checkpoint.h"
#include "model/config.h"

namespace faultline::model {
namespace {

// Where one expert's matrix lies in a tensor that holds them all.
struct StackedPlace {
  std::string name;
  std::vector<int64_t> sizes;
  int64_t first_row = 0;
};

// Where a projection lies that is stored together with its siblings.
std::optional<StackedPlace> fused_place(const TensorPlace& place, const ModelConfig& config) {
  const int64_t query = config.heads * config.head_size, key = config.kv_heads * config.head_size;
  struct Part {
    const char *name, *fused;
    int64_t first, rows;
  };
  const Part parts[] = {{"q_proj.weight", "qkv_proj.weight", 0, query + 2 * key},
                        {"k_proj.weight", "qkv_proj.weight", query, query + 2 * key},
                        {"v_proj.weight", "qkv_proj.weight", query + key, query + 2 * key},
                        {"gate_proj.weight", "gate_up_proj.weight", 0, 2 * config.inner},
                        {"up_proj.weight", "gate_up_proj.weight", config.inner, 2 * config.inner}};
  for (const Part& part : parts) {
    if (!place.name.ends_with(std::string(".") + part.name)) continue;
    const std::string prefix = place.name.substr(0, place.name.size() - std::string_view(part.name).size());
    return StackedPlace{prefix + part.fused, {part.rows, place.sizes[1]}, part.first};
  }
  return {};
}

// place.name: PREFIX.mlp.experts.E.{gate,up,down}_proj.weight
StackedPlace stacked_place(const TensorPlace& place, int64_t experts) {
  const std::string number = fmt::format("experts.{}.", place.expert);
  const std::string prefix = place.name.substr(0, place.name.find(number)) + "experts.";
  const int64_t rows = place.sizes[0], columns = place.sizes[1];
  if (place.name.ends_with("down_proj.weight")) {
    return {prefix + "down_proj", {experts, rows, columns}, place.expert * rows};
  }
  const int64_t half = place.name.ends_with("up_proj.weight") ? 1 : 0;
  return {prefix + "gate_up_proj", {experts, 2 * rows, columns}, (2 * place.expert + half) * rows};
}

class SafetensorsCheckpoint final : public TableCheckpoint {
 public:
  explicit SafetensorsCheckpoint(const std::filesystem::path& folder)
      : TableCheckpoint(folder, read_folder_config(folder)), files_(folder) {
    std::set<std::string> stored, used;
    for (const auto& [name, tensor] : files_.tensors()) stored.insert(name);
    for (const TensorPlace& place : tensor_table(config_)) {
      StackedPlace where{place.name, place.sizes, 0};
      if (place.expert >= 0 && !stored.contains(place.name)) where = stacked_place(place, config_.moe.experts);
      if (place.expert < 0 && !stored.contains(place.name)) {
        const auto fused = fused_place(place, config_);
        if (fused && stored.contains(fused->name)) where = *fused;
      }
      const auto found = files_.tensors().find(where.name);
      if (found == files_.tensors().end()) missing(place, place.name);
      used.insert(where.name);
      weights_.emplace(place.name, stored_weight(place, where, found->second));
    }
    refuse_unknown(stored, used);
  }

 private:
  StoredWeight stored_weight(const TensorPlace& place, const StackedPlace& where,
                             const SafetensorsTensor& tensor) const {
    check_sizes(where.name, tensor.sizes, where.sizes);
    const uint32_t type = block_type(where.name, tensor);
    const bool vector = place.sizes.size() == 1;
    const int64_t rows = vector ? 1 : place.sizes[0], columns = place.sizes.back();
    const auto row_bytes = static_cast<std::size_t>(columns * find_block_type(type)->bytes);
    const auto bytes = tensor.bytes.subspan(static_cast<std::size_t>(where.first_row) * row_bytes,
                                            static_cast<std::size_t>(rows) * row_bytes);
    return {place.sizes, {type, bytes, rows, columns, 0}, tensor.file};
  }

  uint32_t block_type(const std::string& name, const SafetensorsTensor& tensor) const {
    if (tensor.dtype == "F32") return kBlockF32;
    if (tensor.dtype == "F16") return kBlockF16;
    if (tensor.dtype == "BF16") return kBlockBf16;
    throw UsageError(fmt::format("{}: tensor '{}' holds {}; weights are F32, F16 or BF16",
                                 file_path(tensor.file).string(), name, tensor.dtype));
  }

  std::filesystem::path file_path(std::size_t file) const override { return files_.file(file).path(); }
  void check_unchanged(std::size_t file) const override { files_.file(file).check_unchanged(); }
  void forget(std::size_t file, std::span<const std::byte> bytes) const override { files_.file(file).forget(bytes); }

  SafetensorsFolder files_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_safetensors_folder(const std::filesystem::path& path) {
  return std::make_unique<SafetensorsCheckpoint>(path);
}

}  // namespace faultline::model
