// `when:` and the surfaces of single parameters: a rule acts at the calls and on the parameters that it means, the
// others are counted and left as they are.
#include "site/condition.h"

#include "site/forward.h"
#include "tap/boundary.h"
#include "tap/report.h"
#include "tap/testing.h"

namespace faultline::tap {
namespace condition_test {

std::pair<double, double> calls_and_active(Plan& plan) {
  double calls = 0, active = 0;
  for (const auto& [row, numbers] : plan.read_evidence()) calls += numbers.calls, active += numbers.active_calls;
  return {calls, active};
}

TEST(Condition, ActsOnTensorsOfTheRowsThatItMeans) {
  const at::Tensor few = noise_like({4, 32}), many = noise_like({16, 32}), w = noise_like({32, 32});
  const at::Tensor clean_few = few.mm(w), clean_many = many.mm(w);
  const Armed plan(make_plan({"gain(strength=1, when.rows='>8') @ operator=matmul"}));
  EXPECT_TRUE(at::equal(few.mm(w), clean_few));
  EXPECT_TRUE(at::equal(many.mm(w), clean_many * 2));
  EXPECT_EQ(calls_and_active(*plan), std::pair(2.0, 1.0));
  EXPECT_TRUE(judge(*plan, {}).complaints.empty());
}

TEST(Condition, ActsInForwardsOfItsKindAndInTheDecodingsThatItNumbers) {
  const at::Tensor a = noise_like({8, 32}), w = noise_like({32, 32}), clean = a.mm(w);
  const site::PlaceId root = site::place_id("model");
  const auto acts = [&](site::ForwardKind kind) {
    const site::ForwardScope forward(root, kind);
    return !at::equal(a.mm(w), clean);
  };
  using enum site::ForwardKind;
  {
    const Armed plan(make_plan({"gain(strength=1, when.forward=prefill) @ operator=matmul"}));
    EXPECT_TRUE(acts(kPrefill));
    EXPECT_FALSE(acts(kDecode));
    EXPECT_FALSE(acts(kWhole));
  }
  const Armed plan(make_plan({"gain(strength=1, when.decode_step='1-2') @ operator=matmul"}));
  for (int sequence = 0; sequence < 2; ++sequence) {
    EXPECT_FALSE(acts(kPrefill));
    for (const bool wanted : {false, true, true, false}) EXPECT_EQ(acts(kDecode), wanted);
  }
  EXPECT_EQ(calls_and_active(*plan), std::pair(10.0, 4.0));
  EXPECT_TRUE(site::decodings_differ());
}

TEST(Condition, DrawsTheSameNumbersAsWithoutIt) {
  const at::Tensor a = noise_like({16, 32}), w = noise_like({32, 32});
  const auto run = [&](const std::string& text) {
    const Armed plan(make_plan({text}));
    return a.mm(w);
  };
  const at::Tensor with = run("relative_gaussian(strength=0.05, when.rows='16') @ operator=matmul");
  EXPECT_TRUE(at::equal(with, run(kNoise)));
  EXPECT_TRUE(at::equal(with, run("relative_gaussian(strength=0.05, when.rows='16') @ operator=matmul")));
}

TEST(Condition, SaysThatItHeldAtNoCall) {
  const at::Tensor a = noise_like({4, 32}), w = noise_like({32, 32});
  const Armed plan(make_plan({"gain(strength=1, when.rows='>8') @ operator=matmul"}));
  (void)a.mm(w);
  const Verdict verdict = judge(*plan, {});
  ASSERT_EQ(verdict.complaints.size(), 1u);
  EXPECT_EQ(verdict.complaints[0].code, ComplaintCode::kAsleep);
}

std::string refusal(const std::string& text) {
  try {
    make_plan({text});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Condition, RefusesWhatAParameterOrAGradientCannotFollow) {
  EXPECT_NE(refusal("gain(strength=1, when.rows=3) @ operator=matmul, surface=weight").find("leave when out"),
            std::string::npos);
  EXPECT_NE(refusal("zero(when.rows=3, rule.gradient=masked) @ module=layer_output").find("leave when out"),
            std::string::npos);
  EXPECT_NE(refusal("gain(strength=1) @ module=kv_cache, surface=output").find("leave surface out"), std::string::npos);
  EXPECT_NE(refusal("gain(strength=1) @ module=down_proj, surface=bias").find("surface bias belongs to an operator"),
            std::string::npos);
}

TEST(Bias, IsFaultedAloneAndKept) {
  const at::Tensor w = noise_like({32, 32}, at::kFloat), b = noise_like({32}, at::kFloat),
                   x = noise_like({8, 32}, at::kFloat);
  site::register_parameter(w, site::place_id("layers.0.q_proj"));
  site::register_parameter(b, site::place_id("layers.0.q_proj"));
  const at::Tensor master = b.clone(), clean = at::addmm(b, x, w.t()), other = x.mm(w.t());
  const at::Tensor wanted = at::addmm(b * 2, x, w.t());
  {
    const Armed plan(make_plan({"gain(strength=1) @ operator=matmul, surface=bias"}));
    EXPECT_TRUE(at::equal(at::addmm(b, x, w.t()), wanted));
    EXPECT_TRUE(at::equal(x.mm(w.t()), other));
    EXPECT_TRUE(at::equal(b, master));
    EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  }
  {
    const Armed plan(make_plan({"gain(strength=1) @ operator=matmul, surface=weight"}));
    EXPECT_TRUE(at::equal(at::addmm(b, x, w.t()), at::addmm(b, x, (w * 2).t()))) << "a weight is no bias";
  }
  EXPECT_TRUE(at::equal(at::addmm(b, x, w.t()), clean));
  site::forget_parameters();
}

TEST(Bias, IsNoNormsWeight) {
  const at::Tensor g = noise_like({32}, at::kFloat), b = noise_like({32}, at::kFloat),
                   x = noise_like({8, 32}, at::kFloat);
  for (const at::Tensor& parameter : {g, b}) site::register_parameter(parameter, site::place_id("layers.0.norm"));
  const at::Tensor wanted = at::layer_norm(x, {32}, g, b * 2);
  {
    const Armed plan(make_plan({"gain(strength=1) @ operator=norm, surface=bias"}));
    EXPECT_TRUE(at::equal(at::layer_norm(x, {32}, g, b), wanted));
  }
  site::forget_parameters();
}

TEST(Bias, IsRefusedWhereNoProductHasOne) {
  const auto sentence = [](const std::string& where, const std::vector<site::PlaceId>& places) -> std::string {
    try {
      check_biases(*make_plan({"gain(strength=1) @ operator=matmul, surface=bias" + where}), places);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  const site::PlaceId place = site::place_id("layers.1.q_proj");
  EXPECT_NE(sentence("", {}).find("this model has none"), std::string::npos);
  EXPECT_NE(sentence(", layer=0", {place}).find("layers.1.q_proj"), std::string::npos);
  EXPECT_EQ(sentence(", layer=1", {place}), "accepted");
}

// A row of an embedding's table: the token that is looked up there, and no other.
TEST(EmbeddingRow, IsFaultedWhereItIsLookedUp) {
  const at::Tensor table = noise_like({16, 8}, at::kFloat), tokens = at::arange(16, at::kLong);
  site::register_parameter(table, site::place_id("model.embed_tokens"));
  site::register_parameter(table, site::place_id("lm_head"));  // tied
  const at::Tensor master = table.clone(), x = noise_like({4, 8}, at::kFloat), logits = x.mm(table.t());
  at::Tensor wanted = table.clone();
  wanted.select(0, 5).zero_();
  {
    const Armed plan(make_plan({"zero(extent.rows=5) @ operator=embedding, surface=weight"}));
    EXPECT_TRUE(at::equal(at::embedding(table, tokens), wanted));
    EXPECT_TRUE(at::equal(x.mm(table.t()), logits)) << "the head reads the master";
    EXPECT_TRUE(at::equal(table, master));
    EXPECT_TRUE(judge(*plan, {}).complaints.empty());
  }
  site::forget_parameters();
}

}  // namespace condition_test
}  // namespace faultline::tap
