// Boundaries: named tensors of a model (a decoder layer's output, a norm's input) that a rule may fault, with autograd.
// Models call boundary() of site/boundary.h; while a plan is armed, this module answers.
#pragma once

#include "site/boundary.h"
#include "tap/plan.h"

namespace faultline::tap {

extern const site::SiteListener kPlanListener;  // acts for the active plan

// Whether any rule of the active plan means this module's surface; for clients that install hooks only where needed.
bool boundary_is_wanted(const Plan& plan, site::PlaceId place, site::Surface surface);

// Throws UsageError where a rule names modules or layers that none of these module paths has, with the nearest names.
void check_modules(const Plan& plan, const std::vector<std::string>& paths);
// Throws UsageError where a rule means biases and none of these places, all that add one, is among its own.
void check_biases(const Plan& plan, const std::vector<site::PlaceId>& with_bias);

// What boundaries and their compiled form (traced_boundary.cpp) share.
inline constexpr uint32_t kBoundaryTarget = 0x3FFF;  // in row keys, beside operators' numbers
bool rule_means_boundary(const PlanRule& rule, const site::Place& place, site::Surface surface);
at::Tensor forced_by(const numeric::Rule& rule, const at::Tensor& before,
                     const at::Tensor& after);  // where to a constant
at::Tensor faulted_gradient(Plan& plan, const PlanRule& rule, site::PlaceId place, const at::Tensor& gradient);

// A faulty copy of x through autograd: gradients pass straight, or are masked where the fault forced a constant.
at::Tensor pass_through(const std::shared_ptr<Plan>& plan, Row& row, const at::Tensor& x);

}  // namespace faultline::tap
