// One token of each row through a gated delta net, from its input projection to its gated norm, in place on the
// states and convolution tails of the slots.
//
// A head remembers a matrix S [key_dim, value_dim] (Yang et al., Gated Delta Networks, 2024). Its one pass over S
// for k S and q S, and a second, still in the cache, that writes, read the memory once:
//
//     u = beta (v - e^g k S);  o = e^g q S + (q k) u;  S = e^g S + k^T u
//
// Arithmetic is float32 and the state too; the result is rounded to the model's dtype before the gated norm, the
// normalized value and its product with the weight as well, as torch's operators do.
#include <cmath>
#include <cstdlib>

#include "delta.h"
#include "parallel.h"
#include "program.h"

namespace {

constexpr int64_t BLOCK = 512;  // channels of a piece of work

template <class T>
struct Step : Delta<T> {
  const int64_t* slots;
  int64_t rows;
};

// silu of the causal convolution of a block of channels for every row, and their tails moved on by a token.
template <class T>
void convolve(const Step<T>& step, int64_t first, int64_t end, float* convolved) {
  const int64_t kernel = step.kernel, channels = step.channels();
  for (int64_t c = first; c < end; c += LANES) {
    const int64_t n = end - c < LANES ? end - c : LANES;
    float columns[MOST_DELTA_KERNEL][LANES] = {};
    for (int64_t i = 0; i < n; ++i)
      for (int64_t t = 0; t < kernel; ++t) columns[t][i] = widen(step.convolution[(c + i) * kernel + t]);
    for (int64_t row = 0; row < step.rows; ++row) {
      const T* input = step.projected + row * step.width() + c;
      T* tail = step.tail + step.slots[row] * (kernel - 1) * channels + c;
      Vec total{};
      for (int64_t t = 0; t + 1 < kernel; ++t) {
        total = fma(load(tail + t * channels, n), load(columns[t]), total);
        std::memcpy(tail + t * channels, t + 2 < kernel ? tail + (t + 1) * channels : input, n * sizeof(T));
      }
      total = fma(load(input, n), load(columns[kernel - 1]), total);
      store(convolved + row * channels + c, silu(total), n);
    }
  }
}

// WIDTH vectors of columns of one head's state; `n` numbers where it is a part of one vector.
template <int WIDTH>
void advance(float* state, const float* q, const float* k, const float* value, float decay, float beta, float qk,
             int64_t key_dim, int64_t value_dim, int64_t n, float* out) {
  Vec recalled[WIDTH] = {}, asked[WIDTH] = {};
  for (int64_t i = 0; i < key_dim; ++i) {
    const Vec key = all(k[i]), query = all(q[i]);
    for (int w = 0; w < WIDTH; ++w) {
      const Vec each = load(state + i * value_dim + w * LANES, n);
      recalled[w] = fma(key, each, recalled[w]);
      asked[w] = fma(query, each, asked[w]);
    }
  }
  Vec wrote[WIDTH];
  for (int w = 0; w < WIDTH; ++w) {
    wrote[w] = (load(value + w * LANES, n) - decay * recalled[w]) * beta;
    store(out + w * LANES, fma(all(qk), wrote[w], decay * asked[w]), n);
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    const Vec key = all(k[i]);
    for (int w = 0; w < WIDTH; ++w) {
      float* place = state + i * value_dim + w * LANES;
      store(place, fma(key, wrote[w], decay * load(place, n)), n);
    }
  }
}

template <class T>
void run_head(const Step<T>& step, int64_t row, int64_t head, const float* convolved) {
  const int64_t key_dim = step.key_dim, value_dim = step.value_dim, channels = step.channels();
  const int64_t keys = step.keys(), key_head = step.key_head(head);
  const T* projected = step.projected + row * step.width();
  convolved += row * channels;

  float q[MOST_DELTA_DIM + LANES], k[MOST_DELTA_DIM + LANES];
  normalize(convolved + key_head * key_dim, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)), q);
  normalize(convolved + keys + key_head * key_dim, key_dim, 1.0f, k);
  Vec products{};
  for (int64_t i = 0; i < key_dim; i += LANES) products = fma(load(q + i, key_dim - i), load(k + i, key_dim - i), products);
  float beta, decay_log;
  delta_gates(step, projected, head, &beta, &decay_log);
  const float decay = std::exp(decay_log);

  constexpr int WIDTH = LANES == 16 ? 8 : 4;
  float* state = step.state + (step.slots[row] * step.heads + head) * key_dim * value_dim;
  const float* value = convolved + 2 * keys + head * value_dim;
  float out[MOST_DELTA_DIM + LANES];
  int64_t d = 0;
  for (; d + WIDTH * LANES <= value_dim; d += WIDTH * LANES)
    advance<WIDTH>(state + d, q, k, value + d, decay, beta, sum(products), key_dim, value_dim, LANES, out + d);
  for (; d < value_dim; d += LANES)
    advance<1>(state + d, q, k, value + d, decay, beta, sum(products), key_dim, value_dim, value_dim - d, out + d);

  gated_norm(step, projected, head, out, step.out + (row * step.heads + head) * value_dim);
}

