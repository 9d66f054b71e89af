// AQN: Gaussian noise on the RMSNorm weights of the policy that samples, while actor, reference and validation stay
// clean. The decisions that shaped it: the noise lives in fp32 copies that take the weights' places for as long as a
// guard lives, so nothing can be left behind (Note [No random walk]); an element's deviate is a function of (seed,
// step, parameter name, element), so replicas and resumed runs agree; and what is reported is measured on what the
// model carries once the copies are in their places, never computed from the schedule.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schedule/schedule.h"
#include "site/place.h"
#include "site/selector.h"

namespace faultline::aqn {

enum class AqnSites { kNormWeight, kLayerOutput, kMatmulOutput };
enum class AqnScale { kAbsolute, kRelative, kRow };  // sigma as it is, times |x|, times the row's standard deviation

struct AqnSpec {
  ScheduleSpec schedule;
  AqnSites sites = AqnSites::kNormWeight;
  AqnScale scale = AqnScale::kAbsolute;
  bool after_faults = false;             // activations only: behind the faults of the same site instead of before them
  bool exclude_router_input = false;     // mixtures of experts: every norm but the one whose output the router reads
  std::vector<std::string> norms;        // names of the norms that carry it (input_layernorm); empty: as the model asks
  std::vector<std::string> except;       // names of norms that do not
  std::vector<site::LayerRange> layers;  // empty: all, and the final norm
  bool force = false;                    // also where noisy rollouts lose more than a fifth of the accuracy

  bool relative() const { return scale == AqnScale::kRelative; }
};

// A named weight of a model; `weight` is the model's own handle.
struct NoiseTarget {
  std::string name;
  at::Tensor* weight = nullptr;
  site::PlaceId place = site::kNowhere;
};

struct NormSelection {
  std::vector<std::string> only;  // names; empty: every norm
  std::vector<site::LayerRange> layers;
  int64_t layer_count = 0;
  int64_t norm_count = 0;                // how many RMSNorms the architecture has
  std::vector<std::string> except = {};  // names
};
// What the section means for a model: in a mixture of experts the norm that the router reads, and nothing else, unless
// the section names norms. UsageError where it excludes a router's input and the model has no router.
NormSelection norm_selection(const AqnSpec& spec, bool is_mixture, int64_t layer_count);
// UsageError where a layer is named that does not exist.
void check_noise_layers(const std::vector<site::LayerRange>& layers, int64_t layer_count);
// Norms by role, in the model's order. UsageError where none is meant or a layer or a named norm does not exist;
// assertion where the number differs from what the architecture says.
std::vector<NoiseTarget> select_norms(const std::vector<NoiseTarget>& parameters, const NormSelection& selection);
// The same for somebody else's model, of which nothing but the module paths is known: a mixture is what has experts.
// UsageError also where a layer has no norm that is meant, or norms stand in two stacks of layers (a vision tower's
// beside a language model's).
std::vector<std::string> select_norms(const std::vector<std::string>& paths, const AqnSpec& spec);
int64_t count_layers(const std::vector<std::string>& paths);  // that module paths name

// Standard normal deviates of one weight at one step: (elements) fp32 on the CPU.
at::Tensor norm_deviates(uint64_t seed, int64_t step, const std::string& name, int64_t elements);

// The step whose noise is strongest, as a root mean square over these layers (kNoLayer: what belongs to none); the
// first of several. UsageError where there is none at any step, or the schedule names layers that the model lacks.
int64_t strongest_step(const ScheduleSpec& schedule, const std::vector<int64_t>& layers, int64_t layer_count,
                       int64_t total_steps);

// UsageError where sigma is below half a step of the numbers around the weight's median: noise that rounding removes.
void check_representable(const at::Tensor& weight, const std::string& name, double sigma, bool relative);
// The same for the weakest noise that a schedule has for this layer at any step.
void check_weakest(const at::Tensor& weight, const std::string& name, const AqnSpec& spec, int64_t layer,
                   int64_t layer_count, int64_t total_steps);

struct NoiseApplied {
  int64_t step = 0;
  double sigma = 0;                   // of the schedule
  double expected = 0;                // root mean square of sigma over the elements, multipliers and |weight| included
  double measured = 0;                // root mean square of noisy - clean
  int64_t weights = 0, silent = 0;    // with noise, and those whose strength is 0 at this step
  int64_t elements = 0, changed = 0;  // of all weights; elements that differ from the clean ones
};

class NormNoise {
 public:
  NormNoise(AqnSpec spec, std::vector<NoiseTarget> targets, int64_t layer_count, uint64_t seed, int64_t total_steps);
  ~NormNoise();
  NormNoise(const NormNoise&) = delete;
  NormNoise& operator=(const NormNoise&) = delete;

  // The weights carry the step's noise until the result is destroyed. One at a time. The copies' memory is the same at
  // every step, so a captured graph keeps reading them; hold the guard for sigma 0 too (Note [Graphs read copies]).
  [[nodiscard]] std::shared_ptr<void> apply(int64_t step);

  const NoiseApplied& last() const { return last_; }
  std::string log_line() const;  // of the last application
  Json record() const;           // of the last application
  std::size_t targets() const { return targets_.size(); }
  int64_t strongest_step() const { return strongest_; }

  // EvidenceError where a clean weight or its copy changed while the copy was in use, or the measured noise is not the
  // schedule's.
  void check() const;

 private:
  void restore();
  double strength_of(const NoiseTarget& target, int64_t step) const;
  void measure(int64_t step, const std::vector<at::Tensor>& scales);  // into last_
  at::Tensor carried_values() const;  // (elements) fp32 on the CPU: what the model has now

  AqnSpec spec_;
  std::vector<NoiseTarget> targets_;
  std::vector<at::Tensor> clean_, noisy_;  // clean_: the model's handles while a guard lives
  int64_t layer_count_, total_steps_;
  uint64_t seed_;
  int64_t strongest_ = 0;
  NoiseApplied last_;
  at::Tensor before_, carried_;  // clean and noisy values at the last application
  bool active_ = false, intact_ = true, kept_ = true;
};

}  // namespace faultline::aqn
