// What each operator inside a layer must answer on inputs whose answer is known: linears (known_answers.h), norms,
// activation, rotation, attention, and the modules around them. Every call goes through the model's own code, with its
// places and kernels, so that whatever spoils the model spoils the call.
#pragma once

#include <functional>

#include "diagnose/known_answers.h"
#include "diagnose/observation.h"

namespace faultline::diagnose {

struct Cost {
  double multiplications = 0;  // of linears: rows times weights
  int64_t calls = 0;
};

class OperatorProbe {
 public:
  OperatorProbe(const model::CausalLm& model, const std::map<site::PlaceId, KnownAnswers>& answers, uint64_t seed,
                std::function<void(Observation)> observe)
      : model_(model), answers_(answers), seed_(seed), observe_(std::move(observe)) {}

  // repetitions: each call so many times more.
  void probe_layer(int64_t layer, int64_t repetitions);
  void probe_ends();  // embedding, final norm, head
  const Cost& cost() const { return cost_; }

 private:
  struct OneKey {  // questions to an attention that sees one key
    at::Tensor query, value, keys, values, lengths, wanted;
  };
  void probe_linear(const model::Linear& linear);
  void probe_norm(const model::Norm& norm);
  void probe_activation(const model::Mlp& mlp);
  void probe_attention(const model::Attention& attention);
  void probe_rotary(const model::Attention& attention);
  void probe_modules(const model::Layer& layer, int64_t index);
  const KnownAnswers& activation_answers(int64_t inner);
  const OneKey& one_key(const model::Attention& attention);
  const at::Tensor& rows(int64_t columns);  // (rows, columns), of the model's type
  void run(Observation observation, const std::function<at::Tensor()>& call);

  const model::CausalLm& model_;
  const std::map<site::PlaceId, KnownAnswers>& answers_;
  uint64_t seed_;
  std::function<void(Observation)> observe_;
  int64_t repetitions_ = 1;
  Cost cost_;
  // Layers are alike, and so are the questions that do not depend on weights: by width.
  std::map<int64_t, at::Tensor> rows_;
  std::map<int64_t, KnownAnswers> activation_;
  std::map<int64_t, OneKey> one_key_;
};

}  // namespace faultline::diagnose
