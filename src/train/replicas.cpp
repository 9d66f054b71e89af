#include "train/replicas.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace faultline::train {
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

std::vector<std::string> gathered(const Replicas& replicas, const std::string& own) {
  if (replicas.alone()) return {own};
  const at::Tensor lengths = replicas.gather(at::full({}, std::ssize(own), at::kLong));
  at::Tensor bytes = at::zeros({lengths.max().item<int64_t>()}, at::kByte);
  std::copy(own.begin(), own.end(), bytes.mutable_data_ptr<uint8_t>());
  const at::Tensor all = replicas.gather(bytes);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < replicas.ranks; ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(all[rank].const_data_ptr<uint8_t>()),
                       static_cast<std::size_t>(lengths[rank].item<int64_t>()));
  return texts;
}

void sum_in_place(const Replicas& replicas, at::Tensor& flat) {
  if (replicas.alone()) return;
  for (int64_t first = 0; first < flat.numel(); first += kPiece) {
    at::Tensor piece = flat.narrow(0, first, std::min(kPiece, flat.numel() - first));
    piece.copy_(summed(replicas, piece));
  }
}

}  // namespace faultline::train
