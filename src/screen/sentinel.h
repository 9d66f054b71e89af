// A screen in small steps, beside somebody else's work: one launch of one check now and then, on their device and
// stream, judged at a later step, when its digest has long come home. Nothing here waits. The share of time is kept by
// what each check costs, measured when the sentinel is made; a step that would go beyond it does nothing. Linears of
// the model are asked, too: rows with one power of two give a column of the weight, to the bit, whatever training has
// made of it.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "base/json.h"
#include "screen/worker.h"

namespace faultline::screen {

struct SentinelOptions {
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  double share = 0.01;  // of the time, at most
  bool large = false;
};

class Sentinel {
 public:
  explicit Sentinel(const SentinelOptions& options);

  // Judges what has come home; then, if the share allows, queues the next check. False: not yet.
  bool step();

  // One row a chosen input: 2^k there, 0 elsewhere. Undefined where the share does not allow it now.
  at::Tensor linear_question(const std::string& name, const at::Tensor& weight);
  void linear_answer(const at::Tensor& output);

  Json verdict();  // judges everything that is still out, which waits; a record as a screen's

 private:
  struct Out {
    std::size_t check = 0;
    Launched launched;
    at::Tensor home;    // on the host: kUnread until the digest came
    int64_t mask = 0;   // of a canary
    at::Tensor canary;  // its element
  };
  bool allowed(double cost) const;
  void judge_home(bool wait);
  bool pinned() const { return options_.device.is_cuda(); }

  SentinelOptions options_;
  WorkList list_;
  WorkerResult result_;
  std::vector<double> cost_;
  std::deque<Out> out_;
  std::size_t next_ = 0;
  uint64_t steps_ = 0, canaries_ = 0;
  double spent_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  struct Linear {
    std::string name;
    at::Tensor expected;
  };
  std::optional<Linear> asked_;
  struct LinearOut {
    std::string name;
    at::Tensor home;
    int64_t elements = 0;
  };
  std::deque<LinearOut> linears_out_;
  int64_t linear_launches_ = 0, linear_wrong_ = 0, linear_elements_ = 0;
  double linear_cost_ = 1e-4;
  Json linear_failures_ = Json::array();
};

}  // namespace faultline::screen
