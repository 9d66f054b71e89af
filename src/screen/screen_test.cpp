// The screen's parts: answers held to fp64, planted flips found where they are, verdicts for what can go wrong.
#include "screen/screen.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "screen/drill.h"
#include "screen/fleet.h"
#include "screen/machine.h"
#include "screen/nvml.h"
#include "screen/record.h"
#include "site/torch_support.h"

namespace faultline::screen {
namespace screen_test {

bool right(Check& check) {
  const at::Tensor result = check.run({});
  return digest_now(result) == check.digests[static_cast<std::size_t>(check.turn) % check.digests.size()];
}

TEST(Screen, EveryProductIsAnsweredAsFp64AnswersIt) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const char* pattern : {"random", "wide", "alternating"}) {
      for (const char* layout : {"NN", "NT", "TN"}) {
        const ProductSpec spec{
            .m = 70, .n = 90, .k = 600, .batch = 1, .dtype = type, .layout = layout, .pattern = pattern};
        const auto check = product_check(spec, at::kCPU, 7);
        at::Tensor a = check->inputs[0].tensor.to(at::kDouble), b = check->inputs[1].tensor.to(at::kDouble);
        if (layout[0] == 'T') a = a.t();
        if (layout[1] == 'T') b = b.t();
        const at::Tensor exact = at::mm(a, b), answer = check->answer(0);
        EXPECT_TRUE(answer.equal(exact.to(at::kFloat).to(type))) << check->name;
        EXPECT_TRUE(at::isfinite(answer).all().item<bool>()) << check->name;
        EXPECT_GT(answer.ne(0).sum().item<int64_t>(), answer.numel() / 2) << check->name;
        EXPECT_EQ(host_digest(answer), check->digests[0]);
        EXPECT_TRUE(right(*check)) << check->name;
      }
    }
  }
}

// fp8 keeps within what tensor cores add: the sum of |a||b| below 2^13.
TEST(Screen, ProductsOfFp8StayWithinTheirAdders) {
  for (const char* pattern : {"random", "wide", "alternating"}) {
    for (const int64_t k : {128, 2048, 8192}) {
      const auto check = product_check(
          {.m = 16, .n = 32, .k = k, .batch = 1, .dtype = at::kFloat8_e4m3fn, .layout = "NT", .pattern = pattern},
          at::kCPU, 3);
      const at::Tensor a = check->inputs[0].tensor.to(at::kDouble).abs(),
                       b = check->inputs[1].tensor.to(at::kDouble).abs();
      EXPECT_LE(at::mm(a, b.t()).max().item<double>(), 8192.0) << pattern << k;
    }
  }
}

TEST(Screen, RowsAndAttentionAreAnsweredToTheBit) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const char* kind : {"rms_norm", "layer_norm", "softmax", "swiglu", "gather", "amax", "addcmul"}) {
      const auto check = rows_check(kind, 40, 256, type, at::kCPU, 5);
      EXPECT_TRUE(right(*check)) << check->name;
      EXPECT_EQ(host_digest(check->answer(0)), check->digests[0]);
    }
    for (const bool causal : {false, true}) {
      const auto check = attention_check(
          {.batch = 2, .heads = 3, .queries = 96, .keys = 96, .size = 64, .dtype = type, .causal = causal}, at::kCPU,
          5);
      EXPECT_TRUE(right(*check)) << check->name;
    }
  }
  EXPECT_TRUE(right(*rows_check("sum", 40, 256, at::kFloat, at::kCPU, 5)));
  EXPECT_TRUE(right(*attention_check({.batch = 2, .heads = 3, .queries = 1, .keys = 200, .size = 128}, at::kCPU, 5)));
}

TEST(Screen, AnotherSeedAsksOtherQuestions) {
  EXPECT_NE(product_check({.m = 70, .n = 90, .k = 64}, at::kCPU, 1)->digests,
            product_check({.m = 70, .n = 90, .k = 64}, at::kCPU, 2)->digests);
}

WorkList small_list(uint64_t seed) {
  WorkList list;
  list.checks.push_back(product_check({.m = 64, .n = 96, .k = 128, .batch = 1, .dtype = at::kFloat}, at::kCPU, seed));
  list.checks.push_back(rows_check("rms_norm", 16, 256, at::kBFloat16, at::kCPU, seed));
  list.checks.push_back(copy_check("device", 1 << 16, at::kCPU, seed));
  list.checks.push_back(memory_check(1 << 22, at::kCPU, seed));
  return list;
}

