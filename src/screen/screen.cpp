#include "screen/screen.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/machine.h"
#include "base/stats/stats.h"
#include "base/text.h"
#include "numeric/versions.h"
#include "screen/cores.h"
#include "screen/machine.h"
#include "screen/nvml.h"
#include "screen/record.h"

namespace faultline::screen {
namespace {

using Wall = std::chrono::system_clock;

std::string time_text(Wall::time_point time) {
  return utc_timestamp(std::chrono::duration<double>(time.time_since_epoch()).count());
}

// The time around a screen: how long it was by a clock that nobody sets, and whether the other one was set meanwhile.
class Watch {
 public:
  void write(Json& record, const ScreenOptions& options) const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - steady_).count();
    const double by_wall = std::chrono::duration<double>(Wall::now() - wall_).count();
    record["started"] = time_text(wall_), record["seconds"] = seconds, record["seconds_asked"] = options.seconds;
    record["clock_step_seconds"] = std::abs(by_wall - seconds) < 1 ? 0.0 : by_wall - seconds;
  }

 private:
  Wall::time_point wall_ = Wall::now();
  std::chrono::steady_clock::time_point steady_ = std::chrono::steady_clock::now();
};

Json begin_record(const std::string& device, const ScreenOptions& options) {
  Json record = {{"kind", "screen"},
                 {"device", device},
                 {"load", load_name(options.load)},
                 {"seed", options.seed},
                 {"versions", numeric::versions()}};
  if (!options.instruction_set.empty()) record["instruction_set"] = options.instruction_set;
  return record;
}

std::string pci_of(const Json& names) { return names["pci"].is_string() ? names["pci"].get<std::string>() : ""; }

std::vector<std::string> groups_of(const std::string& load) {
  if (load == "memory") return {"copy", "memory"};
  if (load == "sentinel") return {"product"};
  std::vector<std::string> groups = {"product", "attention", "norm", "reduction", "copy", "memory"};
  if (load != "training") groups.emplace_back("gather");
  return groups;
}

}  // namespace

Json screen_gpu(int index, const ScreenOptions& options) {
  const std::string name = fmt::format("cuda:{}", index);
  Json record = begin_record(name, options);
  const Watch watch;
  const Nvml nvml;
  const Json names = cuda_device_names(index);
  record["identity"] = gpu_identity(nvml, names);
  record["identity"]["host"] = host_name();
  record["id"] = record["identity"]["uuid"];
  record["weather"]["before"] = nvml.weather(pci_of(names));
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  WorkList list;
  std::vector<Part> parts(1);
  parts[0].name = "all", parts[0].list = &list;
  try {
    const ExactSums exact;
    WorkSpec spec{.device = device, .load = options.load, .seed = options.seed, .large = true, .peers = options.peers};
    const double share = options.memory_share < 0 ? 0.5 : options.memory_share;
    spec.memory_bytes = static_cast<int64_t>(
        share * static_cast<double>(at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(index)).first));
    record["memory_share"] = share;
    if (options.begins) options.begins(name + ": inputs and answers", 0);
    const auto start = std::chrono::steady_clock::now();
    list = work_list(spec);
    record["preparation_seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options.begins) options.begins(name, options.seconds);
    if (options.under_load) options.under_load();
    WorkerOptions worker{.device = device, .seconds = options.seconds, .seed = options.seed};
    worker.rates = options.rates, worker.stop = options.stop, worker.between = options.between;
    parts[0].result = run_worker(list, worker);
  } catch (const c10::Error& error) {
    parts[0].result.broken_off = first_line(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    parts[0].result.broken_off = "the host is out of memory";
  } catch (const std::exception& error) {  // of our own kernels
    parts[0].result.broken_off = first_line(error.what());
  }
  add_parts(record, parts);
  if (options.peers.empty())
    record["not_tested"].push_back("copies to other GPUs: no other one is screened by this process");
  record["not_tested"].push_back("gradients of attention; kernels that this torch did not choose for these shapes");
  if (options.stop != nullptr && options.stop->load()) record["broken_off"].push_back("stopped before its time");
  record["weather"]["after"] = nvml.weather(pci_of(names));
  watch.write(record, options);
  judge(record);
  return record;
}

Json screen_cpu(const ScreenOptions& options) {
  Json record = begin_record("cpu", options);
  const Watch watch;
  record["identity"] = cpu_identity();
  record["id"] = record["identity"]["machine"].is_string()
                     ? Json("cpu-" + record["identity"]["machine"].get<std::string>())
                     : record["identity"]["host"];
  record["weather"]["before"] = cpu_weather();
  screen_cores(record, options);
  if (options.stop != nullptr && options.stop->load()) record["broken_off"].push_back("stopped before its time");
  record["weather"]["after"] = cpu_weather();
  watch.write(record, options);
  judge(record);
  return record;
}

int64_t at_most_one_in(int64_t wrong, int64_t tested) {
  if (tested <= 0) return 0;
  return static_cast<int64_t>(1 / clopper_pearson_upper(wrong, tested, 0.95));
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHealthy: return "healthy";
    case Verdict::kFaulty: return "faulty";
    default: return "inconclusive";
  }
}

