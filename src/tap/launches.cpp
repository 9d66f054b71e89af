#include "tap/launches.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <pthread.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"

namespace faultline::tap {
namespace launches {
std::atomic<bool> recording_scopes{false};
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBufferBytes = 4 << 20;
constexpr std::size_t kMostLaunches = 4 << 20;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The one window of a process. CUPTI's own thread fills it; never destroyed, because CUPTI may keep buffers.
struct Window {
  std::mutex mutex;  // of what CUPTI's thread writes
  LaunchList list;
  std::unordered_map<std::string, uint32_t> names;    // mangled -> in list.names
  std::vector<std::pair<uint32_t, uint64_t>> scopes;  // a call's correlation and the scope it came from, as they came
  std::unordered_set<uint8_t*> buffers;               // that CUPTI has
  LaunchCost cost;
  int64_t timeless = 0, unread = 0;

  std::mutex control;  // of begin and end
  const Cupti* cupti = nullptr;
  void* subscriber = nullptr;
  bool open = false, with_scopes = false;
  pid_t process = 0;
  Clock::time_point begun;
  std::atomic<uint64_t> pushed{0};
};
Window& window() {
  static auto* the_window = new Window;
  return *the_window;
}

// What one buffer holds.
struct Records {
  std::vector<std::pair<const char*, Launch>> kernels;
  int64_t count = 0, timeless = 0;
  bool read_to_its_end = true;
};

Records read_records(const Cupti& cupti, uint8_t* buffer, std::size_t valid) {
  Records records;
  void* record = nullptr;
  CuptiResult result = kCuptiSuccess;
  while ((result = cupti.ActivityGetNextRecord(buffer, valid, &record)) == kCuptiSuccess) {
    ++records.count;
    const auto kind = static_cast<CuptiActivity>(*static_cast<const uint32_t*>(record));
    if (kind == CuptiActivity::kConcurrentKernel) {
      const auto& kernel = *static_cast<const CuptiKernel*>(record);
      const Launch launch = {
          0, kernel.device, kernel.context, kernel.stream, kernel.correlation, kernel.graph, kernel.graph_node,
          0, kernel.start,  kernel.end};
      if (kernel.start == 0 && kernel.end == 0)
        ++records.timeless;
      else
        records.kernels.emplace_back(kernel.name != nullptr ? kernel.name : "?", launch);
    }
  }
  records.read_to_its_end = result == kCuptiEndOfBuffer;
  return records;
}

void keep(Window& the_window, const Records& records) {
  the_window.cost.records += records.count;
  the_window.timeless += records.timeless;
  the_window.unread += !records.read_to_its_end;
  for (const auto& [name, launch] : records.kernels) {
    if (the_window.list.launches.size() >= kMostLaunches) {
      ++the_window.cost.left_out;
      continue;
    }
    const auto [entry, is_new] =
        the_window.names.try_emplace(name, static_cast<uint32_t>(the_window.list.names.size()));
    if (is_new) the_window.list.names.push_back(demangled_kernel(name));
    the_window.list.launches.push_back(launch);
    the_window.list.launches.back().name = entry->second;
  }
}

void buffer_requested(uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  Window& the_window = window();
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;
  const std::lock_guard<std::mutex> lock(the_window.mutex);
  if (*buffer != nullptr) the_window.buffers.insert(*buffer);
}

// CUPTI is never called with the window's lock held: it calls us while it holds its own.
void buffer_completed(void*, uint32_t, uint8_t* buffer, std::size_t, std::size_t valid) {
  Window& the_window = window();
  const Cupti* cupti = nullptr;
  {
    const std::lock_guard<std::mutex> lock(the_window.mutex);
    if (!the_window.buffers.contains(buffer)) return;  // another tool's, or of a window that is over
    cupti = the_window.cupti;
  }
  const Records records = valid > 0 ? read_records(*cupti, buffer, valid) : Records{};
  const std::lock_guard<std::mutex> lock(the_window.mutex);
  the_window.buffers.erase(buffer);
  ++the_window.cost.buffers;
  keep(the_window, records);
  std::free(buffer);
}

// The scope that is open on this thread; of scopes inside each other the outermost, as only the outermost wrapped call
// acts: a call that is wrapped above autograd (faulted inputs) and below it is one call.
thread_local uint64_t open_scope = 0;
thread_local int scope_depth = 0;

// A kernel is about to be launched by this thread.
void launch_called(void*, int, uint32_t, const void* data) {
  const auto& call = *static_cast<const CuptiCall*>(data);
  if (call.site != 0 || open_scope == 0) return;
  Window& the_window = window();
  const std::lock_guard<std::mutex> lock(the_window.mutex);
  the_window.scopes.emplace_back(call.correlation, open_scope);
}

std::string result_text(const Cupti& cupti, CuptiResult result) {
  const char* text = nullptr;
  return cupti.GetResultString(result, &text) == kCuptiSuccess && text != nullptr ? text
                                                                                  : fmt::format("error {}", result);
}

LaunchesAbsent taken(std::string_view by) {
  return {LaunchAbsence::kTaken,
          fmt::format("kernel launches cannot be recorded, because {}; only one tool at a time can have CUPTI", by)};
}

// A call that this version does not have yet is refused, which is no loss.
void watch_calls(const Window& the_window, bool on) {
  const auto watch = [&](CuptiDomain domain, std::span<const uint32_t> calls) {
    for (const uint32_t call : calls) the_window.cupti->EnableCallback(on ? 1 : 0, the_window.subscriber, domain, call);
  };
  watch(CuptiDomain::kRuntime, kRuntimeLaunches);
  watch(CuptiDomain::kDriver, kDriverLaunches);
}

// Undone in the order of what was switched on; each call is allowed where nothing was.
void switch_off(Window& the_window) {
  const Cupti& cupti = *the_window.cupti;
  cupti.ActivityDisable(CuptiActivity::kConcurrentKernel);
  if (the_window.with_scopes) watch_calls(the_window, false);
}

CuptiResult switch_on(Window& the_window) {
  const Cupti& cupti = *the_window.cupti;
  const CuptiResult result = cupti.ActivityRegisterCallbacks(buffer_requested, buffer_completed);
  if (result == kCuptiSuccess && the_window.with_scopes) watch_calls(the_window, true);
  return result == kCuptiSuccess ? cupti.ActivityEnable(CuptiActivity::kConcurrentKernel) : result;
}

void forget_after_fork() { launches::recording_scopes = false; }

// Only devices that this process uses: waiting for another one would begin to use it.
void wait_for_devices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return;
  const auto* guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  for (c10::DeviceIndex device = 0; device < guard->deviceCount(); ++device) {
    if (at::detail::getCUDAHooks().hasPrimaryContext(device)) guard->synchronizeDevice(device);
  }
}

std::optional<LaunchesAbsent> loss(Window& the_window, std::size_t dropped, bool other_profiler) {
  const auto incomplete = [](const std::string& what) {
    return LaunchesAbsent{LaunchAbsence::kIncomplete, "the record of kernel launches is incomplete: " + what};
  };
  if (other_profiler) return taken("torch's profiler was started meanwhile");
  if (dropped > 0) return incomplete(fmt::format("CUPTI dropped {} records", dropped));
  if (the_window.timeless > 0)
    return incomplete(fmt::format("{} launches have no time, so their order is unknown", the_window.timeless));
  if (the_window.unread > 0)
    return incomplete(fmt::format("{} buffers could not be read to their end", the_window.unread));
  if (!the_window.buffers.empty())
    return incomplete(fmt::format("{} of {} buffers never came back; another tool may have taken them over",
                                  the_window.buffers.size(), the_window.buffers.size() + the_window.cost.buffers));
  if (the_window.cost.scopes > 0 && the_window.list.launches.empty())
    return incomplete(fmt::format("{} operators ran, and CUPTI delivered not one launch", the_window.cost.scopes));
  return std::nullopt;
}

}  // namespace

