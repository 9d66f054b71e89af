// The digest as sums of exact integer products. A tile's bytes are 8,192 numbers of 16 bits, each with a key modulo
// 2^61 - 1; a key is cut into two parts of 31 and 30 bits, so that a sum of 8,192 products stays below 2^60. The tiles'
// hashes are summed in the same way, as four numbers of 16 bits each with alpha's power for a key.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "numeric/portable/portable.h"
#include "numeric/portable/proof.h"
#include "numeric/portable/words.h"

namespace faultline::numeric::portable {
namespace {

constexpr int64_t kPieces = kDigestTile / 2;  // of 16 bits in a tile
constexpr int64_t kTilesAtOnce = 64;          // a mebibyte
constexpr int64_t kPrime = static_cast<int64_t>(kDigestPrime);
constexpr int64_t kLowPart = (int64_t{1} << 31) - 1;

struct KeyParts {
  at::Tensor low, high;  // of 31 and 30 bits
};

KeyParts parts_of(const std::vector<int64_t>& keys, const at::Device& device) {
  const at::Tensor all = at::tensor(keys, at::kLong).to(device);
  return {all & kLowPart, all.bitwise_right_shift(31)};
}

uint64_t shifted61(uint64_t key, int64_t piece) { return reduce61(multiply61(key, uint64_t{1} << (16 * piece))); }

struct DeviceKeys {
  KeyParts words, powers;  // (8192) of a tile's pieces; (kTilesAtOnce * 4) of the hashes'
};
const DeviceKeys& keys_on(const at::Device& device) {
  static std::mutex mutex;
  static std::map<std::string, DeviceKeys> copies;
  const std::lock_guard<std::mutex> lock(mutex);
  DeviceKeys& copy = copies[device.str()];
  if (copy.words.low.defined()) return copy;
  uint32_t halves[2 * kDigestWords];
  fill_digest_keys(halves);
  std::vector<int64_t> keys, powers;
  for (int64_t word = 0; word < kDigestWords; ++word) {
    const uint64_t key = halves[word] + (static_cast<uint64_t>(halves[kDigestWords + word]) << 28);
    for (int64_t piece = 0; piece < 2; ++piece) keys.push_back(static_cast<int64_t>(shifted61(key, piece)));
  }
  uint64_t power = 1;
  for (int64_t tile = 0; tile < kTilesAtOnce; ++tile, power = multiply61(power, kDigestAlpha)) {
    for (int64_t piece = 0; piece < 4; ++piece) powers.push_back(static_cast<int64_t>(shifted61(power, piece)));
  }
  copy = {parts_of(keys, device), parts_of(powers, device)};
  return copy;
}

at::Tensor folded(const at::Tensor& value) { return (value & kPrime) + value.bitwise_right_shift(61); }

// sum over the last dimension of piece * key modulo the prime, below 2^61 + 2^4. `pieces`: int64 below 2^16.
at::Tensor weighted(const at::Tensor& pieces, const KeyParts& keys) {
  const int64_t n = pieces.size(-1);
  const at::Tensor low = folded((pieces * keys.low.narrow(0, 0, n)).sum(-1));
  const at::Tensor high = folded((pieces * keys.high.narrow(0, 0, n)).sum(-1));
  // high * 2^31 modulo 2^61 - 1: what leaves on top comes in below.
  const at::Tensor turned = ((high & ((int64_t{1} << 30) - 1)).bitwise_left_shift(31)) + high.bitwise_right_shift(30);
  return folded(folded(low + turned));
}

at::Tensor pieces_of(const at::Tensor& hashes) {  // (tiles) -> (4 tiles)
  std::vector<at::Tensor> pieces;
  for (int64_t piece = 0; piece < 4; ++piece) pieces.push_back(hashes.bitwise_right_shift(16 * piece) & 0xFFFF);
  return at::stack(pieces, 1).view({-1});
}

at::Tensor times(const at::Tensor& value, uint64_t factor) {  // modulo the prime
  std::vector<int64_t> keys;
  for (int64_t piece = 0; piece < 4; ++piece) keys.push_back(static_cast<int64_t>(shifted61(factor, piece)));
  at::Tensor total = at::zeros_like(value);
  for (int64_t piece = 0; piece < 4; ++piece) {
    const at::Tensor part = value.bitwise_right_shift(16 * piece) & 0xFFFF;
    const int64_t key = keys[static_cast<std::size_t>(piece)];
    const at::Tensor high = part * (key >> 31);
    const at::Tensor turned = ((high & ((int64_t{1} << 30) - 1)).bitwise_left_shift(31)) + high.bitwise_right_shift(30);
    total = folded(total + folded(part * (key & kLowPart)) + turned);
  }
  return total;
}

// `halves`: int16, the bytes as they lie; filled with zeros to whole numbers.
at::Tensor digest_of(const at::Tensor& halves, int64_t size) {
  const DeviceKeys& keys = keys_on(halves.device());
  const int64_t tiles = (size + kDigestTile - 1) / kDigestTile;
  at::Tensor sum = word_scalar(0, halves.device());
  uint64_t power = 1;
  for (int64_t first = 0; first < tiles; first += kTilesAtOnce) {
    const int64_t count = std::min(kTilesAtOnce, tiles - first);
    const int64_t left = std::min(count * kPieces, halves.numel() - first * kPieces);
    at::Tensor part = halves.narrow(0, first * kPieces, left);
    if (left < count * kPieces) part = at::constant_pad_nd(part, {0, count * kPieces - left});
    const at::Tensor hashes = weighted(part.to(at::kLong).bitwise_and_(0xFFFF).view({count, kPieces}), keys.words);
    sum = folded(sum + times(weighted(pieces_of(hashes), keys.powers), power));
    power = multiply61(power, power61(kDigestAlpha, static_cast<uint64_t>(kTilesAtOnce)));
  }
  const uint64_t length = multiply61(power61(kDigestAlpha, static_cast<uint64_t>(tiles)),
                                     multiply61(kDigestKappa, static_cast<uint64_t>(size) + 1));
  sum = folded(sum + static_cast<int64_t>(reduce61(length)));
  return at::where(sum.ge(kPrime), sum - kPrime, sum);
}

}  // namespace

void digest_unproven(const at::Tensor& contiguous, int64_t* state, int64_t pieces) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Device device = contiguous.device();
  const int64_t size = contiguous.numel() / pieces * static_cast<int64_t>(contiguous.element_size());
  // The device is named: not every backend can tell it from an address.
  const at::Tensor out = at::for_blob(state, {pieces * kDigestStateWords})
                             .options(at::TensorOptions().dtype(at::kLong).device(device))
                             .target_device(device)
                             .make_tensor();
  const at::Tensor values = contiguous.is_complex() ? at::view_as_real(contiguous) : contiguous;
  const at::Tensor bytes = values.view({-1}).view(at::kByte).view({pieces, size});
  for (int64_t piece = 0; piece < pieces; ++piece) {
    at::Tensor part = bytes.select(0, piece);
    const bool aligned = size % 2 == 0 && part.storage_offset() % 2 == 0;
    if (!aligned) part = at::constant_pad_nd(part, {0, size % 2}).clone();
    out.select(0, piece * kDigestStateWords).copy_(digest_of(part.view(at::kShort), size));
  }
}

at::Tensor checksum_unproven(const at::Tensor& contiguous) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor values = contiguous.is_complex() ? at::view_as_real(contiguous) : contiguous;
  const int64_t width = static_cast<int64_t>(contiguous.element_size());
  const at::ScalarType type = width == 1 ? at::kByte : width == 2 ? at::kShort : width == 4 ? at::kInt : at::kLong;
  const at::Tensor flat = values.view({-1});
  if (width == 8 && contiguous.is_complex()) return flat.view(at::kInt).view({-1, 2}).view(at::kLong).sum();
  return flat.view(type).sum(at::kLong);
}

void digest_into(const at::Tensor& contiguous, int64_t* state, int64_t pieces) {
  require_digest_proof(contiguous.device());
  digest_unproven(contiguous, state, pieces);
}

at::Tensor checksum(const at::Tensor& contiguous) {
  require_digest_proof(contiguous.device());
  return checksum_unproven(contiguous);
}

}  // namespace faultline::numeric::portable
