#include "screen/worker.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "numeric/apply.h"

namespace faultline::screen {
namespace {

constexpr int64_t kMostInBatch = 256;
constexpr std::size_t kMostExamined = 12, kMostExaminedPerCheck = 3;
constexpr uint64_t kCanaryEvery = 24;  // batches, on average
constexpr int64_t kPlainEvery = 8;     // of a check's batches: run once more unjudged, for rates

using Clock = std::chrono::steady_clock;  // a wall clock that steps changes nothing

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Canary {
  at::Tensor bits;  // one integer
  int64_t mask = 0;
  bool planted = false;
};

class Worker {
 public:
  Worker(WorkList& list, const WorkerOptions& options)
      : list_(list),
        options_(options),
        states_(
            at::zeros({kMostInBatch, numeric::kDigestStateWords}, at::TensorOptions(options.device).dtype(at::kLong))),
        estimate_(list.checks.size()),
        examined_(list.checks.size()),
        result_bytes_(list.checks.size()) {
    result_.spent.resize(list.checks.size());
  }

  void run() {
    for (std::size_t i = 0; i < list_.checks.size(); ++i) batch(i, 1, When::kCold, /*canary=*/true);
    for (int64_t round = 0; round < options_.rounds && !over(); ++round) one_round();
    if (options_.rounds > 0) return last_look();
    const double middle = 0.6 * options_.seconds;
    while (!over() && since(start_) < middle) hot();
    if (options_.idle && !over()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(2.0, 0.03 * options_.seconds)));
      for (std::size_t i = 0; i < list_.checks.size() && !over(); ++i) batch(i, 1, When::kAfterIdle, false);
    }
    while (!over()) hot();
    last_look();
  }

  WorkerResult take(std::string broken_off) {
    result_.broken_off = std::move(broken_off);
    result_.seconds = since(start_);
    return std::move(result_);
  }

 private:
  bool over() const {
    if (options_.stop != nullptr && options_.stop->load()) return true;
    return options_.rounds == 0 && since(start_) >= options_.seconds;
  }

  // The same launches in the same order on every machine.
  void one_round() {
    for (std::size_t i = 0; i < list_.checks.size() && !over(); ++i) {
      const int64_t size = std::min(kLaunchesInRound, list_.checks[i]->most_in_batch);
      for (int64_t done = 0; done < kLaunchesInRound; done += size) batch(i, size, When::kHot, canary_now());
    }
  }
  bool canary_now() { return mix64(options_.seed, ++batches_) % kCanaryEvery == 0; }

  // The check that has had least of its share.
  void hot() {
    std::size_t next = 0;
    for (std::size_t i = 1; i < list_.checks.size(); ++i)
      if (share(i) < share(next)) next = i;
    const Check& check = *list_.checks[next];
    const double estimate = std::max(estimate_[next], 1e-7);
    const int64_t by_bytes = options_.batch_bytes / std::max<int64_t>(1, result_bytes_[next]);
    const auto by_time = static_cast<int64_t>(options_.batch_seconds / estimate);
    const int64_t launches = std::max<int64_t>(1, std::min({by_time, by_bytes, check.most_in_batch, kMostInBatch - 1}));
    batch(next, launches, When::kHot, canary_now());
  }
  double share(std::size_t i) const { return result_.spent[i].seconds / list_.checks[i]->weight; }

  Launched launch(Check& check, const Disturb& disturb, int64_t row) {
    Launched one;
    one.result = check.run(disturb);
    one.turn = check.turn;
    if (check.memory) one.chunk = check.memory->last;
    numeric::digest_into(one.result, states_.mutable_data_ptr<int64_t>() + row * numeric::kDigestStateWords);
    return one;
  }

  void batch(std::size_t index, int64_t count, When when, bool with_canary) {
    Check& check = *list_.checks[index];
    Spent& spent = result_.spent[index];
    const Clock::time_point start = Clock::now();
    states_.zero_();
    std::vector<Launched> launched;
    launched.reserve(static_cast<std::size_t>(count));
    for (int64_t i = 0; i < count; ++i) launched.push_back(launch(check, {}, i));
    const at::Tensor found = states_.select(1, 0).cpu().contiguous();  // the batch's one wait
    const double seconds = since(start);
    const auto* digests = found.const_data_ptr<int64_t>();
    result_bytes_[index] = static_cast<int64_t>(launched[0].result.nbytes());
    const double each = seconds / static_cast<double>(count);
    estimate_[index] = estimate_[index] == 0 ? each : 0.5 * (estimate_[index] + each);
    const int64_t before = spent.launches;
    for (int64_t i = 0; i < count; ++i) {
      Launched& one = launched[static_cast<std::size_t>(i)];
      one.digest = digests[i];
      if (one.digest != wanted(check, one)) wrong(index, one, before + i, when);
    }
    spent.launches += count;
    spent.by_when[static_cast<std::size_t>(when)] += count;
    launched.clear();
    if (with_canary) canary(index, when);
    if (check.memory) check.memory->write_looked();
    if (options_.rates && when == When::kHot && !check.memory) rate(check, spent, count, since(start));
    if (options_.between && !looking_last_) options_.between(list_);
    spent.seconds += since(start);
  }

  static int64_t wanted(const Check& check, const Launched& one) {
    return check.digests[static_cast<std::size_t>(one.turn) % check.digests.size()];
  }

