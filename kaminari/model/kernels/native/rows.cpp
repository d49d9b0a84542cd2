// What else a decode step does to its few rows between linears, norms and attention. Where torch's operators would
// round to the model's dtype, so does this.
#include "parallel.h"
#include "program.h"
#include "vec.h"

namespace {

constexpr int64_t GRAIN = 16 << 10;  // numbers that are worth a thread's while
constexpr int32_t DONE = 0, BAD_INDEX = 2;

template <class T>
void add(const T* x, const T* y, T* out, int64_t count) {
  parallel((count + GRAIN - 1) / GRAIN, 1, [&](int64_t first, int64_t end) {
    const int64_t stop = end * GRAIN < count ? end * GRAIN : count;
    for (int64_t i = first * GRAIN; i < stop; i += LANES)
      store(out + i, load(x + i, stop - i) + load(y + i, stop - i), stop - i);
  });
}

template <class T>
void gate(const T* x, const T* gates, int64_t token_stride, int64_t head_stride, T* out, int64_t tokens,
          int64_t heads, int64_t dim) {
  parallel(tokens, 1 + GRAIN / (heads * dim), [&](int64_t first, int64_t end) {
    for (int64_t item = first * heads; item < end * heads; ++item) {
      const T* from = gates + item / heads * token_stride + item % heads * head_stride;
      for (int64_t i = 0; i < dim; i += LANES) {
        const int64_t n = dim - i;
        const Vec open = rounded<T>(1.0f / (1.0f + exp(-load(from + i, n))));
        store(out + item * dim + i, load(x + item * dim + i, n) * open, n);
      }
    }
  });
}

template <class T>
int32_t turns(const int64_t* positions, int64_t axis_stride, int64_t token_stride, const int64_t* axes,
              const T* cos_table, const T* sin_table, int64_t length, T* cos, T* sin, int64_t tokens, int64_t half) {
  for (int64_t token = 0; token < tokens; ++token, cos += 2 * half, sin += 2 * half)
    for (int64_t i = 0; i < half; ++i) {
      const int64_t position = positions[axes[i] * axis_stride + token * token_stride];
      if (position < 0 || position >= length) return BAD_INDEX;
      cos[i] = cos[half + i] = cos_table[position * half + i];
      sin[i] = sin[half + i] = sin_table[position * half + i];
    }
  return DONE;
}

}  // namespace

// out[row] = table[index[row]], of a table of `lines` lines of so many bytes. Returns 0; 2, with some rows unwritten,
// for an index that is none.
KAMINARI int32_t kaminari_pick(const char* table, int64_t lines, int64_t bytes, const int64_t* index, char* out,
                               int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    if (index[row] < 0 || index[row] >= lines) return BAD_INDEX;
    std::memcpy(out + row * bytes, table + index[row] * bytes, bytes);
  }
  return DONE;
}
RECORDABLE(kaminari_pick)

// Lays rows of so many bytes where every one of `to` is `stride` bytes behind the one before.
KAMINARI void kaminari_place(const char* from, int64_t bytes, char* to, int64_t stride, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * stride, from + row * bytes, bytes);
}
RECORDABLE(kaminari_place)

KAMINARI void kaminari_narrow(const int64_t* from, int32_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int32_t>(from[i]);
}
RECORDABLE(kaminari_narrow)

// x, y, out [count], bfloat16 where `narrow` is set, else float32.
KAMINARI void kaminari_add(const void* x, const void* y, void* out, int64_t count, int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    add(static_cast<const T*>(x), static_cast<const T*>(y), static_cast<T*>(out), count);
  });
}
RECORDABLE(kaminari_add)

// x and out [tokens, heads, dim]; gates alike, with strides in elements. out = x * sigmoid(gates)
KAMINARI void kaminari_gate(const void* x, const void* gates, int64_t token_stride, int64_t head_stride, void* out,
                            int64_t tokens, int64_t heads, int64_t dim, int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    gate(static_cast<const T*>(x), static_cast<const T*>(gates), token_stride, head_stride, static_cast<T*>(out),
         tokens, heads, dim);
  });
}
RECORDABLE(kaminari_gate)

// Looks up what positions [3, tokens], with strides in elements, turn by: tables of cosines and sines [length, half],
// axes [half] -> cos and sin [tokens, 2 * half], both halves alike. Returns 0; 2, with some unwritten, for a position
// that the tables do not hold.
KAMINARI int32_t kaminari_turns(const int64_t* positions, int64_t axis_stride, int64_t token_stride,
                                const int64_t* axes, const void* cos_table, const void* sin_table, int64_t length,
                                void* cos, void* sin, int64_t tokens, int64_t half, int32_t narrow) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    return turns(positions, axis_stride, token_stride, axes, static_cast<const T*>(cos_table),
                 static_cast<const T*>(sin_table), length, static_cast<T*>(cos), static_cast<T*>(sin), tokens, half);
  };
  return narrow ? run(bf16{}) : run(float{});
}
RECORDABLE(kaminari_turns)
