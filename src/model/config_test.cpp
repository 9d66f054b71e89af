// config.json: what is read, what it becomes again, and what is refused by name.
#include "model/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace faultline::model {
namespace config_test {

Json dense(const char* type) {
  return {{"model_type", type},       {"vocab_size", 100},
          {"hidden_size", 64},        {"num_hidden_layers", 3},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 96},  {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5}};
}

Json mixture(const char* type) {
  Json json = dense(type);
  json.update({{"num_experts", 8},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 24},
               {"shared_expert_intermediate_size", 40},
               {"decoder_sparse_step", 2},
               {"mlp_only_layers", {1}}});
  return json;
}

std::string refusal(const Json& json) {
  try {
    read_config(json, "config.json");
  } catch (const UsageError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("config.json: ")) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_refused(const char* field, const Json& value, const std::string& words, Json json = dense("llama")) {
  json[field] = value;
  EXPECT_NE(refusal(json).find(words), std::string::npos) << words << ": " << refusal(json);
}

TEST(ModelConfig, FollowsTheFamily) {
  const ModelConfig llama = read_config(dense("llama"), "config.json");
  EXPECT_TRUE(!llama.attention_bias && !llama.query_key_norm && llama.head_size == 16 && llama.moe.experts == 0);
  EXPECT_FALSE(llama.is_sparse_layer(1));
  const ModelConfig qwen2 = read_config(dense("qwen2"), "config.json");
  EXPECT_TRUE(qwen2.attention_bias && !qwen2.output_bias && !qwen2.query_key_norm);
  const ModelConfig qwen3 = read_config(dense("qwen3"), "config.json");
  EXPECT_TRUE(!qwen3.attention_bias && qwen3.query_key_norm && qwen3.head_size == 128);
  Json biased = dense("llama");
  biased["attention_bias"] = true;
  EXPECT_TRUE(read_config(biased, "config.json").output_bias);
}

TEST(ModelConfig, ReadsAWindowAsTheLongestSequence) {
  const auto context = [](const Json& more, const char* type) {
    Json json = dense(type);
    json["max_position_embeddings"] = 8192;
    json.update(more);
    return read_config(json, "config.json").context;
  };
  EXPECT_EQ(context({{"sliding_window", 64}}, "mistral"), 64);
  EXPECT_EQ(context(Json::object(), "mistral"), 4096) << "the family's default";
  EXPECT_EQ(context({{"sliding_window", nullptr}}, "mistral"), 8192);
  EXPECT_EQ(context({{"sliding_window", 64}}, "phi3"), 64);
  EXPECT_EQ(context(Json::object(), "phi3"), 8192);
  EXPECT_EQ(context({{"sliding_window", 64}, {"use_sliding_window", false}}, "qwen2"), 8192);
  EXPECT_EQ(context({{"sliding_window", 64}, {"use_sliding_window", true}}, "qwen2"), 64);
  EXPECT_EQ(context({{"sliding_window", 64}, {"layer_types", {"full_attention", "sliding_attention"}}}, "qwen3"), 64);
}

TEST(ModelConfig, KnowsWhichLayersRotate) {
  Json json = dense("smollm3");
  json["num_hidden_layers"] = 8;
  EXPECT_EQ(read_config(json, "config.json").unrotated_layers, (std::vector<int64_t>{3, 7}));
  json["no_rope_layers"] = {1, 0, 1, 1, 1, 0, 1, 1};
  const ModelConfig config = read_config(json, "config.json");
  EXPECT_TRUE(config.is_rotated_layer(0) && !config.is_rotated_layer(1) && !config.is_rotated_layer(5));
  EXPECT_TRUE(config.tied_output);
  EXPECT_EQ(config.rope_theta, 2e6);
}

TEST(ModelConfig, KnowsWhichLayersAreSparse) {
  Json json = mixture("qwen3_moe");
  json["num_hidden_layers"] = 8;
  const ModelConfig config = read_config(json, "config.json");
  std::vector<int64_t> sparse;
  for (int64_t layer = 0; layer < 8; ++layer) {
    if (config.is_sparse_layer(layer)) sparse.push_back(layer);
  }
  EXPECT_EQ(sparse, (std::vector<int64_t>{3, 5, 7}));
  EXPECT_EQ(config.moe.shared_expert_size, 0);
  EXPECT_EQ(read_config(mixture("qwen2_moe"), "config.json").moe.shared_expert_size, 40);
}

TEST(ModelConfig, BecomesTheSameAgain) {
  for (Json json : {dense("llama"), dense("qwen2"), dense("qwen3"), mixture("qwen2_moe"), mixture("qwen3_moe"),
                    dense("mistral"), dense("phi3"), dense("smollm3"), dense("granite")}) {
    json["sliding_window"] = 64;
    if (json["model_type"] == "granite") json.update({{"residual_multiplier", 0.25}, {"logits_scaling", 8.0}});
    if (json["model_type"] == "smollm3") json["no_rope_layers"] = {0, 1, 0};
    json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    json["rope_theta"] = 5e5;
    json["eos_token_id"] = {1, 2};
    const Json once = to_config_json(read_config(json, "config.json"));
    EXPECT_EQ(to_config_json(read_config(once, "again")), once);
    EXPECT_EQ(once["rope_parameters"]["rope_type"], "linear");
  }
}

TEST(ModelConfig, KeepsYarnDynamicAndWindowsWhenItIsWritten) {
  Json yarn = dense("llama"), dynamic = dense("llama"), window = dense("qwen2");
  yarn["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 16}, {"truncate", false}};
  dynamic["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  window.update({{"use_sliding_window", true}, {"sliding_window", 64}});
  for (const Json& json : {yarn, dynamic, window}) {
    const ModelConfig once = read_config(json, "config.json"), again = read_config(to_config_json(once), "again");
    EXPECT_EQ(to_config_json(again), to_config_json(once));
    EXPECT_EQ(again.exact_context, once.exact_context);
    EXPECT_EQ(again.rope_scaling.kind, once.rope_scaling.kind);
    EXPECT_EQ(again.rope_scaling.attention_factor, once.rope_scaling.attention_factor);
  }
  EXPECT_NEAR(read_config(yarn, "config.json").rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_EQ(read_config(dynamic, "config.json").exact_context, 128);
  EXPECT_EQ(read_config(window, "config.json").exact_context, 64);
}

TEST(ModelConfig, ReadsRopeInBothForms) {
  Json json = dense("llama");
  json["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 5e5},
                             {"factor", 8.0},           {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const ModelConfig config = read_config(json, "config.json");
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(config.rope_scaling.factor, 8);
}

TEST(ModelConfig, RefusesWhatItDoesNotHave) {
  ASSERT_EQ(refusal(dense("llama")), "accepted");
  expect_refused("model_type", "gemma3_text", "run it in transformers");
  expect_refused("model_type", "granit", "did you mean 'granite'?");
  expect_refused("model_type", 3, "model_type");
  expect_refused("rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}, "'longrope' is not supported");
  expect_refused("rope_scaling", {{"type", "linear"}}, "factor: is missing");
  expect_refused("rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}, "differ by layer");
  expect_refused("layer_types", {"full_attention", "chunked_attention"}, "layer_types");
  expect_refused("sliding_window", -1, "sliding_window", dense("mistral"));
  expect_refused("no_rope_layers", {1, 0}, "has 2 entries for 3 layers", dense("smollm3"));
  expect_refused("logits_scaling", 0, "must be positive", dense("granite"));
  expect_refused("hidden_act", "gelu", "'gelu' is not supported");
  expect_refused("partial_rotary_factor", 0.5, "partial_rotary_factor");
  expect_refused("quantization_config", {{"bits", 4}}, "quantization_config");
}

TEST(ModelConfig, RefusesNumbersThatCannotBe) {
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "intermediate_size", "max_position_embeddings", "num_key_value_heads"}) {
    for (const Json& value : {Json(0), Json(-1), Json(int64_t{1} << 60), Json(18446744073709551615U), Json(1.5),
                              Json("8"), Json::array({8})}) {
      expect_refused(field, value, "config.json: ");
    }
  }
  expect_refused("num_key_value_heads", 3, "multiple of num_key_value_heads");
  expect_refused("head_dim", 7, "head_dim must be even");
  expect_refused("rms_norm_eps", -1.0, "rms_norm_eps");
  expect_refused("rope_theta", 0, "rope_theta");
  expect_refused("num_experts_per_tok", 9, "num_experts_per_tok", mixture("qwen2_moe"));
  expect_refused("num_experts", int64_t{1} << 40, "num_experts", mixture("qwen2_moe"));
  expect_refused("decoder_sparse_step", 0, "decoder_sparse_step", mixture("qwen2_moe"));
  expect_refused("mlp_only_layers", {-1}, "mlp_only_layers", mixture("qwen2_moe"));
  EXPECT_NE(refusal(Json::array()).find("wanted a JSON object"), std::string::npos);
}

}  // namespace config_test
}  // namespace faultline::model
