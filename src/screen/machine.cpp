#include "screen/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/machine.h"
#include "base/text.h"
#include "screen/nvml.h"

namespace faultline::screen {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

std::optional<double> number_of(const fs::path& file) {
  std::ifstream stream(file);
  double number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

// The values of these keys of /proc/cpuinfo, of the first processor that has them.
Json cpuinfo(const fs::path& root, const std::vector<std::pair<std::string, std::string>>& keys) {
  Json json = Json::object();
  std::ifstream stream(root / "proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string key = line.substr(0, colon);
    while (!key.empty() && (key.back() == '\t' || key.back() == ' ')) key.pop_back();
    for (const auto& [name, ours] : keys)
      if (key == name && !json.contains(ours)) json[ours] = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
  }
  for (const auto& [name, ours] : keys)
    if (!json.contains(ours)) json[ours] = absent("/proc/cpuinfo does not say");
  return json;
}

// The sum of a counter over folders whose name begins so; absent where there is none.
Json summed(const fs::path& folder, const std::string& begins, const fs::path& counter) {
  std::error_code none;
  double sum = 0;
  bool any = false;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (!entry.path().filename().string().starts_with(begins)) continue;
    if (const auto number = number_of(entry.path() / counter)) sum += *number, any = true;
  }
  return any ? Json(static_cast<int64_t>(sum))
             : absent(fmt::format("no {}", (folder / (begins + "*") / counter).string()));
}

Json temperatures(const fs::path& root) {
  Json json = Json::object();
  std::error_code none;
  for (const auto& zone : fs::directory_iterator(root / "sys/class/thermal", none)) {
    if (!zone.path().filename().string().starts_with("thermal_zone")) continue;
    const auto kind = line_of(zone.path() / "type");
    const auto degrees = number_of(zone.path() / "temp");
    if (kind && degrees) json[*kind + " " + zone.path().filename().string().substr(12)] = *degrees / 1000;
  }
  return json.empty() ? absent("no /sys/class/thermal/thermal_zone*/temp") : json;
}

}  // namespace

Json cpu_identity(const fs::path& root) {
  Json json = cpuinfo(root, {{"model name", "model"},
                             {"vendor_id", "vendor"},
                             {"cpu family", "family"},
                             {"model", "model_number"},
                             {"stepping", "stepping"},
                             {"microcode", "microcode"},
                             {"CPU implementer", "implementer"},
                             {"CPU part", "part"}});
  const auto machine = line_of(root / "etc/machine-id");
  json["machine"] = machine && !machine->empty() ? Json(fmt::format("{:016x}", hash64("faultline screen " + *machine)))
                                                 : absent("no /etc/machine-id");
  const auto serial = line_of(root / "sys/class/dmi/id/product_serial");
  json["serial"] = serial ? Json(*serial) : absent("/sys/class/dmi/id/product_serial cannot be read");
  const auto product = line_of(root / "sys/class/dmi/id/product_name");
  json["product"] = product ? Json(*product) : absent("/sys/class/dmi/id/product_name cannot be read");
  json["host"] = host_name();
  utsname kernel = {};
  json["kernel"] = ::uname(&kernel) == 0 ? Json(fmt::format("{} {}", kernel.sysname, kernel.release)) : absent("uname");
  json["cores_online"] = online_cores(root).size();
  json["cores_allowed"] = allowed_cores().size();
  return json;
}

Json cpu_weather(const fs::path& root) {
  Json json;
  const fs::path edac = root / "sys/devices/system/edac/mc", cpus = root / "sys/devices/system/cpu";
  json["ecc_corrected"] = summed(edac, "mc", "ce_count");
  json["ecc_uncorrected"] = summed(edac, "mc", "ue_count");
  json["thermal_throttles"] = summed(cpus, "cpu", "thermal_throttle/core_throttle_count");
  json["temperature_c"] = temperatures(root);
  const Json clock = cpuinfo(root, {{"cpu MHz", "mhz"}});
  json["clock_mhz"] =
      clock["mhz"].is_string() ? Json(std::atof(clock["mhz"].get<std::string>().c_str())) : clock["mhz"];
  const auto load = line_of(root / "proc/loadavg");
  json["load_average"] = load ? Json(std::atof(load->c_str())) : absent("no /proc/loadavg");
  return json;
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

std::vector<int> online_cores(const fs::path& root) {
  std::vector<int> cores;
  std::istringstream ranges(line_of(root / "sys/devices/system/cpu/online").value_or(""));
  for (std::string range; std::getline(ranges, range, ',');) {
    const std::size_t dash = range.find('-');
    const int first = std::atoi(range.c_str());
    const int last = dash == std::string::npos ? first : std::atoi(range.c_str() + dash + 1);
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

bool pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace faultline::screen