namespace launches {

void push(uint64_t row) {
  if (scope_depth++ > 0) return;
  const uint64_t number = window().pushed.fetch_add(1, std::memory_order_relaxed) + 1;
  open_scope = number << 32 | row_of_scope(row);
}

void pop() {
  if (--scope_depth == 0) open_scope = 0;
}

}  // namespace launches

std::string_view name_of(LaunchAbsence absence) {
  constexpr std::array<std::string_view, 6> kNames = {"no_device", "no_cupti",   "other_version",
                                                      "taken",     "incomplete", "not_begun"};
  return kNames.at(static_cast<std::size_t>(absence));
}

bool torch_profiler_active() {
  return torch::profiler::impl::profilerEnabled() || torch::autograd::profiler::isProfilerEnabledInMainThread();
}

std::optional<LaunchesAbsent> begin_launches(bool scopes) {
  std::string why;
  const Cupti* cupti = load_cupti(why);
  if (cupti == nullptr) return LaunchesAbsent{LaunchAbsence::kNoCupti, "kernel launches cannot be recorded: " + why};
  return begin_launches_with(*cupti, scopes, torch_profiler_active());
}

std::optional<LaunchesAbsent> begin_launches_with(const Cupti& cupti, bool scopes, bool other_profiler) {
  const Clock::time_point start = Clock::now();
  Window& the_window = window();
  const std::lock_guard<std::mutex> control(the_window.control);
  // What stands in the way.
  if (the_window.open && the_window.process == getpid())
    return taken("a window of launches is open in this process already");
  if (other_profiler) return taken("torch's profiler is active");
  uint32_t version = 0;
  if (cupti.GetVersion(&version) != kCuptiSuccess || !is_known_cupti(version))
    return LaunchesAbsent{
        LaunchAbsence::kOtherVersion,
        fmt::format("kernel launches cannot be recorded: this CUPTI says version {}, and the layout of its "
                    "records is known for 24 to 28 (CUDA 12.6 to 12.9) and 130000 to 130499 (13.0 to 13.4)",
                    version)};
  // CUPTI has one subscriber at a time.
  void* subscriber = nullptr;
  const CuptiResult subscribed = cupti.Subscribe(&subscriber, launch_called, nullptr);
  if (subscribed == kCuptiHeldByAnother)
    return taken(
        "another tool has CUPTI (torch's profiler keeps it from its first use to the end of the process; Nsight and "
        "cuda-gdb have it from the start)");
  if (subscribed != kCuptiSuccess)
    return LaunchesAbsent{
        LaunchAbsence::kNoDevice,
        fmt::format("kernel launches cannot be recorded: CUPTI does not start ({}); is there a GPU with its driver?",
                    result_text(cupti, subscribed))};
  {
    const std::lock_guard<std::mutex> lock(the_window.mutex);
    the_window.list = {};
    the_window.names.clear();
    the_window.scopes.clear();
    the_window.buffers.clear();  // what an earlier window lost stays allocated: CUPTI may still write there
    the_window.cost = {};
    the_window.timeless = the_window.unread = 0;
    the_window.cupti = &cupti;
  }
  // On; a refusal half-way is undone.
  the_window.subscriber = subscriber;
  the_window.with_scopes = scopes;
  the_window.pushed = 0;
  if (const CuptiResult result = switch_on(the_window); result != kCuptiSuccess) {
    switch_off(the_window);
    cupti.Unsubscribe(subscriber);
    return LaunchesAbsent{
        LaunchAbsence::kNoDevice,
        fmt::format("kernel launches cannot be recorded: CUPTI refuses ({})", result_text(cupti, result))};
  }
  // The window is open for this process, not for a fork of it.
  static std::once_flag fork_handler;
  std::call_once(fork_handler, [] { pthread_atfork(nullptr, nullptr, forget_after_fork); });
  the_window.open = true;
  the_window.process = getpid();
  launches::recording_scopes = scopes;
  the_window.begun = Clock::now();
  the_window.cost.begin_s = seconds_since(start);
  return std::nullopt;
}

