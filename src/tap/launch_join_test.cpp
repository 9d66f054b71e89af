// Which launches were faulted, on lists that no GPU had to make: the orders that graphs, split products, other streams
// and kernels beside the dispatcher give, and those that somebody would make to be taken for faulted.
#include "tap/launch_join.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace faultline::tap {
namespace launch_join_test {

const std::string kProductKernel = "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", kTriton = "triton_mm_31",
                  kReduce = "void cublasLt::splitKreduce_kernel<32, 16>(int)",
                  kFaultKernel = "void faultline::numeric::cuda::relative_gaussian_kernel<true>(int)",
                  kStatistics = "void faultline::numeric::cuda::(anonymous namespace)::tensor_kernel<float>(int)",
                  kNormKernel = "void vllm::rms_norm_kernel<float>(int)",
                  kFlash = "void flash::flash_fwd_splitkv_kernel<64>",
                  kCombine = "void flash::flash_fwd_splitkv_combine_kernel<64>";

struct Script {
  LaunchList list;
  uint64_t time = 1000;
  Script& add(const std::string& name, uint32_t stream = 7, uint64_t scope = 0) {
    auto found = std::find(list.names.begin(), list.names.end(), name);
    if (found == list.names.end()) found = list.names.insert(list.names.end(), name);
    Launch launch;
    launch.name = static_cast<uint32_t>(found - list.names.begin());
    launch.stream = stream;
    launch.scope = scope;
    launch.start = time += 10;
    launch.end = launch.start + 5;
    launch.correlation = static_cast<uint32_t>(list.launches.size() + 1);
    list.launches.push_back(launch);
    return *this;
  }
  LaunchCount of(LaunchFamily family) const { return tabulate(list).families[family].all; }
  LaunchCount products() const { return of(LaunchFamily::kProduct); }
};

void expect(const LaunchCount& count, int64_t launches, int64_t faulted) {
  EXPECT_EQ(count.launches, launches);
  EXPECT_EQ(count.faulted, faulted);
}

TEST(LaunchJoin, FindsTheFaultThatFollowsOnTheStream) {
  Script script;
  for (int i = 0; i < 3; ++i) script.add(kProductKernel).add(kFaultKernel).add(kNormKernel);
  expect(script.products(), 3, 3);
  expect(script.of(LaunchFamily::kNorm), 3, 0);
  EXPECT_EQ(tabulate(script.list).launches, 9);
}

TEST(LaunchJoin, ReportsATritonProductThatNobodyFaulted) {
  Script script;
  script.add(kProductKernel).add(kFaultKernel).add(kTriton).add(kProductKernel).add(kFaultKernel);
  const LaunchTable table = tabulate(script.list);
  const FamilyLaunches& products = table.families.at(LaunchFamily::kProduct);
  expect(products.all, 3, 2);
  expect(products.kernels.at(kTriton), 1, 0);
  expect(products.kernels.at(kProductKernel), 2, 2);
}

TEST(LaunchJoin, SkipsThePartsOfAProductAndOfAFault) {
  Script script;
  script.add(kProductKernel).add(kReduce).add(kFaultKernel);
  script.add(kProductKernel).add(kReduce).add(kStatistics).add(kFaultKernel);
  script.add(kFlash).add(kCombine).add(kFaultKernel);
  script.add(kProductKernel).add(kReduce).add(kNormKernel);  // clean
  expect(script.products(), 3, 2);
  expect(script.of(LaunchFamily::kAttention), 1, 1);
  EXPECT_EQ(tabulate(script.list).families[LaunchFamily::kProduct].parts, 3);
}

TEST(LaunchJoin, ASplitSumOfAttentionIsNoPartOfAProduct) {
  Script script;
  script.add(kProductKernel).add(kCombine).add(kFaultKernel);
  expect(script.products(), 1, 0);
}

TEST(LaunchJoin, StatisticsAloneAreNoFault) {
  Script script;
  script.add(kProductKernel).add(kStatistics).add(kNormKernel);
  script.add(kProductKernel).add(kStatistics);
  expect(script.products(), 2, 0);
}

TEST(LaunchJoin, AFaultOnAnotherStreamOrDeviceIsNotItsFault) {
  Script script;
  script.add(kProductKernel, 7).add(kFaultKernel, 13);
  expect(script.products(), 1, 0);
  Script devices;
  devices.add(kProductKernel).add(kFaultKernel);
  devices.list.launches[1].device = 1;
  expect(devices.products(), 1, 0);
}

TEST(LaunchJoin, StreamsThatInterleaveAreReadOneByOne) {
  Script script;
  script.add(kProductKernel, 7).add(kProductKernel, 13).add(kFaultKernel, 13).add(kFaultKernel, 7);
  expect(script.products(), 2, 2);
}

TEST(LaunchJoin, TheOrderIsThatOfTimesAndNotOfRecords) {
  Script script;
  script.add(kNormKernel).add(kProductKernel).add(kFaultKernel);
  std::reverse(script.list.launches.begin(), script.list.launches.end());
  expect(script.products(), 1, 1);
  const std::vector<bool> faulted = faulted_launches(script.list);
  EXPECT_EQ(faulted, (std::vector<bool>{false, true, false}));
}

TEST(LaunchJoin, OneFaultServesOneProduct) {
  Script script;
  script.add(kTriton).add(kProductKernel).add(kFaultKernel).add(kFaultKernel);
  expect(script.products(), 2, 1);
}

TEST(LaunchJoin, InsideAScopeTheFaultMayStandAnywhere) {
  Script script;
  script.add(kFaultKernel, 7, 1).add(kProductKernel, 7, 1).add(kNormKernel, 7);      // a faulted input
  script.add(kProductKernel, 7, 2).add(kNormKernel, 7, 2).add(kFaultKernel, 13, 2);  // work in between
  script.add(kProductKernel, 7, 3).add(kNormKernel, 7);                              // tapped, not faulted
  expect(script.products(), 3, 2);
}

TEST(LaunchJoin, WhatTheRulesLeaveOutMissesNoFault) {
  const uint64_t router = 4ull << 32 | kLeftOutRow;
  Script script;
  script.add(kProductKernel, 7, 1).add(kFaultKernel, 7, 1).add(kProductKernel, 7, router).add(kTriton);
  const FamilyLaunches products = tabulate(script.list).families.at(LaunchFamily::kProduct);
  expect(products.all, 2, 1);
  EXPECT_EQ(products.left_out, 1);
  EXPECT_FALSE(products.kernels.at(kTriton).faulted);
}

TEST(LaunchJoin, AFaultInsideAScopeBelongsToNobodyBeforeIt) {
  Script script;
  script.add(kTriton, 7, 0).add(kFaultKernel, 7, 1).add(kProductKernel, 7, 1);  // it faults the next one's input
  script.add(kProductKernel, 7, 2).add(kFaultKernel, 7, 3).add(kProductKernel, 7, 3);
  const LaunchTable table = tabulate(script.list);
  expect(table.families.at(LaunchFamily::kProduct).kernels.at(kTriton), 1, 0);
  expect(table.families.at(LaunchFamily::kProduct).kernels.at(kProductKernel), 3, 2);
}

TEST(LaunchJoin, AModulesFaultAfterATappedProductCounts) {
  Script script;
  script.add(kProductKernel, 7, 1).add(kFaultKernel, 7, 0);
  expect(script.products(), 1, 1);
}

TEST(LaunchJoin, CountsEveryReplayOfAGraph) {
  Script script;
  for (uint32_t replay = 0; replay < 5; ++replay) {
    script.add(kProductKernel).add(kFaultKernel).add(kTriton).add(kNormKernel);
    for (std::size_t i = 0; i < 4; ++i) {
      Launch& launch = script.list.launches[replay * 4 + i];
      launch.correlation = 100 + replay;
      launch.graph = 3;
      launch.node = 40 + i;
    }
  }
  const LaunchTable table = tabulate(script.list);
  EXPECT_EQ(table.in_graphs, 20);
  expect(table.families.at(LaunchFamily::kProduct).all, 10, 5);
  expect(table.families.at(LaunchFamily::kFault).all, 5, 0);
}

TEST(LaunchJoin, LaunchesThatBeginAtOnceStandInTheOrderOfTheGraph) {
  Script script;
  script.add(kFaultKernel).add(kProductKernel);
  for (Launch& launch : script.list.launches) launch.start = 500, launch.correlation = 9;
  script.list.launches[0].node = 12;
  script.list.launches[1].node = 11;
  expect(script.products(), 1, 1);
}

TEST(LaunchJoin, NothingIsNothing) {
  EXPECT_EQ(tabulate({}).launches, 0);
  EXPECT_TRUE(faulted_launches({}).empty());
  EXPECT_EQ(to_json(tabulate({})).dump(), R"({"families":{},"in_graphs":0,"launches":0})");
}

TEST(LaunchJoin, WritesTheTableThatAReportQuotes) {
  Script script;
  script.add(kProductKernel).add(kReduce).add(kFaultKernel).add(kTriton);
  const Json json = to_json(tabulate(script.list));
  EXPECT_EQ(
      json["families"]["product"].dump(),
      R"({"faulted":1,"kernels":{")" + kProductKernel +
          R"(":{"faulted":1,"launches":1},"triton_mm_31":{"faulted":0,"launches":1}},"launches":2,"left_out":0,"parts":1})");
  EXPECT_EQ(list_to_json(script.list).at(3)["faulted"], false);
  EXPECT_EQ(list_to_json(script.list).at(1)["part"], true);
}

}  // namespace launch_join_test
}  // namespace faultline::tap
