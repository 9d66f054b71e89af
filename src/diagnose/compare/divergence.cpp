#include "diagnose/compare/divergence.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "diagnose/accusations.h"
#include "diagnose/compare/shared_places.h"
#include "diagnose/recomputation.h"
#include "tap/operators.h"

namespace faultline::diagnose {
namespace {

constexpr std::array kProbabilities = {0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0};
constexpr int64_t kProfileElements = 1 << 21;  // of a family

std::vector<std::pair<double, double>> quantiles_of(const at::Tensor& values) {
  std::vector<std::pair<double, double>> all;
  if (values.numel() < 2) return all;
  const at::Tensor sorted = std::get<0>(values.sort());
  for (const double p : kProbabilities)
    all.emplace_back(p, sorted[static_cast<int64_t>(p * static_cast<double>(sorted.numel() - 1))].item<double>());
  return all;
}

bool reads_finite(const RecordedCall& call) {
  std::vector<at::Tensor> given;
  for (const c10::IValue& value : call.arguments) tap::collect_tensors(value, given);
  return std::all_of(given.begin(), given.end(), [](const at::Tensor& x) {
    // masks hold -inf by their nature
    return !x.is_floating_point() || !x.isnan().any().item<bool>();
  });
}

class Judge {
 public:
  Judge(const Trace& trace, char side, const std::map<std::string, double>& order)
      : trace_(trace), side_(side), order_(order) {}

  JudgedSide judged;
  std::map<const TracedCall*, Own> own;
  std::map<std::string, ErrorGathering> errors;                              // by family
  std::map<std::string, std::pair<WrongCall, ErrorGathering>> wrong_errors;  // by place and operator

  void run() {
    for (const TracedCall& call : trace_.calls) judge_call(call);
  }

 private:
  void judge_call(const TracedCall& traced) {
    ++judged.calls;
    const RecordedCall& call = traced.call;
    follow(traced);
    if (!traced.is_stored) {
      if (trace_.detail() != Detail::kDigest) leave_out(traced, ": not kept");
      return;
    }
    std::vector<Observation> observations;
    Checked checked = Checked::kNoReference;
    try {
      checked = reference_.check(call, observations);
    } catch (const c10::Error&) {  // sizes that fit the schema and not each other
      observations.clear();
    } catch (const std::out_of_range&) {  // of an operator that this process has no schema of
      observations.clear();
    }
    if (checked == Checked::kNoReference) leave_out(traced, "");
    note_non_finite(traced);
    bool is_wrong = false;
    for (Observation& observation : observations) is_wrong |= judge_one(traced, observation) && !is_wrong;
    if (observations.empty()) return;
    ++judged.judged, ++judged.judged_by_family[traced.family];
  }

  void leave_out(const TracedCall& traced, const char* why) {
    ++judged.not_judged[traced.call.name + why];
    judged.blind += !traced.family.empty();
  }

  // Where among the products the model is now.
  void follow(const TracedCall& traced) {
    const std::string& place = site::place_of(traced.call.place).path;
    if (traced.forward != forward_) position_ = 0, forward_ = traced.forward;
    if (const auto found = order_.find(place); found != order_.end() && product_arguments(traced.call))
      position_ = found->second;
    else
      position_ = std::floor(position_) + 0.5;
  }

  void note_non_finite(const TracedCall& traced) {
    if (judged.first_non_finite) return;
    const at::Tensor& y = traced.call.results[0];
    if (!y.isnan().any().item<bool>()) return;  // infinities are what masks are made of
    judged.first_non_finite = site::place_of(traced.call.place).path + " (" + traced.call.name + ")";
    judged.entered_finite = reads_finite(traced.call);
  }

