// Checkpoints: names, order of rows and sizes follow from the configuration, whatever the file; what is missing, left
// over, of the wrong shape or not finite is refused by name.
#include "model/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "model/build.h"
#include "model/checkpoint/gguf_builder.h"
#include "model/checkpoint/safetensors_writer.h"
#include "model/checkpoint/tensor_table.h"

namespace faultline::model {
namespace checkpoint_test {

std::string refusal(const std::filesystem::path& path) {
  try {
    const auto checkpoint = open_checkpoint(path.string());
    for (const std::string& name : checkpoint->names()) checkpoint->read(name, at::kBFloat16);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path.filename().string()), std::string::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::filesystem::path& path, const std::string& words) {
  EXPECT_NE(refusal(path).find(words), std::string::npos) << words << ": " << refusal(path);
}

class CheckpointFiles : public testing::Test {
 protected:
  std::filesystem::path gguf(const GgufBuilder& builder) {
    return write_bytes(folder_.path() / fmt::format("{}.gguf", count_++), builder.bytes());
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  int count_ = 0;
};

std::string numbered(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += GgufBuilder::raw(static_cast<float>(i));
  return bytes;
}

TEST_F(CheckpointFiles, TakesGgufUnderHuggingFaceNamesAndUndoesThePermutation) {
  GgufBuilder builder;
  builder.string("general.architecture", "llama").integer("llama.block_count", 1).integer("llama.context_length", 16);
  builder.integer("llama.embedding_length", 8).integer("llama.feed_forward_length", 4);
  builder.integer("llama.attention.head_count", 2).integer("llama.attention.head_count_kv", 1);
  builder.number("llama.attention.layer_norm_rms_epsilon", 1e-5F).number("llama.rope.freq_base", 1e5F);
  builder.integer("tokenizer.ggml.eos_token_id", 2);
  builder.tensor("token_embd.weight", {8, 3}, 0, numbered(24)).tensor("output_norm.weight", {8}, 0, floats(8));
  builder.tensor("output.weight", {8, 3}, 0, floats(24));
  builder.tensor("blk.0.attn_norm.weight", {8}, 0, floats(8)).tensor("blk.0.ffn_norm.weight", {8}, 0, floats(8));
  builder.tensor("blk.0.attn_q.weight", {8, 8}, 0, numbered(64)).tensor("blk.0.attn_q.bias", {8}, 0, numbered(8));
  builder.tensor("blk.0.attn_k.weight", {8, 4}, 0, numbered(32)).tensor("blk.0.attn_k.bias", {4}, 0, numbered(4));
  builder.tensor("blk.0.attn_v.weight", {8, 4}, 0, numbered(32)).tensor("blk.0.attn_v.bias", {4}, 0, numbered(4));
  builder.tensor("blk.0.attn_output.weight", {8, 8}, 0, floats(64));
  builder.tensor("blk.0.ffn_gate.weight", {8, 4}, 0, floats(32)).tensor("blk.0.ffn_up.weight", {8, 4}, 0, floats(32));
  builder.tensor("blk.0.ffn_down.weight", {4, 8}, 0, floats(32));
  const auto checkpoint = open_checkpoint(gguf(builder).string());
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.head_size, 4);
  EXPECT_EQ(config.rope_theta, 1e5);
  EXPECT_TRUE(config.attention_bias && !config.output_bias && !config.tied_output);
  EXPECT_EQ(config.end_tokens, std::vector<int64_t>{2});
  const at::Tensor stored = at::arange(64, at::kFloat).reshape({8, 8});
  const at::Tensor order = at::tensor({0, 2, 1, 3, 4, 6, 5, 7});
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_TRUE(checkpoint->read(attention + "q_proj.weight", at::kFloat).equal(stored.index_select(0, order)));
  EXPECT_TRUE(checkpoint->read(attention + "q_proj.bias", at::kFloat).equal(order.to(at::kFloat)));
  EXPECT_TRUE(checkpoint->read(attention + "v_proj.bias", at::kFloat).equal(at::arange(4, at::kFloat)));
  EXPECT_EQ(checkpoint->sizes("lm_head.weight"), (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(checkpoint->names().size(), 15U);
  EXPECT_THROW(checkpoint->read("model.layers.1.mlp.up_proj.weight", at::kFloat), UsageError);
  EXPECT_THROW(checkpoint->read("model.norm.weight", at::kDouble), UsageError);
}

TEST_F(CheckpointFiles, GoNoFurtherThanAGgufFilesSlidingWindow) {
  const auto checkpoint = open_checkpoint(gguf(tiny_llama().integer("llama.attention.sliding_window", 8)).string());
  EXPECT_EQ(checkpoint->config().context, 8);
  EXPECT_EQ(checkpoint->config().exact_context, 8);
}

TEST_F(CheckpointFiles, RefusesGgufFilesWhoseTensorsDoNotFitTheirKeys) {
  ASSERT_EQ(refusal(gguf(tiny_llama())), "accepted");
  expect_refused(gguf(tiny_llama().tensor("blk.1.attn_norm.weight", {4}, 0, floats(4))), "blk.1.attn_norm.weight");
  expect_refused(gguf(tiny_llama().tensor("blk.0.attn_q.bias", {4}, 0, floats(4))), "blk.0.attn_k.bias");
  expect_refused(gguf(tiny_llama().tensor("output.weight", {4, 6}, 0, floats(24))), "(6, 4)");
  expect_refused(gguf(tiny_llama().integer("llama.expert_count", 8)), "llama.expert_count");
  expect_refused(gguf(tiny_llama().string("llama.rope.scaling.type", "yarn")), "yarn");
  expect_refused(gguf(tiny_llama().tensor("rope_freqs.weight", {1}, 0, floats(1, 3.0F))), "rope_freqs.weight[0] is 3");
  expect_refused(gguf(GgufBuilder().string("general.architecture", "gemma")), "'gemma' is not supported");
  expect_refused(gguf(GgufBuilder().string("general.architecture", "llama")), "token_embd.weight");
  expect_refused(gguf(GgufBuilder()), "general.architecture");
  GgufBuilder lacking;
  lacking.string("general.architecture", "llama").tensor("token_embd.weight", {4, 5}, 0, floats(20));
  expect_refused(gguf(lacking), "llama.embedding_length");
}

TEST_F(CheckpointFiles, RefusesWeightsThatAreNotFiniteWithTheirPlace) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::string bytes = tiny_llama().bytes();
    const std::string value = GgufBuilder::raw(bad);
    bytes.replace(bytes.size() - 4 * 9, 4, value);  // element 15 of the last tensor, (4, 6)
    const auto path = write_bytes(folder() / "bad.gguf", bytes);
    expect_refused(path, "tensor 'model.layers.0.mlp.down_proj.weight'[2, 3] is ");
    expect_refused(path, "finite");
  }
  std::string bytes = tiny_llama().bytes();
  bytes.replace(bytes.size() - 4, 4, GgufBuilder::raw(70000.0F));
  const auto checkpoint = open_checkpoint(write_bytes(folder() / "large.gguf", bytes).string());
  EXPECT_THROW(checkpoint->read("model.layers.0.mlp.down_proj.weight", at::kHalf), UsageError);
  EXPECT_NO_THROW(checkpoint->read("model.layers.0.mlp.down_proj.weight", at::kBFloat16));
}

TEST_F(CheckpointFiles, SurviveBitFlips) {
  const std::string bytes = tiny_llama().bytes();
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string broken = bytes;
    const std::size_t place = random() % 900;
    broken[place] = static_cast<char>(broken[place] ^ 1 << random() % 8);
    const auto path = write_bytes(folder() / "flipped.gguf", broken);
    try {
      const auto checkpoint = open_checkpoint(path.string());
      for (const std::string& name : checkpoint->names()) checkpoint->read(name, at::kBFloat16);
    } catch (const Error&) {
    }
  }
}

Json mixture_json() {
  return {{"model_type", "qwen2_moe"},  {"vocab_size", 5},
          {"hidden_size", 4},           {"num_hidden_layers", 2},
          {"num_attention_heads", 2},   {"num_key_value_heads", 1},
          {"intermediate_size", 6},     {"max_position_embeddings", 16},
          {"num_experts", 3},           {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 2}, {"shared_expert_intermediate_size", 3},
          {"mlp_only_layers", {0}}};
}

std::vector<std::pair<std::string, at::Tensor>> random_weights(const ModelConfig& config) {
  at::manual_seed(3);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const TensorPlace& place : tensor_table(config)) tensors.emplace_back(place.name, at::randn(place.sizes));
  return tensors;
}

