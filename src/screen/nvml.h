// What NVIDIA's management library says of a GPU: who it is and in which weather it worked. Loaded on demand, because
// most machines have none. Whatever it does not give (no permission, a virtual card, an old driver) stands in the
// record as absent with its reason, never as zero.
#pragma once

#include <string>

#include "base/json.h"

namespace faultline::screen {

class Nvml {
 public:
  explicit Nvml(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& why_not() const { return why_not_; }  // "": it answers
  Json identity(const std::string& pci) const;             // name, uuid, serial, driver, vbios, mig, …
  Json weather(const std::string& pci) const;              // ECC counters, clocks, temperature, power, throttling

 private:
  struct Functions;
  struct Found;
  Found device(const std::string& pci) const;

  void* library_ = nullptr;
  Functions* functions_ = nullptr;
  std::string why_not_;
};

// {"absent": why}
Json absent(const std::string& why);

// How the driver calls CUDA's device of this number: name, uuid, pci. Each a string or absent.
Json cuda_device_names(int index);

// Who a GPU is: NVML's word, and the driver's where it has one. A slice of a divided GPU has a number of its own.
Json gpu_identity(const Nvml& nvml, const Json& from_driver);

}  // namespace faultline::screen
