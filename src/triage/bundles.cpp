#include "triage/bundles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "triage/variables.h"

namespace faultline::triage {
namespace {

std::vector<Bundle> built_in_mitigations() {
  return {
      {"none", "nothing is changed: the baseline", {}, ""},
      {"gdr-flush",
       "flush GPU-direct writes before they are read",
       {{"NCCL_GDR_FLUSH_DISABLE", "0"}, {"RCCL_GDR_FLUSH_GPU_MEM_NO_RELAXED_ORDERING", "0"}},
       "GDR_FLUSH"},
      {"strict-pcie-ordering",
       "no relaxed ordering on PCIe",
       {{"NCCL_IB_PCI_RELAXED_ORDERING", "0"}},
       "NCCL_IB_PCI_RELAXED_ORDERING"},
      {"ll-protocol", "low-latency protocol: a flag with every word", {{"NCCL_PROTO", "LL"}}, "NCCL_PROTO"},
      {"simple-protocol", "the protocol without flags", {{"NCCL_PROTO", "Simple"}}, "NCCL_PROTO"},
      {"no-gpu-direct", "the network does not touch GPU memory", {{"NCCL_NET_GDR_LEVEL", "LOC"}}, "NCCL_NET_GDR_LEVEL"},
      {"no-p2p", "GPUs do not read each other's memory", {{"NCCL_P2P_DISABLE", "1"}}, "NCCL_P2P_DISABLE"},
      {"no-shared-memory", "no host shared memory between GPUs", {{"NCCL_SHM_DISABLE", "1"}}, "NCCL_SHM_DISABLE"},
      {"sockets-only", "TCP in place of InfiniBand", {{"NCCL_IB_DISABLE", "1"}}, "NCCL_IB_DISABLE"},
      {"one-hardware-queue", "kernels of all streams in one queue", {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}, ""},
      {"blocking-launches", "each kernel ends before the next starts", {{"CUDA_LAUNCH_BLOCKING", "1"}}, ""},
      {"no-drill",
       "planted faults are left out: shows what a mitigation that works looks like",
       {{"FAULTLINE_DRILL", "off"}},
       "FAULTLINE_DRILL=off"},
      // Those of the AORTA project, under its names. Each description ends with where the variable is documented.
      {"tf32_off",
       "no TF32 in matrix products of hipBLASLt (AORTA, registry/mitigations.py)",
       {{"DISABLE_TF32", "1"}},
       ""},
      {"xnack", "GPU page faults are retried (ROCm: GPU memory)", {{"HSA_XNACK", "1"}}, ""},
      {"gpu_max_hw_queues_2",
       "at most two hardware queues (ROCm: HIP environment variables)",
       {{"GPU_MAX_HW_QUEUES", "2"}},
       ""},
      {"debug_hip_dynamic_queues_1",
       "dynamic choice of queues, 1 (ROCm: clr, rocclr/utils/flags.hpp)",
       {{"DEBUG_HIP_DYNAMIC_QUEUES", "1"}},
       ""},
      {"debug_hip_dynamic_queues_2",
       "dynamic choice of queues, 2 (ROCm: clr, rocclr/utils/flags.hpp)",
       {{"DEBUG_HIP_DYNAMIC_QUEUES", "2"}},
       ""},
      {"roc_aql_queue_size_1024",
       "at most 1,024 packets in a queue (ROCm: clr, rocclr/utils/flags.hpp)",
       {{"ROC_AQL_QUEUE_SIZE", "1024"}},
       ""},
      {"roc_signal_pool_16k",
       "a pool of 16,384 signals (ROCm: clr, rocclr/utils/flags.hpp)",
       {{"ROC_SIGNAL_POOL_SIZE", "16384"}},
       ""},
      {"gpu_force_blit_copy_128",
       "copies up to 128 KiB by kernel (ROCm: clr, rocclr/utils/flags.hpp)",
       {{"GPU_FORCE_BLIT_COPY_SIZE", "128"}},
       ""},
      {"debug_clr_no_batch_cpu_sync",
       "the host's waits are not batched (ROCm: clr, rocclr/utils/flags.hpp)",
       {{"DEBUG_CLR_BATCH_CPU_SYNC_SIZE", "0"}},
       ""},
      {"hsa_no_sdma",
       "copies by kernel in place of the DMA engines (ROCm: ROCr environment variables)",
       {{"HSA_ENABLE_SDMA", "0"}},
       ""},
      {"hsa_no_scratch_reclaim",
       "scratch memory is kept (ROCm: ROCr environment variables)",
       {{"HSA_NO_SCRATCH_RECLAIM", "1"}},
       ""},
      {"hsa_disable_cache", "no L2 cache (ROCm: HIP porting guide)", {{"HSA_DISABLE_CACHE", "1"}}, ""},
      {"hsa_enable_cache",
       "L2 cache on, which is the default (ROCm: HIP porting guide)",
       {{"HSA_DISABLE_CACHE", "0"}},
       ""},
      {"nccl_launch_order_implicit",
       "collectives start in the host's order (NCCL: environment variables)",
       {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}},
       "NCCL_LAUNCH_ORDER_IMPLICIT"},
      {"rccl_gfx942_cheap_fence_off",
       "the full fence on gfx942 (AORTA, registry/mitigations.py; not in RCCL's documentation)",
       {{"RCCL_GFX942_CHEAP_FENCE_OFF", "1"}},
       ""},
      {"pytorch_no_cuda_memory_caching",
       "each tensor from the driver (PyTorch: CUDA environment variables)",
       {{"PYTORCH_NO_CUDA_MEMORY_CACHING", "1"}},
       ""},
      {"pytorch_alloc_expandable_segments",
       "segments that grow (PyTorch: CUDA memory management)",
       {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}},
       ""},
      {"fa_prefer_ck",
       "attention by Composable Kernel (PyTorch: torch.backends.cuda.preferred_rocm_fa_library)",
       {{"TORCH_ROCM_FA_PREFER_CK", "1"}},
       ""},
      {"fa_prefer_aotriton",
       "attention by AOTriton (PyTorch: torch.backends.cuda.preferred_rocm_fa_library)",
       {{"TORCH_ROCM_FA_PREFER_CK", "0"}},
       ""},
      {"hip_launch_blocking",
       "each kernel ends before the next starts (ROCm: HIP environment variables)",
       {{"HIP_LAUNCH_BLOCKING", "1"}},
       ""},
      {"amd_log_level_4",
       "the HIP runtime logs all it does (ROCm: logging HIP activity)",
       {{"AMD_LOG_LEVEL", "4"}},
       ""},
  };
}

