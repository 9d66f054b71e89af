#include "train/replicas.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace faultline {
namespace {

constexpr int64_t kPiece = int64_t{1} << 24;  // elements that all ranks' copies of are held at once

}  // namespace

at::Tensor summed(const Replicas& replicas, const at::Tensor& x) {
  if (replicas.alone()) return x;
  const at::Tensor all = replicas.gather(x);
  at::Tensor sum = all[0].clone();
  for (int64_t rank = 1; rank < replicas.ranks; ++rank) sum.add_(all[rank]);
  return sum.to(x.device());
}

void sum_in_place(const Replicas& replicas, at::Tensor& flat) {
  if (replicas.alone()) return;
  for (int64_t first = 0; first < flat.numel(); first += kPiece) {
    at::Tensor piece = flat.narrow(0, first, std::min(kPiece, flat.numel() - first));
    piece.copy_(summed(replicas, piece));
  }
}

}  // namespace faultline