  // What judging costs: all of it, canaries too, in one batch; then the same work without, in some of them.
  void rate(Check& check, Spent& spent, int64_t count, double seconds) {
    spent.timed_seconds += seconds, spent.timed_launches += count;
    if (spent.batches++ % kPlainEvery != 0) return;
    const Clock::time_point start = Clock::now();
    std::vector<at::Tensor> results;
    for (int64_t i = 0; i < count; ++i) results.push_back(check.run({}));
    (void)states_.select(1, 0).cpu();
    spent.plain_seconds += since(start), spent.plain_launches += count;
  }

  void canary(std::size_t index, When when) {
    Check& check = *list_.checks[index];
    Spent& spent = result_.spent[index];
    Canary canary;
    const uint64_t word = mix64(options_.seed ^ 0x63616E617279, ++canaries_);
    states_.zero_();
    Launched one = launch(
        check,
        [&](const at::Tensor& under_test) {
          const int64_t size = under_test.element_size();
          const at::Tensor bits = bits_of(under_test).view(-1);
          canary.bits = bits.narrow(0, static_cast<int64_t>(word % static_cast<uint64_t>(bits.numel())), 1);
          canary.mask = one_bit(size, static_cast<int>((word >> 40) % static_cast<uint64_t>(8 * size)));
          canary.bits.bitwise_xor_(canary.mask);
          canary.planted = true;
        },
        0);
    ++spent.canaries;
    one.digest = states_[0][0].cpu().item<int64_t>();
    if (one.digest == wanted(check, one) || !canary.planted) {
      if (result_.missed_canaries.size() < 8)
        result_.missed_canaries.push_back(fmt::format("{}: a flipped bit was not seen", check.name));
    } else {
      ++spent.seen;
    }
    // The bit turned back, all must be right: what was seen was the canary. So the launch is judged as any other.
    canary.bits.bitwise_xor_(canary.mask);
    if (check.stages) return;  // further copies carried the flip on; their sources are as they were
    if (check.memory) {
      check.memory->next = one.chunk;
      one = Launched{check.run({}), one.turn, one.chunk, 0};
    }
    one.digest = digest_now(one.result);
    if (one.digest != wanted(check, one)) wrong(index, one, spent.launches, when);
    ++spent.launches, ++spent.by_when[static_cast<std::size_t>(when)];
  }

  void wrong(std::size_t index, const Launched& one, int64_t launch, When when) {
    Check& check = *list_.checks[index];
    ++result_.spent[index].wrong;
    if (result_.failures.size() >= kMostExamined || examined_[index] >= kMostExaminedPerCheck) {
      ++result_.failures_not_examined;
      return;
    }
    ++examined_[index];
    const int64_t turn = check.turn;
    Failure failure = examine(check, one, options_.elsewhere);
    check.turn = turn;
    failure.launch = launch, failure.when = when_name(when);
    result_.failures.push_back(std::move(failure));
  }

  // What the memory holds at the end: every chunk, as it was last written.
  void last_look() {
    looking_last_ = true;
    for (std::size_t i = 0; i < list_.checks.size(); ++i) look_at_inputs(i);
    for (std::size_t i = 0; i < list_.checks.size(); ++i) {
      Check& check = *list_.checks[i];
      if (!check.memory) continue;
      const auto chunks = static_cast<int64_t>(check.memory->chunks.size());
      for (int64_t done = 0; done < chunks; done += kMostInBatch - 1)
        batch(i, std::min(kMostInBatch - 1, chunks - done), When::kHot, false);
    }
  }

  // Operands have lain in memory all the while. One that no result has shown yet may still have changed.
  void look_at_inputs(std::size_t index) {
    Check& check = *list_.checks[index];
    for (const Input& input : check.inputs) {
      if (digest_now(input.tensor) == input.digest) continue;
      const bool known = std::any_of(result_.failures.begin(), result_.failures.end(), [&](const Failure& failure) {
        return failure.check == check.name && std::find(failure.broken_inputs.begin(), failure.broken_inputs.end(),
                                                        input.name) != failure.broken_inputs.end();
      });
      if (known) continue;
      result_.failures.push_back(changed_input(check, input));
      result_.failures.back().launch = result_.spent[index].launches;
      result_.failures.back().when = "at the last look";
    }
  }

  WorkList& list_;
  const WorkerOptions& options_;
  WorkerResult result_;
  at::Tensor states_;
  std::vector<double> estimate_;
  std::vector<std::size_t> examined_;
  std::vector<int64_t> result_bytes_;
  Clock::time_point start_ = Clock::now();
  uint64_t batches_ = 0, canaries_ = 0;
  bool looking_last_ = false;
};

}  // namespace

const char* when_name(When when) { return when == When::kCold ? "cold" : when == When::kHot ? "hot" : "after idle"; }

int64_t WorkerResult::wrong() const {
  int64_t sum = 0;
  for (const Spent& one : spent) sum += one.wrong;
  return sum;
}

int64_t WorkerResult::launches() const {
  int64_t sum = 0;
  for (const Spent& one : spent) sum += one.launches;
  return sum;
}

WorkerResult run_worker(WorkList& list, const WorkerOptions& options) {
  const c10::DeviceGuard guard(options.device);
  const at::NoGradGuard no_gradients;
  std::optional<Worker> worker;
  const auto broken_off = [&](const std::string& why) {  // with what was tested until then
    if (worker) return worker->take(why);
    WorkerResult nothing;
    nothing.spent.resize(list.checks.size()), nothing.broken_off = why;
    return nothing;
  };
  try {
    worker.emplace(list, options);
    if (!list.checks.empty()) worker->run();
    return worker->take("");
  } catch (const c10::Error& error) {
    return broken_off(first_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return broken_off("out of memory");
  } catch (const std::exception& error) {  // of our own kernels, of oneDNN
    return broken_off(first_line(error.what()));
  }
}

}  // namespace faultline::screen
