// What a kernel does, told from its name: the only thing that is known of a launch below the dispatcher. The patterns
// stand in one table (launch_families.cpp). Where a name leaves it open, it counts as a product: a product that is
// taken for something else would be missing from the proof, the other mistake is seen in the report.
#pragma once

#include <string>
#include <string_view>

namespace faultline::tap {

enum class LaunchFamily { kFault, kProduct, kAttention, kNorm, kActivation, kCopy, kOther };
std::string_view name_of(LaunchFamily family);  // "fault", "product", …

struct LaunchKind {
  LaunchFamily family = LaunchFamily::kOther;
  // Works for another kernel of its family (sums what a split product left, combines parts of attention, measures a
  // tensor for a fault): no product, no fault of its own.
  bool part = false;
  bool operator==(const LaunchKind&) const = default;
};

LaunchKind classify_kernel(std::string_view demangled);

std::string demangled_kernel(const char* name);
// For tables: without return type, parameters and "(anonymous namespace)::", long template arguments cut.
std::string short_kernel_name(std::string_view demangled);

}  // namespace faultline::tap
