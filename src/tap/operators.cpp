#include "tap/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "site/backend.h"

namespace faultline::tap {
namespace {

// Operators of the lab itself, not of its model; of the model's, copies and sampling belong to no family.
bool is_own_operator(std::string_view base) { return base.starts_with("faultline::") && family_of(base).empty(); }

// Copies, views, the optimizer and sampling compute nothing that a fault could spoil, or must not be spoiled.
bool is_left_out_of_every(std::string_view base) {
  static const std::vector<std::string_view> patterns = {"prim*::*",
                                                         "aten::*copy*",
                                                         "aten::*clone*",
                                                         "aten::*empty*",
                                                         "aten::*fill*",
                                                         "aten::*zero*",
                                                         "aten::*ones*",
                                                         "aten::*full*",
                                                         "aten::*view*",
                                                         "aten::*reshape*",
                                                         "aten::as_strided*",
                                                         "aten::*set_*",
                                                         "aten::*rand*",
                                                         "aten::*normal*",
                                                         "aten::uniform*",
                                                         "aten::*multinomial*",
                                                         "aten::exponential*",
                                                         "aten::bernoulli*",
                                                         "aten::*dropout*",
                                                         "aten::cauchy*",
                                                         "aten::geometric*",
                                                         "aten::log_normal*",
                                                         "aten::_fused_adam*",
                                                         "aten::_fused_sgd*",
                                                         "aten::_fused_adagrad*",
                                                         "aten::_foreach_*",
                                                         "aten::_amp_*",
                                                         "aten::*resize*",
                                                         "aten::*pin_memory*",
                                                         "aten::*to_*",
                                                         "aten::_local_scalar*",
                                                         "aten::*arange*",
                                                         "aten::*linspace*",
                                                         "aten::*record_stream*",
                                                         "aten::*detach*",
                                                         "aten::lift*",
                                                         "aten::*quantize*",
                                                         "aten::*fft*",
                                                         "aten::*sparse*",
                                                         "aten::*nested*",
                                                         "quantized::*",
                                                         "mkldnn_prepacked::*",
                                                         "inductor::*",
                                                         "c10d::*",
                                                         "_c10d_functional::*",
                                                         "profiler::*",
                                                         "symm_mem::*",
                                                         "streams::*",
                                                         "rngprims::*",
                                                         "debugprims::*",
                                                         "static_runtime::*"};
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return glob_matches(p, base); });
}

bool is_tensor_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType: return true;
    case c10::TypeKind::ListType:
      return type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType;
    default: return false;
  }
}

// The results of forward attention and norm operators beyond the first (log-sum-exp, mean, rstd) only serve backward.
bool has_auxiliary_results(std::string_view base) {
  return !is_gradient_operator(base) && (family_of(base) == "attention" || family_of(base) == "norm");
}

// A CompositeImplicit operator is replaced by its parts before a backend runs, and its generated out= form only copies
// what the operator returned.
bool dissolves(c10::Dispatcher& dispatcher, const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return true;
  const auto functional = dispatcher.findSchema({op.operator_name().name, ""});
  return op.operator_name().overload_name == "out" && functional &&
         functional->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool pattern_means(const std::string& pattern, std::string_view full) {
  const std::string_view base = base_name(full);
  if (is_own_operator(base)) return false;
  if (pattern == "every") return !is_left_out_of_every(base);
  if (const Family* family = family_named(pattern)) return is_of_family(*family, base);
  return glob_matches(pattern, full) || glob_matches(pattern, base);
}

}  // namespace

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::string_view base_name(std::string_view operator_name) {
  const std::size_t colons = operator_name.find("::");
  const std::size_t dot = operator_name.find('.', colons == std::string_view::npos ? 0 : colons);
  return operator_name.substr(0, dot);
}

bool is_gradient_operator(std::string_view base) {
  return base.find("backward") != std::string_view::npos || base.find("_grad") != std::string_view::npos;
}