WorkerOptions short_screen() {
  WorkerOptions options;
  options.seconds = 0.2, options.seed = 9, options.batch_seconds = 0.005, options.idle = false;
  return options;
}

TEST(Screen, AHealthyWorkerAccusesNobodyAndSeesEveryCanary) {
  WorkList list = small_list(1);
  const WorkerResult result = run_worker(list, short_screen());
  EXPECT_EQ(result.wrong(), 0);
  EXPECT_TRUE(result.failures.empty());
  EXPECT_TRUE(result.missed_canaries.empty());
  for (const Spent& one : result.spent) {
    EXPECT_GT(one.launches, 0);
    EXPECT_GT(one.canaries, 0);
    EXPECT_EQ(one.canaries, one.seen);
  }
}

TEST(Screen, AWrongResultIsFoundWithItsElementAndBit) {
  WorkList list = small_list(2);
  Check& product = *list.checks[0];
  const auto run = product.run;
  int64_t calls = 0;
  product.run = [&](const Disturb& disturb) {
    at::Tensor result = run(disturb);
    if (++calls == 1) result.view(at::kInt)[3][17].bitwise_xor_(1 << 22);
    return result;
  };
  const WorkerResult result = run_worker(list, short_screen());
  product.run = run;
  ASSERT_EQ(result.failures.size(), 1U);
  const Failure& failure = result.failures[0];
  EXPECT_EQ(failure.row, 3);
  EXPECT_EQ(failure.column, 17);
  EXPECT_EQ(failure.wrong_elements, 1);
  EXPECT_EQ(failure.changed_bits, uint64_t{1} << 22);
  EXPECT_EQ(failure.expected ^ failure.observed, uint64_t{1} << 22);
  EXPECT_EQ(failure.suspect, Suspect::kCompute);
  EXPECT_EQ(failure.certainty, "likely");  // it did not come again
  EXPECT_EQ(failure.again.wrong, 0);
  EXPECT_EQ(result.wrong(), 1);
}

TEST(Screen, AResultThatIsWrongEveryTimeIsSurelyTheComputation) {
  WorkList list = small_list(3);
  Check& product = *list.checks[0];
  const auto run = product.run;
  product.run = [&](const Disturb& disturb) {
    at::Tensor result = run(disturb);
    result[5][6].mul_(2);
    return result;
  };
  const WorkerResult result = run_worker(list, short_screen());
  ASSERT_FALSE(result.failures.empty());
  EXPECT_EQ(result.failures[0].certainty, "sure");
  EXPECT_EQ(result.failures[0].suspect, Suspect::kCompute);
  EXPECT_EQ(result.failures[0].again.same, 8);
  EXPECT_EQ(result.spent[0].wrong, result.spent[0].launches);
}

TEST(Screen, AnOperandThatChangedIsMemory) {
  WorkList list = small_list(4);
  list.checks[0]->inputs[1].tensor.view(at::kInt)[0][0].bitwise_xor_(1 << 30);
  const WorkerResult result = run_worker(list, short_screen());
  ASSERT_FALSE(result.failures.empty());
  EXPECT_EQ(result.failures[0].suspect, Suspect::kMemory);
  EXPECT_EQ(result.failures[0].broken_inputs, std::vector<std::string>{"second factor"});
}

TEST(Screen, ACopyThatLeavesTheBytesOfTheLastLaunchIsFound) {
  WorkList list = small_list(5);
  Check& copy = *list.checks[2];
  copy.run({});
  const auto run = copy.run;
  int64_t calls = 0;
  copy.run = [&](const Disturb& disturb) {
    if (++calls != 1) return run(disturb);
    copy.turn ^= 1;  // as if every copy had done nothing
    return copy.stages().back().tensor;
  };
  const WorkerResult result = run_worker(list, short_screen());
  ASSERT_FALSE(result.failures.empty());
  EXPECT_EQ(result.failures[0].suspect, Suspect::kTransfer);
  EXPECT_TRUE(result.failures[0].stage.starts_with("copy 1")) << result.failures[0].stage;
}

TEST(Screen, AWordThatMemoryLostIsFoundInItsChunk) {
  WorkList list = small_list(6);
  MemoryUnderTest& memory = *list.checks[3]->memory;
  WorkerOptions options = short_screen();
  bool done = false;
  options.between = [&](WorkList&) {
    if (!std::exchange(done, true)) memory.chunks[1].words.view(at::kInt)[77].bitwise_xor_(1 << 5);
  };
  const WorkerResult result = run_worker(list, options);
  ASSERT_EQ(result.failures.size(), 1U);
  EXPECT_EQ(result.failures[0].stage, "chunk 1");
  EXPECT_EQ(result.failures[0].element, 77);
  EXPECT_EQ(result.failures[0].changed_bits, 32U);
  EXPECT_EQ(result.failures[0].suspect, Suspect::kMemory);
  EXPECT_EQ(result.failures[0].certainty, "sure");
}

