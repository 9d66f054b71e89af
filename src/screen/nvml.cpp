#include "screen/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <vector>

namespace faultline::screen {

// NVML's own C interface, as far as it is used here; its structures are handles and numbers.
struct Nvml::Functions {
  using Device = void*;
  int (*Init)() = nullptr;
  int (*Shutdown)() = nullptr;
  const char* (*ErrorString)(int) = nullptr;
  int (*DriverVersion)(char*, unsigned) = nullptr;
  int (*ByPci)(const char*, Device*) = nullptr;
  int (*Name)(Device, char*, unsigned) = nullptr;
  int (*Uuid)(Device, char*, unsigned) = nullptr;
  int (*Serial)(Device, char*, unsigned) = nullptr;
  int (*Vbios)(Device, char*, unsigned) = nullptr;
  int (*MigMode)(Device, unsigned*, unsigned*) = nullptr;
  int (*EccMode)(Device, unsigned*, unsigned*) = nullptr;
  int (*EccErrors)(Device, int, int, unsigned long long*) = nullptr;
  int (*RemappedRows)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*Clock)(Device, int, unsigned*) = nullptr;
  int (*MaxClock)(Device, int, unsigned*) = nullptr;
  int (*Temperature)(Device, int, unsigned*) = nullptr;
  int (*Power)(Device, unsigned*) = nullptr;
  int (*PowerLimit)(Device, unsigned*) = nullptr;
  int (*Throttle)(Device, unsigned long long*) = nullptr;
  int (*PcieGeneration)(Device, unsigned*) = nullptr;
  int (*PcieWidth)(Device, unsigned*) = nullptr;
  int (*PcieReplays)(Device, unsigned*) = nullptr;
};

namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

// Bits of nvmlClocksThrottleReasons.
struct Reason {
  unsigned long long bit;
  const char* name;
};
constexpr std::array kReasons = {Reason{0x1, "idle"},
                                 Reason{0x2, "application clocks"},
                                 Reason{0x4, "power cap"},
                                 Reason{0x8, "hardware slowdown"},
                                 Reason{0x10, "sync boost"},
                                 Reason{0x20, "software thermal slowdown"},
                                 Reason{0x40, "hardware thermal slowdown"},
                                 Reason{0x80, "hardware power brake"},
                                 Reason{0x100, "display clocks"}};

Json reasons_of(unsigned long long bits) {
  Json names = Json::array();
  for (const Reason& reason : kReasons)
    if ((bits & reason.bit) != 0) names.push_back(reason.name);
  return names;
}

}  // namespace

Json absent(const std::string& why) { return {{"absent", why}}; }

Nvml::Nvml(const std::string& library) {
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    why_not_ = fmt::format("{} is not installed here", library);
    return;
  }
  auto* all = new Functions;
  functions_ = all;
  find(library_, "nvmlInit_v2", all->Init);
  find(library_, "nvmlShutdown", all->Shutdown);
  find(library_, "nvmlErrorString", all->ErrorString);
  find(library_, "nvmlSystemGetDriverVersion", all->DriverVersion);
  find(library_, "nvmlDeviceGetHandleByPciBusId_v2", all->ByPci);
  find(library_, "nvmlDeviceGetName", all->Name);
  find(library_, "nvmlDeviceGetUUID", all->Uuid);
  find(library_, "nvmlDeviceGetSerial", all->Serial);
  find(library_, "nvmlDeviceGetVbiosVersion", all->Vbios);
  find(library_, "nvmlDeviceGetMigMode", all->MigMode);
  find(library_, "nvmlDeviceGetEccMode", all->EccMode);
  find(library_, "nvmlDeviceGetTotalEccErrors", all->EccErrors);
  find(library_, "nvmlDeviceGetRemappedRows", all->RemappedRows);
  find(library_, "nvmlDeviceGetClockInfo", all->Clock);
  find(library_, "nvmlDeviceGetMaxClockInfo", all->MaxClock);
  find(library_, "nvmlDeviceGetTemperature", all->Temperature);
  find(library_, "nvmlDeviceGetPowerUsage", all->Power);
  find(library_, "nvmlDeviceGetEnforcedPowerLimit", all->PowerLimit);
  find(library_, "nvmlDeviceGetCurrentClocksThrottleReasons", all->Throttle);
  find(library_, "nvmlDeviceGetCurrPcieLinkGeneration", all->PcieGeneration);
  find(library_, "nvmlDeviceGetCurrPcieLinkWidth", all->PcieWidth);
  find(library_, "nvmlDeviceGetPcieReplayCounter", all->PcieReplays);
  if (all->Init == nullptr || all->ByPci == nullptr) {
    why_not_ = fmt::format("{} lacks nvmlInit_v2 or nvmlDeviceGetHandleByPciBusId_v2", library);
    return;
  }
  if (const int status = all->Init(); status != 0)
    why_not_ = fmt::format("NVML could not be started: {}",
                           all->ErrorString != nullptr ? all->ErrorString(status) : std::to_string(status));
}

