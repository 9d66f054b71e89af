// What a diagnosis says. Evidence is one relation that a healthy machine keeps, at one place, with how far it was
// broken; a candidate is a place that the evidence accuses, with the kind of fault its residuals look like; a diagnosis
// is healthy, or a ranked list of candidates, and always says what it cost and what it could not test. As JSON it is
// what `aqn.layers: {from_verdict: FILE}` reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace faultline::diagnose {

inline constexpr int kDiagnosisVersion = 1;

struct Evidence {
  std::string relation;  // "infinity", "one-hot", "shadow linear"
  std::string place;     // module path
  int64_t elements = 0, violations = 0;
  double ratio = 0;  // the worst |observed - expected| over what rounding allows; infinite: nothing is allowed
  int64_t pass = 0;  // in which repetition it was first seen
  struct Sample {
    int64_t row, column;
    double expected, observed;
  };
  std::vector<Sample> samples;  // the worst few, for --explain
  // The residual by the size of what was expected: small values first, the row's largest last.
  struct Bin {
    double from, to;  // of |expected| over the largest of its row
    int64_t elements, wrong;
    double ratio;     // median of observed / expected where it is wrong; NaN: none is
    double residual;  // median of observed - expected there
  };
  std::vector<Bin> picture;
};

enum class Certainty {
  kExact,        // a relation without tolerance was broken: no healthy machine does that
  kBound,        // a proven rounding bound was left
  kStatistical,  // stands out among its neighbours: may be chance
};

struct Candidate {
  int64_t layer = -1;     // -1: belongs to no layer
  std::string place;      // "model.layers.7.mlp.down_proj"
  std::string operation;  // layer_output, linear, norm, attention, rotary, activation, embedding, module, copy
  std::string kind;       // as the fault catalogue names it; "unexplained": none fits
  std::string detail;     // "bit 3 forced to 1", "about +0.01 of the value"
  double score = 0;       // ranks; of classic, the published score
  Certainty certainty = Certainty::kExact;
  bool intermittent = false;
  std::vector<Evidence> evidence;
};

// Of `classic`: what it measured at one layer's output, z-scores along depth (0 where a layer has none), and what they
// add up to. Names are those of the published script.
struct LayerScore {
  double instability = 0;   // standard deviation of what repetitions differ by
  double gain = 0;          // standard deviation of what a small noise at the input changes, over that of the noise
  double kurtosis = 0;      // excess
  double max_gain = 0;      // quantile 0.999 of what an input moved by 50 changes, over 50
  double failure_rate = 0;  // share of elements that then move by less than 0.85 of the median
  double pileup_ratio = 0;  // an outermost bin of a hundred over the mean of the third and fourth beside it
  double z_instability = 0, z_gain = 0, z_kurt = 0, z_max_gain = 0;
  double z_instability_jump = 0, z_kurt_drop = 0, z_max_gain_drop = 0, z_failure_jump = 0, z_pileup_jump = 0;
  double score = 0;
  std::string kind;                  // "": nothing stands out
  std::vector<std::string> reasons;  // "DEAD_ZONE"
  uint64_t noise_seed = 0;           // of the noise at the input: torch's generator on the CPU, in the model's type
};

// Numbers of a layer that have no known answer, because what came in or had to come out is beyond the range of the
// arithmetic (range.h).
struct Untested {
  int64_t layer = -1;  // -1: of what belongs to no layer
  int64_t elements = 0;
  int64_t of = 0;  // that were looked at there
};

struct Diagnosis {
  std::string method;
  std::vector<Candidate> candidates;    // most accused first; empty and everything tested: healthy
  std::vector<std::string> not_tested;  // sentences
  std::vector<std::string> not_excluded;
  std::vector<Untested> untested;       // layers in order
  std::vector<LayerScore> layers;       // of classic alone
  int64_t relations = 0, elements = 0;  // judged
  double forwards = 0;                  // forward-equivalents of the prompt
  double layer_forwards = 0;            // of them, what naming the layer alone would have cost
  int64_t operator_calls = 0;
  int64_t passes = 1;
  double seconds = 0;
  bool broken_off = false;  // the machine failed in the middle: what was not asked is not healthy

  bool fault_found() const { return !candidates.empty(); }
};

// fault, healthy (all of it was tested), healthy_where_tested, not_tested
std::string_view verdict_of(const Diagnosis& diagnosis);
// Says in not_tested which share of the numbers is beyond the range, where there are any.
void say_untested(Diagnosis& diagnosis);

std::string_view certainty_name(Certainty certainty);
Json to_json(const Diagnosis& diagnosis);

// For people, plain text without line ends: "healthy where tested"; "664 relations, …"; the place, what is wrong and
// how sure that is. to_text: all of it, with line ends, and the first candidates only.
inline constexpr std::size_t kMostShown = 8;
std::string verdict_words(const Diagnosis& diagnosis);
std::string cost_words(const Diagnosis& diagnosis);
std::string candidate_words(const Candidate& candidate);
std::string to_text(const Diagnosis& diagnosis);

Json diagnosis_schema();  // JSON Schema of the above

}  // namespace faultline::diagnose
