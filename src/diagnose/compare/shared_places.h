// Where two traces stand beside each other. Products are the landmarks: every engine has them, each reads one weight,
// and what one product reads is what norms, attention or activations before it gave, fused or not. A fused product is
// cut into its parts (q, k, v; gate, up), rows belong together by the tokens up to them (token_rows.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "diagnose/compare/divergence.h"

namespace faultline::diagnose {

// What judging a call found beside the verdict: rms of its error against fp64, of the right result, of the bound.
struct Own {
  double error = 0, size = 0, allowed = 0;
};

// Product places of both in the order in which they run, fused ones where their first part stands.
std::map<std::string, double> order_of_products(const Trace& a, const Trace& b);

struct SharedPlaces {
  std::vector<SharedPlace> places;  // in the order of a
  std::vector<std::string> without_partner;
};
SharedPlaces shared_places(const Trace& a, const Trace& b, const std::map<const TracedCall*, Own>& own_a,
                           const std::map<const TracedCall*, Own>& own_b);

}  // namespace faultline::diagnose
