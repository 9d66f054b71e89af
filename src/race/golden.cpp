#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/stats/stats.h"
#include "base/text.h"
#include "race/checks.h"
#include "record/document.h"

namespace faultline::race {
namespace {

constexpr const char* kKind = "race-golden";

// What decides the bits of the computation.
std::string depends_on(const Node& config, const std::string& device_type) {
  std::string text = device_type;
  for (const char* key : {"dtype", "compute_type", "gemm_size", "gemm_layers", "model_dim", "num_layers", "num_heads",
                          "ffn_size", "seq_len", "batch_size", "shared_layer_weights", "deterministic_seed"}) {
    const Node* value = config.find(key);
    if (value != nullptr) text += fmt::format(" {}={}", key, describe(*value));
  }
  if (const Node* sum = config.find("checksum"); sum != nullptr && sum->as_string() == "int16")
    text += " checksum=int16";
  return text;
}

}  // namespace

void write_golden(const std::filesystem::path& path, const Node& config, const std::string& device_type,
                  const RunResult& result) {
  if (result.verdict != Verdict::kPass || result.evidence.empty())
    throw RuntimeFailure(fmt::format("{}: a golden is kept only from a run that passed", path.string()));
  Json digests = Json::array();
  for (const auto& [place, value] : result.evidence[0].reference.values())
    digests.push_back(
        {{"key", key_name(place.first)}, {"layer", place.second}, {"digest", fmt::format("{:016x}", value)}});
  if (digests.empty())
    throw UsageError(
        fmt::format("{}: this configuration has no record that is equal in all iterations", path.string()));
  record::write_document(path, kKind, {{"depends_on", depends_on(config, device_type)}, {"digests", digests}});
}

Reference read_golden(const std::filesystem::path& path, const Node& config, const std::string& device_type) {
  const Json body = record::read_document(path, kKind);
  Reference reference;
  try {
    const std::string made_for = body.at("depends_on"), here = depends_on(config, device_type);
    if (made_for != here)
      throw UsageError(
          fmt::format("{}: this golden is of another computation ({}; wanted {}); make one with --write-golden",
                      path.string(), made_for, here));
    for (const Json& row : body.at("digests")) {
      const std::string key = row.at("key");
      for (int k = 0; k < kKeys; ++k)
        if (key == key_name(static_cast<Key>(k)))
          reference.set(static_cast<Key>(k), row.at("layer"),
                        std::stoull(row.at("digest").get<std::string>(), nullptr, 16));
    }
  } catch (const Json::exception& error) {
    throw RuntimeFailure(fmt::format("{}: not a golden that this version reads: {}", path.string(), error.what()));
  } catch (const std::logic_error& error) {
    throw RuntimeFailure(fmt::format("{}: a digest is not a number: {}", path.string(), error.what()));
  }
  return reference;
}

Overhead digest_overhead(const RunResult& result) {
  Overhead overhead;
  std::vector<double> relative, drift;
  for (const RankEvidence& e : result.evidence) {
    if (e.rank != 0) continue;
    const size_t stride = std::max(e.step_seconds.stride(), e.step_seconds_plain.stride());
    const std::vector<double> with = e.step_seconds.sample_at(stride), plain = e.step_seconds_plain.sample_at(stride);
    const size_t pairs = std::min(with.size(), plain.size());
    for (size_t i = 0; i < pairs; ++i) relative.push_back(with[i] / plain[i] - 1);
    for (size_t i = 0; i + 1 < pairs; i += 2) drift.push_back(plain[i] / plain[i + 1] - 1);
    overhead.with = upper_median(with), overhead.without = upper_median(plain);
  }
  if (drift.size() < 2)
    throw UsageError(fmt::format("the run ended before {} verified iterations: too few to tell the cost of digests",
                                 kOverheadIterations));
  overhead.relative = t_interval(relative);
  overhead.drift = t_interval(drift);
  return overhead;
}

Json to_json(const Overhead& overhead) {
  return {{"relative", overhead.relative.mean},
          {"low", overhead.relative.low},
          {"high", overhead.relative.high},
          {"pairs", overhead.relative.count},
          {"of_medians", overhead.with / overhead.without - 1},
          {"median_with", overhead.with},
          {"median_without", overhead.without},
          {"drift", {{"relative", overhead.drift.mean}, {"low", overhead.drift.low}, {"high", overhead.drift.high}}}};
}

std::string describe(const Overhead& overhead) {
  return fmt::format(
      "digests: {:+.2f} % of a step (95 % interval {:+.2f} to {:+.2f} %, {} pairs of iterations; median {:.6f} s with, "
      "{:.6f} s without: {:+.2f} %)\ndrift: {:+.2f} % ({:+.2f} to {:+.2f} %) between steps without\n",
      100 * overhead.relative.mean, 100 * overhead.relative.low, 100 * overhead.relative.high, overhead.relative.count,
      overhead.with, overhead.without, 100 * (overhead.with / overhead.without - 1), 100 * overhead.drift.mean,
      100 * overhead.drift.low, 100 * overhead.drift.high);
}

}  // namespace faultline::race
