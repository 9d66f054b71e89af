// Norm, activation and rotary embedding: a row in, a row out, in fp32, rounded once.
#include "model/cpu/dispatch.h"

namespace faultline::model::ops::cpu::FAULTLINE_ISA {
namespace {

template <class Type, class Scalar = typename Type::Storage>
void add_row(const Scalar* a, const Scalar* b, int64_t columns, Scalar* sum) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t left = columns - i;
    store<Type>(sum + i, load<Type>(a + i, left) + load<Type>(b + i, left), left);
  }
}

template <class Type, class Scalar = typename Type::Storage>
void norm_row(const Scalar* x, const float* weight, float eps, int64_t columns, Scalar* y) {
  Vector squares[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= columns; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      const Vector v = Type::load(x + i + k * kLanes);
      squares[k] = multiply_add(v, v, squares[k]);
    }
  }
  for (; i < columns; i += kLanes) {
    const Vector v = load<Type>(x + i, columns - i);
    squares[0] = multiply_add(v, v, squares[0]);
  }
  const float mean = add_lanes((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(columns);
  const Vector scale = broadcast(1.0f / __builtin_sqrtf(mean + eps));
  for (i = 0; i < columns; i += kLanes) {
    const int64_t left = columns - i;
    store<Type>(y + i, load<Type>(x + i, left) * scale * load<Float32>(weight + i, left), left);
  }
}

template <class Type, class Scalar = typename Type::Storage>
void swiglu_row(const Scalar* gate, const Scalar* up, int64_t columns, Scalar* y) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t left = columns - i;
    const Vector g = load<Type>(gate + i, left);
    store<Type>(y + i, g / (1.0f + exponential(-g)) * load<Type>(up + i, left), left);
  }
}

template <class Type, class Scalar = typename Type::Storage>
void rotate_head(const Scalar* x, const float* cos, const float* sin, int64_t half, Scalar* y) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const Vector a = load<Type>(x + i, left), b = load<Type>(x + half + i, left);
    const Vector c = load<Float32>(cos + i, left), s = load<Float32>(sin + i, left);
    store<Type>(y + i, a * c - b * s, left);
    store<Type>(y + half + i, b * c + a * s, left);
  }
}

}  // namespace

void rms_norm(const NormArguments& a, int64_t first, int64_t last) {
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    for (int64_t row = first; row < last; ++row) {
      const auto* x = row_of<Type>(a.x, a.x_stride, row);
      if (a.residual != nullptr) {
        auto* sum = row_of<Type>(a.sum, a.columns, row);
        add_row<Type>(x, row_of<Type>(a.residual, a.residual_stride, row), a.columns, sum);
        x = sum;
      }
      norm_row<Type>(x, a.weight, a.eps, a.columns, row_of<Type>(a.y, a.columns, row));
    }
  });
}

void swiglu(const SwigluArguments& a, int64_t first, int64_t last) {
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    for (int64_t row = first; row < last; ++row) {
      const auto* gate = row_of<Type>(a.gate_up, a.stride, row);
      swiglu_row<Type>(gate, gate + a.columns, a.columns, row_of<Type>(a.y, a.columns, row));
    }
  });
}

void rotary(const RotaryArguments& a, int64_t first, int64_t last) {
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    const int64_t size = 2 * a.half, rotated = a.heads * size;
    for (int64_t row = first; row < last; ++row) {
      const auto* x = row_of<Type>(a.x, a.x_stride, row);
      auto* y = row_of<Type>(a.y, a.columns, row);
      const int64_t table = a.positions[row] * a.half;
      for (int64_t head = 0; head < a.heads; ++head)
        rotate_head<Type>(x + head * size, a.cos + table, a.sin + table, a.half, y + head * size);
      __builtin_memcpy(y + rotated, x + rotated, static_cast<uint64_t>(a.columns - rotated) * sizeof *x);
    }
  });
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
