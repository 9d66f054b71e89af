// Whole runs with ranks as threads: planted faults are found by each check alone, nothing hangs, all stop together.
#include "race/run.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "race/selftest.h"
#include "race/thread_backend.h"

namespace faultline::race {
namespace run_test {

constexpr const char* kSmall =
    "warmup_iterations: 1, verify_iterations: 6, h2d_tensor_size: 500, compute_type: transformer, "
    "model_dim: 32, num_heads: 2, num_layers: 4, seq_len: 4";

RunResult run(const std::string& more, int ranks = 4) {
  RunOptions options;
  options.ranks = ranks;
  return run_threads(parse_config(parse_yaml(std::string("{") + kSmall + ", " + more + "}", "test")), options);
}

const std::string kFsdp = "mode: fsdp, fsdp_shard_size: 700";

std::vector<TimedEvent> events(const RunResult& result) {
  std::vector<TimedEvent> all;
  for (const RankEvidence& e : result.evidence)
    all.insert(all.end(), e.findings.events.items().begin(), e.findings.events.items().end());
  return all;
}

TEST(ThreadBackend, GathersReducesAndExchanges) {
  ThreadWorld world(3, std::chrono::seconds(20));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto backend = world.backend(rank);
      at::Tensor mine = at::full({2}, rank, at::kFloat), all = at::zeros({6}), sum = at::zeros({2}),
                 other = at::zeros({3});
      backend->_allgather_base(all, mine)->wait();
      EXPECT_TRUE(at::equal(all, at::tensor({0.f, 0.f, 1.f, 1.f, 2.f, 2.f})));
      backend->_reduce_scatter_base(sum, all)->wait();
      EXPECT_TRUE(at::equal(sum, at::full({2}, 3.f * static_cast<float>(rank))));
      std::vector<at::Tensor> reduced = {mine};
      backend->allreduce(reduced)->wait();
      EXPECT_TRUE(at::equal(mine, at::full({2}, 3.f)));
      at::Tensor out = at::arange(3, at::kFloat) + 10 * rank;
      std::vector<int64_t> even;
      backend->alltoall_base(other, out, even, even)->wait();
      EXPECT_TRUE(at::equal(other, at::tensor({0.f, 10.f, 20.f}) + rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadBackend, NamesTheRankThatCallsSomethingElse) {
  ThreadWorld world(3, std::chrono::seconds(20));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      at::Tensor in = at::zeros({rank == 1 ? 4 : 2}), out = at::zeros({12});
      try {
        world.backend(rank)->_allgather_base(out, in)->wait();
        ADD_FAILURE() << "nobody noticed";
      } catch (const CollectiveFailure& failure) {
        EXPECT_EQ(failure.ranks(), std::vector<int>{1});
        EXPECT_EQ(failure.reason(), CollectiveFailure::Reason::kMismatch);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Run, CleanRunsOfEveryModePass) {
  for (const std::string& mode :
       {kFsdp, kFsdp + ", shared_layer_weights: true, real_backward: true, optimizer: adamw",
        kFsdp + ", same_stream_mode: true, reuse_buffers: false, digest: after",
        std::string("mode: ddp, allreduce_tensor_size: 300, ddp_bucketed: true, optimizer: sgd, dtype: fp16"),
        std::string(
            "mode: default, alltoall_tensor_size: 400, allreduce_tensor_size: 100, dtype: fp32, h2d_prefetch: true")}) {
    const RunResult result = run(mode);
    EXPECT_EQ(result.verdict, Verdict::kPass) << mode << ": " << result.sentence;
    EXPECT_EQ(result.iterations(), 6);
  }
}

TEST(Run, OneRankAndOddNumbersOfRanksWork) {
  for (const int ranks : {1, 2, 3, 7})
    EXPECT_EQ(run(kFsdp + ", shared_layer_weights: true", ranks).verdict, Verdict::kPass) << ranks;
}

TEST(Run, PatternsFindAFaultWithoutDigestsAndDigestsWithoutPatterns) {
  const std::string fault =
      ", shared_layer_weights: true, inject: {target: comm_output, kind: bitflip, layer: 2, rank: 1, iteration: 3}";
  for (const std::string check : {", digest: off", ", patterns: false"}) {
    const RunResult result = run(kFsdp + fault + check);
    EXPECT_EQ(result.verdict, Verdict::kFail);
    const auto found = events(result);
    ASSERT_EQ(found.size(), 1u) << check;
    EXPECT_EQ(found[0].event.cause, Cause::kCollective);
    EXPECT_EQ(found[0].event.layer, 2);
    EXPECT_EQ(found[0].event.rank, 1);
    EXPECT_EQ(found[0].iteration, 3);
    EXPECT_EQ(found[0].event.by_pattern, check == ", digest: off");
    EXPECT_EQ(found[0].event.by_digest, check != ", digest: off");
  }
}

TEST(Run, AllRanksStopTogetherAtTheFirstCorruption) {  // lesson 48
  const RunResult result = run(kFsdp + ", inject: {kind: bitflip, layer: 1, rank: 3, iteration: 2}");
  EXPECT_EQ(result.outcome, Outcome::kStopped);
  for (const RankEvidence& e : result.evidence) EXPECT_EQ(e.iterations, 3);
}

// Operators after which a host knows a number that a device has computed: on a GPU each of them waits.
std::atomic<int64_t> waiting_operators{0};
std::unique_ptr<at::ObserverContext> count_waiting(const at::RecordFunction& function) {
  for (const char* name : {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal",
                           "aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2"})
    if (std::string_view(function.name()) == name) ++waiting_operators;
  return nullptr;
}

TEST(Run, NoLayerWaitsForTheDevice) {  // lesson 45
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(count_waiting).scopes({at::RecordScope::FUNCTION}));
  std::vector<int64_t> counts;
  for (const char* layers : {", num_layers: 2", ", num_layers: 9"}) {
    waiting_operators = 0;
    const std::string small =
        "{mode: fsdp, fsdp_shard_size: 700, warmup_iterations: 1, verify_iterations: 6, "
        "h2d_tensor_size: 500, compute_type: transformer, model_dim: 32, num_heads: 2, seq_len: 4";
    EXPECT_EQ(run_threads(parse_config(parse_yaml(small + layers + "}", "test")), RunOptions{}).verdict,
              Verdict::kPass);
    counts.push_back(waiting_operators);
  }
  (void)at::ones({1}).item();  // the counter counts
  EXPECT_GT(waiting_operators, counts[1]);
  at::removeCallback(handle);
  EXPECT_EQ(counts[0], counts[1]);
}

TEST(Run, TheLogKeepsItsHeads) {
  const RunResult result =
      run(kFsdp +
          ", shared_layer_weights: true, inject: {kind: bitflip, layer: 1, rank: 3, iteration: 2, element: 5, bit: 9}");
  std::string all;
  for (const std::string& line : log_lines(result)) all += line + "\n";
  EXPECT_NE(all.find("LAYER_CHECKSUM_MISMATCH (comm_output): rank=3 iter=2 reference="), std::string::npos) << all;
  EXPECT_NE(all.find(" layer_1="), std::string::npos);
  EXPECT_NE(
      all.find("ALL_GATHER CORRUPTION: rank=3 iter=2 layer=1 phase=forward source=0 first=5 last=5 count=1 bits=[9]"),
      std::string::npos)
      << all;
  EXPECT_NE(all.find("VERDICT: fail"), std::string::npos);
}

// Waited for to its end the rank would have come, and the run would have passed.
TEST(Run, AStalledRankEndsTheRunInTimeAndIsNamed) {
  const RunResult result =
      run(kFsdp +
          ", timeout_seconds: 3, inject: {target: compute_output, kind: delay, delay_ms: 600000, layer: 2, rank: 1, "
          "iteration: 1}");
  EXPECT_EQ(result.verdict, Verdict::kError);
  EXPECT_EQ(result.outcome, Outcome::kHang);
  EXPECT_EQ(result.blamed, std::vector<int>{1});
}

// Noticed by the timeout it would be a hang.
TEST(Run, ARankThatEndsIsNamedAtOnce) {
  const RunResult result =
      run(kFsdp + ", timeout_seconds: 600, inject: {target: comm_input, kind: exit, layer: 2, rank: 0, iteration: 1}");
  EXPECT_EQ(result.verdict, Verdict::kError);
  EXPECT_EQ(result.outcome, Outcome::kCrashed);
  EXPECT_EQ(result.blamed, std::vector<int>{0});
}

TEST(Run, ADesynchronisedRankIsNamed) {
  const RunResult result = run(kFsdp +
                               ", timeout_seconds: 3, stop_on_first_corruption: false, inject: {target: comm_output, "
                               "kind: skip, layer: 2, rank: 3, iteration: 1}");
  EXPECT_NE(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.blamed, std::vector<int>{3}) << result.sentence;
}

// Makes a rank late everywhere in an iteration, so that all others begin to wait before it and give up before it.
class SlowRank : public Hook {
 public:
  SlowRank(int rank, int64_t iteration) : rank_(rank), iteration_(iteration) {}
  void visit(const Site& site, const at::Tensor&, const StaleContent&) override {
    if (site.rank == rank_ && site.iteration == iteration_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

 private:
  int rank_;
  int64_t iteration_;
};

// Wherever the ranks stand when they no longer find each other, and also where there is no majority.
TEST(Run, ADesynchronisedRankIsNamedWhoeverGivesUpFirst) {
  for (const std::string& mode : {kFsdp, std::string("mode: ddp, allreduce_tensor_size: 300"),
                                  std::string("mode: default, alltoall_tensor_size: 600, allreduce_tensor_size: 100")})
    for (const int ranks : {2, 3})
      for (const int slow : {0, 1}) {
        SlowRank slow_rank(slow, 1);
        RunOptions options;
        options.ranks = ranks;
        options.hooks = {&slow_rank};
        const std::string skip = ", timeout_seconds: 1, inject: {kind: skip, layer: 0, rank: 1, iteration: 1}}";
        const RunResult result =
            run_threads(parse_config(parse_yaml(std::string("{") + kSmall + ", " + mode + skip, "test")), options);
        EXPECT_NE(result.verdict, Verdict::kPass);
        EXPECT_EQ(result.blamed, std::vector<int>{1}) << mode << ", rank " << slow << " late: " << result.sentence;
        EXPECT_EQ(result.standings[1].left_out(), 1u);
      }
}

TEST(Run, DetailsAreBoundedAndCounted) {
  Findings findings;
  for (int i = 0; i < 300; ++i) findings.slow.add({0, i, 0, 1, 1});
  EXPECT_EQ(findings.slow.items().size(), kMaxDetails);
  EXPECT_EQ(findings.slow.omitted(), 300 - kMaxDetails);
}

TEST(Run, AGoldenFindsWhatIsWrongEverywhereFromTheStart) {
  Reference golden;
  for (int64_t layer = 0; layer < 4; ++layer) golden.set(Key::kComputeOutput, layer, 12345);
  RunOptions options;
  options.reference = golden;
  const RunResult result =
      run_threads(parse_config(parse_yaml(
                      std::string("{") + kSmall + ", canary: off, shared_layer_weights: true, " + kFsdp + "}", "test")),
                  options);
  EXPECT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.evidence[0].findings.deviations.items()[0].deviation.scope, Scope::kEverywhere);
}

TEST(Selftest, TheSmallOneFindsEverything) {
  const SelftestResult result = selftest({});
  std::string misses;
  for (const std::string& miss : result.misses) misses += miss + "\n";
  EXPECT_TRUE(result.passed()) << result.sentence() << "\n" << misses;
  EXPECT_GE(result.planted(), 200);
  EXPECT_GE(result.planted_outside(), 24);
}

}  // namespace run_test
}  // namespace faultline::race
