// Root-mean-square norms, alone, behind a sum, or in front of a rotation; and the product in SwiGLU.
//
// Arithmetic is float32. Where torch's own operators would round to the model's dtype, so does this: after the
// normalization (not in the zero-centred form), after each product and sum of the rotation, after silu.
#include <cmath>

#include "parallel.h"
#include "program.h"
#include "vec.h"

namespace {

constexpr int64_t MOST_DIM = 256;    // of a head
constexpr int64_t GRAIN = 16 << 10;  // numbers that are worth a thread's while

struct Norm {
  float eps;
  bool centred;  // scale by 1 + weight instead of weight
};

template <class T>
Vec inverse_rms(const T* x, int64_t size, float eps) {
  Vec squares{};
  for (int64_t i = 0; i < size; i += LANES) {
    const Vec each = load(x + i, size - i);
    squares = fma(each, each, squares);
  }
  return all(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps));
}

// What the weight makes of a normalized vector, before it is rounded to T.
template <class T>
Vec scaled(Vec normalized, Vec weight, bool centred) {
  return centred ? normalized * (1.0f + weight) : weight * rounded<T>(normalized);
}

template <class T>
void norm_rows(const T* x, int64_t stride, const T* added, T* summed, const T* weight, T* out, int64_t rows,
               int64_t size, Norm norm) {
  parallel(rows, 1 + GRAIN / size, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const T* from = x + row * stride;
      if (added != nullptr) {
        T* to = summed + row * size;
        for (int64_t i = 0; i < size; i += LANES)
          store(to + i, load(from + i, size - i) + load(added + row * size + i, size - i), size - i);
        from = to;
      }
      const Vec inverse = inverse_rms(from, size, norm.eps);
      for (int64_t i = 0; i < size; i += LANES) {
        const Vec normalized = load(from + i, size - i) * inverse;
        store(out + row * size + i, scaled<T>(normalized, load(weight + i, size - i), norm.centred), size - i);
      }
    }
  });
}

// Normalizes a head and turns its first `turned` numbers; those of the first and the second half pair up.
template <class T>
void turn_head(const T* x, const T* weight, const T* cos, const T* sin, T* out, int64_t dim, int64_t turned,
               Norm norm) {
  float head[MOST_DIM + LANES];
  const Vec inverse = inverse_rms(x, dim, norm.eps);
  for (int64_t i = 0; i < dim; i += LANES) {
    const Vec normalized = load(x + i, dim - i) * inverse;
    store(head + i, rounded<T>(scaled<T>(normalized, load(weight + i, dim - i), norm.centred)));
  }
  const int64_t half = turned / 2;
  for (int64_t i = 0; i < half; i += LANES) {
    const int64_t n = half - i;
    const Vec first = load(head + i, n), second = load(head + half + i, n);
    store(out + i, rounded<T>(first * load(cos + i, n)) + rounded<T>(-second * load(sin + i, n)), n);
    store(out + half + i,
          rounded<T>(second * load(cos + half + i, n)) + rounded<T>(first * load(sin + half + i, n)), n);
  }
  for (int64_t i = turned; i < dim; i += LANES) store(out + i, load(head + i, dim - i), dim - i);
}

template <class T>
void turn(const T* x, int64_t token_stride, int64_t head_stride, const T* weight, const T* cos, const T* sin,
          T* out, int64_t tokens, int64_t heads, int64_t dim, int64_t turned, Norm norm) {
  parallel(tokens, 1 + GRAIN / (heads * dim), [&](int64_t first, int64_t end) {
    for (int64_t token = first; token < end; ++token)
      for (int64_t head = 0; head < heads; ++head)
        turn_head(x + token * token_stride + head * head_stride, weight, cos + token * turned,
                  sin + token * turned, out + (token * heads + head) * dim, dim, turned, norm);
  });
}

template <class T>
void swiglu(const T* gate_up, T* out, int64_t rows, int64_t width) {
  constexpr int64_t BLOCK = 2048;
  const int64_t blocks = (width + BLOCK - 1) / BLOCK;
  parallel(rows * blocks, GRAIN / BLOCK, [&](int64_t first, int64_t end) {
    for (int64_t item = first; item < end; ++item) {
      const int64_t row = item / blocks, begin = item % blocks * BLOCK;
      const int64_t stop = begin + BLOCK < width ? begin + BLOCK : width;
      const T *gate = gate_up + 2 * row * width, *up = gate + width;
      for (int64_t i = begin; i < stop; i += LANES) {
        const int64_t n = stop - i;
        store(out + row * width + i, rounded<T>(silu(load(gate + i, n))) * load(up + i, n), n);
      }
    }
  });
}

}  // namespace

// Tensors are bfloat16 where `narrow` is set, else float32, and have no gaps but where a stride, in elements, is
// given.

// x [rows, size] -> out. With `added` [rows, size], their sum goes to `summed` and is what is normalized.
KAMINARI void kaminari_rms_norm(const void* x, int64_t stride, const void* added, void* summed, const void* weight,
                                void* out, int64_t rows, int64_t size, float eps, int32_t centred,
                                int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    norm_rows(static_cast<const T*>(x), stride, static_cast<const T*>(added), static_cast<T*>(summed),
              static_cast<const T*>(weight), static_cast<T*>(out), rows, size, Norm{eps, centred != 0});
  });
}
RECORDABLE(kaminari_rms_norm)

// x [tokens, heads, dim], cos and sin [tokens, turned] -> out [tokens, heads, dim]; dim is at most 256.
KAMINARI void kaminari_turn(const void* x, int64_t token_stride, int64_t head_stride, const void* weight,
                            const void* cos, const void* sin, void* out, int64_t tokens, int64_t heads,
                            int64_t dim, int64_t turned, float eps, int32_t centred, int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    turn(static_cast<const T*>(x), token_stride, head_stride, static_cast<const T*>(weight),
         static_cast<const T*>(cos), static_cast<const T*>(sin), static_cast<T*>(out), tokens, heads, dim, turned,
         Norm{eps, centred != 0});
  });
}
RECORDABLE(kaminari_turn)

// gate_up [rows, 2 * width] -> out [rows, width], silu of the first half times the second.
KAMINARI void kaminari_swiglu(const void* gate_up, void* out, int64_t rows, int64_t width, int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    swiglu(static_cast<const T*>(gate_up), static_cast<T*>(out), rows, width);
  });
}
RECORDABLE(kaminari_swiglu)