Nvml::~Nvml() {
  if (functions_ != nullptr && why_not_.empty() && functions_->Shutdown != nullptr) functions_->Shutdown();
  delete functions_;
  if (library_ != nullptr) dlclose(library_);
}

// The device of this PCI place, or why there is none; then no question is asked.
struct Nvml::Found {
  const Functions& functions;
  Functions::Device device;
  std::string why;
};

Nvml::Found Nvml::device(const std::string& pci) const {
  static const Functions kNone;
  if (!why_not_.empty()) return {kNone, nullptr, why_not_};
  Functions::Device device = nullptr;
  const int status = functions_->ByPci(pci.c_str(), &device);
  if (status == 0) return {*functions_, device, ""};
  return {*functions_, nullptr,
          fmt::format("NVML does not know {}: {}", pci.empty() ? "a device without a PCI place" : pci,
                      functions_->ErrorString != nullptr ? functions_->ErrorString(status) : std::to_string(status))};
}

namespace {

// One question to the library: its answer, or why there is none.
class Ask {
 public:
  Ask(const char* (*words)(int), std::string why) : words_(words), why_(std::move(why)) {}

  template <class Function, class... Arguments>
  Json text(Function* function, Arguments... arguments) const {
    char answer[160] = {};
    const std::string why = call(function, arguments..., answer, unsigned{sizeof answer});
    return why.empty() ? Json(std::string(answer)) : absent(why);
  }
  template <class Number, class Function, class... Arguments>
  Json number(Function* function, Arguments... arguments) const {
    Number answer = 0;
    const std::string why = call(function, arguments..., &answer);
    return why.empty() ? Json(answer) : absent(why);
  }
  template <class Function, class... Arguments>
  std::string call(Function* function, Arguments... arguments) const {
    if (!why_.empty()) return why_;
    if (function == nullptr) return "this NVML does not have it";
    const int status = function(arguments...);
    return status == 0 ? "" : words_ != nullptr ? words_(status) : std::to_string(status);
  }

 private:
  const char* (*words_)(int);
  std::string why_;
};

}  // namespace

Json Nvml::identity(const std::string& pci) const {
  const auto [f, one, why] = device(pci);
  const Ask ask(f.ErrorString, why);
  Json json;
  json["name"] = ask.text(f.Name, one), json["uuid"] = ask.text(f.Uuid, one);
  json["serial"] = ask.text(f.Serial, one), json["vbios"] = ask.text(f.Vbios, one);
  json["driver"] = ask.text(f.DriverVersion);
  unsigned now = 0, later = 0;
  std::string no = ask.call(f.MigMode, one, &now, &later);
  json["mig"] = no.empty() ? Json(now != 0) : absent(no);
  no = ask.call(f.EccMode, one, &now, &later);
  json["ecc_mode"] = no.empty() ? Json(now != 0) : absent(no);
  json["max_sm_clock_mhz"] = ask.number<unsigned>(f.MaxClock, one, 1);
  json["pcie_generation"] = ask.number<unsigned>(f.PcieGeneration, one);
  json["pcie_width"] = ask.number<unsigned>(f.PcieWidth, one);
  return json;
}

