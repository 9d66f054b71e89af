// The method `self` on a model that somebody else runs: a state machine that hands out the next probe (which module,
// which input, what to record) and takes what came back. Whoever drives it only runs modules; inputs, right answers and
// judgement are here. A machine that fails is told so and the verdict says what was not asked.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "diagnose/accusations.h"
#include "diagnose/diagnosis.h"
#include "diagnose/operator_relations.h"

namespace faultline::diagnose {

// What the driver knows of a module, by its path.
struct ModuleFacts {
  std::string type;         // linear, rms_norm, silu, embedding; other: its answers are not known
  std::string class_name;   // for sentences
  at::Tensor weight, bias;  // undefined: none
  double epsilon = 0;       // of a norm
};

struct InterviewOptions {
  at::Tensor tokens;      // (1, T) int64
  int64_t head_size = 0;  // 0: unknown, attention is not asked
  uint64_t seed = 0;
  int64_t passes = 1;
};

struct Probe {
  enum class Call {
    kModel,  // the whole model on tokens; the calls of every layer and attention are remembered
    kAgain,  // the remembered call of the module, with another first tensor
    kPlain,  // the module on this tensor alone
  };
  Call call = Call::kPlain;
  std::string module;
  at::Tensor input;
  int64_t times = 1;
  struct Record {
    std::string module;
    bool output = true;  // else its input
  };
  std::vector<Record> records;  // first tensor of each, besides the result
};

class Interview {
 public:
  Interview(std::map<std::string, ModuleFacts> modules, InterviewOptions options);

  std::optional<Probe> next();  // nothing: the verdict is ready
  // For each time: the result's first floating-point tensor, then the records, in their order.
  void answer(const std::vector<at::Tensor>& tensors);
  void fail(const std::string& sentence);  // the probe could not be run
  Diagnosis verdict() const;

 private:
  using Answers = std::vector<std::vector<at::Tensor>>;  // by time: result, records
  struct Step {
    Probe probe;
    std::function<void(const Answers&)> judge;
  };

  void begin_pass();
  void add_layer(int64_t layer);
  void add_ends();  // what belongs to no layer: the last norm, the head
  void add_whole_layer(const std::string& layer, const at::Tensor& x);
  void add_linear(const std::string& path, const ModuleFacts& facts);
  void add_norm(const std::string& path, const ModuleFacts& facts);
  void add_activation(const std::string& path);
  void add_attention(const std::string& path, const at::Tensor& x);
  void add_mlp(const std::string& path);
  void add(Probe probe, std::function<void(const Answers&)> judge);
  void observe(Observation observation);
  void note_limits();
  const ModuleFacts* find(const std::string& path) const;

  std::map<std::string, ModuleFacts> modules_;
  InterviewOptions options_;
  std::vector<std::string> layers_;  // their paths, by index
  std::map<std::string, KnownAnswers> answers_;
  std::vector<at::Tensor> inputs_;  // of the layers, on the prompt
  at::ScalarType dtype_ = at::kFloat;
  bool biases_ = false, broken_off_ = false;
  int64_t pass_ = 0, layer_ = 0, calls_ = 0;
  double layer_rows_ = 0, operator_products_ = 0, layer_weights_ = 0;  // cost
  std::deque<Step> steps_;
  std::optional<Step> asked_;
  Accusations accusations_;
  std::vector<std::string> not_tested_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace faultline::diagnose