  bool judge_one(const TracedCall& traced, Observation& observation) {
    const int64_t untested = observation.untested.defined() ? observation.untested.item<int64_t>() : 0;
    judged.elements += observation.observed.numel() - untested, judged.untested += untested;
    const at::Tensor observed = observation.observed.to(at::kDouble), expected = observation.expected.to(at::kDouble);
    const at::Tensor error = observed - expected;
    Own& mine = own[&traced];
    mine.error = error.square().mean().sqrt().item<double>();
    mine.size = expected.square().mean().sqrt().item<double>();
    mine.allowed = observation.tolerance.defined()
                       ? observation.tolerance.to(at::kDouble).square().mean().sqrt().item<double>()
                       : 0;
    std::optional<Judged> broken = diagnose::judge(observation);
    if (!broken) {
      keep_errors(traced, observation, nullptr);
      return false;
    }
    WrongCall wrong;
    wrong.side = side_, wrong.number = traced.number, wrong.forward = traced.forward;
    const site::Place& place = site::place_of(broken->place == site::kNowhere ? traced.call.place : broken->place);
    wrong.layer = place.layer, wrong.place = place.path, wrong.operation = observation.operation;
    wrong.name = traced.call.name, wrong.position = position_;
    const Kind kind = classify(observation, broken->first, broken->size);
    wrong.kind = kind.name, wrong.detail = kind.detail;
    wrong.evidence = std::move(broken->evidence);
    keep_errors(traced, observation, &wrong);
    judged.wrong.push_back(std::move(wrong));
    return true;
  }

  // Against the rightly rounded result: what a profile makes of right arithmetic to get this side's.
  void keep_errors(const TracedCall& traced, const Observation& observation, const WrongCall* wrong) {
    if (traced.family.empty() && wrong == nullptr) return;
    const at::Tensor right = observation.expected.to(observation.observed.scalar_type());
    if (wrong != nullptr) {
      auto& [first, all] = wrong_errors[wrong->place + " " + wrong->name];
      if (all.elements() == 0) first = *wrong;
      all.add(right, observation.observed);
    } else if (ErrorGathering& all = errors[traced.family]; all.elements() <= kProfileElements) {
      all.add(right, observation.observed);
    }
  }