Json record_of(WorkList& list, const WorkerResult& result, const char* device = "cpu") {
  Json record = {{"kind", "screen"},    {"device", device}, {"load", "memory"},
                 {"memory_share", 0.1}, {"id", "x"},        {"identity", {{"host", "h"}}}};
  record["weather"] = {{"before", Json::object()}, {"after", Json::object()}};
  std::vector<Part> parts(1);
  parts[0].name = "all", parts[0].list = &list, parts[0].result = result;
  add_parts(record, parts);
  return record;
}

TEST(Screen, AScreenThatCannotSeeSaysSoAndIsNotHealthy) {
  WorkList list = small_list(7);
  Check& product = *list.checks[0];
  const auto run = product.run;
  product.run = [&](const Disturb& disturb) {  // a judge that looks away from what was disturbed
    if (disturb) disturb(run({}));
    return run({});
  };
  Json record = record_of(list, run_worker(list, short_screen()));
  judge(record);
  EXPECT_EQ(record["verdict"], "inconclusive");
  EXPECT_EQ(record["exit_code"], 3);
  EXPECT_LT(record["canaries"]["seen"], record["canaries"]["planted"]);
}

TEST(Screen, ALostDeviceIsNeitherHealthyNorFaulty) {
  WorkList list = small_list(8);
  const auto run = list.checks[0]->run;
  int64_t calls = 0;
  list.checks[0]->run = [&](const Disturb& disturb) {
    TORCH_CHECK(++calls < 2, "CUDA error: unspecified launch failure");
    return run(disturb);
  };
  const WorkerResult result = run_worker(list, short_screen());
  EXPECT_NE(result.broken_off.find("unspecified launch failure"), std::string::npos);
  Json record = record_of(list, result);
  judge(record);
  EXPECT_EQ(record["verdict"], "inconclusive");
  EXPECT_EQ(record["exit_code"], 2);
}

TEST(Screen, WhatTheLoadAsksForAndNothingTestedIsInconclusive) {
  WorkList list = small_list(9);
  list.checks.pop_back();  // no memory could be had
  Json record = record_of(list, run_worker(list, short_screen()));
  judge(record);
  EXPECT_EQ(record["verdict"], "inconclusive");
  EXPECT_EQ(record["sentence"], "no memory could be tested");
  record["memory_share"] = 0.0;  // by the user's leave
  judge(record);
  EXPECT_EQ(record["verdict"], "healthy");
}

TEST(Screen, NothingTestedIsNeverHealthy) {
  WorkList list;
  Json record = record_of(list, run_worker(list, short_screen()));
  judge(record);
  EXPECT_EQ(record["verdict"], "inconclusive");
  EXPECT_NE(record["exit_code"], 0);
  EXPECT_EQ(exit_code_of({}), ExitCode::kRuntime);
}

TEST(Screen, AnUncorrectedErrorThatTheDeviceCountedIsAFault) {
  WorkList list = small_list(10);
  Json record = record_of(list, run_worker(list, short_screen()));
  record["weather"]["before"]["ecc_uncorrected"] = 3, record["weather"]["after"]["ecc_uncorrected"] = 4;
  judge(record);
  EXPECT_EQ(record["verdict"], "faulty");
  record["weather"]["after"]["ecc_uncorrected"] = absent("no permission");
  judge(record);
  EXPECT_EQ(record["verdict"], "healthy");
}

TEST(Screen, AHostThatAnswersTwiceDifferentlyDoesNotAccuseTheGpu) {
  WorkList list = small_list(11);
  Check& product = *list.checks[0];
  product.digests[0] ^= 1;  // the first answer was wrong
  const WorkerResult result = run_worker(list, short_screen());
  ASSERT_FALSE(result.failures.empty());
  EXPECT_EQ(result.failures[0].suspect, Suspect::kHost);
  Json record = record_of(list, result, "cuda:0");
  judge(record);
  EXPECT_EQ(record["verdict"], "inconclusive");
  record["device"] = "cpu";
  judge(record);
  EXPECT_EQ(record["verdict"], "faulty");
}

