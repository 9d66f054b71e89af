// Generation: many prompts through a fixed number of slots. A slot is a row of the cache; when its sequence ends, the
// next prompt takes its place. The prompt's last token is decoded like every later one, so sampling happens in one
// place and prefill needs no head. A decode step touches only device memory: on CUDA it is captured once and replayed,
// and the host looks at what has ended only every few steps.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/causal_lm.h"

namespace faultline::model {

struct Sampling {
  double temperature = 1;  // 0: greedy
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
};

struct Request {
  std::vector<int64_t> prompt;  // at least one token
  int64_t max_new_tokens = 64;
  uint64_t key = 0;  // its random numbers; equal keys draw alike
  Sampling sampling;
};

// Throws UsageError for an empty prompt or one that does not fit the context.
void check_requests(const std::vector<Request>& requests, const ModelConfig& config);

struct Completion {
  std::vector<int64_t> tokens;           // the end token included, if one came
  std::vector<float> log_probabilities;  // as sampled: tempered, untruncated
  bool ended = false;                    // by an end token; otherwise by its budget
};

struct GenerateOptions {
  int64_t slots = 32;
  std::vector<int64_t> end_tokens;
  bool graphs = true;        // CUDA: capture the decode step
  bool fixed_batch = false;  // never fewer rows: the same shapes whatever ends (batch_invariant)
  // Called with the request's index and its new tokens, in order; on CUDA several at once.
  std::function<void(std::size_t, const std::vector<int64_t>&)> on_tokens;
  std::function<void(std::size_t)> on_finished;  // with the request's index
};

class Generator {
 public:
  Generator(const CausalLm& model, GenerateOptions options);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  std::vector<Completion> run(const std::vector<Request>& requests);  // throws what check_requests does

  struct Statistics {
    int64_t decode_steps = 0, prefill_tokens = 0, captures = 0;
  };
  const Statistics& statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace faultline::model