bool is_unknown_operator(std::string_view base) {
  return !base.starts_with("aten::") && !base.starts_with("faultline::") && !is_left_out_of_every(base) &&
         family_of(base).empty();
}

bool shares_storage(const at::Tensor& result, const std::vector<at::Tensor>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const at::Tensor& argument) {
    return argument.defined() && argument.has_storage() && result.has_storage() &&
           argument.storage().is_alias_of(result.storage());
  });
}

Results results_of(const c10::FunctionSchema& schema) {
  Results results;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && is_tensor_type(*schema.arguments()[i].type()))
      results.written.push_back(i);
  }
  const bool first_only = has_auxiliary_results(base_name(schema.operator_name().name));
  if (!results.written.empty()) {
    if (first_only) results.written.resize(1);
    return results;
  }
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    if (is_tensor_type(*schema.returns()[i].type()) && !(first_only && !results.returned.empty()))
      results.returned.push_back(i);
  }
  return results;
}

void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) tensors.push_back(tensor);
    }
  }
}

std::vector<Kernel> resolve_operators(const std::string& pattern, const std::vector<std::string>& except,
                                      std::span<const c10::DispatchKey> keys) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<Kernel> found;
  std::set<std::string> names;
  bool composite = false, registered = false;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string full = full_name(name);
    names.insert(std::string(base_name(full)));
    if (!pattern_means(pattern, full)) continue;
    const bool excepted =
        std::any_of(except.begin(), except.end(), [&](const std::string& text) { return pattern_means(text, full); });
    const auto op = dispatcher.findSchema(name);
    if (!op || excepted) continue;
    const Results results = results_of(op->schema());
    if (results.written.empty() && results.returned.empty()) continue;
    registered = true;
    for (const c10::DispatchKey key : keys) {
      const bool own = op->hasKernelForDispatchKey(key);
      const bool dissolved = !own && dissolves(dispatcher, *op);
      composite |= dissolved;
      // Kernels for all backends at once (CompositeExplicit), and a backend's for all operators, are reached at dense
      // keys.
      const bool computed = site::is_dense_key(key) && op->hasComputedKernelForDispatchKey(key);
      if (own || (computed && !dissolved)) found.push_back({*op, key});
    }
  }
  if (!found.empty()) return found;
  if (composite)
    throw UsageError(fmt::format(
        "operator '{}' dissolves into others before a backend runs; name its parts or a family (matmul, norm, …)",
        pattern));
  if (family_named(pattern) != nullptr)
    throw UsageError(fmt::format(
        "family '{}' has no operator on the backends of this process ({}); name them under operators: in the recipe",
        pattern, site::backend_titles({keys.begin(), keys.end()})));
  if (registered)
    throw UsageError(
        fmt::format("operator '{}' has no kernel for the backends of this process ({}); import its backend before the "
                    "plan is armed",
                    pattern, site::backend_titles({keys.begin(), keys.end()})));
  std::vector<std::string> candidates(names.begin(), names.end());
  for (const Family& family : families()) candidates.emplace_back(family.name);
  throw UsageError(fmt::format("nothing matches operator '{}'{}", pattern, did_you_mean(pattern, candidates)));
}

WeightUse weight_use_of(std::string_view base) {
  const std::string_view family = family_of(base);
  return family == "matmul" ? WeightUse::kProduct : family == "embedding" ? WeightUse::kLookUp : WeightUse::kOther;
}

site::Location locate(WeightUse use, c10::ArrayRef<at::Tensor> arguments) {
  site::Location location = site::locate();
  if (location.place != site::kNowhere && use != WeightUse::kProduct) return location;
  for (const at::Tensor& argument : arguments) {
    const site::PlaceId owner = site::place_of_storage(argument, use == WeightUse::kLookUp);
    if (owner == site::kNowhere) continue;
    location.place = owner;
    break;
  }
  return location;
}

}  // namespace faultline::tap
