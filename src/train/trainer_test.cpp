// The trainer on a random model of two layers: what it learns, what it repeats, what it refuses, what stops it.
#include "train/trainer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "train/actor.h"
#include "train/non_finite.h"
#include "train/tiny_model.h"

namespace faultline::train {
namespace trainer_test {

struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<Json> events;
  Json results;
};

Trained train(const TrainSpec& spec, TrainHooks hooks = {}, uint64_t model_seed = 3) {
  const TemporaryFolder directory;
  model::CausalLm model = tiny_model(model_seed);
  const TrainData data = tiny_data();
  record::RunDirectory run = record::RunDirectory::create(directory.path(), tiny_manifest());
  Trained result;
  {
    Trainer trainer(model, data, spec, std::move(hooks));
    result.results = trainer.run(run);
  }
  for (const model::CausalLm::Parameter& parameter : model.parameters())
    result.weights.push_back(parameter.tensor->clone());
  for (Json event : record::read_events(run.path() / "events.jsonl")) {
    event.erase("times");
    result.events.push_back(std::move(event));
  }
  return result;
}

TrainSpec both(int64_t sft_steps, int64_t grpo_steps) {
  TrainSpec spec;
  if (sft_steps > 0) spec.stages.push_back(tiny_sft(sft_steps));
  if (grpo_steps > 0) spec.stages.push_back(tiny_grpo(grpo_steps));
  spec.seed = 7;
  spec.checkpoint_every = 0;
  return spec;
}

bool equal(const Trained& a, const Trained& b) {
  for (std::size_t i = 0; i < a.weights.size(); ++i)
    if (!a.weights[i].equal(b.weights[i])) return false;
  return a.events == b.events;
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Trainer, LearnsSupervisedAndFromReward) {
  const Trained run = train(both(40, 0));
  EXPECT_LT(run.events.back()["metrics"]["train/loss"].get<double>(),
            0.6 * run.events.front()["metrics"]["train/loss"].get<double>());
  TrainSpec spec = both(0, 40);
  spec.stages[0].optimizer.learning_rate = 3e-3;
  const Trained reward = train(spec);
  double early = 0, late = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    early += reward.events[i]["metrics"]["critic/score/mean"].get<double>();
    late += reward.events[30 + i]["metrics"]["critic/score/mean"].get<double>();
  }
  EXPECT_GT(late, early + 0.2) << "ten steps each; GRPO must raise the reward it optimises";
}

TEST(Trainer, RepeatsItselfToTheBit) {
  const TrainSpec spec = both(4, 4);
  EXPECT_TRUE(equal(train(spec), train(spec)));
  TrainSpec other = spec;
  other.seed = 8;
  EXPECT_FALSE(equal(train(spec), train(other)));
}

TEST(Trainer, DoesNotDependOnTheNumberOfMicroBatchesBeyondRounding) {
  TrainSpec whole = both(0, 1), parts = whole;
  whole.stages[0].micro_batch = 16, parts.stages[0].micro_batch = 2;
  const Trained a = train(whole), b = train(parts);
  const double norm = a.events[0]["metrics"]["actor/grad_norm"].get<double>();
  EXPECT_GT(norm, 0);
  EXPECT_NEAR(b.events[0]["metrics"]["actor/grad_norm"].get<double>(), norm, 1e-4 * norm);
  EXPECT_NEAR(a.events[0]["metrics"]["actor/pg_loss"].get<double>(),
              b.events[0]["metrics"]["actor/pg_loss"].get<double>(), 1e-6);
}

TEST(Trainer, EveryAggregationKlAndClipLearns) {
  for (const std::string& aggregation : aggregation_names()) {
    TrainSpec spec = both(0, 2);
    StageSpec& stage = spec.stages[0];
    stage.aggregation = aggregation_by_name(aggregation);
    stage.use_kl_loss = true, stage.filter_groups = true, stage.importance_limit = 2, stage.updates = 2;
    stage.norm_adv_by_std = false, stage.micro_batch = 4;
    const Trained run = train(spec);
    const Json& metrics = run.events.back()["metrics"];
    ASSERT_TRUE(metrics.contains("actor/kl_loss")) << aggregation;
    EXPECT_GE(metrics["actor/kl_loss"].get<double>(), 0);
  }
}

TEST(Trainer, MeasuresNoMismatchOfThePoliciesWithoutNoise) {
  const Trained run = train(both(0, 2));
  for (const Json& event : run.events) {
    EXPECT_LT(event["metrics"]["faultline/rollout_logp_diff_max"].get<double>(), 1e-4);
    EXPECT_NEAR(event["metrics"]["faultline/effective_sample_share"].get<double>(), 1, 1e-4);
  }
}

