// A recipe while it is being made of another system's settings: what was understood so far, and a note wherever the
// meaning is not quite the same. Each part of the other systems is read by one function.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "recipe/foreign_settings.h"

namespace faultline::recipe {

struct Draft {
  const Settings& settings;
  Node recipe = Node::map();
  Node faults = Node::list();
  std::vector<std::string> notes = {};

  void note(std::string text);  // once
};

using Choices = std::map<std::string, std::string>;
// What a word means; UsageError names the key as it was written, the nearest word and all words.
std::string chosen(const Settings& settings, const std::string& slot, const std::string& word, const Choices& choices);
Node map_of(std::initializer_list<std::pair<const char*, Node>> entries);
// Strengths that bf16 with nearest rounding cannot show get stochastic rounding.
void add_rule(Draft& draft, const std::string& name, Node where, Node what, Node more = Node::map());
Node phases_of(bool rollout, bool training, bool backward);

void add_hw_errors(Draft& draft);        // verl's modules with errors: trainer.hw_error_injection
void add_noisy_operators(Draft& draft);  // trainer.noisy_ops, VERL_NOISY_OPS_*
void add_dead_zone(Draft& draft);        // deadzone.*
void add_planted_fault(Draft& draft);    // SRDD's --ground_truth_layer
void add_norm_noise(Draft& draft);       // trainer.noise_injection, aqn.*
void add_training(Draft& draft);         // model, data and GRPO's settings

}  // namespace faultline::recipe