TEST_F(CheckpointFiles, OffersExpertsOneByOneHoweverTheyAreStored) {
  const ModelConfig config = read_config(mixture_json(), "config.json");
  auto tensors = random_weights(config);
  write_bytes(folder() / "config.json", mixture_json().dump());
  write_safetensors(folder() / "model.safetensors", tensors);
  std::map<std::string, at::Tensor> wanted(tensors.begin(), tensors.end());
  const auto check = [&] {
    const auto checkpoint = open_checkpoint(folder().string());
    EXPECT_EQ(checkpoint->names().size(), wanted.size());
    for (const auto& [name, tensor] : wanted) EXPECT_TRUE(checkpoint->read(name, at::kFloat).equal(tensor)) << name;
  };
  check();
  const std::string experts = "model.layers.1.mlp.experts.";
  std::erase_if(tensors, [&](const auto& item) { return item.first.starts_with(experts); });
  const auto stack = [&](const char* name) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 3; ++i) all.push_back(wanted.at(fmt::format("{}{}.{}.weight", experts, i, name)));
    return at::stack(all);
  };
  tensors.emplace_back(experts + "gate_up_proj", at::cat({stack("gate_proj"), stack("up_proj")}, 1));
  tensors.emplace_back(experts + "down_proj", stack("down_proj"));
  write_safetensors(folder() / "model.safetensors", tensors);
  check();
  tensors.back().second = at::zeros({3, 4, 3});
  write_safetensors(folder() / "model.safetensors", tensors);
  expect_refused(folder(), "(3, 4, 3)");
}

