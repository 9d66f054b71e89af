#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/safetensors_writer.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "train/checkpoint.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;

struct Part {
  const char* name;
  int64_t rows;
};

std::vector<Part> parts_of(const std::string& module, const at::Tensor& tensor, const model::ModelConfig& config) {
  if (module == "qkv_proj")
    return {{"q_proj", config.heads * config.head_size},
            {"k_proj", config.kv_heads * config.head_size},
            {"v_proj", config.kv_heads * config.head_size}};
  if (module == "gate_up_proj") return {{"gate_proj", tensor.size(0) / 2}, {"up_proj", tensor.size(0) / 2}};
  return {};
}

void write_json(const fs::path& path, const Json& json) { write_file_atomically(path, to_json_text(json, 2) + "\n"); }

void write_tokenizer(const fs::path& origin, const fs::path& folder) {
  if (!fs::is_directory(origin)) {
    const model::GgufFile file(origin);
    write_json(folder / "tokenizer.json", model::tokenizer_json(file));
    write_json(folder / "tokenizer_config.json", model::tokenizer_config_json(file));
    write_json(folder / "generation_config.json", model::generation_config_json(file));
    return;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    if (fs::exists(origin / name)) fs::copy_file(origin / name, folder / name);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> hugging_face_weights(model::CausalLm& model) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const model::CausalLm::Parameter& parameter : model.parameters()) {
    const std::string& path = site::place_of(parameter.place).path;
    const std::size_t dot = path.rfind('.');
    const std::string module = path.substr(dot + 1), suffix = parameter.name.substr(path.size());  // ".weight"
    const at::Tensor tensor = parameter.tensor->detach();
    const std::vector<Part> parts = parts_of(module, tensor, model.config());
    if (parts.empty()) all.emplace_back(parameter.name, tensor);
    int64_t first = 0;
    for (const Part& part : parts) {
      all.emplace_back(path.substr(0, dot + 1) + part.name + suffix, tensor.narrow(0, first, part.rows));
      first += part.rows;
    }
  }
  return all;
}

void write_model_folder(model::CausalLm& model, const fs::path& origin, const fs::path& folder) {
  if (fs::exists(fs::symlink_status(folder)))
    throw UsageError(fmt::format("{} exists already; choose another name or remove it", folder.string()));
  const fs::path unfinished = folder.string() + ".unfinished";
  fs::remove_all(unfinished);
  fs::create_directories(unfinished);
  Json config = model::to_config_json(model.config());
  const at::ScalarType dtype = model.options().dtype().toScalarType();
  config["dtype"] = config["torch_dtype"] = dtype == at::kFloat  ? "float32"
                                            : dtype == at::kHalf ? "float16"
                                                                 : "bfloat16";
  write_json(unfinished / "config.json", config);
  write_tokenizer(origin, unfinished);
  model::write_safetensors(unfinished / "model.safetensors", hugging_face_weights(model), {{"format", "pt"}});
  fs::rename(unfinished, folder);
}

}  // namespace faultline::train
