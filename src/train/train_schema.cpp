#include "train/trainer.h"

namespace faultline::train {
namespace {

Schema positive() { return Schema::number({.min = 0, .exclusive_min = true}); }
Schema count(int64_t least = 1) { return Schema::integer({.min = least, .max = int64_t{1} << 30}); }

Schema with_optimizer(const Schema& map, double learning_rate) {
  return map.field("lr", positive(), {.default_value = Node(learning_rate), .doc = "AdamW's learning rate, constant"})
      .field("weight_decay", Schema::number({.min = 0}), {.default_value = Node(0.01), .doc = "decoupled"})
      .field("beta1", Schema::number({.min = 0, .max = 1, .exclusive_max = true}), {.default_value = Node(0.9)})
      .field("beta2", Schema::number({.min = 0, .max = 1, .exclusive_max = true}), {.default_value = Node(0.999)})
      .field("grad_clip", Schema::number({.min = 0}),
             {.default_value = Node(1.0), .doc = "bound on the norm of all gradients together; 0: none"})
      .field("micro_batch", count(0),
             {.default_value = Node(0), .doc = "sequences of one forward and backward; must divide; 0: a whole shard"});
}

Schema with_loss(const Schema& map) {
  return map.field("norm_adv_by_std", Schema::boolean(), {.default_value = Node(true), .doc = "false: Dr.GRPO"})
      .field("filter_groups", Schema::boolean(),
             {.default_value = Node(false), .doc = "DAPO: leave out groups whose rewards are all equal"})
      .field("clip_ratio_low", Schema::number({.min = 0, .max = 1, .exclusive_max = true}),
             {.default_value = Node(0.2)})
      .field("clip_ratio_high", Schema::number({.min = 0}), {.default_value = Node(0.2), .doc = "DAPO: 0.28"})
      .field("clip_ratio_c", Schema::number({.min = 1, .exclusive_min = true}),
             {.default_value = Node(3.0), .doc = "dual clip of negative advantages"})
      .field("loss_agg_mode", Schema::choice(aggregation_names()), {.default_value = Node("token-mean")})
      .field("use_kl_loss", Schema::boolean(), {.default_value = Node(false)})
      .field("kl_loss_coef", Schema::number({.min = 0}), {.default_value = Node(0.001)})
      .field("kl_loss_type", Schema::choice(kl_names()), {.default_value = Node("k3")})
      .field(
          "tis_limit", Schema::number({.min = 0}),
          {.default_value = Node(0.0), .doc = "truncated importance sampling: bound on the ratio, 2 is usual; 0: off"})
      .field("updates", count(), {.default_value = Node(1), .doc = "of the weights in a step; must divide prompts"});
}

Schema sft_schema() {
  return with_optimizer(Schema::map()
                            .field("steps", count(), {.default_value = Node(25)})
                            .field("prompts", count(), {.default_value = Node(32), .doc = "worked solutions a step"}),
                        1e-4);
}

Schema lora_schema() {
  return Schema::map()
      .field("rank", count(), {.default_value = Node(16)})
      .field("alpha", positive(), {.default_value = Node(32.0), .doc = "the adapter counts alpha / rank times"})
      .field("targets", Schema::list(Schema::choice({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}), {.min = 1}),
             {.doc = "which linears; all four if not given"});
}

Schema with_record(const Schema& map) {
  return map
      .field("validate_every", count(0),
             {.default_value = Node(0), .doc = "steps; the start and each stage's end always; 0: only these"})
      .field("validation_problems", count(0), {.default_value = Node(256), .doc = "of the test split; 0: none"})
      .field("validation_draws", count(),
             {.default_value = Node(1),
              .doc = "passes over them under the faults, each with noise of its own; one where they draw nothing"})
      .field(
          "shards", Schema::integer({.min = 1, .max = 1024}),
          {.default_value = Node(1), .doc = "parts of a step that processes under torchrun share; decides the result"})
      .field("checkpoint_every", count(0), {.default_value = Node(10), .doc = "steps; 0: none at all"})
      .field("keep", count(), {.default_value = Node(2), .doc = "checkpoints to keep, the latest"})
      .field("lora", lora_schema(), {.doc = "train low-rank adapters in place of all weights"})
      .field("save_model", Schema::boolean(),
             {.default_value = Node(false), .doc = "write the trained model as a Hugging Face folder"});
}

AdamWOptions read_optimizer(const Node& node) {
  AdamWOptions options;
  options.learning_rate = node.at("lr").as_number();
  options.weight_decay = node.at("weight_decay").as_number();
  options.beta1 = node.at("beta1").as_number();
  options.beta2 = node.at("beta2").as_number();
  options.clip_norm = node.at("grad_clip").as_number();
  return options;
}

StageSpec read_sft(const Node& node) {
  StageSpec stage;
  stage.algorithm = Algorithm::kSft;
  stage.steps = node.at("steps").as_integer();
  stage.prompts = node.at("prompts").as_integer();
  stage.n = 1;
  stage.micro_batch = node.at("micro_batch").as_integer();
  stage.optimizer = read_optimizer(node);
  return stage;
}

StageSpec read_grpo(const Node& node) {
  StageSpec stage = read_sft(node);
  stage.algorithm = Algorithm::kGrpo;
  stage.n = node.at("n").as_integer();
  stage.updates = node.at("updates").as_integer();
  stage.norm_adv_by_std = node.at("norm_adv_by_std").as_bool();
  stage.filter_groups = node.at("filter_groups").as_bool();
  stage.use_kl_loss = node.at("use_kl_loss").as_bool();
  stage.kl_coefficient = node.at("kl_loss_coef").as_number();
  stage.kl = kl_by_name(node.at("kl_loss_type").as_string());
  stage.clip = {node.at("clip_ratio_low").as_number(), node.at("clip_ratio_high").as_number(),
                node.at("clip_ratio_c").as_number()};
  stage.aggregation = aggregation_by_name(node.at("loss_agg_mode").as_string());
  stage.importance_limit = node.at("tis_limit").as_number();
  stage.sampling.temperature = node.at("temperature").as_number();
  stage.max_new_tokens = node.at("max_new_tokens").as_integer();
  stage.slots = node.at("slots").as_integer();
  return stage;
}

}  // namespace

void register_train_section() {
  const Schema grpo =
      Schema::map()
          .field("steps", count(), {.default_value = Node(40)})
          .field("prompts", count(), {.default_value = Node(96), .doc = "of a step"})
          .field("n", count(), {.default_value = Node(8), .doc = "responses to each prompt"})
          .field("temperature", positive(), {.default_value = Node(1.0), .doc = "of the rollout"})
          .field("max_new_tokens", count(), {.default_value = Node(64), .doc = "of a response"})
          .field("slots", count(), {.default_value = Node(64), .doc = "responses made at once"})
          .field("sft", sft_schema(), {.doc = "supervised steps before GRPO, with an optimizer of their own"});
  SectionRegistry::global().add(
      "train",
      Schema::tagged("algorithm", {{"grpo", with_record(with_loss(with_optimizer(grpo, 1e-6)))},
                                   {"sft", with_record(sft_schema())}}),
      {.doc = "supervised fine-tuning and GRPO"});
}

TrainRecipe read_train(const Node& train, uint64_t seed) {
  TrainRecipe recipe;
  if (const Node* sft = train.find("sft")) recipe.spec.stages.push_back(read_sft(*sft));
  recipe.spec.stages.push_back(train.at("algorithm").as_string() == "sft" ? read_sft(train) : read_grpo(train));
  recipe.spec.seed = seed;
  if (const Node* lora = train.find("lora")) {
    recipe.spec.lora.rank = lora->at("rank").as_integer();
    recipe.spec.lora.alpha = lora->at("alpha").as_number();
    if (const Node* targets = lora->find("targets"))
      for (const Node& target : targets->items()) recipe.spec.lora.targets.push_back(target.as_string());
  }
  for (StageSpec& stage : recipe.spec.stages) stage.shards = train.at("shards").as_integer();
  recipe.spec.validate_every = train.at("validate_every").as_integer();
  recipe.spec.checkpoint_every = train.at("checkpoint_every").as_integer();
  recipe.spec.keep = train.at("keep").as_integer();
  recipe.validation_problems = train.at("validation_problems").as_integer();
  recipe.validation_draws = train.at("validation_draws").as_integer();
  recipe.save_model = train.at("save_model").as_bool();
  return recipe;
}

}  // namespace faultline::train
