// Which operators a name means. A rule says a family (matmul), an exact operator (aten::mm, aten::mm.out, or aten::mm
// for all its overloads) or a glob in any namespace (_C::*norm*); here it becomes the list of registered overloads that
// write floating-point numbers. Composite operators (aten::linear, aten::matmul) dissolve into these before a backend
// runs and are never wrapped themselves.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "site/scope.h"
#include "tap/operator_table.h"

namespace faultline::tap {

std::string full_name(const c10::OperatorName& name);        // "aten::mm.out"
std::string_view base_name(std::string_view operator_name);  // "aten::mm"

bool is_gradient_operator(std::string_view base);  // a gradient's operator, by its name
// Of a backend's or library's own namespace and of no family: rules that name families pass it by unseen.
bool is_unknown_operator(std::string_view base);

struct Kernel {
  c10::OperatorHandle op;
  c10::DispatchKey key;
};
// The kernels behind every overload that the pattern means. Throws UsageError with the nearest names where nothing
// matches, and says why where only composite operators do.
std::vector<Kernel> resolve_operators(const std::string& pattern, const std::vector<std::string>& except,
                                      std::span<const c10::DispatchKey> keys);

// Where an operator's results are: written arguments (in-place, out=), or returned tensors.
struct Results {
  std::vector<std::size_t> written;   // argument positions
  std::vector<std::size_t> returned;  // return positions; used where nothing is written
};
Results results_of(const c10::FunctionSchema& schema);

// The defined tensors of a value: itself, or the elements of a list.
void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors);

bool shares_storage(const at::Tensor& result, const std::vector<at::Tensor>& arguments);  // a view of one

// Where an operator with these arguments runs. A product belongs to the owner of the weight that it reads, whoever
// calls it: modules read their children's, and compiled code shows nothing else. Of other operators the scope tells,
// and a parameter only where there is none.
enum class WeightUse { kOther, kLookUp, kProduct };
WeightUse weight_use_of(std::string_view base);
site::Location locate(WeightUse use, c10::ArrayRef<at::Tensor> arguments);

}  // namespace faultline::tap
