// A stand-in for libnvidia-ml.so.1 in screen_test: one GPU at 0000:19:00.0. FAULTLINE_NVML_STAND_IN says how it
// behaves:
// "" answers everything but what an old library lacks, "denied" refuses counters and the serial number, "no init"
// cannot be started, "lost" knows the GPU and gets no answer from it, "mig" has it divided.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kOk = 0, kNoPermission = 4, kNotFound = 6, kLost = 15;
char gpu;

bool how(const char* word) {
  const char* told = std::getenv("FAULTLINE_NVML_STAND_IN");
  return told != nullptr && std::strcmp(told, word) == 0;
}
int answer() { return how("lost") ? kLost : kOk; }
int guarded() { return how("denied") ? kNoPermission : answer(); }
template <class Number>
int give(int status, Number* out, Number value) {
  if (status == kOk) *out = value;
  return status;
}
int give(int status, char* out, unsigned size, const char* text) {
  if (status == kOk) std::snprintf(out, size, "%s", text);
  return status;
}

}  // namespace

extern "C" {
using Device = void*;
int nvmlInit_v2() { return how("no init") ? kNoPermission : kOk; }
int nvmlShutdown() { return kOk; }
const char* nvmlErrorString(int status) {
  return status == kNoPermission ? "Insufficient Permissions" : status == kLost ? "GPU is lost" : "Not Found";
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) { return give(kOk, out, size, "580.00"); }
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, Device* out) {
  return give<Device>(std::strcmp(pci, "0000:19:00.0") == 0 ? kOk : kNotFound, out, &gpu);
}
int nvmlDeviceGetName(Device, char* out, unsigned size) { return give(answer(), out, size, "NVIDIA H200"); }
int nvmlDeviceGetUUID(Device, char* out, unsigned size) { return give(answer(), out, size, "GPU-whole"); }
int nvmlDeviceGetSerial(Device, char* out, unsigned size) { return give(guarded(), out, size, "1650000000001"); }
int nvmlDeviceGetVbiosVersion(Device, char* out, unsigned size) { return give(answer(), out, size, "96.00"); }
int nvmlDeviceGetMigMode(Device, unsigned* now, unsigned* later) {
  return give(give(answer(), now, how("mig") ? 1U : 0U), later, 0U);
}
int nvmlDeviceGetEccMode(Device, unsigned* now, unsigned* later) { return give(give(answer(), now, 1U), later, 1U); }
int nvmlDeviceGetTotalEccErrors(Device, int kind, int, unsigned long long* out) {
  return give(guarded(), out, kind == 0 ? 3ULL : 0ULL);
}
int nvmlDeviceGetClockInfo(Device, int, unsigned* out) { return give(answer(), out, 1980U); }
int nvmlDeviceGetTemperature(Device, int, unsigned* out) { return give(answer(), out, 71U); }
int nvmlDeviceGetPowerUsage(Device, unsigned* out) { return give(answer(), out, 612500U); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device, unsigned long long* out) { return give(answer(), out, 0xCULL); }
}