  const Trace& trace_;
  char side_;
  const std::map<std::string, double>& order_;
  Recomputation reference_;
  int64_t forward_ = -1;
  double position_ = 0;
};

std::vector<Profile> profiles_of(const Judge& judge) {
  std::vector<Profile> all;
  const auto keep = [&](Profile profile, const ErrorGathering& errors) {
    if (errors.elements() == 0) return;
    profile.errors = errors.measured();
    if (!profile.errors.profile.quantiles.empty()) all.push_back(std::move(profile));
  };
  for (const auto& [key, one] : judge.wrong_errors)
    keep({std::string(tap::family_of(one.first.name)), one.first.name, one.first.layer, one.first.place, {}},
         one.second);
  for (const auto& [family, errors] : judge.errors) keep({family, "", -1, "", {}}, errors);
  return all;
}

TokenLevel token_level(const Trace& a, const Trace& b) {
  std::map<uint64_t, std::array<double, 2>> chances;  // by row key
  std::map<uint64_t, TokenDifference> whose;
  const auto read = [&](const Trace& trace, std::size_t side) {
    std::set<uint64_t> seen;
    for (const TracedForward& forward : trace.forwards) {
      if (!forward.chances.defined() || forward.chances.numel() != std::ssize(forward.rows.keys)) continue;
      const at::Tensor values = forward.chances.to(at::kDouble).contiguous();
      for (std::size_t row = 0; row < forward.rows.keys.size(); ++row) {
        const uint64_t key = forward.rows.keys[row];
        const int64_t next = forward.rows.following[row];
        if (key == 0 || next < 0) continue;
        // The same beginning may go on in several ways.
        const uint64_t whole = forward.rows.keys[static_cast<std::size_t>(next)];
        if (!seen.insert(whole).second) continue;
        const double value = values.const_data_ptr<double>()[row];
        if (side == 0) {
          chances[whole] = {value, std::nan("")};
          whose[whole] = {forward.rows.positions[static_cast<std::size_t>(next)],
                          forward.rows.tokens[static_cast<std::size_t>(next)]};
        } else if (const auto found = chances.find(whole); found != chances.end()) {
          found->second[1] = value;
        }
      }
    }
  };
  read(a, 0), read(b, 1);
  TokenLevel level;
  std::vector<double> differences;
  for (const auto& [key, both] : chances) {
    if (std::isnan(both[0]) || std::isnan(both[1])) continue;
    TokenDifference one = whose.at(key);
    one.a = both[0], one.b = both[1];
    level.worst.push_back(one), differences.push_back(both[1] - both[0]);
  }
  level.tokens = std::ssize(differences);
  if (differences.empty()) return level;
  const at::Tensor d = at::tensor(differences, at::kDouble), ratio = d.exp();
  level.mean = d.mean().item<double>(), level.largest = d.abs().max().item<double>();
  level.k1 = -level.mean;  // of a's tokens: log a - log b
  level.k3 = (ratio - 1 - d).mean().item<double>();
  const double sum = ratio.sum().item<double>(), squares = ratio.square().sum().item<double>();
  level.effective_share = sum * sum / squares / static_cast<double>(differences.size());
  level.ratio_quantiles = quantiles_of(ratio);
  std::stable_sort(level.worst.begin(), level.worst.end(),
                   [](const auto& x, const auto& y) { return std::abs(x.b - x.a) > std::abs(y.b - y.a); });
  if (level.worst.size() > 16) level.worst.resize(16);
  return level;
}

// Digests in the order of a; the same call of a place and operator family in both.
void compare_digests(const Trace& a, const Trace& b, Divergence& divergence) {
  std::map<std::string, std::vector<const TracedCall*>> there;
  const auto key = [](const TracedCall& call) {
    return fmt::format("{} {}", site::place_of(call.call.place).path, call.family);
  };
  for (const TracedCall& call : b.calls)
    if (!call.result_digest.empty()) there[key(call)].push_back(&call);
  std::map<std::string, std::size_t> met;
  for (const TracedCall& call : a.calls) {
    if (call.result_digest.empty()) continue;
    const auto found = there.find(key(call));
    const std::size_t number = met[key(call)]++;
    if (found == there.end() || number >= found->second.size() || found->second[number]->shape != call.shape) continue;
    const TracedCall& other = *found->second[number];
    ++divergence.compared_digests;
    if (divergence.first_unequal || other.result_digest == call.result_digest) continue;
    divergence.first_unequal =
        fmt::format("{} ({}{}): {}", site::place_of(call.call.place).path, call.call.name,
                    call.call.name == other.call.name ? "" : " and " + other.call.name,
                    call.input_digest.empty() || other.input_digest.empty() ? "what it read is not known"
                    : call.input_digest == other.input_digest               ? "both read the same"
                                                                            : "they read different inputs");
  }
  divergence.equal_bits = divergence.compared_digests > 0 && !divergence.first_unequal;
}

void say_what_differs(const Trace& a, const Trace& b, Divergence& divergence) {
  if (a.said("dtype") != b.said("dtype"))
    divergence.remarks.push_back(
        fmt::format("mixed dtypes: a computes in {}, b in {}; each is judged by its own rounding", a.said("dtype"),
                    b.said("dtype")));
  for (const auto& [trace, name] : {std::pair(&a, 'a'), std::pair(&b, 'b')}) {
    if (trace->bounded)
      divergence.remarks.push_back(
          fmt::format("{} reached its limit on disk: later calls are listed without their numbers", name));
    if (trace->detail() == Detail::kDigest)
      divergence.remarks.push_back(fmt::format(
          "{} holds digests only: bits are compared and nobody is judged; record with --detail sample", name));
    if (trace->detail() == Detail::kSample)
      divergence.remarks.push_back(
          fmt::format("{} holds samples: operators are judged on the rows and columns that it kept", name));
  }
  const auto& nan_a = divergence.a.first_non_finite;
  const auto& nan_b = divergence.b.first_non_finite;
  const auto entered = [](const JudgedSide& side) {
    return side.entered_finite ? "what it read was finite" : "what it read held NaN already";
  };
  if (nan_a && nan_b)
    divergence.remarks.push_back(fmt::format("NaN on both sides: a from {} on, b from {} on", *nan_a, *nan_b));
  else if (nan_a || nan_b)
    divergence.remarks.push_back(fmt::format("NaN on one side: {} from {} on; {}", nan_a ? 'a' : 'b',
                                             nan_a ? *nan_a : *nan_b, entered(nan_a ? divergence.a : divergence.b)));
}

// Code that was compiled and graphs that are replayed do not pass the dispatcher: such calls are not even counted.
std::vector<std::string> unseen_parts(const JudgedSide& a, const JudgedSide& b) {
  static const std::vector<std::pair<const char*, std::vector<const char*>>> parts = {
      {"products", {"matmul"}},
      {"norms", {"norm"}},
      {"activations", {"activation"}},
      {"attention", {"attention", "softmax"}}};
  const auto shows = [](const JudgedSide& side, const std::vector<const char*>& families) {
    return std::any_of(families.begin(), families.end(),
                       [&](const char* family) { return side.judged_by_family.contains(family); });
  };
  std::vector<std::string> sentences;
  for (const auto& [part, families] : parts) {
    const bool in_a = shows(a, families), in_b = shows(b, families);
    if (in_a != in_b)
      sentences.push_back(
          fmt::format("{} shows no {} that could be judged, {} does (compiled code and replayed graphs hide them)",
                      in_a ? 'b' : 'a', part, in_a ? 'a' : 'b'));
  }
  return sentences;
}

std::vector<WrongCall> first_of(const JudgedSide& a, const JudgedSide& b) {
  std::vector<WrongCall> first;
  const auto begins = [](const WrongCall& call) { return std::pair(call.forward, call.position); };
  const auto earliest = [&](const JudgedSide& side) {
    return std::min_element(side.wrong.begin(), side.wrong.end(),
                            [&](const WrongCall& x, const WrongCall& y) { return begins(x) < begins(y); });
  };
  const auto of_a = earliest(a), of_b = earliest(b);
  const bool any_a = of_a != a.wrong.end(), any_b = of_b != b.wrong.end();
  if (any_a && (!any_b || begins(*of_a) <= begins(*of_b))) first.push_back(*of_a);
  if (any_b && (!any_a || begins(*of_b) <= begins(*of_a))) first.push_back(*of_b);
  return first;
}

// A weight that lies in another type on the other side is compared by what both types hold.
std::string first_difference(const Json& a, const Json& b) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : a.items()) {
    if (!b.contains(name)) continue;
    const std::string first = weight.value("dtype", ""), second = b[name].value("dtype", "");
    const char* what = first == second ? "digest" : first == "fp16" || second == "fp16" ? "small" : "rounded";
    if (weight.value(what, "") != b[name].value(what, "")) names.push_back(name);
  }
  if (names.empty()) return "";
  return fmt::format("{}{}", names.front(), names.size() == 1 ? "" : fmt::format(" and {} more", names.size() - 1));
}

}  // namespace

