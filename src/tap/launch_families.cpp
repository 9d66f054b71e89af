#include "tap/launch_families.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <span>

namespace faultline::tap {
namespace {

using enum LaunchFamily;

struct Pattern {
  std::string_view text;  // lower case, anywhere in the name
  LaunchFamily family;
  bool part = false;
  bool word = false;  // no letter or digit directly before or after it
};
constexpr bool kPart = true, kWord = true;

// Other people's kernels; the first pattern that is found decides. cuBLAS and cuBLASLt: nvjet_*, sm90_xmma_gemm_*,
// gemvx::kernel, gemv2T_kernel_val, splitKreduce_kernel; CUTLASS; Triton's, vLLM's, FlashInfer's, DeepGEMM's.
constexpr Pattern kPatterns[] = {
    // Writing into a cache: their names speak of attention.
    {"reshape_and_cache", kCopy},
    {"concat_and_cache", kCopy},
    {"dequant_cache", kCopy},
    {"kv_buffer", kCopy},

    {"splitkv_combine", kAttention, kPart},
    {"fwdcombine", kAttention, kPart},
    {"prepare_varlen", kAttention, kPart},
    {"merge_attn_states", kAttention, kPart},
    {"mergestate", kAttention, kPart},
    {"reduce_segments", kAttention, kPart},
    {"fwd_kernel_stage2", kAttention, kPart},
    {"paged_attention_v2_reduce", kAttention, kPart},
    {"bwdpreprocess", kAttention, kPart},
    {"bwd_dot_do_o", kAttention, kPart},
    {"bwd_convert_dq", kAttention, kPart},
    {"attention", kAttention},
    {"attn", kAttention},
    {"flash::", kAttention},
    {"flash_fwd", kAttention},
    {"flash_bwd", kAttention},
    {"_flash_", kAttention},
    {"fmha", kAttention},
    {"sdpa", kAttention},
    {"mha", kAttention, false, kWord},
    {"xqa", kAttention},
    {"pagedkvcache", kAttention},
    {"raggedkvcache", kAttention},
    {"withkvcache", kAttention},
    {"fwd_grouped_kernel_stage1", kAttention},
    {"fwd_kernel_stage1", kAttention},
    {"_fwd_kernel", kAttention, false, kWord},

    {"implicit_gemm", kOther},  // convolutions
    {"convolve", kOther},
    {"_fprop_", kOther},
    {"_dgrad_", kOther},
    {"_wgrad_", kOther},

    {"splitkreduce", kProduct, kPart},
    {"reducesplitk", kProduct, kPart},
    {"splitk_reduce", kProduct, kPart},
    {"cublaslt::epilogue", kProduct, kPart},
    {"reduce_1block_kernel", kProduct, kPart},  // after cuBLAS's dot_kernel
    {"nvjet", kProduct},
    {"gemm", kProduct},
    {"gemv", kProduct},
    {"matmul", kProduct},
    {"xmma", kProduct},
    {"splitk", kProduct},
    {"split_k", kProduct},
    {"dot_kernel", kProduct, false, kWord},
    {"triton_mm", kProduct},
    {"mm", kProduct, false, kWord},
    {"bmm", kProduct, false, kWord},
    {"addmm", kProduct, false, kWord},
    {"mv", kProduct, false, kWord},
    {"marlin", kProduct},
    {"machete", kProduct},
    {"fused_moe_kernel", kProduct},
    {"moe_wna16", kProduct},
    {"bgmv", kProduct},
    {"sgmv", kProduct},
    {"lora_shrink", kProduct},
    {"lora_expand", kProduct},

    {"rms_norm", kNorm},
    {"rmsnorm", kNorm},
    {"layer_norm", kNorm},
    {"layernorm", kNorm},
    {"batch_norm", kNorm},
    {"batchnorm", kNorm},
    {"group_norm", kNorm},
    {"groupnorm", kNorm},
    {"qknorm", kNorm},
    {"qk_norm", kNorm},
    {"norm_kernel", kNorm},
    {"rowwisemoments", kNorm},
    {"gammabeta", kNorm},

    {"act_and_mul", kActivation},
    {"silu", kActivation},
    {"gelu", kActivation},
    {"swiglu", kActivation},
    {"relu", kActivation},
    {"sigmoid", kActivation},
    {"tanh", kActivation},

    {"deltarule", kOther},
    {"cutlass", kProduct},

    {"memcpy", kCopy},
    {"copy", kCopy},
    {"fillfunctor", kCopy},
    {"fill_kernel", kCopy},
    {"catarray", kCopy},
    {"cat_kernel", kCopy},
};

// Kernels of our own, by the function's name. One with `fault` in its name carries a fault, whatever else it does.
constexpr Pattern kOurs[] = {
    {"fault", kFault},
    {"relative_gaussian_kernel", kFault},
    {"quantize_kernel", kFault},
    {"block_format_kernel", kFault},
    {"cuda::row_kernel", kFault, kPart},
    {"row_max_kernel", kFault, kPart},
    {"column_group_kernel", kFault, kPart},
    {"column_finish_kernel", kFault, kPart},
    {"tensor_kernel", kFault, kPart},
    {"tensor_amax_kernel", kFault, kPart},
    {"tensor_range_kernel", kFault, kPart},
    {"unit_range_kernel", kFault, kPart},
    {"ops::cuda::tile_kernel", kProduct},
    {"ops::cuda::plain_kernel", kProduct},
    {"attend", kAttention},
    {"ops::cuda::combine_kernel", kAttention, kPart},
    {"norm_kernel", kNorm},
    {"input_gradient", kNorm},
    {"weight_gradient", kNorm},
    {"add_segments", kNorm, kPart},
    {"ops::cuda::forward_kernel", kActivation},
    {"ops::cuda::backward_kernel", kActivation},
    {"store_kernel", kCopy},
};

bool is_letter_or_digit(char character) { return std::isalnum(static_cast<unsigned char>(character)) != 0; }

bool found_in(const Pattern& pattern, std::string_view name) {
  for (std::size_t at = name.find(pattern.text); at != std::string_view::npos; at = name.find(pattern.text, at + 1)) {
    const std::size_t after = at + pattern.text.size();
    const bool edges =
        (at == 0 || !is_letter_or_digit(name[at - 1])) && (after == name.size() || !is_letter_or_digit(name[after]));
    if (!pattern.word || edges) return true;
  }
  return false;
}

LaunchKind first_of(std::span<const Pattern> patterns, std::string_view name) {
  for (const Pattern& pattern : patterns) {
    if (found_in(pattern, name)) return {pattern.family, pattern.part};
  }
  return {};
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

// Inductor names a generated kernel after the operators that it came from: triton_poi_fused_addmm_gelu_3 is what
// follows a product that ran elsewhere. A template (tem) is the product itself; a reduction (red, per) is one where
// Inductor dissolved a product into it, and no norm, whose bias may have been an addmm's. Products of scaled and of
// integer operands (vLLM's cutlass_scaled_mm) it cannot dissolve: such a reduction makes their operands.
LaunchKind of_inductor(std::string name) {
  for (const std::string_view opaque : {"scaled_mm", "int_mm", "grouped_mm"}) replace_all(name, opaque, "opaque");
  constexpr Pattern kNorms[] = {{"norm", kNorm}, {"rsqrt", kNorm}};
  constexpr Pattern kAttentions[] = {{"attention", kAttention}, {"convolution", kOther}};
  constexpr Pattern kProducts[] = {{"mm", kProduct, false, kWord},    {"bmm", kProduct, false, kWord},
                                   {"addmm", kProduct, false, kWord}, {"baddbmm", kProduct, false, kWord},
                                   {"mv", kProduct, false, kWord},    {"addmv", kProduct, false, kWord},
                                   {"dot", kProduct, false, kWord}};
  constexpr Pattern kActivations[] = {{"silu", kActivation},
                                      {"gelu", kActivation},
                                      {"relu", kActivation},
                                      {"sigmoid", kActivation},
                                      {"tanh", kActivation}};
  if (name.starts_with("triton_tem_")) {
    const bool other = std::any_of(std::begin(kAttentions), std::end(kAttentions),
                                   [&](const Pattern& pattern) { return found_in(pattern, name); });
    return other ? first_of(kAttentions, name) : LaunchKind{kProduct};
  }
  if (const LaunchKind norm = first_of(kNorms, name); norm.family == kNorm) return norm;
  const bool reduces = name.starts_with("triton_red_") || name.starts_with("triton_per_");
  if (reduces && first_of(kProducts, name).family == kProduct) return {kProduct};
  return first_of(kActivations, name);
}

bool is_of_inductor(std::string_view name) {
  return name.starts_with("triton_") && name.find("_fused") != std::string_view::npos;
}

// "void faultline::cuda::fault_kernel<…>(…)" -> "cuda::fault_kernel"; "": not one of ours
std::string_view our_function(std::string_view name) {
  constexpr std::string_view kVoid = "void ", kNamespace = "faultline::";
  if (name.starts_with(kVoid)) name.remove_prefix(kVoid.size());
  if (!name.starts_with(kNamespace)) return "";
  name.remove_prefix(kNamespace.size());
  return name.substr(0, name.find_first_of("<("));
}

}  // namespace

std::string_view name_of(LaunchFamily family) {
  constexpr std::array<std::string_view, 7> kNames = {"fault",      "product", "attention", "norm",
                                                      "activation", "copy",    "other"};
  return kNames.at(static_cast<std::size_t>(family));
}

LaunchKind classify_kernel(std::string_view demangled) {
  std::string name(demangled);
  replace_all(name, "(anonymous namespace)::", "");
  if (const std::string_view ours = our_function(name); !ours.empty()) return first_of(kOurs, ours);
  replace_all(name, "gemma", "");  // the model; GemmArguments of CUTLASS keeps its capital
  replace_all(name, "Gemma", "");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char character) { return static_cast<char>(std::tolower(character)); });
  return is_of_inductor(name) ? of_inductor(name) : first_of(kPatterns, name);
}

std::string demangled_kernel(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 && text ? text.get() : name;
}

std::string short_kernel_name(std::string_view demangled) {
  constexpr std::size_t kMost = 100;
  std::string name(demangled);
  replace_all(name, "(anonymous namespace)::", "");
  if (name.starts_with("void ")) name.erase(0, 5);
  if (name.ends_with(')')) {  // its parameters: the last group of parentheses
    int depth = 0;
    std::size_t at = name.size();
    while (at > 0 && ((depth += (name[at - 1] == ')') - (name[at - 1] == '(')) > 0)) --at;
    if (at > 1) name.erase(at - 1);
  }
  if (name.size() > kMost) name = name.substr(0, kMost - 3) + "...";
  return name;
}

}  // namespace faultline::tap