TEST(Screen, TheBoundIsClopperAndPearsons) {
  EXPECT_EQ(at_most_one_in(0, 0), 0);
  EXPECT_EQ(at_most_one_in(0, 1), 1);
  EXPECT_NEAR(static_cast<double>(at_most_one_in(0, 3'000'000)), 1'001'423, 2);
  EXPECT_LT(at_most_one_in(1, 3'000'000), at_most_one_in(0, 3'000'000));
}

TEST(Screen, NvmlThatIsNotThereIsAbsentNotZero) {
  const Nvml nvml("libno-such-nvml.so");
  EXPECT_NE(nvml.why_not().find("not installed"), std::string::npos);
  const Json weather = nvml.weather("0000:00:00.0");
  for (const auto& [key, value] : weather.items()) EXPECT_TRUE(value.contains("absent")) << key;
  EXPECT_TRUE(nvml.identity("")["serial"].contains("absent"));
}

TEST(Screen, ThePlatformsCountersAreReadWhereTheyAre) {
  const TemporaryFolder folder;
  namespace fs = std::filesystem;
  const auto put = [&](const fs::path& file, const std::string& text) {
    fs::create_directories((folder.path() / file).parent_path());
    std::ofstream(folder.path() / file) << text;
  };
  put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Made Up 9000\nmicrocode\t: 0xd0\ncpu MHz\t\t: 2500.5\n");
  put("sys/devices/system/edac/mc/mc0/ce_count", "3\n");
  put("sys/devices/system/edac/mc/mc0/ue_count", "0\n");
  put("sys/devices/system/edac/mc/mc1/ce_count", "4\n");
  put("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n");
  put("sys/class/thermal/thermal_zone0/temp", "61500\n");
  put("sys/devices/system/cpu/online", "0-1,4\n");
  const Json identity = cpu_identity(folder.path()), weather = cpu_weather(folder.path());
  EXPECT_EQ(identity["model"], "Made Up 9000");
  EXPECT_EQ(identity["microcode"], "0xd0");
  EXPECT_TRUE(identity["implementer"].contains("absent"));
  EXPECT_EQ(weather["ecc_corrected"], 7);
  EXPECT_EQ(weather["ecc_uncorrected"], 0);
  EXPECT_TRUE(weather["thermal_throttles"].contains("absent"));
  EXPECT_EQ(weather["temperature_c"]["x86_pkg_temp 0"], 61.5);
  EXPECT_EQ(weather["clock_mhz"], 2500.5);
  EXPECT_EQ(online_cores(folder.path()), (std::vector<int>{0, 1, 4}));
}

TEST(Screen, AFleetKeepsTheLatestOfADeviceAndComparesIt) {
  WorkList list = small_list(12);
  Json first = record_of(list, run_worker(list, short_screen()));
  judge(first);
  first["started"] = "2026-01-01T00:00:00Z", first["identity"]["driver"] = "1";
  first["weather"]["after"]["ecc_corrected"] = 1;
  Json second = first, other = first;
  second["started"] = "2026-01-02T00:00:00Z", second["identity"]["driver"] = "2";
  second["weather"]["before"]["ecc_corrected"] = 5;
  other["id"] = "y", other["verdict"] = "faulty", other["exit_code"] = 1;
  const Json fleet = merge({second, other, first});
  ASSERT_EQ(fleet["devices"].size(), 2U);
  EXPECT_EQ(fleet["exit_code"], 1);
  EXPECT_EQ(fleet["counts"]["healthy"], 1);
  const Json& kept = fleet["devices"][0]["id"] == "x" ? fleet["devices"][0] : fleet["devices"][1];
  EXPECT_EQ(kept["started"], "2026-01-02T00:00:00Z");
  EXPECT_EQ(kept["earlier"]["screens"], 1);
  EXPECT_EQ(kept["earlier"]["counters_rose_since"]["ecc_corrected"], 4);
  EXPECT_EQ(kept["earlier"]["identity_changed"][0]["what"], "driver");
  const std::string text = prometheus_text(fleet);
  EXPECT_NE(text.find("faultline_screen_faulty{host=\"h\",device=\"cpu\",id=\"y\"} 1\n"), std::string::npos);
  EXPECT_EQ(text.find("ecc_uncorrected"), std::string::npos);  // absent is not zero
}