TEST_F(CheckpointFiles, RefusesFoldersThatAreNotWhole) {
  const ModelConfig config = read_config(mixture_json(), "config.json");
  auto tensors = random_weights(config);
  expect_refused(folder(), "no config.json");
  write_bytes(folder() / "config.json", mixture_json().dump());
  expect_refused(folder(), "neither model.safetensors");
  write_bytes(folder() / "pytorch_model.bin", "x");
  expect_refused(folder(), "pickle");
  const auto save = [&](const auto& list) { write_safetensors(folder() / "model.safetensors", list); };
  save(tensors);
  ASSERT_EQ(refusal(folder()), "accepted");
  expect_refused(folder() / "model.safetensors", "give the folder");
  auto changed = tensors;
  changed.pop_back();
  save(changed);
  expect_refused(folder(), "'lm_head.weight' of shape (5, 4) is missing");
  changed = tensors;
  changed.emplace_back("model.layers.0.self_attn.o_proj.bias", at::zeros({4}));
  save(changed);
  expect_refused(folder(), "o_proj.bias', which a qwen2_moe");
  changed = tensors;
  changed[0].second = at::zeros({5, 4}, at::kLong);
  save(changed);
  expect_refused(folder(), "holds I64");
  changed[0].second = at::full({5, 4}, NAN);
  save(changed);
  expect_refused(folder(), "'model.embed_tokens.weight'[0, 0] is nan");
}

