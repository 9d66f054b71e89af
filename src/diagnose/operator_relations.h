// What each operator inside a layer must answer on inputs whose answer is known: linears (known_answers.h), norms,
// activation, rotation, attention, and the modules around them. Every call goes through the model's own code, with its
// places and kernels, so that whatever spoils the model spoils the call.
#pragma once

#include <functional>

#include "diagnose/known_answers.h"
#include "diagnose/observation.h"

namespace faultline {

struct Cost {
  double multiplications = 0;  // of linears: rows times weights
  int64_t calls = 0;
};

struct OperatorProbe {
  const CausalLm& model;
  const std::map<PlaceId, KnownAnswers>& answers;
  uint64_t seed = 0;
  int64_t repetitions = 1;  // each call so many times more
  std::function<void(const Observation&)> observe;
  Cost& cost;

  void probe_layer(int64_t layer) const;
  void probe_ends() const;  // embedding, final norm, head

 private:
  void probe_linear(const Linear& linear) const;
  void probe_norm(const Norm& norm) const;
  void probe_activation(const Mlp& mlp) const;
  void probe_attention(const Attention& attention) const;
  void probe_rotary(const Attention& attention) const;
  void probe_modules(const Layer& layer, int64_t index) const;
  at::Tensor patterns(int64_t columns, double octaves) const;  // (rows, columns), of the model's type
  void run(Observation observation, const std::function<at::Tensor()>& call) const;
};

}  // namespace faultline