TEST(Screen, AnOperandThatNoResultShowsIsFoundAtTheLastLook) {
  WorkList list;
  list.checks.push_back(rows_check("gather", 16, 64, at::kBFloat16, at::kCPU, 3));
  const at::Tensor& table = list.checks[0]->inputs[0].tensor;
  const at::Tensor& rows = list.checks[0]->inputs[1].tensor;
  int64_t row = 0;
  while (rows.eq(row).any().item<bool>()) ++row;  // one that is not asked for
  table.view(at::kShort)[row][5].bitwise_xor_(1);
  WorkerOptions options;
  options.rounds = 1;
  const WorkerResult result = run_worker(list, options);
  EXPECT_EQ(result.wrong(), 0);
  ASSERT_EQ(result.failures.size(), 1U);
  EXPECT_EQ(result.failures[0].suspect, Suspect::kMemory);
  EXPECT_EQ(result.failures[0].broken_inputs, std::vector<std::string>{"input 1"});
  Json record = record_of(list, result);
  judge(record);
  EXPECT_EQ(record["verdict"], "faulty");
}

TEST(Screen, ABudgetOfRoundsGivesTheSameLaunchesOnEveryMachine) {
  WorkList list = small_list(13);
  WorkerOptions options;
  options.rounds = 3, options.seconds = 1e-9;
  const WorkerResult result = run_worker(list, options);
  for (std::size_t i = 0; i < list.checks.size(); ++i)
    EXPECT_GE(result.spent[i].launches, 1 + 3 * kLaunchesInRound) << list.checks[i]->name;
  EXPECT_EQ(result.launches(), run_worker(list, options).launches());
}

TEST(Screen, MemoryThatOthersTakeInTheMiddleEndsTheScreenWithoutAVerdict) {
  WorkList list = small_list(14);
  const auto run = list.checks[0]->run;
  int64_t calls = 0;
  list.checks[0]->run = [&](const Disturb& disturb) {
    if (++calls > 2) TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2.00 GiB");
    return run(disturb);
  };
  WorkerOptions options;
  options.rounds = 2;  // by number: a loaded machine gets as far
  const WorkerResult result = run_worker(list, options);
  Json record = record_of(list, result);
  judge(record);
  EXPECT_EQ(record["verdict"], "inconclusive");
  EXPECT_EQ(record["exit_code"], 2);
  EXPECT_NE(record["sentence"].get<std::string>().find("out of memory"), std::string::npos);
  EXPECT_GT(result.launches(), 0);  // what was tested until then stands in the record
}

TEST(Screen, AnErrorOfOurOwnKernelsEndsTheScreenAndNotTheProgram) {
  WorkList list = small_list(15);
  list.checks[1]->run = [](const Disturb&) -> at::Tensor { throw RuntimeFailure("CUDA: device lost"); };
  EXPECT_EQ(run_worker(list, short_screen()).broken_off, "CUDA: device lost");
}

// --- NVML as a stand-in gives it (tests/nvml_stand_in.cpp) ---------------------------------------------------------
class Nvidia {
 public:
  explicit Nvidia(const char* how) : told_(::setenv("FAULTLINE_NVML_STAND_IN", how, 1)) {}
  ~Nvidia() { ::unsetenv("FAULTLINE_NVML_STAND_IN"); }
  Nvidia(const Nvidia&) = delete;
  Nvidia& operator=(const Nvidia&) = delete;

 private:
  int told_;  // before the library is opened