TEST_F(CheckpointFiles, ReadsShardsAndRefusesABadIndex) {
  const ModelConfig config = read_config(mixture_json(), "config.json");
  const auto tensors = random_weights(config);
  write_bytes(folder() / "config.json", mixture_json().dump());
  const auto middle = tensors.begin() + 9;
  write_safetensors(folder() / "a.safetensors", {tensors.begin(), middle});
  write_safetensors(folder() / "b.safetensors", {middle, tensors.end()});
  Json places = Json::object();
  for (auto i = tensors.begin(); i != tensors.end(); ++i)
    places[i->first] = i < middle ? "a.safetensors" : "b.safetensors";
  const auto save = [&](const Json& map) {
    write_bytes(folder() / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  };
  save(places);
  ASSERT_EQ(refusal(folder()), "accepted");
  const std::string name = tensors[0].first;
  std::filesystem::create_directory(folder() / "elsewhere");  // a good file, but not beside the index
  std::filesystem::copy(folder() / "a.safetensors", folder() / "elsewhere" / "a.safetensors");
  for (const Json& bad : {Json("elsewhere/a.safetensors"), Json("../a.safetensors"), Json("/a.safetensors"),
                          Json("a.bin"), Json(3), Json("c.safetensors"), Json("b.safetensors")}) {
    Json changed = places;
    changed[name] = bad;
    save(changed);
    expect_refused(folder(), "weight_map");
  }
  save(Json::array());
  expect_refused(folder(), "weight_map");
  save(places);
  write_safetensors(folder() / "b.safetensors", tensors);
  expect_refused(folder(), "too");
}

TEST_F(CheckpointFiles, SayWhatTheyNeedAndWhatThereIs) {
  const auto tensors = random_weights(read_config(mixture_json(), "config.json"));
  write_bytes(folder() / "config.json", mixture_json().dump());
  write_safetensors(folder() / "model.safetensors", tensors);
  int64_t norms = 0, others = 0;
  for (const auto& [name, tensor] : tensors) (name.ends_with("norm.weight") ? norms : others) += tensor.numel();
  const auto checkpoint = open_checkpoint(folder().string());
  EXPECT_EQ(weight_bytes(*checkpoint, at::kBFloat16), 4 * norms + 2 * others);
  EXPECT_EQ(weight_bytes(*checkpoint, at::kFloat), 4 * (norms + others));
  EXPECT_NO_THROW(refuse_what_does_not_fit(*checkpoint, at::kFloat, 4 * (norms + others)));
  try {
    refuse_what_does_not_fit(*checkpoint, at::kFloat, 4 * (norms + others) - 1);
    FAIL();
  } catch (const UsageError& error) {
    for (const char* word : {": its weights take", "Float", "memory are available", "--dtype bf16"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(AvailableMemory, IsTheSystemsOrTheControlGroups) {
  const TemporaryFolder root;
  EXPECT_EQ(available_memory(root.path()), std::numeric_limits<int64_t>::max());
  std::filesystem::create_directories(root.path() / "proc");
  std::filesystem::create_directories(root.path() / "sys/fs/cgroup");
  const auto put = [&](const char* file, const std::string& text) { write_bytes(root.path() / file, text); };
  put("proc/meminfo", "MemTotal:  900 kB\nMemAvailable:     500 kB\nSwapFree:  100 kB\n");
  EXPECT_EQ(available_memory(root.path()), 600 * 1024);
  put("sys/fs/cgroup/memory.max", "max\n");
  put("sys/fs/cgroup/memory.current", "4096\n");
  EXPECT_EQ(available_memory(root.path()), 600 * 1024);
  put("sys/fs/cgroup/memory.max", "10240\n");
  EXPECT_EQ(available_memory(root.path()), 6144);
  put("sys/fs/cgroup/memory.stat", "anon 1096\ninactive_file 2000\nactive_file 1000\n");  // its files are no burden
  EXPECT_EQ(available_memory(root.path()), 9144);
  put("sys/fs/cgroup/memory.current", "20480\n");
  EXPECT_EQ(available_memory(root.path()), 0);
}

TEST(ResolveModel, KnowsTheDefault) {
  const auto restore = [](const char* name, const char* value) {
    return value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  };
  const char* before = std::getenv("FAULTLINE_MODEL");
  const std::string model = before == nullptr ? "" : before;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string cache_before = cache == nullptr ? "" : cache;
  ::unsetenv("FAULTLINE_MODEL");
  ::setenv("XDG_CACHE_HOME", "/nowhere", 1);
  EXPECT_EQ(resolve_model("default"), "/nowhere/faultline/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(resolve_model("x/y"), "x/y");
  try {
    open_checkpoint("default");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("run ./dev setup"), std::string::npos);
  }
  ::setenv("FAULTLINE_MODEL", "/other", 1);
  EXPECT_EQ(resolve_model("default"), "/other");
  restore("FAULTLINE_MODEL", before == nullptr ? nullptr : model.c_str());
  restore("XDG_CACHE_HOME", cache == nullptr ? nullptr : cache_before.c_str());
}

}  // namespace checkpoint_test
}  // namespace faultline::model
