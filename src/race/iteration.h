// One iteration on one rank, in the chosen mode:
//   fsdp     host copy; per layer: all-gather the shards, compute; per layer downwards: all-gather again, backward,
//            reduce-scatter the gradients; optimizer
//   ddp      host copy; per layer: compute; per layer downwards: backward, all-reduce the gradients (or buckets of
//            them); optimizer
//   default  host copy; per layer: all-to-all, compute, all-reduce
// Every buffer is filled with a pattern, every output poisoned before it is written and checked after.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "race/checks.h"
#include "race/compute.h"
#include "race/rank_loop.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace faultline::race {

struct StepOptions {
  bool verify = true;
  bool digests = true;
};

class Iteration {
 public:
  Iteration(const Config& config, const RankOptions& options, c10::intrusive_ptr<c10d::Backend> data);
  ~Iteration();

  RankRecord run(int64_t iteration, StepOptions options);
  std::vector<Mismatch> take_mismatches();
  double device_seconds() const { return device_seconds_; }  // of the last run
  // This rank's own time before each collective of the last run, and the collective's layer.
  const std::vector<double>& local_seconds() const { return local_seconds_; }
  // The longest call of the last run that started a collective, and its layer.
  double call_seconds() const { return call_seconds_; }
  int64_t call_layer() const { return call_layer_; }
  int64_t local_layer(size_t index) const { return local_layers_[index]; }
  int64_t collectives() const { return collectives_; }
  int64_t collective_bytes() const { return collective_bytes_; }
  void add_hook(Hook* hook) { hooks_.push_back(hook); }
  void remove_hook(Hook* hook) { std::erase(hooks_, hook); }

 private:
  struct Pending {  // a collective that was called and not yet waited for
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor output;
  };

  void allocate();
  void copy_from_host();
  void start_host_copy(int64_t iteration, size_t slot);
  size_t host_slot() const;  // of this iteration
  void run_fsdp();
  void run_ddp();
  void run_default();
  void forward_compute(int64_t layer, const at::Tensor& gathered);
  void backward_compute(int64_t layer, const at::Tensor& gathered);
  void start_gather(int64_t layer, bool backward);
  at::Tensor finish_gather(int64_t layer, bool backward);
  void reduce_scatter_gradients(int64_t layer);
  void fill_shard(int64_t layer);
  void expect_input(int64_t layer, const at::Tensor& like, const numeric::Pattern& pattern);
  void fill_ddp_gradient(int64_t layer);
  void all_reduce_bucket(int64_t first, int64_t last);
  void all_to_all(int64_t layer);
  void check_reduced(int64_t layer, const at::Tensor& result, const char* operation, const PatternAt& pattern_at);
  void step_optimizer(const at::Tensor& gradient);
  Pending start_collective(Place place, int64_t layer, const char* name, const at::Tensor& output,
                           const std::function<c10::intrusive_ptr<c10d::Work>()>& call);
  void finish_collective(Pending& pending, int64_t layer, const char* name);
  void visit(Place place, int64_t layer, const at::Tensor& buffer, const StaleContent& stale);
  bool skips(Place place, int64_t layer);
  PatternPlace place_of(Stream stream, int64_t layer, int rank) const;
  PatternAt shard_patterns() const;
  PatternAt gradient_patterns(int64_t piece, bool summed) const;
  PatternAt message_patterns(int64_t piece) const;
  StaleContent stale(const at::Tensor& buffer, const PatternAt& pattern_at, PatternPlace place, int pieces) const;
  bool digests(Key key, DigestTiming timing) const;
  void finish_deferred();
  void wait_for_device();
  double seconds() const;

  Config config_;
  RankOptions options_;
  c10::intrusive_ptr<c10d::Backend> data_;
  std::vector<Hook*> hooks_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<Checks> checks_;
  at::TensorOptions tensor_options_;
  std::optional<c10::Stream> communication_;  // a GPU's second stream

  std::vector<at::Tensor> shards_;               // (S) a layer
  at::Tensor gathered_[2];                       // (R * S), in turn
  at::Tensor gradients_, reduced_;               // (R * S), (S); ddp: (L * A), unused
  at::Tensor exchange_input_, exchange_output_;  // all-to-all
  at::Tensor host_[2], copied_[2];
  std::vector<at::Tensor> inputs_;  // of compute: one where layers share it
  at::Tensor last_output_;          // of the layer before, for stale data
  at::Tensor scratch_;              // the pattern itself
  at::Tensor parameters_, shadow_, first_moment_, second_moment_;
  Pending gather_[2];

  int64_t iteration_ = 0;
  StepOptions step_;
  std::vector<std::function<void()>> deferred_;  // digests that are taken after the record was consumed
  std::chrono::steady_clock::time_point local_since_;
  std::vector<double> local_seconds_;
  std::vector<int64_t> local_layers_;
  double call_seconds_ = 0;
  int64_t call_layer_ = -1;
  double device_seconds_ = 0;
  int64_t collectives_ = 0, collective_bytes_ = 0;
  // The iterations that these were made for.
  int64_t host_copied_for_ = std::numeric_limits<int64_t>::min();
  int64_t expected_for_ = std::numeric_limits<int64_t>::min();
};

}  // namespace faultline::race
