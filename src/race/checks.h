// The checks of one iteration: a table of pattern checks and one of digests, both in the device's memory, filled by
// kernels in stream order and read once at the end. What failed becomes a RankRecord for the exchange and Mismatches
// for people.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "base/stats/stats.h"
#include "numeric/apply.h"
#include "race/finding.h"
#include "race/run.h"

namespace faultline::race {

class Checks {
 public:
  Checks(const Config& config, int rank, int ranks, at::Device device);

  struct Subject {  // what a check is about, kept until the table is read
    Check check = Check::kShard;
    bool h2d = false;
    int64_t layer = -1;
    int source = -1;
    const char* operation = "";
    bool backward = false;
    PatternPlace place;
    PatternAt pattern_at;
    int64_t elements = 0;
  };

  void begin(int64_t iteration, bool patterns);
  uint32_t poison(int64_t layer) const;
  void compare(const at::Tensor& buffer, const Subject& subject);

  // Digests, by column of the layer's row.
  void take_key(int64_t layer, Key key, const at::Tensor& buffer);
  void take_pieces(int64_t layer, bool sent, const at::Tensor& buffer, int pieces = 1);  // and, combined, the key
  // What the input must be; layers that share their weights share the first one's.
  void take_expected(int64_t layer, const at::Tensor& expected);
  void take_gradient(int64_t layer, const at::Tensor& gradient);
  void take_copied(const at::Tensor& copied);
  void take_host(const at::Tensor& host);  // by the CPU: best while a GPU is busy
  void compare_optimizer(const at::Tensor& parameters, const at::Tensor& shadow);

  RankRecord finish();  // waits for the device
  std::vector<Mismatch> take_mismatches() { return std::move(mismatches_); }

 private:
  at::Tensor next_row();
  void put(int64_t layer, int64_t column, const at::Tensor& buffer, int pieces = 1);
  void put_sums(int64_t layer, int64_t column, const at::Tensor& buffer, int pieces);
  void read_patterns(RankRecord& record);
  void read_digests(RankRecord& record);

  Config config_;
  int rank_, ranks_;
  int64_t columns_;
  int64_t iteration_ = 0;
  bool patterns_ = true, digests_taken_ = false;
  at::Tensor rows_;     // (checks, kPatternCheckWords)
  at::Tensor digests_;  // (layers + 1, columns, kDigestStateWords); the last row: copied, parameters, shadow
  int64_t host_[numeric::kDigestStateWords] = {};
  std::vector<Subject> subjects_;
  std::vector<Mismatch> mismatches_;
};

// The golden: digests of the computation, kept from a run that is trusted, so that a machine on which every layer of
// every rank is wrong in the same way is found out (docs/lessons.md 47). It holds what it depends on, and is refused
// elsewhere.

void write_golden(const std::filesystem::path& path, const Node& config, const std::string& device_type,
                  const RunResult& result);
Reference read_golden(const std::filesystem::path& path, const Node& config, const std::string& device_type);

inline constexpr int64_t kOverheadIterations = 8;  // four pairs that differ, two that do not
struct Overhead {
  MeanInterval relative;         // of paired neighbouring iterations: with / without - 1
  MeanInterval drift;            // of iterations without, one with between them: what noise alone gives
  double with = 0, without = 0;  // medians, seconds
};
Overhead digest_overhead(const RunResult& result);  // of a run with alternate_digests
Json to_json(const Overhead& overhead);
std::string describe(const Overhead& overhead);  // for people, two lines

}  // namespace faultline::race