constexpr int32_t DONE = 0, NO_MEMORY = 1, BAD_SLOT = 2;

template <class T>
int32_t run(const Step<T>& step, int64_t slot_count) {
  for (int64_t row = 0; row < step.rows; ++row)
    if (step.slots[row] < 0 || step.slots[row] >= slot_count) return BAD_SLOT;
  const int64_t channels = step.channels();
  float* convolved = static_cast<float*>(std::malloc(step.rows * channels * sizeof(float)));
  if (convolved == nullptr) return NO_MEMORY;
  parallel((channels + BLOCK - 1) / BLOCK, 1, [&](int64_t first, int64_t end) {
    convolve(step, first * BLOCK, end * BLOCK < channels ? end * BLOCK : channels, convolved);
  });
  parallel(step.rows * step.heads, 1, [&](int64_t first, int64_t end) {
    for (int64_t item = first; item < end; ++item)
      run_head(step, item / step.heads, item % step.heads, convolved);
  });
  std::free(convolved);
  return DONE;
}

}  // namespace

// projected [rows, channels + heads * value_dim + 2 * heads]: the convolution's inputs (queries, keys, values), the
// output gate, beta's and the decay's; convolution [channels, kernel]; decay_log and time_bias [heads]; norm
// [value_dim]; state [slots, heads, key_dim, value_dim] in float32 and tail [slots, kernel - 1, channels], changed
// in place; out [rows, heads, value_dim]. All but the state are bfloat16 where `narrow` is set, else float32.
// key_dim and value_dim are at most 256, kernel at most 8. Returns 0; 1 where there is no memory; 2,
// with nothing done, for a slot that is none.
KAMINARI int32_t kaminari_delta_step(const void* projected, const void* convolution, const void* decay_log,
                                     const void* time_bias, const void* norm, void* state, void* tail, void* out,
                                     const int64_t* slots, int64_t rows, int64_t slot_count, int64_t key_heads,
                                     int64_t heads, int64_t key_dim, int64_t value_dim, int64_t kernel,
                                     float eps, int32_t narrow) {
  const auto with = [&](auto kind) {
    using T = decltype(kind);
    return run(Step<T>{{static_cast<const T*>(projected), static_cast<const T*>(convolution),
                        static_cast<const T*>(decay_log), static_cast<const T*>(time_bias),
                        static_cast<const T*>(norm), static_cast<float*>(state), static_cast<T*>(tail),
                        static_cast<T*>(out), key_heads, heads, key_dim, value_dim, kernel, eps},
                       slots, rows},
               slot_count);
  };
  return narrow ? with(bf16{}) : with(float{});
}
RECORDABLE(kaminari_delta_step)
