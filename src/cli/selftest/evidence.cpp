// The witnesses under test: the digest sees every corruption of its table where the plain sum misses exchanges, and a
// ledger that lies is caught.
#include "numeric/evidence.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include "base/rng.h"
#include "cli/generated_input.h"
#include "cli/selftest/selftest.h"
#include "numeric/apply.h"

namespace faultline::cli {
namespace {

constexpr int64_t kElements = 1 << 16;    // of 4 bytes: 16 tiles of the digest
constexpr int64_t kChunkElements = 1024;  // 4 KiB

using Corrupt = at::Tensor (*)(const at::Tensor& words, uint64_t draw);  // int32 -> another int32 tensor

int64_t place(uint64_t draw, uint64_t salt, int64_t size) {
  return static_cast<int64_t>(mix_bits(draw + (salt << 32)) % static_cast<uint64_t>(size));
}

void flip(int32_t* words, uint64_t draw, uint64_t salt) {
  words[place(draw, salt, kElements)] ^= static_cast<int32_t>(uint32_t{1} << place(draw, salt + 100, 32));
}

at::Tensor one_bit(const at::Tensor& words, uint64_t draw) {
  at::Tensor result = words.clone();
  flip(result.mutable_data_ptr<int32_t>(), draw, 1);
  return result;
}

at::Tensor two_bits(const at::Tensor& words, uint64_t draw) {
  at::Tensor result = one_bit(words, draw);
  flip(result.mutable_data_ptr<int32_t>(), draw, 2);
  return result;
}

at::Tensor swap_ranges(const at::Tensor& words, uint64_t draw, int64_t length) {
  at::Tensor result = words.clone();
  const int64_t count = kElements / length, first = place(draw, 3, count);
  const int64_t second = (first + 1 + place(draw, 4, count - 1)) % count;
  result.slice(0, first * length, (first + 1) * length).copy_(words.slice(0, second * length, (second + 1) * length));
  result.slice(0, second * length, (second + 1) * length).copy_(words.slice(0, first * length, (first + 1) * length));
  return result;
}
at::Tensor swapped_elements(const at::Tensor& words, uint64_t draw) { return swap_ranges(words, draw, 1); }
at::Tensor swapped_chunks(const at::Tensor& words, uint64_t draw) { return swap_ranges(words, draw, kChunkElements); }
at::Tensor rotated(const at::Tensor& words, uint64_t draw) {
  const int64_t by = 1 + place(draw, 5, kElements - 1);
  return at::cat({words.slice(0, by, kElements), words.slice(0, 0, by)});
}

int64_t fingerprint(const at::Tensor& words, const SelftestOptions& options) {
  return numeric::digest(words.to(options.device)).item<int64_t>();
}

std::string digest_catches(Corrupt corrupt, bool keeps_sum, const SelftestOptions& options) {
  const at::Tensor words = raw_bits(gaussian_tensor({{kElements}, at::kFloat, 0, 1, options.seed}));
  const int64_t clean = fingerprint(words, options), sum = numeric::checksum(words.to(options.device)).item<int64_t>();
  const int trials = options.quick ? 100 : 2000;
  int tried = 0, missed = 0, sums = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const at::Tensor corrupted = corrupt(words, mix_bits(options.seed + static_cast<uint64_t>(trial)));
    if (same_bits(corrupted, words)) continue;  // equal elements exchanged, the same bit flipped twice
    ++tried;
    missed += fingerprint(corrupted, options) == clean;
    sums += numeric::checksum(corrupted.to(options.device)).item<int64_t>() == sum;
  }
  if (tried < trials / 2) return fmt::format("only {} of {} corruptions changed anything", tried, trials);
  if (missed > 0) return fmt::format("missed {} of {}", missed, tried);
  return keeps_sum && sums != tried
             ? fmt::format("the plain sum was expected to miss all {}, it missed {}", tried, sums)
             : "";
}

std::string digest_repeats(const SelftestOptions& options) {
  const at::Tensor words = raw_bits(gaussian_tensor({{kElements}, at::kFloat, 0, 1, options.seed}));
  return fingerprint(words, options) == fingerprint(words.clone(), options) ? "" : "two digests of one tensor differ";
}

// A ledger as a run would write it, then bent.
std::string unproven_fault_is_refused(const SelftestOptions& options, void (*bend)(numeric::LedgerNumbers&)) {
  const numeric::Rule rule = numeric::parse_rule("relative_gaussian(strength=0.05)", numeric::RuleUse::kOnTensor);
  const at::Tensor x = gaussian_tensor({{256, 1024}, at::kFloat, 0, 1, options.seed}).to(options.device),
                   ledger = numeric::make_ledger(options.device);
  numeric::apply_(x, rule, {options.seed, "selftest", 0}, {}, {{}, ledger, {}});
  const at::Tensor row = numeric::ledger_columns(ledger);
  numeric::LedgerNumbers numbers = numeric::read_ledger(row.const_data_ptr<double>());
  const std::vector<Complaint> honest = numeric::missing_evidence(rule, numeric::Dtype::kFloat32, numbers);
  if (!honest.empty()) return "an honest ledger was refused: " + honest.front().sentence;
  bend(numbers);
  return numeric::missing_evidence(rule, numeric::Dtype::kFloat32, numbers).empty() ? "the lie was believed" : "";
}

}  // namespace

std::vector<Check> evidence_checks(const SelftestOptions& options) {
  std::vector<Check> checks = {{"digest of unchanged data repeats", [=] { return digest_repeats(options); }}};
  const auto add = [&](const char* name, Corrupt corrupt, bool keeps_sum) {
    checks.push_back({fmt::format("digest catches {}{}", name, keeps_sum ? " (the plain sum misses all)" : ""),
                      [=] { return digest_catches(corrupt, keeps_sum, options); }});
  };
  add("one flipped bit", one_bit, false);
  add("two flipped bits", two_bits, false);
  add("swapped elements", swapped_elements, true);
  add("swapped 4 KiB chunks", swapped_chunks, true);
  add("a rotation", rotated, true);
  const auto lie = [&](const char* name, void (*bend)(numeric::LedgerNumbers&)) {
    checks.push_back(
        {std::string("a planted lie is caught: ") + name, [=] { return unproven_fault_is_refused(options, bend); }});
  };
  lie("nothing changed", [](numeric::LedgerNumbers& n) { n.changed = 0; });
  lie("the site was never reached", [](numeric::LedgerNumbers& n) { n.calls = 0; });
  lie("the fault never acted", [](numeric::LedgerNumbers& n) { n.active_calls = 0; });
  lie("half the strength", [](numeric::LedgerNumbers& n) { *n.relative_rms /= 2; });
  lie("nothing selected", [](numeric::LedgerNumbers& n) { n.selected = 0; });
  return checks;
}

}  // namespace faultline::cli
