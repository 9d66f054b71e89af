// Inputs of a linear layer whose outputs are known before it runs. One-hot rows: f(2^k e_i) is a column of the weight,
// to the bit. Level rows: x solves W_g x = ±1 for a group of outputs, so that each output once stands among its row's
// largest, where a saturation bites; their answers are computed in fp64 and may differ by rounding alone. Sign rows
// touch every weight at once: a narrow accumulator or a lost tile shows. Prepared once for a model, used many times.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>

#include "model/causal_lm.h"

namespace faultline::diagnose {

struct KnownAnswers {
  at::Tensor input;      // (R, in), of the model's type
  at::Tensor expected;   // (R, out), fp32 of 16-bit models, else fp64
  at::Tensor tolerance;  // like it; 0: equal bits
};

// The bound of |computed - exact| of a product: half an ulp of the result, and the accumulator's share of |x||w|.
// c * sqrt(K) * 2^-24 * |x| |w| bounds it by Cauchy and Schwarz. x: (…, R, K), exact: (…, R, N), all fp64;
// weight_norms: (…, N) of its rows; sizes: |x||w|, which no sum on the way is larger than.
struct ProductBound {
  at::Tensor tolerance, sizes;  // (…, R, N)
};
ProductBound product_bound(const at::Tensor& x, const at::Tensor& weight_norms, const at::Tensor& exact,
                           at::ScalarType dtype, const at::Device& device);

// reference: where the answers are computed. levels: with level rows, of which wide outputs need too many.
KnownAnswers known_answers(const model::Linear& linear, uint64_t seed, const at::Device& reference, bool levels = true);

KnownAnswers known_answers(const model::Norm& norm, uint64_t seed, const at::Device& reference, at::ScalarType dtype);

// Of every linear and norm of the layers, of the last norm and of the head, whose weight is finite, by place. progress:
// the share that is done.
std::map<site::PlaceId, KnownAnswers> known_answers(const model::CausalLm& model, uint64_t seed,
                                                    const at::Device& reference,
                                                    const std::function<void(double)>& progress = {});

// The linears of one layer, routers and experts included; its norms.
std::vector<const model::Linear*> linears_of(const model::Layer& layer);
std::vector<const model::Norm*> norms_of(const model::Layer& layer);

// (12, columns) of fp64 on the CPU: signs at random; half of the rows with all magnitudes nearly equal, so that each
// element is the largest; the others spread over so many powers of two, so that small ones are there to be lost.
at::Tensor patterns(int64_t columns, double octaves, uint64_t seed);

}  // namespace faultline::diagnose
