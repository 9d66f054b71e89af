// What `faultline selftest` checks: a list of named checks, each of which answers with nothing (it holds) or with a
// sentence (what was seen instead). They run on the machine and device at hand; the unit tests of the sources go
// deeper, but a user has only the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "numeric/rule.h"

namespace faultline::cli {

struct SelftestOptions {
  at::Device device = at::Device(at::kCPU);
  bool quick = false;
  uint64_t seed = 0;
};

struct Check {
  std::string name;
  std::function<std::string()> run;  // "" or what is wrong
};

std::vector<Check> fault_checks(const SelftestOptions& options);
std::vector<Check> format_checks(const SelftestOptions& options);
std::vector<Check> evidence_checks(const SelftestOptions& options);
std::vector<Check> device_checks(const SelftestOptions& options);  // CPU = CUDA; empty on a CPU
// Operations and kinds of the portable arithmetic, where it serves the device.
std::vector<Check> portable_checks(const SelftestOptions& options);

// One rule for every fault kind, in the catalogue's order and with some kinds twice.
std::vector<numeric::Rule> sample_rules();
std::vector<numeric::Rule> format_rules();  // one for every number format

at::Tensor raw_bits(const at::Tensor& x);  // the same memory as integers
bool same_bits(const at::Tensor& a, const at::Tensor& b);
int64_t differing(const at::Tensor& a, const at::Tensor& b);  // elements whose bits differ
const std::vector<at::ScalarType>& dtypes_on(const at::Device& device);

}  // namespace faultline::cli
