#include "lab/evaluation_schema.h"

namespace faultline {

void register_evaluate_section() {
  const Schema schema =
      Schema::map()
          .field("split", Schema::choice({"test", "shifted", "train"}),
                 {.default_value = Node("test"), .doc = "which problems"})
          .field("limit", Schema::integer({.min = 1}), {.default_value = Node(100), .doc = "at most so many problems"})
          .field("max_new_tokens", Schema::integer({.min = 1}), {.default_value = Node(64), .doc = "for an answer"})
          .field("slots", Schema::integer({.min = 1, .max = 4096}),
                 {.default_value = Node(32), .doc = "answers made at once"})
          .field("temperature", Schema::number({.min = 0}), {.default_value = Node(0.0), .doc = "0 is greedy"})
          .field("top_k", Schema::integer({.min = 0}), {.default_value = Node(0), .doc = "0: all tokens"})
          .field("top_p", Schema::number({.min = 0, .max = 1}), {.default_value = Node(1.0), .doc = "1: all tokens"})
          .field("text", Schema::string({.min = 1}), {.doc = "perplexity of this file, too"})
          .field("window", Schema::integer({.min = 2}), {.default_value = Node(512), .doc = "tokens scored together"});
  SectionRegistry::global().add("evaluate", schema,
                                {.doc = "how an injection run measures the model, clean and faulty"});
}

EvaluationSpec read_evaluation(const Node& recipe) {
  EvaluationSpec spec;
  if (const Node* task = recipe.find("task")) spec.task = read_task(*task);
  spec.generation.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  spec.generation.scoring = spec.task.scoring;
  const Node* evaluate = recipe.find("evaluate");
  if (evaluate == nullptr) return spec;
  spec.split = evaluate->at("split").as_string();
  spec.limit = evaluate->at("limit").as_integer();
  spec.window = evaluate->at("window").as_integer();
  if (const Node* text = evaluate->find("text")) spec.text = text->as_string();
  spec.generation.max_new_tokens = evaluate->at("max_new_tokens").as_integer();
  spec.generation.slots = evaluate->at("slots").as_integer();
  spec.generation.sampling = {evaluate->at("temperature").as_number(), evaluate->at("top_k").as_integer(),
                              evaluate->at("top_p").as_number()};
  return spec;
}

}  // namespace faultline
