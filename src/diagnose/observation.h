// One relation, tried: what the machine gave beside what it had to give and by how much rounding lets it differ. It is
// judged with the plan paused, so that a planted fault spoils the machine under test and never the judge.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "diagnose/diagnosis.h"
#include "model/linear.h"
#include "site/place.h"

namespace faultline::diagnose {

struct Observation {
  std::string relation;
  std::string operation;  // as Candidate's
  site::PlaceId place = site::kNowhere;
  at::Tensor expected;                          // (rows, columns), exact or in a wider type
  at::Tensor observed;                          // (rows, columns), as it came
  at::Tensor tolerance = {};                    // like expected; undefined: none, equal bits (0 and -0 are equal)
  std::vector<model::Linear::Part> parts = {};  // columns that have places of their own
  std::vector<at::Tensor> repetitions = {};     // of the same call
  at::Tensor untested =
      {};  // int64: how many elements have no known answer and were taken out (range.h); undefined: none
};

// What was broken. place: of the part, where the violations keep to one.
struct Judged {
  Evidence evidence;
  site::PlaceId place;
  int64_t first = 0, size = 0;  // the columns that belong to the place
};
std::optional<Judged> judge(const Observation& observation);

// What a look at an observation shows. The device is waited for once for all of them, which on a GPU is most of what
// judging a kept relation costs.
struct Glance {
  bool suspect = false;  // it must be judged: an element or a repetition may be wrong
  int64_t untested = 0;
};
std::vector<Glance> glance(std::span<const Observation> observations);

int mantissa_bits(at::ScalarType dtype);  // 7 of bf16

at::Tensor flat(const at::Tensor& x);  // (rows, last dimension)

// The relation of a call with itself: what differs is fresh at every call.
constexpr const char* kRepetition = "repetition";

constexpr double kRoundedReference = 0x1p-7;             // the row's largest was itself rounded, of bf16 so much
constexpr double kFunctionError = 0x1p-20;               // of fp32 functions and short sums, relative; 8 ulps of fp32
constexpr double kTiny = 0x1p-90, kTinyBound = 0x1p-40;  // inputs times the one give outputs below the other
constexpr double kLarge = 128;                           // silu(128) = 128 and silu(-128) = 0 in fp32

// Half the distance between neighbours of the dtype at |y|, in fp64.
at::Tensor half_ulp(const at::Tensor& y, at::ScalarType dtype);

// While it lives, no rule of the active plan acts.
class PlanPause {
 public:
  PlanPause();
  ~PlanPause();
  PlanPause(const PlanPause&) = delete;
  PlanPause& operator=(const PlanPause&) = delete;

 private:
  bool was_armed_ = false;
};

}  // namespace faultline::diagnose
