// What a comparison of two traces says: as JSON, and the verdict in one sentence.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "diagnose/compare/divergence.h"

namespace faultline::diagnose {
namespace {

Json finite_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const WrongCall& call) {
  Json samples = Json::array();
  for (const Evidence::Sample& sample : call.evidence.samples)
    samples.push_back({{"row", sample.row},
                       {"column", sample.column},
                       {"expected", finite_json(sample.expected)},
                       {"observed", finite_json(sample.observed)}});
  return {{"side", std::string(1, call.side)},
          {"call", call.number},
          {"forward", call.forward},
          {"layer", call.layer},
          {"place", call.place},
          {"operation", call.operation},
          {"operator", call.name},
          {"kind", call.kind},
          {"detail", call.detail},
          {"elements", call.evidence.elements},
          {"violations", call.evidence.violations},
          {"ratio", finite_json(call.evidence.ratio)},
          {"samples", samples}};
}

Json wrong_json(const std::vector<WrongCall>& calls) {
  Json all = Json::array();
  for (const WrongCall& call : calls) all.push_back(to_json(call));
  return all;
}

Json side_json(const JudgedSide& side, const Trace& trace) {
  Json json = {{"trace", trace.path.string()},
               {"calls", side.calls},
               {"judged", side.judged},
               {"share_judged", side.share_judged()},
               {"blind", side.blind},
               {"elements", side.elements},
               {"untested", side.untested},
               {"wrong", wrong_json(side.wrong)},
               {"not_judged", side.not_judged},
               {"first_nan", side.first_non_finite ? Json(*side.first_non_finite) : Json(nullptr)}};
  for (const char* key : {"engine", "torch", "device", "dtype", "detail", "role"}) json[key] = trace.said(key);
  return json;
}

Json to_json(const SharedPlace& place) {
  return {{"place", place.place},
          {"surface", place.is_output ? "output" : "input"},
          {"layer", place.layer},
          {"rows", place.rows},
          {"elements", place.elements},
          {"share_equal", place.share_equal},
          {"difference", finite_json(place.difference)},
          {"own_a", finite_json(place.own_a)},
          {"own_b", finite_json(place.own_b)},
          {"allowed", finite_json(place.allowed)},
          {"reordered", finite_json(place.reordered)}};
}

Json to_json(const TokenLevel& level) {
  Json worst = Json::array();
  for (const TokenDifference& one : level.worst)
    worst.push_back(
        {{"position", one.position}, {"token", one.token}, {"a", finite_json(one.a)}, {"b", finite_json(one.b)}});
  return {{"tokens", level.tokens},
          {"mean", finite_json(level.mean)},
          {"largest", finite_json(level.largest)},
          {"kl_k1", finite_json(level.k1)},
          {"kl_k3", finite_json(level.k3)},
          {"effective_sample_share", finite_json(level.effective_share)},
          {"ratio_quantiles", level.ratio_quantiles},
          {"worst", worst}};
}

std::string wrong_words(const WrongCall& call) {
  return fmt::format("{} ({}{})", call.place.empty() ? "a place without a name" : call.place, call.name,
                     call.kind == "unexplained" || call.kind.empty()
                         ? ""
                         : fmt::format(", like {}{}", call.kind, call.detail.empty() ? "" : ": " + call.detail));
}

std::string blind_words(const Divergence& divergence) {
  std::vector<std::string> all = divergence.unseen;
  for (const auto& [side, name] : {std::pair(&divergence.a, 'a'), std::pair(&divergence.b, 'b')}) {
    if (side->blind == 0) continue;
    std::string which;
    for (const auto& [operation, count] : side->not_judged)
      which += fmt::format("{}{} {}", which.empty() ? "" : ", ", count, operation);
    all.push_back(fmt::format("{}'s {}", name, which));
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

}  // namespace

std::string verdict_sentence(const Divergence& divergence, const Trace& a, const Trace& b) {
  const auto judged = [&] {
    return fmt::format("{} of {} operator calls of a were judged and {} of {} of b", divergence.a.judged,
                       divergence.a.judged + divergence.a.could_not_judge(), divergence.b.judged,
                       divergence.b.judged + divergence.b.could_not_judge());
  };
  const auto tokens = [&]() -> std::string {
    if (divergence.tokens.tokens == 0) return "";
    return fmt::format(" Log-probabilities differ by up to {:.3g} over {} tokens (KL {:.2g}).",
                       divergence.tokens.largest, divergence.tokens.tokens, divergence.tokens.k3);
  };
  if (divergence.verdict == "wrong") {
    std::string sentence;
    for (const WrongCall& call : divergence.first)
      sentence += fmt::format(
          "{}{} ({}) is wrong first at {}: {} of {} elements leave their bound, by up to {}",
          sentence.empty() ? "" : "; ", call.side, (call.side == 'a' ? a : b).said("engine"), wrong_words(call),
          call.evidence.violations, call.evidence.elements,
          std::isfinite(call.evidence.ratio) ? fmt::format("{:.3g} times", call.evidence.ratio) : "without measure");
    const bool other = divergence.a.wrong.empty() || divergence.b.wrong.empty();
    const std::size_t more = divergence.a.wrong.size() + divergence.b.wrong.size() - divergence.first.size();
    return fmt::format("{}. {}{}; {}.", sentence,
                       other ? fmt::format("{} is within rounding", divergence.a.wrong.empty() ? 'a' : 'b')
                             : std::string("Both sides hold wrong operators"),
                       more > 0 ? fmt::format("; {} more calls are wrong by themselves", more) : "", judged());
  }
  if (divergence.verdict == "within_rounding")
    return fmt::format("Within rounding on both sides: every operator gives what its inputs allow; {}.{}", judged(),
                       tokens());
  if (divergence.verdict == "partly_judged")
    return fmt::format("No operator that was judged is wrong, but not all could be: {}. Not seen: {}.{}", judged(),
                       blind_words(divergence), tokens());
  if (divergence.verdict == "equal_bits")
    return fmt::format("Equal bits: {} results are the same on both sides.", divergence.compared_digests);
  if (divergence.verdict == "differs")
    return fmt::format(
        "Bits differ first at {}. Digests do not tell which side is wrong, or whether rounding explains it: "
        "record with --detail sample or full.",
        *divergence.first_unequal);
  return "Nothing could be judged: no operator of both traces has its numbers stored and a formula.";
}

Json to_json(const Divergence& divergence, const Trace& a, const Trace& b) {
  Json places = Json::array(), profiles = Json::array();
  for (const SharedPlace& place : divergence.places) places.push_back(to_json(place));
  for (const Profile& profile : divergence.profiles)
    profiles.push_back({{"family", profile.family},
                        {"place", profile.place},
                        {"operator", profile.name},
                        {"share_equal", profile.errors.share_equal},
                        {"rms", profile.errors.rms},
                        {"noise_to_signal", profile.errors.noise_to_signal},
                        {"elements", profile.errors.elements}});
  return {{"kind", "compare"},
          {"version", 1},
          {"verdict", divergence.verdict},
          {"sentence", verdict_sentence(divergence, a, b)},
          {"first", wrong_json(divergence.first)},
          {"a", side_json(divergence.a, a)},
          {"b", side_json(divergence.b, b)},
          {"places", places},
          {"tokens", to_json(divergence.tokens)},
          {"without_partner", divergence.without_partner},
          {"unseen", divergence.unseen},
          {"remarks", divergence.remarks},
          {"first_unequal", divergence.first_unequal ? Json(*divergence.first_unequal) : Json(nullptr)},
          {"profiles", profiles}};
}

}  // namespace faultline::diagnose