 public:
  Nvml nvml{(std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfaultline_nvml_stand_in.so").string()};
};

TEST(Screen, NvmlThatAnswersIsBelieved) {
  const Nvidia all("");
  EXPECT_EQ(all.nvml.why_not(), "");
  const Json identity = all.nvml.identity("0000:19:00.0"), weather = all.nvml.weather("0000:19:00.0");
  EXPECT_EQ(identity["serial"], "1650000000001");
  EXPECT_EQ(identity["mig"], false);
  EXPECT_EQ(weather["ecc_uncorrected"], 0);
  EXPECT_EQ(weather["ecc_corrected"], 3);
  EXPECT_EQ(weather["power_w"], 612.5);
  EXPECT_EQ(weather["throttled_by"], (Json{"power cap", "hardware slowdown"}));
  EXPECT_TRUE(weather["pcie_replays"].contains("absent"));  // the stand-in is an old library without it
}

TEST(Screen, WithoutPermissionCountersAreAbsentAndNotZero) {
  const Nvidia denied("denied");
  const Json weather = denied.nvml.weather("0000:19:00.0");
  EXPECT_EQ(weather["ecc_uncorrected"]["absent"], "Insufficient Permissions");
  EXPECT_EQ(weather["temperature_c"], 71);
  EXPECT_EQ(denied.nvml.identity("0000:19:00.0")["serial"]["absent"], "Insufficient Permissions");
}

TEST(Screen, NvmlThatMayNotBeStartedIsSaid) {
  const Nvidia refused("no init");
  EXPECT_EQ(refused.nvml.why_not(), "NVML could not be started: Insufficient Permissions");
  EXPECT_TRUE(refused.nvml.weather("0000:19:00.0")["ecc_uncorrected"].contains("absent"));
}

TEST(Screen, ALostGpuHasNoCountersAndASliceHasItsOwnName) {
  const Nvidia lost("lost");
  EXPECT_EQ(lost.nvml.weather("0000:19:00.0")["ecc_uncorrected"]["absent"], "GPU is lost");
  EXPECT_NE(lost.nvml.weather("")["ecc_uncorrected"]["absent"].get<std::string>().find("without a PCI place"),
            std::string::npos);
  const Nvidia slice("mig");
  const Json driver = {{"name", "H200 MIG 1g.18gb"}, {"uuid", "GPU-1234"}, {"pci", "0000:19:00.0"}};
  const Json identity = gpu_identity(slice.nvml, driver);
  EXPECT_EQ(identity["mig"], true);
  EXPECT_EQ(identity["uuid"], "MIG-1234");
  EXPECT_EQ(identity["name"], "H200 MIG 1g.18gb");
  EXPECT_EQ(gpu_identity(Nvidia("").nvml, driver)["uuid"], "GPU-1234");
}

// A fault that only one core has: named, and not found on the core where it is tried again.
TEST(Screen, OneBadCoreIsNamed) {
  const std::vector<int> cores = allowed_cores();
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  const int bad = cores.back();
  std::mutex mutex;
  std::set<const WorkList*> broken;
  ScreenOptions options;
  options.seconds = 3.2, options.memory_share = 0, options.load = Load::kTraining;
  options.between = [&](WorkList& list) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!broken.insert(&list).second) return;
    for (const auto& check : list.checks) {
      if (check->group != Group::kProduct) continue;
      check->run = [run = check->run, bad](const Disturb& disturb) {
        at::Tensor result = run(disturb);
        if (::sched_getcpu() == bad) bits_of(result).view(-1)[1].bitwise_xor_(2);
        return result;
      };
    }
  };
  const Json record = screen_cpu(options);
  EXPECT_EQ(record["verdict"], "faulty");
  ASSERT_FALSE(record["failures"].empty());
  for (const Json& failure : record["failures"]) {
    EXPECT_EQ(failure["core"], bad);
    EXPECT_EQ(failure["again"]["wrong"], 8);
    EXPECT_EQ(failure["elsewhere"]["wrong"], 0);
  }
  for (const Json& core : record["cores"])
    for (const char* part : {"alone", "together"}) EXPECT_EQ(core[part]["wrong"] > 0, core["core"] == bad) << core;
  EXPECT_NE(record["sentence"].get<std::string>().find(fmt::format("on core {}", bad)), std::string::npos);
}

// By number of launches, so that the machine's load decides nothing. One round of every side.
TEST(Screen, TheDrillFindsWhatIsPlantedFromEverySide) {
  const DrillResult result = drill({.trials = 12, .healthy = 2});
  EXPECT_EQ(result.sum(&DrillRow::planted), 12);
  EXPECT_EQ(result.sum(&DrillRow::placed), 12);
  EXPECT_GE(result.sum(&DrillRow::rated), 8);
  EXPECT_EQ(result.sum(&DrillRow::rate_right), result.sum(&DrillRow::rated));
  for (const std::string& miss : result.misses) ADD_FAILURE() << miss;
  EXPECT_EQ(result.accused, 0);
  std::set<std::string> sides;
  for (const DrillRow& row : result.rows) sides.insert(row.source);
  EXPECT_EQ(sides, (std::set<std::string>{"copy", "tap", "thread"}));
}

TEST(Screen, ARateIsHeldAgainstItsInterval) {
  EXPECT_TRUE(agrees(1, 20, 20));
  EXPECT_FALSE(agrees(1, 19, 20));
  EXPECT_TRUE(agrees(0.25, 260, 1000));
  EXPECT_FALSE(agrees(0.25, 150, 1000));
  EXPECT_EQ(launches_for(1), 1);
  EXPECT_EQ(launches_for(0.05), 270);
}

}  // namespace screen_test
}  // namespace faultline::screen