RecordedLaunches end_launches() {
  if (window().open && window().process == getpid()) wait_for_devices();
  return end_launches_with(torch_profiler_active());
}

RecordedLaunches end_launches_with(bool other_profiler) {
  const Clock::time_point start = Clock::now();
  Window& the_window = window();
  const std::lock_guard<std::mutex> control(the_window.control);
  RecordedLaunches recorded;
  if (!the_window.open || the_window.process != getpid()) {
    recorded.absent = LaunchesAbsent{LaunchAbsence::kNotBegun, "no window of kernel launches is open in this process"};
    return recorded;
  }
  launches::recording_scopes = false;
  the_window.open = false;
  const Cupti& cupti = *the_window.cupti;
  // Whoever began after us registered buffers of its own and switched the same kinds on: they are its now.
  if (!other_profiler) {
    cupti.ActivityFlushAll(0);
    switch_off(the_window);
    cupti.ActivityFlushAll(kCuptiFlushForced);
  }
  std::size_t dropped = 0;
  cupti.ActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  cupti.Unsubscribe(the_window.subscriber);
  const std::lock_guard<std::mutex> lock(the_window.mutex);
  the_window.cost.scopes = static_cast<int64_t>(the_window.pushed.load());
  the_window.cost.window_s = std::chrono::duration<double>(start - the_window.begun).count();
  recorded.absent = loss(the_window, dropped, other_profiler);
  const std::unordered_map<uint32_t, uint64_t> scopes(the_window.scopes.begin(), the_window.scopes.end());
  for (Launch& launch : the_window.list.launches) {
    const auto scope = scopes.find(launch.correlation);
    if (launch.node == 0 && scope != scopes.end()) launch.scope = scope->second;
  }
  recorded.list = std::move(the_window.list);
  the_window.list = {};
  the_window.cost.end_s = seconds_since(start);
  recorded.cost = the_window.cost;
  return recorded;
}

Json to_json(const RecordedLaunches& recorded, bool listed) {
  const bool available = !recorded.absent.has_value();
  Json json = {{"available", available}, {"reason", nullptr}, {"why", nullptr}};
  if (!available) {
    json["reason"] = std::string(name_of(recorded.absent->reason));
    json["why"] = recorded.absent->why;
  }
  // Half a record proves nothing: its numbers are not shown.
  json.update(to_json(available ? tabulate(recorded.list) : LaunchTable{}));
  const LaunchCost& cost = recorded.cost;
  json["cost"] = {{"begin_s", cost.begin_s},  {"window_s", cost.window_s}, {"end_s", cost.end_s},
                  {"records", cost.records},  {"buffers", cost.buffers},   {"scopes", cost.scopes},
                  {"left_out", cost.left_out}};
  if (listed) json["list"] = list_to_json(recorded.list);
  return json;
}

}  // namespace faultline::tap
