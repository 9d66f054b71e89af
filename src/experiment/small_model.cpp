#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/json.h"
#include "experiment/preparation.h"
#include "model/causal_lm.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "train/checkpoint.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 20;
constexpr const char* kSpecial[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
constexpr int64_t kSpecialTokens = 3, kBytes = 256;
constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::string utf8(int code) {  // of a code point below 2048
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2's alphabet: printable bytes are themselves, the others follow from 256 on.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> letters;
  int next = 256;
  for (int byte = 0; byte < kBytes; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    letters.push_back(utf8(printable ? byte : next++));
  }
  return letters;
}

Json tokenizer_json() {
  Json added = Json::array(), vocabulary = Json::object();
  for (int64_t i = 0; i < kSpecialTokens; ++i) {
    added.push_back({{"id", i},
                     {"content", kSpecial[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocabulary[kSpecial[i]] = i;
  }
  int64_t id = kSpecialTokens;
  for (const std::string& letter : byte_alphabet()) vocabulary[letter] = id++;
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return model::byte_level_bpe_json({.added_tokens = added,
                                     .normalizer = nullptr,
                                     .pre_tokenizer = bytes,
                                     .decoder = bytes,
                                     .vocabulary = vocabulary,
                                     .merges = Json::array()});
}

model::ModelConfig small_config() {
  model::ModelConfig config;
  config.vocabulary = kSpecialTokens + kBytes, config.hidden = 32, config.layers = 2, config.heads = 4;
  config.kv_heads = 2, config.head_size = 8, config.inner = 64, config.context = 4096, config.tied_output = true;
  config.end_tokens = {2};
  return config;
}

}  // namespace

fs::path make_small_model(const fs::path& folder) {
  if (fs::exists(folder / "config.json")) return folder;
  const fs::path workshop = folder.string() + fmt::format(".{}", ::getpid()), origin = workshop / "origin";
  fs::create_directories(origin);
  write_file_atomically(origin / "tokenizer.json", to_json_text(tokenizer_json()) + "\n");
  write_file_atomically(origin / "tokenizer_config.json",
                        to_json_text(Json{{"chat_template", kChatMl}, {"eos_token", kSpecial[2]}}) + "\n");
  model::CausalLm model(small_config(), kSeed, at::kFloat, at::kCPU);
  train::write_model_folder(model, origin, workshop / "model");
  std::error_code raced;
  fs::rename(workshop / "model", folder, raced);
  fs::remove_all(workshop);
  if (!fs::exists(folder / "config.json"))
    throw RuntimeFailure(fmt::format("{}: cannot be made: {}", folder.string(), raced.message()));
  return folder;
}

}  // namespace faultline::experiment
