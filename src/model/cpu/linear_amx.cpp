// The matrix product turned round: weight (N, K) times x transposed (K, M). The left operand of a tile product is
// row-major, so weights are loaded as they lie, and only x, which is small, is rearranged: no packed copy of the model
// exists that a training step could leave behind. A tile of weights is 16 outputs x 32 inputs, a tile of x 32 inputs
// (as 16 pairs) x 16 rows, a tile of sums 16 outputs x 16 rows in fp32. Every row goes through the same sums whatever M
// is. Tile instructions take subnormal numbers as zero.
#include "model/cpu/linear_tiles.h"

#if defined(__AMX_BF16__)

namespace faultline::model::ops::cpu::FAULTLINE_ISA {
namespace {

constexpr int64_t kTileRows = 16, kTileInputs = 32, kTileBytes = 1024, kLine = 64;
constexpr int64_t kStepsAhead = 3;  // 6 KiB of weights under way to the first-level cache

struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The compiler does not know that tile instructions read and write memory.
FL_INLINE void fence() { __asm__ volatile("" ::: "memory"); }

int64_t row_tiles(const LinearArguments& a) { return ceiling(a.rows, kTileRows); }
int64_t input_tiles(const LinearArguments& a) { return ceiling(a.inputs, kTileInputs); }

// Weights of outputs [n, n + 32) x inputs [k, k + 32), where these do not all exist: copied, the others zero.
void copy_edge(const LinearArguments& a, int64_t n, int64_t k, uint16_t (&edge)[kLinearBlock][kTileInputs]) {
  const int64_t outputs = smaller(kLinearBlock, a.outputs - n), inputs = smaller(kTileInputs, a.inputs - k);
  for (int64_t i = 0; i < kLinearBlock; ++i) {
    const uint16_t* row = row_of<BFloat16>(a.weight, a.inputs, n + i) + k;
    for (int64_t j = 0; j < kTileInputs; ++j) edge[i][j] = i < outputs && j < inputs ? row[j] : uint16_t{0};
  }
}

// One tile of sums, rows of 16 outputs: turned back, bias added, rounded, stored as y[m ...][n ...].
void store_tile(const LinearArguments& a, const float* sums, int64_t n, int64_t m) {
  const int64_t outputs = smaller(kTileRows, a.outputs - n), rows = smaller(kTileRows, a.rows - m);
  if (outputs <= 0) return;
  __m512 row[16];
  for (int i = 0; i < 16; ++i) row[i] = _mm512_load_ps(sums + 16 * i);
  transpose(row);
  const Vector bias = a.bias == nullptr ? Vector{} : load<BFloat16>(row_of<BFloat16>(a.bias, 1, n), outputs);
  for (int64_t j = 0; j < rows; ++j)
    store<BFloat16>(row_of<BFloat16>(a.y, a.outputs, m + j) + n, (Vector)row[j] + bias, outputs);
}

// Weights of the step after next but one, which may belong to the next 32 outputs. A hint: nothing is read if the
// address does not exist.
FL_INLINE void fetch(const LinearArguments& a, int64_t n, int64_t step) {
  const int64_t steps = input_tiles(a), over = step >= steps ? 1 : 0;
  const uint16_t* weight =
      row_of<BFloat16>(a.weight, a.inputs, n + over * kLinearBlock) + (step - over * steps) * kTileInputs;
  for (int64_t i = 0; i < kLinearBlock; ++i) __builtin_prefetch(weight + i * a.inputs);
}

// 32 outputs of 16 or 32 rows.
template <int kRowTiles, bool kFetches>
void multiply(const LinearArguments& a, int64_t n, int64_t row_tile) {
  const int64_t steps = input_tiles(a), stride = a.inputs * 2;
  const auto* x = static_cast<const char*>(a.prepared) + row_tile * steps * kTileBytes;
  const bool whole = n + kLinearBlock <= a.outputs;
  alignas(64) uint16_t edge[kLinearBlock][kTileInputs];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t k = step * kTileInputs;
    if (whole && k + kTileInputs <= a.inputs) {
      const uint16_t* weight = row_of<BFloat16>(a.weight, a.inputs, n) + k;
      _tile_loadd(4, weight, stride);
      _tile_loadd(5, weight + kTileRows * a.inputs, stride);
    } else {
      copy_edge(a, n, k, edge);
      fence();
      _tile_loadd(4, edge, kLine);
      _tile_loadd(5, edge + kTileRows, kLine);
    }
    if constexpr (kFetches) fetch(a, n, step + kStepsAhead);
    _tile_loadd(6, x + step * kTileBytes, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(7, x + (steps + step) * kTileBytes, kLine);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[4][kTileRows * kTileRows];
  _tile_stored(0, sums[0], kLine);
  _tile_stored(1, sums[1], kLine);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, sums[2], kLine);
    _tile_stored(3, sums[3], kLine);
  }
  fence();
  for (int tile = 0; tile < 2 * kRowTiles; ++tile)
    store_tile(a, sums[tile], n + tile % 2 * kTileRows, (row_tile + tile / 2) * kTileRows);
}

}  // namespace

int64_t tiles_prepared_bytes(const LinearArguments& a) { return row_tiles(a) * input_tiles(a) * kTileBytes; }

// x (M, K) as tiles [row tile][input tile][pair of inputs][row][2]: 16 x 16 pairs transposed; missing ones are zero.
void tiles_prepare(const LinearArguments& a) {
  auto* to = static_cast<float*>(a.prepared);
  for (int64_t m = 0; m < a.rows; m += kTileRows) {
    for (int64_t k = 0; k < a.inputs; k += kTileInputs, to += kTileRows * kTileRows) {
      const int64_t left = smaller(kTileInputs, a.inputs - k);
      const __mmask32 mask = left >= kTileInputs ? 0xFFFFFFFFu : (1u << left) - 1u;
      __m512 row[16];
      for (int64_t i = 0; i < kTileRows; ++i) {
        const __mmask32 there = m + i < a.rows ? mask : 0;
        const uint16_t* x = row_of<BFloat16>(a.x, a.x_stride, there != 0 ? m + i : m) + k;
        row[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, x));
      }
      transpose(row);
      for (int64_t i = 0; i < kTileRows; ++i) _mm512_store_ps(to + kTileRows * i, row[i]);
    }
  }
}

void tiles_linear(const LinearArguments& a, int64_t first, int64_t last) {
  const TileConfiguration configuration;
  _tile_loadconfig(&configuration);
  const int64_t tiles = row_tiles(a);
  const int64_t at_once = rows_at_once(tiles, input_tiles(a) * kTileBytes, 2);
  for (int64_t first_tile = 0; first_tile < tiles; first_tile += at_once) {
    const int64_t last_tile = smaller(first_tile + at_once, tiles);
    for (int64_t block = first; block < last; ++block) {
      const int64_t n = block * kLinearBlock;
      for (int64_t tile = first_tile; tile < last_tile; tile += 2) {
        const bool pair = tile + 1 < last_tile;
        if (tile == first_tile)
          pair ? multiply<2, true>(a, n, tile) : multiply<1, true>(a, n, tile);
        else
          pair ? multiply<2, false>(a, n, tile) : multiply<1, false>(a, n, tile);
      }
    }
  }
  _tile_release();
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA

#endif
