#include "tap/cupti.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace faultline::tap {
namespace {

namespace fs = std::filesystem;

// The file of a library that is mapped into this process, by how its name begins; "" where none is.
std::string mapped(std::string_view name) {
  struct Search {
    std::string_view name;
    std::string found;
  } search{name, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wish = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name;
        if (!path.substr(path.rfind('/') + 1).starts_with(wish.name)) return 0;
        wish.found = path;
        return 1;
      },
      &search);
  return search.found;
}

std::vector<std::string> beside_torch() {
  std::vector<std::string> found;
  const fs::path torch = mapped("libtorch_cpu.so");
  if (torch.empty()) return found;
  std::error_code none;
  for (const auto& package : fs::directory_iterator(torch.parent_path() / "../../nvidia", none)) {
    for (const auto& file : fs::directory_iterator(package.path() / "lib", none)) {
      if (file.path().filename().string().starts_with("libcupti.so")) found.push_back(file.path());
    }
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void* open_library() {
  const std::string here = mapped("libcupti.so");
  if (!here.empty()) return dlopen(here.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::vector<std::string> places = beside_torch();
  for (const char* place : {"libcupti.so.13", "libcupti.so.12", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
                            "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"})
    places.emplace_back(place);
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
void find(void* library, const char* name, Function*& function, std::string& why) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr && why.empty()) why = fmt::format("this CUPTI has no {}", name);
}

std::string find_all(void* library, Cupti& cupti) {
  std::string why;
  find(library, "cuptiGetVersion", cupti.GetVersion, why);
  find(library, "cuptiGetResultString", cupti.GetResultString, why);
  find(library, "cuptiSubscribe", cupti.Subscribe, why);
  find(library, "cuptiUnsubscribe", cupti.Unsubscribe, why);
  find(library, "cuptiEnableCallback", cupti.EnableCallback, why);
  find(library, "cuptiActivityRegisterCallbacks", cupti.ActivityRegisterCallbacks, why);
  find(library, "cuptiActivityEnable", cupti.ActivityEnable, why);
  find(library, "cuptiActivityDisable", cupti.ActivityDisable, why);
  find(library, "cuptiActivityFlushAll", cupti.ActivityFlushAll, why);
  find(library, "cuptiActivityGetNextRecord", cupti.ActivityGetNextRecord, why);
  find(library, "cuptiActivityGetNumDroppedRecords", cupti.ActivityGetNumDroppedRecords, why);
  return why;
}

struct Loaded {
  Cupti cupti;
  std::string why;
};

Loaded load() {
  Loaded loaded;
  void* library = open_library();
  if (library == nullptr)
    loaded.why = "libcupti.so was found neither in this process nor beside torch nor in a CUDA toolkit";
  else
    loaded.why = find_all(library, loaded.cupti);
  return loaded;
}

}  // namespace

const Cupti* load_cupti(std::string& why) {
  static const Loaded loaded = load();
  why = loaded.why;
  return why.empty() ? &loaded.cupti : nullptr;
}

}  // namespace faultline::tap