std::vector<Bundle> built_in_environments() {
  return {
      {"default", "as the caller's", {}, ""},
      {"local", "as the caller's; the word of the AORTA project", {}, ""},
      {"nccl-log", "NCCL says what it uses", {{"NCCL_DEBUG", "INFO"}}, ""},
      {"one-thread", "one CPU thread a process", {{"OMP_NUM_THREADS", "1"}}, ""},
      {"portable-kernels", "our CPU kernels as plain C++", {{"FAULTLINE_CPU_ISA", "portable"}}, ""},
  };
}

std::string check_variables(const Node& map) {
  for (const Node::Entry& entry : map.entries()) {
    if (const std::string complaint = complain_variable(entry.key, entry.value.as_string()); !complaint.empty())
      return complaint;
  }
  return "";
}

const Bundle& find_bundle(const std::vector<Bundle>& bundles, const Node& name, const char* what, const char* command) {
  std::vector<std::string> names;
  for (const Bundle& bundle : bundles) {
    if (bundle.name == name.as_string()) return bundle;
    names.push_back(bundle.name);
  }
  throw name.error(fmt::format("no {} is called '{}'{}; see `faultline triage {}`", what, name.as_string(),
                               did_you_mean(name.as_string(), names), command));
}

}  // namespace

bool is_safe_name(const std::string& name) {
  return !name.empty() && name.size() <= 80 && name.front() != '.' && name.front() != '-' && name.back() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

Catalogue::Catalogue() : mitigations_(built_in_mitigations()), environments_(built_in_environments()) {}

void Catalogue::add(const Node& definitions, bool mitigations) {
  std::vector<Bundle>& bundles = mitigations ? mitigations_ : environments_;
  for (const Node::Entry& entry : definitions.entries()) {
    if (std::any_of(bundles.begin(), bundles.end(), [&](const Bundle& b) { return b.name == entry.key; }))
      throw entry.value.error(fmt::format("'{}' is defined already; choose another name", entry.key));
    bundles.push_back({entry.key, entry.value.at("description").as_string(), read_environment(entry.value.at("env")),
                       entry.value.at("require_log").as_string()});
  }
}

const Bundle& Catalogue::mitigation(const Node& name) const {
  return find_bundle(mitigations_, name, "mitigation", "list-mitigations");
}
const Bundle& Catalogue::environment(const Node& name) const {
  return find_bundle(environments_, name, "environment", "list-environments");
}

Schema environment_schema() {
  return Schema::map()
      .extra(Schema::string())
      .check(check_variables)
      .described_as("a map of environment variables to texts (quote numbers)");
}

Schema bundles_schema() {
  const Schema bundle = Schema::map()
                            .field("description", Schema::string(), {.default_value = Node("")})
                            .field("env", environment_schema(), {.required = true, .doc = "variables it sets"})
                            .field("require_log", Schema::string(),
                                   {.default_value = Node(""), .doc = "a text that a trial's log must hold"});
  return Schema::map().extra(bundle).check([](const Node& map) -> std::string {
    for (const Node::Entry& entry : map.entries())
      if (!is_safe_name(entry.key))
        return fmt::format("{} is no safe name: letters, digits, '_', '-', inner dots", describe_text(entry.key));
    return "";
  });
}

Environment read_environment(const Node& node) {
  Environment environment;
  for (const Node::Entry& entry : node.entries()) environment[entry.key] = entry.value.as_string();
  return environment;
}

Environment merge_bundles(const std::string& cell, const std::vector<Bundle>& bundles) {
  std::map<std::string, const Bundle*> owner;
  Environment merged;
  for (const Bundle& bundle : bundles) {
    for (const auto& [key, value] : bundle.variables) {
      const auto [place, fresh] = merged.try_emplace(key, value);
      if (!fresh && place->second != value)
        throw UsageError(fmt::format("cell '{}': {} is '{}' in '{}' and '{}' in '{}'; a cell can test only one of them",
                                     cell, key, place->second, owner[key]->name, value, bundle.name));
      owner[key] = &bundle;
    }
  }
  return merged;
}

std::string no_op_reason(const Bundle& bundle, const Environment& ambient) {
  if (bundle.variables.empty()) return "";
  for (const auto& [key, value] : bundle.variables) {
    const auto found = ambient.find(key);
    if (found == ambient.end() || found->second != value) return "";
  }
  return fmt::format("{} repeats what the environment has already", bundle.name);
}

}  // namespace faultline::triage
