// What a token of a gated delta net's head goes through before and behind the rule: norms, gates, the gated norm.
#pragma once
#include <cmath>
#include <cstdint>

#include "vec.h"

constexpr int64_t MOST_DELTA_DIM = 256;  // of a key or a value
constexpr int64_t MOST_DELTA_KERNEL = 8;

// A layer's weights and its input projection's rows; what is what says `kaminari_delta_step`.
template <class T>
struct Delta {
  const T *projected, *convolution, *decay_log, *time_bias, *norm;
  float* state;
  T *tail, *out;
  int64_t key_heads, heads, key_dim, value_dim, kernel;
  float eps;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t channels() const { return 2 * keys() + heads * value_dim; }
  int64_t width() const { return channels() + heads * value_dim + 2 * heads; }
  int64_t key_head(int64_t head) const { return head / (heads / key_heads); }
};

// Scales x by scale / sqrt(sum of squares + 1e-6); `out` may be x.
static inline void normalize(const float* x, int64_t size, float scale, float* out) {
  Vec squares{};
  for (int64_t i = 0; i < size; i += LANES) {
    const Vec each = load(x + i, size - i);
    squares = fma(each, each, squares);
  }
  const Vec factor = all(scale / std::sqrt(sum(squares) + 1e-6f));
  for (int64_t i = 0; i < size; i += LANES) store(out + i, load(x + i, size - i) * factor);
}

// beta of a head and the logarithm of its decay, from a token's projection.
template <class T>
void delta_gates(const Delta<T>& delta, const T* projected, int64_t head, float* beta, float* decay) {
  const T* gates = projected + delta.channels() + delta.heads * delta.value_dim + head;
  *beta = 1.0f / (1.0f + std::exp(-widen(gates[0])));
  // log(1 + e^x), which is x itself where float32 would not tell them apart
  const float x = widen(gates[delta.heads]) + widen(delta.time_bias[head]);
  const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
  *decay = -std::exp(widen(delta.decay_log[head])) * softplus;
}

// The gated norm of a head's result, which it rounds in place.
template <class T>
void gated_norm(const Delta<T>& delta, const T* projected, int64_t head, float* result, T* to) {
  const int64_t value_dim = delta.value_dim;
  const T* gate = projected + delta.channels() + head * value_dim;
  Vec squares{};
  for (int64_t d = 0; d < value_dim; d += LANES) {
    const Vec each = rounded<T>(load(result + d, value_dim - d));
    store(result + d, each);
    squares = fma(each, each, squares);
  }
  const Vec inverse = all(1.0f / std::sqrt(sum(squares) / static_cast<float>(value_dim) + delta.eps));
  for (int64_t d = 0; d < value_dim; d += LANES) {
    const int64_t n = value_dim - d;
    const Vec normed = rounded<T>(load(delta.norm + d, n) * rounded<T>(load(result + d) * inverse));
    store(to + d, silu(load(gate + d, n)) * normed, n);
  }
}
