#include "tap/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"

namespace faultline::tap {
namespace {

using Names = std::vector<std::string_view>;

// Names that begin with npu:: are torch_npu's, as vLLM-Ascend and verl call them; nobody has run them here.
const Names kMatmulOperators = {"aten::mm",
                                "aten::mm_",
                                "aten::addmm",
                                "aten::addmm_",
                                "aten::bmm",
                                "aten::baddbmm",
                                "aten::baddbmm_",
                                "aten::mv",
                                "aten::addmv",
                                "aten::addmv_",
                                "aten::dot",
                                "aten::vdot",
                                "aten::addbmm",
                                "aten::addbmm_",
                                "aten::addr",
                                "aten::_addmm_activation",
                                "aten::linear",  // where a backend has a kernel of its own for it
                                "aten::linear_backward",
                                "aten::_grouped_mm",
                                "aten::_scaled_mm",
                                "aten::_scaled_mm_v2",
                                "aten::_scaled_grouped_mm",
                                "aten::_scaled_grouped_mm_v2",
                                "aten::_weight_int4pack_mm",
                                "aten::_weight_int8pack_mm",
                                "mkldnn::_linear_pointwise",
                                "mkl::_mkl_linear",
                                "_C::onednn_mm",
                                "_C::weight_packed_linear",
                                "_C::cutlass_scaled_mm",
                                "_moe_C::*gemm*",
                                "faultline::few_rows_linear",
                                "npu::npu_linear",
                                "npu::npu_linear_backward",
                                "npu::npu_bmmV2",
                                "npu::npu_grouped_matmul*",
                                "npu::npu_quant_matmul*",
                                "npu::npu_weight_quant_batchmatmul",
                                "npu::npu_transpose_batchmatmul",
                                "npu::npu_mm_all_reduce_base"};
const Names kSoftmaxOperators = {"aten::_softmax",
                                 "aten::_log_softmax",
                                 "aten::_softmax_backward_data",
                                 "aten::_log_softmax_backward_data",
                                 "aten::_masked_softmax",
                                 "npu::npu_scaled_masked_softmax*"};
const Names kActivationOperators = {"aten::silu",
                                    "aten::silu_",
                                    "aten::silu_backward",
                                    "aten::gelu",
                                    "aten::gelu_",
                                    "aten::gelu_backward",
                                    "aten::relu",
                                    "aten::relu_",
                                    "aten::sigmoid",
                                    "aten::sigmoid_",
                                    "aten::sigmoid_backward",
                                    "aten::tanh",
                                    "aten::tanh_",
                                    "aten::tanh_backward",
                                    "_C::silu_and_mul",
                                    "_C::gelu_and_mul",
                                    "_C::gelu_tanh_and_mul",
                                    "faultline::swiglu",
                                    "faultline::swiglu_backward",
                                    "npu::npu_swiglu*",
                                    "npu::npu_fast_gelu*",
                                    "npu::fast_gelu",
                                    "npu::npu_gelu*",
                                    "npu::npu_geglu*",
                                    "npu::npu_silu*"};
const Names kNormOperators = {"aten::_fused_rms_norm",
                              "aten::_fused_rms_norm_backward",
                              "aten::native_layer_norm",
                              "aten::native_layer_norm_backward",
                              "aten::native_group_norm",
                              "aten::rsqrt",
                              "aten::rsqrt_",
                              "_C::rms_norm",
                              "_C::fused_add_rms_norm",
                              "faultline::rms_norm",
                              "faultline::rms_norm_backward",
                              "faultline::add_rms_norm",
                              "npu::npu_rms_norm*",
                              "npu::npu_add_rms_norm*",
                              "npu::npu_gemma_rms_norm",
                              "npu::npu_layer_norm_eval",
                              "npu::npu_add_layer_norm*",
                              "_C_ascend::*rms_norm*"};
const Names kAttentionOperators = {"aten::_scaled_dot_product_*",
                                   "aten::_flash_attention_*",
                                   "aten::_efficient_attention_*",
                                   "_C::cpu_attention_with_kv_cache",
                                   "_vllm_fa2_C::*fwd",
                                   "_vllm_fa3_C::fwd",
                                   "_C::paged_attention*",
                                   "faultline::attend_cached",
                                   "npu::npu_fusion_attention*",
                                   "npu::npu_fused_infer_attention_score*",
                                   "npu::npu_prompt_flash_attention",
                                   "npu::npu_incre_flash_attention",
                                   "*::_npu_flash_attention*",
                                   "*::_npu_paged_attention*"};
const Names kRotaryOperators = {
    "_C::rotary_embedding",          "aten::_rotary*", "faultline::rotary",        "npu::npu_rotary_mul*",
    "npu::npu_apply_rotary_pos_emb", "npu::npu_mrope", "*::_npu_rotary_embedding", "_C_ascend::*rotary_embedding*"};
const Names kEmbeddingOperators = {"aten::embedding", "aten::embedding_dense_backward", "aten::index_select"};
const Names kReduceOperators = {"aten::sum", "aten::mean", "aten::cumsum", "aten::var", "aten::var_mean"};

// The table that counts, and all that ever did: what was read from one of them stays good.
struct Tables {
  std::mutex mutex;
  std::deque<std::string> names;                                                 // of sections and files
  std::map<std::string, std::unique_ptr<const std::vector<Family>>> by_section;  // its JSON; "": the built-in one
  std::atomic<const std::vector<Family>*> current{nullptr};
};
Tables& tables() {
  static auto* all = new Tables;
  return *all;
}

std::vector<Family> built_in() {
  return {{"matmul", "matrix products, in place, out= and quantised forms included", kMatmulOperators},
          {"softmax", "softmax and log-softmax outside fused attention", kSoftmaxOperators},
          {"activation", "silu, gelu, relu, sigmoid, tanh and their gradients", kActivationOperators},
          {"norm", "fused norms, and rsqrt where a norm dissolves into parts", kNormOperators},
          {"attention", "fused attention", kAttentionOperators},
          {"rotary", "fused rotary embeddings (decomposed ones are a module tap)", kRotaryOperators},
          {"embedding", "embedding look-up and its gradient", kEmbeddingOperators},
          {"reduce", "sums and means", kReduceOperators}};
}

// In all_ops, by place in built_in().
constexpr std::size_t kFamiliesOfAllOps = 4;

std::vector<Family> made_table(const OperatorNames& added, std::deque<std::string>& names) {
  std::vector<Family> table = built_in();
  for (Family& family : table) {
    const auto more = added.find(std::string(family.name));
    if (more == added.end()) continue;
    for (const std::string& name : more->second) {
      family.added.push_back(names.emplace_back(name));
      family.operators.push_back(family.added.back());
    }
  }
  Names all;
  for (std::size_t i = 0; i < kFamiliesOfAllOps; ++i)
    all.insert(all.end(), table[i].operators.begin(), table[i].operators.end());
  table.push_back({"all_ops", "matmul + softmax + activation + norm", std::move(all)});
  table.push_back({"every", "whatever writes floating-point numbers, except copies, optimizer and sampling", {}});
  return table;
}

bool is_added(const Family& family, std::string_view base) {
  return std::any_of(family.added.begin(), family.added.end(),
                     [&](std::string_view pattern) { return glob_matches(pattern, base); });
}

Schema families_schema() {
  const Schema names = Schema::list(Schema::string({.min = 1}).check([](const Node& name) -> std::string {
    if (name.as_string().find("::") != std::string::npos) return "";
    return fmt::format("'{}' names no namespace; write it as 'npu::{}', or '*::{}' for any", name.as_string(),
                       name.as_string(), name.as_string());
  }));
  Schema schema = Schema::map();
  for (const Family& family : built_in())
    schema = schema.field(std::string(family.name), names, {.doc = std::string(family.summary)});
  return schema;
}

void add_names(const Node& section, OperatorNames& names) {
  for (const auto& entry : section.entries()) {
    if (!entry.value.is_list()) continue;
    for (const Node& name : entry.value.items()) names[entry.key].push_back(name.as_string());
  }
}

// What a section says, its file read. No name in two families.
OperatorNames names_of(const Node& section) {
  OperatorNames names;
  add_names(section, names);
  if (const Node* file = section.find("file"))
    add_names(validate(load_config(file->as_string()), families_schema()), names);
  std::map<std::string_view, std::string_view> family_of_name;
  for (const auto& [family, all] : names) {
    for (const std::string& name : all) {
      const auto [found, is_new] = family_of_name.try_emplace(name, family);
      if (!is_new && found->second != family)
        throw section.error(
            fmt::format("'{}' stands in two families, {} and {}; an operator has one", name, found->second, family));
    }
  }
  return names;
}

std::string check_section(const Node& section) {
  try {
    (void)names_of(section);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

}  // namespace

void register_operators_section() {
  SectionRegistry::global().add(
      "operators",
      families_schema()
          .field("file", Schema::string({.min = 1}), {.doc = "a file of such lists, for several recipes"})
          .check(check_section),
      {.doc = "a backend's own operators (npu::npu_rms_norm; globs), by family; they go before the built-in table"});
}

OperatorNames read_operators(const Node& section) { return section.is_map() ? names_of(section) : OperatorNames{}; }

void use_operators(const OperatorNames& names) {
  std::string key;
  for (const auto& [family, all] : names) {
    for (const std::string& name : all) key += fmt::format("{} {}\n", family, name);
  }
  Tables& all = tables();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto& table = all.by_section[key];
  if (!table) table = std::make_unique<const std::vector<Family>>(made_table(names, all.names));
  all.current = table.get();
}

std::span<const Family> families() {
  if (tables().current.load() == nullptr) use_operators({});
  return *tables().current.load();
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++, mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const Family* family_named(std::string_view name) {
  for (const Family& family : families()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

std::string_view family_of(std::string_view base) {
  const auto all = families();
  for (const Family& family : all) {
    if (is_added(family, base)) return family.name;
  }
  for (const Family& family : all) {
    if (family.name == "all_ops") break;
    if (std::any_of(family.operators.begin(), family.operators.end(),
                    [&](std::string_view pattern) { return glob_matches(pattern, base); }))
      return family.name;
  }
  return "";
}

bool is_of_family(const Family& family, std::string_view base) {
  const std::string_view own = family_of(base);
  if (family.name != "all_ops") return own == family.name;
  const auto all = families().first(kFamiliesOfAllOps);
  return std::any_of(all.begin(), all.end(), [&](const Family& one) { return one.name == own; });
}

}  // namespace faultline::tap