int64_t JudgedSide::could_not_judge() const {
  int64_t sum = 0;
  for (const auto& [name, count] : not_judged) sum += count;
  return sum;
}

double JudgedSide::share_judged() const {
  const int64_t all = judged + could_not_judge();
  return all == 0 ? 0 : static_cast<double>(judged) / static_cast<double>(all);
}

std::vector<Part> parts_of(const std::string& place, int64_t columns, const Json& weights) {
  const std::size_t dot = place.rfind('.');
  const std::string around = dot == std::string::npos ? "" : place.substr(0, dot + 1);
  std::vector<std::string> names;
  if (place.ends_with("qkv_proj")) names = {"q_proj", "k_proj", "v_proj"};
  if (place.ends_with("gate_up_proj")) names = {"gate_proj", "up_proj"};
  std::vector<Part> parts;
  int64_t first = 0;
  for (const std::string& name : names) {
    const auto weight = weights.find(around + name + ".weight");
    if (weight == weights.end()) break;
    const int64_t size = weight->at("shape").at(0).get<int64_t>();
    parts.push_back({around + name, first, size}), first += size;
  }
  return !parts.empty() && first == columns ? parts : std::vector<Part>{{place, 0, columns}};
}

void check_comparable(const Trace& a, const Trace& b) {
  const std::string which = fmt::format("{} and {}", a.path.string(), b.path.string());
  if (!a.said("tokenizer").empty() && !b.said("tokenizer").empty() && a.said("tokenizer") != b.said("tokenizer"))
    throw UsageError(
        which +
        ": different tokenizers: they cut the same text into different tokens; use one tokenizer on both sides");
  const Json &weights_a = a.header.at("weights"), &weights_b = b.header.at("weights");
  int64_t common = 0;
  for (const auto& [name, weight] : weights_a.items()) common += weights_b.contains(name);
  if (common == 0 && !weights_a.empty() && !weights_b.empty())
    throw UsageError(which + ": no weight has the same name in both: these are different models");
  for (const auto& [name, weight] : weights_a.items())
    if (weights_b.contains(name) && weight.at("shape") != weights_b[name].at("shape"))
      throw UsageError(fmt::format("{}: different weights: {} has the shape {} in one and {} in the other", which, name,
                                   weight.at("shape").dump(), weights_b[name].at("shape").dump()));
  if (const std::string name = first_difference(weights_a, weights_b); !name.empty())
    throw UsageError(
        fmt::format("{}: different weights: {}; load one checkpoint on both sides (after a weight sync: it "
                    "did not arrive)",
                    which, name));
  std::set<uint64_t> rows;
  for (const TracedForward& forward : a.forwards) rows.insert(forward.rows.keys.begin(), forward.rows.keys.end());
  rows.erase(0);
  const bool shared = std::any_of(b.forwards.begin(), b.forwards.end(), [&](const TracedForward& forward) {
    return std::any_of(forward.rows.keys.begin(), forward.rows.keys.end(),
                       [&](uint64_t key) { return rows.contains(key); });
  });
  if (!shared)
    throw UsageError(
        which + ": different prompts: no sequence begins with the same token in both; give both sides the same tokens");
}