TEST(Trainer, VisitsEveryProblemOncePerEpochInAnOrderOfItsOwn) {
  std::vector<std::size_t> orders[2];
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<std::size_t> seen;
    for (int64_t i = 0; i < 24; ++i) {
      orders[epoch].push_back(problem_at(7, 0, epoch * 24 + i, 24));
      seen.insert(orders[epoch].back());
    }
    EXPECT_EQ(seen.size(), 24u);
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST(Lesson4TheSamplerIsToldTheStep, HooksHearEveryStepInOrderAndRolloutsAreInsideTheirGuard) {
  std::vector<std::pair<std::size_t, int64_t>> heard;
  int open = 0, most = 0;
  TrainHooks hooks;
  hooks.begin_step = [&](const TrainPosition& position) { heard.emplace_back(position.stage, position.step); };
  hooks.rollout = [&](const TrainPosition& position) -> std::shared_ptr<void> {
    EXPECT_EQ(heard.back().second, position.step);
    EXPECT_EQ(site::get_phase(), site::Phase::kRollout);
    most = std::max(most, ++open);
    return {&open, [](int* count) { --*count; }};
  };
  hooks.end_step = [&](const TrainPosition&) {
    EXPECT_EQ(open, 0) << "the guard ends with the sampling";
    return Json::object();
  };
  train(both(2, 3), hooks);
  EXPECT_EQ(heard, (std::vector<std::pair<std::size_t, int64_t>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(most, 1);
}

TEST(Lesson29TheLastStepIsEvaluated, WhateverTheInterval) {
  std::vector<std::pair<int64_t, bool>> validated;
  TrainHooks hooks;
  hooks.faulty_validation = true;
  hooks.validate = [&](const TrainPosition& position, bool faulty) -> Json {
    EXPECT_EQ(site::get_phase(), site::Phase::kEval);
    validated.emplace_back(position.step, faulty);
    return {{faulty ? "faulty" : "clean", position.step}};
  };
  TrainSpec spec = both(0, 5);
  spec.validate_every = 3;
  const Trained run = train(spec, hooks);
  EXPECT_EQ(validated, (std::vector<std::pair<int64_t, bool>>{
                           {0, false}, {0, true}, {2, false}, {2, true}, {4, false}, {4, true}}));
  EXPECT_EQ(run.results["clean"], 4) << "the reported numbers are the last step's";
  EXPECT_EQ(run.events.back()["metrics"]["faulty"], 4);
}

TEST(Trainer, RefusesWhatCannotWork) {
  const auto refused = [](const std::function<void(TrainSpec&, TrainData&)>& change) {
    TrainSpec spec = both(1, 1);
    TrainData data = tiny_data();
    change(spec, data);
    return refusal_of([&] { check(spec, data, tiny_config()); });
  };
  EXPECT_NE(refused([](TrainSpec& s, TrainData&) { s.stages[1].micro_batch = 5; }).find("does not divide"),
            std::string::npos);
  EXPECT_NE(refused([](TrainSpec& s, TrainData&) { s.stages[1].updates = 3; }).find("cannot be divided"),
            std::string::npos);
  EXPECT_NE(refused([](TrainSpec& s, TrainData&) {
              s.stages[1].prompts = 25, s.stages[1].micro_batch = 0;
            }).find("24 problems"),
            std::string::npos);
  EXPECT_NE(refused([](TrainSpec& s, TrainData&) { s.stages[1].max_new_tokens = 62; }).find("context holds 64"),
            std::string::npos);
  EXPECT_NE(refused([](TrainSpec&, TrainData& d) { d.problems[2].solution.clear(); }).find("no worked solution"),
            std::string::npos);
  EXPECT_NE(refused([](TrainSpec& s, TrainData&) { s.stages.clear(); }).find("no stage"), std::string::npos);
  EXPECT_NE(refused([](TrainSpec& s, TrainData&) { s.stages[0].steps = 0; }).find("at least 1"), std::string::npos);
}

TEST(Trainer, EqualRewardsLeaveNothingToLearn) {
  TrainSpec spec = both(0, 1);
  spec.stages[0].filter_groups = true;
  spec.stages[0].optimizer.weight_decay = 0;
  const TemporaryFolder directory;
  model::CausalLm model = tiny_model();
  TrainData data = tiny_data();
  data.reward = [](std::size_t, std::span<const int64_t>) { return 1.0; };
  const at::Tensor before = model.parameters()[0].tensor->clone();
  record::RunDirectory run = record::RunDirectory::create(directory.path(), tiny_manifest());
  Trainer(model, data, spec, {}).run(run);
  EXPECT_TRUE(model.parameters()[0].tensor->equal(before));
  EXPECT_EQ(record::read_events(run.path() / "events.jsonl").back()["metrics"]["faultline/update_skipped"], 1);
}

TEST(Trainer, StopsAtANumberThatIsNotFiniteAndNamesWhereItWasMade) {
  const TemporaryFolder directory;
  model::CausalLm model = tiny_model();
  const TrainData data = tiny_data();
  at::Tensor* broken = nullptr;
  for (const model::CausalLm::Parameter& parameter : model.parameters())
    if (parameter.name == "model.layers.1.mlp.down_proj.weight") broken = parameter.tensor;
  ASSERT_NE(broken, nullptr);
  broken->view(-1)[5].fill_(std::numeric_limits<float>::quiet_NaN());
  record::RunDirectory run = record::RunDirectory::create(directory.path(), tiny_manifest());
  Trainer trainer(model, data, both(2, 0), {});
  const std::string refusal = refusal_of([&] { trainer.run(run); });
  EXPECT_NE(refusal.find("model.layers.1.mlp.down_proj (layer 1), actor_forward"), std::string::npos) << refusal;
  EXPECT_EQ(record::read_events(run.path() / "events.jsonl").back()["kind"], "stopped");
}

TEST(Actor, PiecesOfTheHeadGiveTheGradientOfTheWhole) {
  model::CausalLm model = tiny_model();
  AdamW optimizer(model.parameters(), {});
  const TrainData data = tiny_data();
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < 5; ++i) sequences.push_back({data.problems[i].prompt, data.problems[i].solution});
  const SequenceBatch batch = make_batch(sequences, at::kCPU);
  std::vector<std::vector<at::Tensor>> gradients;
  for (const int64_t positions : {0, 1, 4}) {
    for (const model::CausalLm::Parameter& parameter : model.parameters())
      parameter.tensor->mutable_grad() = at::Tensor();
    backward_tokens(model, batch, 0.7, [](const at::Tensor& now, int64_t) { return -now.square().sum(); }, positions);
    gradients.emplace_back();
    for (const model::CausalLm::Parameter& parameter : model.parameters())
      gradients.back().push_back(parameter.tensor->grad().clone());
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[0][i], gradients[1][i], 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(gradients[0][i], gradients[2][i], 1e-4, 1e-5));
  }
  const TokenScores scores = score_tokens(model, batch, 0.7);
  const at::Tensor logits = model.logits(model.hidden_states(batch.tokens)).index_select(0, batch.rows) / 0.7;
  const at::Tensor expected = at::log_softmax(logits, -1).gather(1, batch.targets.unsqueeze(1)).squeeze(1);
  EXPECT_TRUE(at::allclose(scores.log_probabilities, expected, 1e-4, 1e-5));
}

TEST(AdamW, RefusesAGradientThatIsNotFiniteAndKeepsTheWeights) {
  model::CausalLm model = tiny_model();
  AdamW optimizer(model.parameters(), {});
  const at::Tensor before = optimizer.flat_masters().clone();
  const model::CausalLm::Parameter& bad = optimizer.parameters()[4];
  for (const model::CausalLm::Parameter& parameter : optimizer.parameters())
    parameter.tensor->mutable_grad() = at::ones_like(*parameter.tensor);
  bad.tensor->mutable_grad().view(-1)[0].fill_(std::numeric_limits<float>::infinity());
  optimizer.take_gradients();
  const std::string refusal = refusal_of([&] { optimizer.step(); });
  EXPECT_NE(refusal.find("1 of"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find(bad.name + " (layer 0)"), std::string::npos) << refusal;
  EXPECT_TRUE(optimizer.flat_masters().equal(before));
  EXPECT_EQ(optimizer.steps(), 0);
}

TEST(AdamW, KeepsSmallStepsThatTheModelsTypeWouldLose) {
  model::CausalLm model = tiny_model(3, at::kBFloat16);
  AdamW optimizer(model.parameters(), {.learning_rate = 1e-6, .weight_decay = 0, .clip_norm = 0});
  const at::Tensor start = optimizer.flat_masters().clone();
  for (int step = 0; step < 10; ++step) {
    for (const model::CausalLm::Parameter& parameter : optimizer.parameters())
      parameter.tensor->mutable_grad() = at::ones_like(*parameter.tensor);
    optimizer.take_gradients();
    optimizer.step();
  }
  EXPECT_NEAR((start - optimizer.flat_masters()).mean().item<double>(), 1e-5, 1e-7);
}

}  // namespace trainer_test
}  // namespace faultline::train