namespace {

int64_t count(const Json& record, const char* group, const char* key) {
  const Json& groups = record.at("groups");
  return groups.contains(group) ? groups[group].value(key, int64_t{0}) : 0;
}

// A counter of uncorrected errors that rose while the device worked: the device's own word.
std::string uncorrected(const Json& record) {
  const Json& before = record.at("weather").at("before");
  const Json after = record.at("weather").value("after", Json::object());
  const char* key = "ecc_uncorrected";
  if (!before.contains(key) || !after.contains(key) || !before[key].is_number() || !after[key].is_number()) return {};
  const double rose = after[key].get<double>() - before[key].get<double>();
  return rose > 0 ? fmt::format("its own counter of uncorrected memory errors rose by {:.0f}", rose) : "";
}

std::string accusation(const Json& record) {
  const Json& failure = record["failures"][0];
  std::string place = failure["check"].get<std::string>();
  if (failure.contains("core")) place += fmt::format(" on core {}", failure["core"].get<int>());
  if (failure.contains("row"))
    place += fmt::format(", row {}, column {}", failure["row"].get<int64_t>(), failure["column"].get<int64_t>());
  else if (failure["element"].get<int64_t>() >= 0)
    place += fmt::format(", element {}", failure["element"].get<int64_t>());
  const std::string certainty = failure["certainty"];
  return fmt::format(
      "{} of {} launches were wrong; first {}: {}{} ({})", record["bound"]["launches"]["wrong"].get<int64_t>(),
      record["bound"]["launches"]["tested"].get<int64_t>(), place, certainty == "open" ? "" : certainty + " ",
      failure["suspect"].get<std::string>(), failure["sentence"].get<std::string>());
}

}  // namespace

void judge(Json& record) {
  const auto say = [&](Verdict verdict, ExitCode code, const std::string& sentence) {
    record["verdict"] = verdict_name(verdict), record["sentence"] = sentence;
    record["exit_code"] = static_cast<int>(code);
  };
  const bool host_alone =
      !record["failures"].empty() && std::all_of(record["failures"].begin(), record["failures"].end(),
                                                 [](const Json& one) { return one["suspect"] == "host"; });
  if (host_alone && record["device"] != "cpu")
    return say(Verdict::kInconclusive, ExitCode::kRuntime,
               "the host computed two answers to one question: screen its CPU; nothing is said of this device");
  if (const Json linears = record.value("linears", Json::object()); linears.value("wrong", int64_t{0}) > 0)
    return say(Verdict::kFaulty, ExitCode::kFound,
               fmt::format("{} of {} questions to the model's linears were answered wrong; first {}",
                           linears["wrong"].get<int64_t>(), linears["launches"].get<int64_t>(),
                           linears["failures"][0]["module"].get<std::string>()));
  if (!record["failures"].empty()) return say(Verdict::kFaulty, ExitCode::kFound, accusation(record));
  if (const std::string own = uncorrected(record); !own.empty()) return say(Verdict::kFaulty, ExitCode::kFound, own);
  if (!record["canaries"]["missed"].empty())
    return say(Verdict::kUnproven, ExitCode::kEvidence,
               "the screen's own planted fault was not seen: " + record["canaries"]["missed"][0].get<std::string>());
  if (const Json ranks = record.value("between_ranks", Json::object());
      ranks.value("exit_code", 0) == static_cast<int>(ExitCode::kFound)) {
    const Json blamed = ranks.value("blamed", Json::array());
    const bool this_rank = std::find(blamed.begin(), blamed.end(), ranks["rank"]) != blamed.end();
    return say(this_rank ? Verdict::kFaulty : Verdict::kInconclusive, this_rank ? ExitCode::kFound : ExitCode::kRuntime,
               "collectives between ranks brought wrong bytes: " + (ranks.contains("sentence")
                                                                        ? ranks["sentence"].get<std::string>()
                                                                        : "rank 0's record says whom it is laid on"));
  }
  if (!record["broken_off"].empty())
    return say(Verdict::kInconclusive, ExitCode::kRuntime, "broken off: " + record["broken_off"][0].get<std::string>());
  for (const std::string& group : groups_of(record["load"])) {
    if (group == "memory" && record.value("memory_share", 1.0) == 0) continue;  // by the user's leave
    if (count(record, group.c_str(), "launches") == 0)
      return say(Verdict::kInconclusive, ExitCode::kRuntime, fmt::format("no {} could be tested", group));
  }
  if (record["canaries"]["planted"].get<int64_t>() == 0)
    return say(Verdict::kUnproven, ExitCode::kEvidence, "no canary was planted: that the screen sees is not shown");
  const Json& launches = record["bound"]["launches"];
  say(Verdict::kHealthy, ExitCode::kOk,
      fmt::format("no wrong result in {} launches: at most 1 wrong launch in {}, 95 %; canaries {} of {} seen",
                  launches["tested"].get<int64_t>(), launches["at_most_one_in"].get<int64_t>(),
                  record["canaries"]["seen"].get<int64_t>(), record["canaries"]["planted"].get<int64_t>()));
}

ExitCode exit_code_of(const std::vector<Json>& records) {
  const auto any = [&](ExitCode code) {
    return std::any_of(records.begin(), records.end(), [&](const Json& one) {
      return one.value("exit_code", static_cast<int>(ExitCode::kRuntime)) == static_cast<int>(code);
    });
  };
  for (const ExitCode code : {ExitCode::kFound, ExitCode::kEvidence, ExitCode::kRuntime})
    if (any(code)) return code;
  return records.empty() ? ExitCode::kRuntime : ExitCode::kOk;
}

}  // namespace faultline::screen