Divergence compare_traces(const Trace& a, const Trace& b) {
  check_comparable(a, b);
  const at::NoGradGuard no_gradients;
  Divergence divergence;
  const std::map<std::string, double> order = order_of_products(a, b);
  Judge judge_a(a, 'a', order), judge_b(b, 'b', order);
  judge_a.run(), judge_b.run();
  divergence.a = std::move(judge_a.judged), divergence.b = std::move(judge_b.judged);
  divergence.first = first_of(divergence.a, divergence.b);
  compare_digests(a, b, divergence);
  SharedPlaces shared = shared_places(a, b, judge_a.own, judge_b.own);
  divergence.places = std::move(shared.places), divergence.without_partner = std::move(shared.without_partner);
  divergence.tokens = token_level(a, b);
  divergence.profiles = profiles_of(judge_b);
  if (divergence.profiles.empty() || (!divergence.a.wrong.empty() && divergence.b.wrong.empty()))
    divergence.profiles = profiles_of(judge_a);  // the side that is not right is what can be made again
  say_what_differs(a, b, divergence);
  const bool judged = divergence.a.judged > 0 && divergence.b.judged > 0;
  if (judged) divergence.unseen = unseen_parts(divergence.a, divergence.b);
  const bool all = divergence.a.blind + divergence.b.blind == 0 && divergence.unseen.empty();
  divergence.verdict = !divergence.first.empty()  ? "wrong"
                       : judged                   ? (all ? "within_rounding" : "partly_judged")
                       : divergence.equal_bits    ? "equal_bits"
                       : divergence.first_unequal ? "differs"
                                                  : "not_judged";
  return divergence;
}

}  // namespace faultline::diagnose
