// Two traces of one model: which operator was the first to give what rounding does not explain, and on which side.
// Every operator of each side is judged by its fp64 recomputation from the inputs that it really had there, so a
// difference that came in with the inputs accuses nobody; beside that, what both sides have in common is put next to
// each other by module and token: how the difference grows, how much of it came in, what each operator added.
#pragma once

#include "diagnose/compare/profile.h"
#include "diagnose/compare/trace.h"
#include "diagnose/diagnosis.h"

namespace faultline::diagnose {

// Two traces can be compared: the same weights, tokenizer and tokens. UsageError, a sentence, where not.
void check_comparable(const Trace& a, const Trace& b);

// One operator call whose result leaves the bound.
struct WrongCall {
  char side = 'a';
  int64_t number = 0, forward = 0, layer = -1;
  std::string operation, name, place, kind, detail;  // name: the operator's
  double position = 0;                               // along the model: where among the products
  Evidence evidence;
};

struct JudgedSide {
  int64_t judged = 0, elements = 0, untested = 0, calls = 0;
  int64_t blind = 0;             // calls of a family that could not be judged: a fault there is not seen
  std::vector<WrongCall> wrong;  // in the order in which they ran
  std::map<std::string, int64_t> judged_by_family;
  std::map<std::string, int64_t> not_judged;    // by operator: no formula for it, or not stored
  std::optional<std::string> first_non_finite;  // where NaN or infinity first came out
  bool entered_finite = true;                   // and what it read was finite

  int64_t could_not_judge() const;
  double share_judged() const;  // of the calls that compute
};

// What the two have in common at one place: an operator's input or output, of the rows and columns that both kept.
struct SharedPlace {
  std::string place;
  bool is_output = false;
  int64_t layer = -1, rows = 0, elements = 0;
  double share_equal = 0, difference = 0;  // rms of a - b over the rms of a
  double own_a = 0, own_b = 0;             // of outputs: rms of the error against fp64, over the rms of the result
  double allowed = 0;                      // the bound's rms, of a
  double reordered = 0;                    // what another order of the sum changes, of a; NaN: not tried
};

struct TokenDifference {
  int64_t position = 0, token = 0;  // that follows
  double a = 0, b = 0;              // log-probabilities
};

struct TokenLevel {
  int64_t tokens = 0;
  double mean = 0, largest = 0, k1 = 0, k3 = 0, effective_share = 0;  // of b - a; ratios are exp(b - a)
  std::vector<std::pair<double, double>> ratio_quantiles;
  std::vector<TokenDifference> worst;
};

struct Profile {
  std::string family, name;  // of whose operator
  int64_t layer = -1;        // -1: of all layers
  std::string place;
  MeasuredErrors errors;
};

struct Divergence {
  JudgedSide a, b;
  std::vector<WrongCall> first;  // one of a side; two where both begin at one place
  std::vector<SharedPlace> places;
  TokenLevel tokens;
  std::vector<std::string> without_partner, remarks;
  std::vector<std::string> unseen;           // parts of a model that one side shows and the other hides
  std::optional<std::string> first_unequal;  // of digests: the first place whose bits differ
  bool equal_bits = false;                   // all digests that both have
  int64_t compared_digests = 0;
  std::vector<Profile> profiles;  // b's error against the rightly rounded result, per family; and of each wrong place
  std::string verdict;            // within_rounding, partly_judged, wrong, equal_bits, differs, not_judged
};

Divergence compare_traces(const Trace& a, const Trace& b);
Json to_json(const Divergence& divergence, const Trace& a, const Trace& b);
std::string verdict_sentence(const Divergence& divergence, const Trace& a, const Trace& b);

// Where products of one site lie in a fused weight. place: "…q_proj"; first, size: its columns of the result.
struct Part {
  std::string place;
  int64_t first = 0, size = 0;
};
std::vector<Part> parts_of(const std::string& place, int64_t columns, const Json& weights);

}  // namespace faultline::diagnose