Json Nvml::weather(const std::string& pci) const {
  const auto [f, one, why] = device(pci);
  const Ask ask(f.ErrorString, why);
  Json json;
  constexpr int kCorrected = 0, kUncorrected = 1, kVolatile = 0, kAggregate = 1;
  json["ecc_corrected"] = ask.number<unsigned long long>(f.EccErrors, one, kCorrected, kVolatile);
  json["ecc_uncorrected"] = ask.number<unsigned long long>(f.EccErrors, one, kUncorrected, kVolatile);
  json["ecc_corrected_ever"] = ask.number<unsigned long long>(f.EccErrors, one, kCorrected, kAggregate);
  json["ecc_uncorrected_ever"] = ask.number<unsigned long long>(f.EccErrors, one, kUncorrected, kAggregate);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  const std::string no = ask.call(f.RemappedRows, one, &corrected, &uncorrected, &pending, &failed);
  json["remapped_rows"] = no.empty() ? Json{{"corrected", corrected},
                                            {"uncorrected", uncorrected},
                                            {"pending", pending != 0},
                                            {"failed", failed != 0}}
                                     : absent(no);
  json["sm_clock_mhz"] = ask.number<unsigned>(f.Clock, one, 1);
  json["memory_clock_mhz"] = ask.number<unsigned>(f.Clock, one, 2);
  json["temperature_c"] = ask.number<unsigned>(f.Temperature, one, 0);
  const auto watts = [](Json milliwatts) {
    return milliwatts.is_number() ? Json(milliwatts.get<double>() / 1000) : milliwatts;
  };
  json["power_w"] = watts(ask.number<unsigned>(f.Power, one));
  json["power_limit_w"] = watts(ask.number<unsigned>(f.PowerLimit, one));
  const Json throttle = ask.number<unsigned long long>(f.Throttle, one);
  json["throttled_by"] = throttle.is_number() ? reasons_of(throttle.get<unsigned long long>()) : throttle;
  json["pcie_replays"] = ask.number<unsigned>(f.PcieReplays, one);
  return json;
}

Json cuda_device_names(int index) {
  struct Uuid {
    unsigned char bytes[16];
  };
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto nothing = [](const std::string& why) {
    return Json{{"name", absent(why)}, {"uuid", absent(why)}, {"pci", absent(why)}};
  };
  if (library == nullptr) return nothing("libcuda.so.1 is not installed here");
  int (*init)(unsigned) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*pci)(char*, int, int) = nullptr;
  int (*uuid)(Uuid*, int) = nullptr;
  find(library, "cuInit", init);
  find(library, "cuDeviceGet", get);
  find(library, "cuDeviceGetName", name);
  find(library, "cuDeviceGetPCIBusId", pci);
  find(library, "cuDeviceGetUuid_v2", uuid);
  int device = 0;
  if (init == nullptr || get == nullptr || init(0) != 0 || get(&device, index) != 0)
    return nothing("the CUDA driver does not know this device");
  Json json = nothing("the CUDA driver does not say");
  char text[160] = {};
  if (name != nullptr && name(text, sizeof text, device) == 0) json["name"] = std::string(text);
  if (pci != nullptr && pci(text, sizeof text, device) == 0) json["pci"] = std::string(text);
  Uuid id = {};
  if (uuid != nullptr && uuid(&id, device) == 0) {
    std::string hex;
    for (int i = 0; i < 16; ++i)
      hex += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id.bytes[i]);
    json["uuid"] = "GPU-" + hex;
  }
  return json;
}

Json gpu_identity(const Nvml& nvml, const Json& from_driver) {
  Json identity = nvml.identity(from_driver["pci"].is_string() ? from_driver["pci"].get<std::string>() : "");
  for (const char* key : {"name", "uuid", "pci"})
    if (from_driver[key].is_string() || !identity.contains(key)) identity[key] = from_driver[key];
  // The driver gives a slice's number without saying that it is one.
  if (identity["mig"] == true && from_driver["uuid"].is_string())
    identity["uuid"] = "MIG-" + from_driver["uuid"].get<std::string>().substr(4);
  return identity;
}

}  // namespace faultline::screen
