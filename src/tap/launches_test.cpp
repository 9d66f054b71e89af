// The window of launches against a CUPTI made here: it hands over records as the library does, and refuses as it does.
#include "tap/launches.h"
#include "base/json.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>

namespace faultline::tap {
namespace launches_test {

// A CUPTI of functions without state of their own, so what they did is kept here.
struct Fake {
  uint32_t version = 130001;
  CuptiResult subscribe = kCuptiSuccess, enable = kCuptiSuccess;
  bool drop_buffer = false;
  std::size_t dropped = 0;
  bool subscribed = false;
  std::set<uint32_t> enabled, runtime_calls, driver_calls;
  Cupti::Callback callback = nullptr;
  Cupti::Requested requested = nullptr;
  Cupti::Completed completed = nullptr;
  uint8_t* buffer = nullptr;
  std::size_t used = 0;
  uint32_t correlation = 0;
  int unsubscribes = 0, flushes = 0;
} fake;

template <class Record>
void write(const Record& record, std::size_t size) {
  if (fake.buffer == nullptr) {
    std::size_t bytes = 0, most = 1;
    fake.requested(&fake.buffer, &bytes, &most);
    ASSERT_NE(fake.buffer, nullptr);
    ASSERT_GE(bytes, std::size_t{1} << 20);
    ASSERT_EQ(most, 0u);
    std::memset(fake.buffer, 0, bytes);
  }
  std::memcpy(fake.buffer + fake.used, &record, sizeof(record));
  fake.used += size;
}

constexpr std::size_t kKernelBytes = 216;  // of a version: the size comes from CUPTI alone
constexpr uint32_t kLaunchKernel = 211;    // cudaLaunchKernel

void launch(const char* name, uint64_t start, uint64_t node = 0) {
  if (!fake.enabled.contains(10)) return;
  ++fake.correlation;
  if (fake.runtime_calls.contains(kLaunchKernel)) {
    for (const int32_t site : {0, 1}) {  // the call begins, the call ends
      CuptiCall call = {};
      call.site = site;
      call.correlation = site == 0 ? fake.correlation : fake.correlation + 1;  // of an end nothing is asked
      fake.callback(nullptr, 2, kLaunchKernel, &call);
    }
  }
  CuptiKernel kernel = {};
  kernel.kind = 10;
  kernel.start = start;
  kernel.end = start == 0 ? 0 : start + 5;
  kernel.device = 2;
  kernel.stream = 7;
  kernel.correlation = fake.correlation;
  kernel.name = name;
  kernel.graph_node = node;
  kernel.graph = node != 0 ? 4 : 0;
  write(kernel, kKernelBytes);
}

Cupti fake_cupti() {
  Cupti cupti;
  cupti.GetVersion = [](uint32_t* version) { return *version = fake.version, kCuptiSuccess; };
  cupti.GetResultString = [](CuptiResult, const char** text) { return *text = "CUPTI_ERROR_MADE_UP", kCuptiSuccess; };
  cupti.Subscribe = [](void** subscriber, Cupti::Callback callback, void*) {
    *subscriber = &fake;
    fake.callback = callback;
    fake.subscribed = fake.subscribe == kCuptiSuccess;
    return fake.subscribe;
  };
  cupti.Unsubscribe = [](void* subscriber) {
    EXPECT_EQ(subscriber, &fake);
    fake.subscribed = false;
    ++fake.unsubscribes;
    return kCuptiSuccess;
  };
  cupti.ActivityRegisterCallbacks = [](Cupti::Requested requested, Cupti::Completed completed) {
    fake.requested = requested;
    fake.completed = completed;
    return kCuptiSuccess;
  };
  cupti.ActivityEnable = [](CuptiActivity kind) {
    if (fake.enable == kCuptiSuccess) fake.enabled.insert(static_cast<uint32_t>(kind));
    return fake.enable;
  };
  cupti.ActivityDisable = [](CuptiActivity kind) {
    fake.enabled.erase(static_cast<uint32_t>(kind));
    return kCuptiSuccess;
  };
  cupti.EnableCallback = [](uint32_t on, void* subscriber, CuptiDomain domain, uint32_t call) {
    EXPECT_EQ(subscriber, &fake);
    auto& calls = domain == CuptiDomain::kRuntime ? fake.runtime_calls : fake.driver_calls;
    on != 0 ? void(calls.insert(call)) : void(calls.erase(call));
    return kCuptiSuccess;
  };
  cupti.ActivityFlushAll = [](uint32_t flag) {
    ++fake.flushes;
    if (flag == kCuptiFlushForced && fake.buffer != nullptr && !fake.drop_buffer) {
      fake.completed(nullptr, 0, fake.buffer, 0, fake.used);
      fake.buffer = nullptr;
      fake.used = 0;
    }
    return kCuptiSuccess;
  };
  cupti.ActivityGetNextRecord = [](uint8_t* buffer, std::size_t valid, void** record) {
    auto* at = static_cast<uint8_t*>(*record);
    at = at == nullptr ? buffer : at + kKernelBytes;
    if (at >= buffer + valid) return kCuptiEndOfBuffer;
    *record = at;
    return kCuptiSuccess;
  };
  cupti.ActivityGetNumDroppedRecords = [](void*, uint32_t, std::size_t* dropped) {
    *dropped = fake.dropped;
    return kCuptiSuccess;
  };
  return cupti;
}

class Launches : public testing::Test {
 protected:
  Launches() { fake = {}; }
  ~Launches() override { (void)end_launches_with(false); }
  void begin(bool scopes = true) {
    const auto absent = begin_launches_with(cupti_, scopes, false);
    ASSERT_FALSE(absent.has_value()) << absent->why;
  }
  const Cupti cupti_ = fake_cupti();
};

constexpr const char* kProductName = "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT";
constexpr const char* kFaultName =
    "_ZN9faultline7numeric4cuda24relative_gaussian_kernelINS0_8BFloat16ELb0EEEvNS1_25RelativeGaussianArgumentsE";

TEST_F(Launches, AreRecordedBetweenBeginAndEndAndAllIsSwitchedOffAgain) {
  begin();
  EXPECT_EQ(fake.enabled, std::set<uint32_t>{10});
  EXPECT_EQ(fake.runtime_calls.size(), 8u);
  EXPECT_EQ(fake.driver_calls.size(), 6u);
  launch(kProductName, 100);
  launch(kFaultName, 110, 77);
  const RecordedLaunches recorded = end_launches_with(false);
  ASSERT_FALSE(recorded.absent.has_value()) << recorded.absent->why;
  ASSERT_EQ(recorded.list.launches.size(), 2u);
  const Launch& second = recorded.list.launches[1];
  EXPECT_EQ(recorded.list.names[second.name],
            "void faultline::numeric::cuda::relative_gaussian_kernel<faultline::numeric::BFloat16, "
            "false>(faultline::numeric::cuda::RelativeGaussianArguments)");
  EXPECT_EQ(second.device, 2u);
  EXPECT_EQ(second.stream, 7u);
  EXPECT_EQ(second.correlation, 2u);
  EXPECT_EQ(second.graph, 4u);
  EXPECT_EQ(second.node, 77u);
  EXPECT_EQ(second.start, 110u);
  EXPECT_EQ(second.end, 115u);
  EXPECT_EQ(recorded.cost.records, 2);
  EXPECT_EQ(recorded.cost.buffers, 1);
  EXPECT_TRUE(fake.enabled.empty() && fake.runtime_calls.empty() && fake.driver_calls.empty());
  EXPECT_FALSE(fake.subscribed);
  launch(kProductName, 200);  // records nothing
  begin();
  EXPECT_EQ(end_launches_with(false).list.launches.size(), 0u);
}

TEST_F(Launches, CarryTheCallOfTheOperatorThatMadeThem) {
  begin();
  for (int call = 0; call < 2; ++call) {
    const LaunchScope scope(5);
    launch(kProductName, 100 + 20 * call);
    if (call == 1) launch(kFaultName, 125);
  }
  launch(kProductName, 200);
  {
    const LaunchScope scope(6);  // a graph's replay is no call of one operator
    launch(kProductName, 300, 77);
  }
  const RecordedLaunches recorded = end_launches_with(false);
  ASSERT_EQ(recorded.list.launches.size(), 5u);
  const auto scope = [&](std::size_t i) { return recorded.list.launches[i].scope; };
  EXPECT_EQ(row_of_scope(scope(0)), 5u);
  EXPECT_NE(scope(0), scope(1));  // two calls of one row
  EXPECT_EQ(scope(1), scope(2));
  EXPECT_EQ(scope(3), 0u);
  EXPECT_EQ(scope(4), 0u);
  EXPECT_EQ(recorded.cost.scopes, 3);
  const Json json = to_json(recorded, true);
  EXPECT_EQ(json["families"]["product"]["launches"], 4);
  EXPECT_EQ(json["families"]["product"]["faulted"], 1);
  EXPECT_EQ(json["in_graphs"], 1);
  EXPECT_EQ(json["available"], true);
  EXPECT_TRUE(json["why"].is_null());
  EXPECT_EQ(json["list"].size(), 5u);
}

TEST_F(Launches, InsideScopesOfEachOtherCarryTheOutermost) {
  begin();
  {
    const LaunchScope above_autograd(5);
    launch(kFaultName, 100);
    const LaunchScope below(5);
    launch(kProductName, 110);
  }
  const RecordedLaunches recorded = end_launches_with(false);
  EXPECT_EQ(recorded.list.launches[0].scope, recorded.list.launches[1].scope);
  EXPECT_EQ(tabulate(recorded.list).families[LaunchFamily::kProduct].all.faulted, 1);
  EXPECT_EQ(recorded.cost.scopes, 1);
}

TEST_F(Launches, WithoutScopesAskForNoApiCalls) {
  begin(false);
  EXPECT_EQ(fake.enabled, std::set<uint32_t>{10});
  EXPECT_TRUE(fake.runtime_calls.empty());
  const LaunchScope scope(5);
  launch(kProductName, 100);
  EXPECT_EQ(end_launches_with(false).list.launches.at(0).scope, 0u);
}

TEST_F(Launches, AScopeOutsideAWindowCallsNothing) {
  EXPECT_FALSE(push_launch_scope(1));
  begin();
  EXPECT_TRUE(push_launch_scope(1));
  (void)end_launches_with(false);
  pop_launch_scope();  // what a window left open is closed after it
  EXPECT_FALSE(push_launch_scope(1));
  begin();
  launch(kProductName, 100);
  EXPECT_EQ(end_launches_with(false).list.launches.at(0).scope, 0u);
}

void expect_absent(const std::optional<LaunchesAbsent>& absent, LaunchAbsence reason, const char* words) {
  ASSERT_TRUE(absent.has_value());
  EXPECT_EQ(name_of(absent->reason), name_of(reason)) << absent->why;
  EXPECT_NE(absent->why.find(words), std::string::npos) << absent->why;
}

TEST_F(Launches, OfACuptiOfAnotherVersionAreRefused) {
  for (const uint32_t version : {0u, 12u, 23u, 29u, 129999u, 130500u, 140000u}) {
    fake.version = version;
    expect_absent(begin_launches_with(cupti_, true, false), LaunchAbsence::kOtherVersion,
                  std::to_string(version).c_str());
  }
  for (const uint32_t version : {24u, 28u, 130000u, 130001u, 130401u}) EXPECT_TRUE(is_known_cupti(version));
  EXPECT_FALSE(fake.subscribed);
  EXPECT_EQ(fake.requested, nullptr);
}

TEST_F(Launches, LeaveAnotherToolUndisturbed) {
  fake.subscribe = kCuptiHeldByAnother;
  expect_absent(begin_launches_with(cupti_, true, false), LaunchAbsence::kTaken, "another tool has CUPTI");
  EXPECT_EQ(fake.requested, nullptr);
  EXPECT_EQ(fake.unsubscribes + fake.flushes, 0);
  EXPECT_TRUE(fake.enabled.empty());
  fake.subscribe = kCuptiSuccess;
  expect_absent(begin_launches_with(cupti_, true, true), LaunchAbsence::kTaken, "torch's profiler is active");
  EXPECT_FALSE(fake.subscribed);
}

TEST_F(Launches, LeaveAProfilerWhatItTookMeanwhile) {
  begin();
  launch(kProductName, 100);
  const RecordedLaunches recorded = end_launches_with(true);
  expect_absent(recorded.absent, LaunchAbsence::kTaken, "meanwhile");
  EXPECT_TRUE(fake.enabled.contains(10));  // it wants them, too
  EXPECT_EQ(fake.flushes, 0);
  EXPECT_EQ(to_json(recorded, false)["launches"], 0);  // half a record is no record
}

TEST_F(Launches, ThatCuptiRefusesLeaveNothingSwitchedOn) {
  fake.subscribe = 999;
  expect_absent(begin_launches_with(cupti_, true, false), LaunchAbsence::kNoDevice, "CUPTI_ERROR_MADE_UP");
  fake.subscribe = kCuptiSuccess;
  fake.enable = 14;
  expect_absent(begin_launches_with(cupti_, true, false), LaunchAbsence::kNoDevice, "CUPTI_ERROR_MADE_UP");
  EXPECT_TRUE(fake.runtime_calls.empty() && fake.driver_calls.empty());
  EXPECT_FALSE(fake.subscribed);
  EXPECT_FALSE(push_launch_scope(1));
}

TEST_F(Launches, ThatWereLostAreNoProof) {
  begin();
  launch(kProductName, 100);
  fake.dropped = 3;
  expect_absent(end_launches_with(false).absent, LaunchAbsence::kIncomplete, "3 records");
  fake.dropped = 0;
  begin();
  launch(kProductName, 0);
  expect_absent(end_launches_with(false).absent, LaunchAbsence::kIncomplete, "no time");
  begin();
  {
    const LaunchScope scope(1);
  }
  expect_absent(end_launches_with(false).absent, LaunchAbsence::kIncomplete, "not one launch");
  begin();
  launch(kProductName, 100);
  fake.drop_buffer = true;
  expect_absent(end_launches_with(false).absent, LaunchAbsence::kIncomplete, "1 of 1 buffers");
  std::free(fake.buffer);
}

TEST_F(Launches, HaveOneWindowInAProcess) {
  begin();
  expect_absent(begin_launches_with(cupti_, true, false), LaunchAbsence::kTaken, "open in this process already");
  launch(kProductName, 100);
  EXPECT_EQ(end_launches_with(false).list.launches.size(), 1u);
  expect_absent(end_launches_with(false).absent, LaunchAbsence::kNotBegun, "no window");
}

TEST_F(Launches, OfAForkedChildAreNotThoseOfItsParent) {
  begin();
  const pid_t child = fork();
  if (child == 0) {
    const bool right = !push_launch_scope(1) && end_launches_with(false).absent->reason == LaunchAbsence::kNotBegun;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fake.subscribed);
}

}  // namespace launches_test
}  // namespace faultline::tap
