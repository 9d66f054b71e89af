// `faultline convert-model`: a checkpoint as a Hugging Face folder that transformers, vLLM and this program load alike.
// The folder is made under a temporary name and renamed when it is complete.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/files/file.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors_writer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::cli {
namespace {

constexpr int64_t kShardBytes = 5'000'000'000;

struct ConvertModelOptions {
  std::string input, output;
  std::string dtype = "bf16";
};

at::ScalarType chosen_dtype(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp32") return at::kFloat;
  if (name == "fp16") return at::kHalf;
  throw UsageError(fmt::format("--dtype: '{}' is not bf16, fp32 or fp16", name));
}

using Shards = std::vector<std::vector<model::TensorToCome>>;

Shards divide(const model::Checkpoint& checkpoint, at::ScalarType dtype) {
  Shards shards(1);
  int64_t filled = 0;
  for (const std::string& name : checkpoint.names()) {
    const std::vector<int64_t> sizes = checkpoint.sizes(name);
    auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
    for (const int64_t size : sizes) bytes *= size;
    if (filled > 0 && filled + bytes > kShardBytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back({name, dtype, sizes});
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void write_json(const std::filesystem::path& path, const Json& json) {
  write_file_atomically(path, to_json_text(json, 2) + "\n");
}

// -> bytes of weights
int64_t write_weights(const model::Checkpoint& checkpoint, const Shards& shards, const std::filesystem::path& folder) {
  Json places = Json::object();
  int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    const auto make = [&](std::size_t tensor) {
      const model::TensorToCome& wanted = shards[i][tensor];
      at::Tensor made = checkpoint.read(wanted.name, wanted.dtype);
      places[wanted.name] = name;
      total += static_cast<int64_t>(made.nbytes());
      return made;
    };
    model::write_safetensors(folder / name, shards[i], make, {{"format", "pt"}});
  }
  if (shards.size() > 1) {
    write_json(folder / "model.safetensors.index.json",
               {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(places)}});
  }
  return total;
}

void write_tokenizer(const model::Checkpoint& checkpoint, const std::filesystem::path& folder) {
  const std::filesystem::path source = checkpoint.path();
  if (!std::filesystem::is_directory(source)) {
    const model::GgufFile file(source);
    write_json(folder / "tokenizer.json", model::tokenizer_json(file));
    write_json(folder / "tokenizer_config.json", model::tokenizer_config_json(file));
    write_json(folder / "generation_config.json", model::generation_config_json(file));
    return;
  }
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}) {
    if (std::filesystem::exists(source / name)) std::filesystem::copy_file(source / name, folder / name);
  }
}

// -> bytes of weights
int64_t write_folder(const model::Checkpoint& checkpoint, const Shards& shards, at::ScalarType dtype,
                     const std::filesystem::path& folder) {
  Json config = model::to_config_json(checkpoint.config());
  const char* name = dtype == at::kFloat ? "float32" : dtype == at::kHalf ? "float16" : "bfloat16";
  config["dtype"] = config["torch_dtype"] = name;  // transformers 5 reads the first, older ones the second
  write_json(folder / "config.json", config);
  write_tokenizer(checkpoint, folder);
  return write_weights(checkpoint, shards, folder);
}

// Under another name until it is complete; removed where that fails.
int64_t write_whole_folder(const model::Checkpoint& checkpoint, const Shards& shards, at::ScalarType dtype,
                           const std::filesystem::path& output) {
  const std::filesystem::path target = (output / ".").lexically_normal().parent_path();
  const std::filesystem::path unfinished = fmt::format("{}.unfinished-{}", target.string(), ::getpid());
  std::error_code error;
  if (!std::filesystem::create_directory(unfinished, error)) {
    throw UsageError(fmt::format("{}: the folder cannot be made: {}", unfinished.string(), error.message()));
  }
  try {
    const int64_t bytes = write_folder(checkpoint, shards, dtype, unfinished);
    std::filesystem::rename(unfinished, target);
    return bytes;
  } catch (...) {
    std::filesystem::remove_all(unfinished, error);
    throw;
  }
}

ExitCode convert(const ConvertModelOptions& options, const Globals& globals) {
  const at::ScalarType dtype = chosen_dtype(options.dtype);
  if (std::filesystem::exists(std::filesystem::symlink_status(options.output))) {
    throw UsageError(fmt::format("{} exists already; choose another name or remove it", options.output));
  }
  const auto checkpoint = model::open_checkpoint(options.input);
  const Shards shards = divide(*checkpoint, dtype);
  const int64_t bytes = write_whole_folder(*checkpoint, shards, dtype, options.output);
  const std::size_t tensors = checkpoint->names().size();
  if (globals.json) {
    print_json({{"model", checkpoint->path().string()},
                {"folder", options.output},
                {"architecture", model::architecture_name(checkpoint->config().architecture)},
                {"dtype", options.dtype},
                {"tensors", tensors},
                {"bytes", bytes},
                {"files", shards.size()}});
  } else {
    print(fmt::format("{}: {} tensors of {} in {} file{}, {:.1f} MB\n", options.output, tensors, options.dtype,
                      shards.size(), shards.size() == 1 ? "" : "s", static_cast<double>(bytes) / 1e6));
  }
  return ExitCode::kOk;
}

}  // namespace

void add_convert_model(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("convert-model", "a GGUF file as a Hugging Face folder of safetensors");
  auto options = std::make_shared<ConvertModelOptions>();
  command->add_option("model", options->input, "a .gguf file, a Hugging Face folder, or 'default'")
      ->required()
      ->type_name("MODEL");
  command->add_option("folder", options->output, "the folder to make; must not exist")->required()->type_name("FOLDER");
  offer(command->add_option("--dtype", options->dtype, "bf16, fp32 or fp16")
            ->group("Output")
            ->capture_default_str()
            ->type_name("NAME"),
        {"bf16", "fp32", "fp16"});
  command->footer(
      "Examples:\n  faultline convert-model default smollm2\n"
      "  faultline convert-model Qwen2.5-0.5B-Instruct-Q8_0.gguf qwen --dtype fp16 --json\n\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return convert(*options, globals); }; });
}

}  // namespace faultline::cli
