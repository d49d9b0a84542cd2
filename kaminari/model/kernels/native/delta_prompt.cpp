// Many tokens of one row through a gated delta net, from its input projection to its gated norm, in place on the
// state and the convolution tail of its slot.
//
// A piece of work is one head. It takes BLOCK tokens at a time: convolution, norms and gates, then the rule in
// chunks, whose corrections U solve one triangular system (Yang et al., Gated Delta Networks, 2024). With the
// cumulative decays G of a chunk, D_ij = exp(G_i - G_j) and the state S before it:
//
//     (1 + beta D (K K^T) below the diagonal) U = beta (V - e^G K S)
//     output = e^G Q S + D (Q K^T) U;  S = e^(G of the last) S + (D of the last K)^T U
//
// The columns of S know nothing of one another: a few of them at a time stay in the first-level cache for all
// chunks of a block. Chunks are small, since a longer one multiplies more and the state is near anyway. Arithmetic
// is float32 and the state too; roundings are those of `delta.cpp`.
#include <cmath>
#include <cstring>

#include "delta.h"
#include "export.h"
#include "parallel.h"

namespace {

constexpr int64_t CHUNK = 16;  // tokens of a system
constexpr int64_t BLOCK = 64;  // tokens whose queries, keys and values are held at once
constexpr int64_t COLUMNS = 2 * LANES;  // of the state at once
constexpr int64_t TOKENS = LANES == 16 ? 4 : 2;  // whose keys and queries ask the state at once
constexpr int64_t ROWS = 2 * TOKENS;  // of the state that are written at once
constexpr int64_t TAIL = MOST_DELTA_KERNEL - 1;

// What the tokens of a chunk are to one another. Where there are fewer, the rest have no weight.
struct Chunk {
  alignas(64) float system[CHUNK * CHUNK];  // what stands below the diagonal, negated
  alignas(64) float attention[CHUNK * CHUNK];
  alignas(64) float beta[CHUNK], grown[CHUNK], left[CHUNK];
  float decay;
};

struct Work {
  alignas(64) float queries[BLOCK * MOST_DELTA_DIM], keys[BLOCK * MOST_DELTA_DIM], values[BLOCK * MOST_DELTA_DIM];
  alignas(64) float state[MOST_DELTA_DIM * COLUMNS];
  alignas(64) float taps[3][MOST_DELTA_KERNEL * MOST_DELTA_DIM];  // of queries, keys, values: [kernel, MOST_DELTA_DIM]
  Chunk chunks[BLOCK / CHUNK];
};

constexpr int64_t padded(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// A convolution's weights with those of a token side by side, zeros behind them.
template <class T>
void lay_taps(const Delta<T>& delta, int64_t channel, int64_t size, float* taps) {
  for (int64_t t = 0; t < delta.kernel; ++t)
    for (int64_t c = 0; c < padded(size, LANES); ++c)
      taps[t * MOST_DELTA_DIM + c] = c < size ? widen(delta.convolution[(channel + c) * delta.kernel + t]) : 0.0f;
}

// silu of the causal convolution of some channels for the tokens [first, first + tokens): [tokens, stride]. Inputs
// before the first token of all are the tail's.
template <class T>
void convolve(const Delta<T>& delta, const T* tail, int64_t first, int64_t tokens, int64_t channel, int64_t size,
              const float* taps, float* out, int64_t stride) {
  const int64_t kernel = delta.kernel, before = kernel - 1;
  for (int64_t c = 0; c < size; c += LANES) {
    Vec inputs[TAIL + BLOCK];
    for (int64_t i = 0; i < before + tokens; ++i) {
      const int64_t token = first - before + i;
      const T* from = token < 0 ? tail + (before + token) * delta.channels() : delta.projected + token * delta.width();
      inputs[i] = load(from + channel + c, size - c);
    }
    Vec tap[MOST_DELTA_KERNEL];
    for (int64_t t = 0; t < kernel; ++t) tap[t] = load(taps + t * MOST_DELTA_DIM + c);
    for (int64_t i = 0; i < tokens; ++i) {
      Vec total{};
      for (int64_t t = 0; t < kernel; ++t) total = fma(inputs[i + t], tap[t], total);
      store(out + i * stride + c, silu(total));
    }
  }
}

// Gates of `tokens` tokens and what their keys, [CHUNK, stride] with zeros behind the last, are to one another.
template <class T>
void prepare(const Delta<T>& delta, int64_t head, int64_t first, int64_t tokens, const float* queries,
             const float* keys, int64_t stride, Chunk& chunk) {
  alignas(64) float decays[CHUNK];
  float sum = 0;
  for (int64_t i = 0; i < CHUNK; ++i) {
    float decay = 0;
    chunk.beta[i] = 0;
    if (i < tokens) delta_gates(delta, delta.projected + (first + i) * delta.width(), head, chunk.beta + i, &decay);
    decays[i] = sum += decay;
  }
  for (int64_t i = 0; i < CHUNK; i += LANES) {
    store(chunk.grown + i, exp(load(decays + i)));
    store(chunk.left + i, exp(sum - load(decays + i)));
  }
  chunk.decay = chunk.grown[CHUNK - 1];
  for (int64_t i = 0; i < CHUNK; ++i) {
    alignas(64) float between[CHUNK], recalled[CHUNK], asked[CHUNK];
    for (int64_t j = 0; j < CHUNK; j += LANES) store(between + j, exp(decays[i] - load(decays + j)));
    for (int64_t j = 0; j <= i; j += 4) {
      Vec k[4] = {}, q[4] = {};
      for (int64_t d = 0; d < stride; d += LANES) {
        const Vec key = load(keys + i * stride + d), query = load(queries + i * stride + d);
        for (int64_t n = 0; n < 4; ++n) {
          const Vec other = load(keys + (j + n) * stride + d);
          k[n] = fma(key, other, k[n]);
          q[n] = fma(query, other, q[n]);
        }
      }
      sum4(k[0], k[1], k[2], k[3], recalled + j);
      sum4(q[0], q[1], q[2], q[3], asked + j);
    }
    // Above the diagonal the differences of decays are positive and may overflow: they are not used.
    for (int64_t j = 0; j < CHUNK; ++j) {
      chunk.system[i * CHUNK + j] = j < i ? -chunk.beta[i] * (between[j] * recalled[j]) : 0.0f;
      chunk.attention[i * CHUNK + j] = j <= i ? between[j] * asked[j] : 0.0f;
    }
  }
}

// For TOKENS tokens: wrote = beta (values - grown K S), and values = grown Q S.
void ask(const float* queries, const float* keys, int64_t stride, const float* state, const Chunk& chunk, int64_t i,
         float* values, int64_t value_stride, float* wrote) {
  Vec recalled[TOKENS][2] = {}, asked[TOKENS][2] = {};
  for (int64_t d = 0; d < stride; ++d) {
    const Vec left = load(state + d * COLUMNS), right = load(state + d * COLUMNS + LANES);
    for (int64_t t = 0; t < TOKENS; ++t) {
      const Vec key = all(keys[t * stride + d]), query = all(queries[t * stride + d]);
      recalled[t][0] = fma(key, left, recalled[t][0]);
      recalled[t][1] = fma(key, right, recalled[t][1]);
      asked[t][0] = fma(query, left, asked[t][0]);
      asked[t][1] = fma(query, right, asked[t][1]);
    }
  }
  for (int64_t t = 0; t < TOKENS; ++t)
    for (int64_t w = 0; w < 2; ++w) {
      float* value = values + t * value_stride + w * LANES;
      const Vec grown = all(chunk.grown[i + t]);
      store(wrote + t * COLUMNS + w * LANES, (load(value) - grown * recalled[t][w]) * chunk.beta[i + t]);
      store(value, grown * asked[t][w]);
    }
}

// Solves the chunk's system in place for a vector of columns, and adds what the chunk's tokens see of one another.
void solve(const Chunk& chunk, float* wrote, float* values, int64_t stride) {
  Vec each[CHUNK];
  for (int64_t i = 0; i < CHUNK; ++i) each[i] = load(wrote + i * COLUMNS);
#pragma GCC unroll 16
  for (int64_t j = 0; j < CHUNK; ++j)
#pragma GCC unroll 16
    for (int64_t i = j + 1; i < CHUNK; ++i) each[i] = fma(all(chunk.system[i * CHUNK + j]), each[j], each[i]);
  for (int64_t i = 0; i < CHUNK; ++i) store(wrote + i * COLUMNS, each[i]);

  for (int64_t i = 0; i < CHUNK; ++i) each[i] = load(values + i * stride);
#pragma GCC unroll 16
  for (int64_t j = 0; j < CHUNK; ++j) {
    const Vec other = load(wrote + j * COLUMNS);
#pragma GCC unroll 16
    for (int64_t i = j; i < CHUNK; ++i) each[i] = fma(all(chunk.attention[i * CHUNK + j]), other, each[i]);
  }
  for (int64_t i = 0; i < CHUNK; ++i) {
    store(values + i * stride, each[i]);
    store(wrote + i * COLUMNS, load(wrote + i * COLUMNS) * chunk.left[i]);
  }
}

// ROWS rows of the state: S = decay S + K^T wrote.
void write(const float* keys, int64_t stride, const float* wrote, float decay, float* state) {
  Vec rows[ROWS][2];
  for (int64_t r = 0; r < ROWS; ++r)
    for (int64_t w = 0; w < 2; ++w) rows[r][w] = decay * load(state + r * COLUMNS + w * LANES);
  for (int64_t i = 0; i < CHUNK; ++i) {
    const Vec left = load(wrote + i * COLUMNS), right = load(wrote + i * COLUMNS + LANES);
    for (int64_t r = 0; r < ROWS; ++r) {
      const Vec key = all(keys[i * stride + r]);
      rows[r][0] = fma(key, left, rows[r][0]);
      rows[r][1] = fma(key, right, rows[r][1]);
    }
  }
  for (int64_t r = 0; r < ROWS; ++r)
    for (int64_t w = 0; w < 2; ++w) store(state + r * COLUMNS + w * LANES, rows[r][w]);
}

// The rule over the chunks of a block, for COLUMNS columns of the state; values become outputs.
void scan(Work& work, int64_t chunks, int64_t key_stride, int64_t value_stride, int64_t column) {
  for (int64_t c = 0; c < chunks; ++c) {
    const Chunk& chunk = work.chunks[c];
    const float *queries = work.queries + c * CHUNK * key_stride, *keys = work.keys + c * CHUNK * key_stride;
    float* values = work.values + c * CHUNK * value_stride + column;
    alignas(64) float wrote[CHUNK * COLUMNS];
    for (int64_t i = 0; i < CHUNK; i += TOKENS)
      ask(queries + i * key_stride, keys + i * key_stride, key_stride, work.state, chunk, i,
          values + i * value_stride, value_stride, wrote + i * COLUMNS);
    for (int64_t w = 0; w < COLUMNS; w += LANES) solve(chunk, wrote + w, values + w, value_stride);
    for (int64_t d = 0; d < key_stride; d += ROWS)
      write(keys + d, key_stride, wrote, chunk.decay, work.state + d * COLUMNS);
  }
}

// The columns [column, column + COLUMNS) of a state to and from the cache; what lies beyond it is zero.
void fetch(const float* state, int64_t key_dim, int64_t value_dim, int64_t column, int64_t rows, float* to) {
  for (int64_t d = 0; d < rows; ++d)
    for (int64_t w = 0; w < COLUMNS; w += LANES) {
      const int64_t n = value_dim - column - w;
      store(to + d * COLUMNS + w, d < key_dim && n > 0 ? load(state + d * value_dim + column + w, n) : Vec{});
    }
}

void put_back(const float* from, int64_t key_dim, int64_t value_dim, int64_t column, float* state) {
  for (int64_t d = 0; d < key_dim; ++d)
    for (int64_t w = 0; w < COLUMNS; w += LANES) {
      const int64_t n = value_dim - column - w;
      if (n > 0) store(state + d * value_dim + column + w, load(from + d * COLUMNS + w), n);
    }
}

template <class T>
void run_head(const Delta<T>& delta, const T* tail, int64_t tokens, int64_t head, float* state, Work& work) {
  const int64_t key_dim = delta.key_dim, value_dim = delta.value_dim;
  const int64_t key_stride = padded(key_dim, LANES), value_stride = padded(value_dim, COLUMNS);
  const int64_t query_channel = delta.key_head(head) * key_dim, key_channel = delta.keys() + query_channel;
  const int64_t value_channel = 2 * delta.keys() + head * value_dim;
  lay_taps(delta, query_channel, key_dim, work.taps[0]);
  lay_taps(delta, key_channel, key_dim, work.taps[1]);
  lay_taps(delta, value_channel, value_dim, work.taps[2]);
  std::memset(work.values, 0, sizeof work.values);  // the columns behind value_dim

  for (int64_t first = 0; first < tokens; first += BLOCK) {
    const int64_t count = tokens - first < BLOCK ? tokens - first : BLOCK, whole = padded(count, CHUNK);
    convolve(delta, tail, first, count, query_channel, key_dim, work.taps[0], work.queries, key_stride);
    convolve(delta, tail, first, count, key_channel, key_dim, work.taps[1], work.keys, key_stride);
    convolve(delta, tail, first, count, value_channel, value_dim, work.taps[2], work.values, value_stride);
    std::memset(work.queries + count * key_stride, 0, (whole - count) * key_stride * sizeof(float));
    std::memset(work.keys + count * key_stride, 0, (whole - count) * key_stride * sizeof(float));
    std::memset(work.values + count * value_stride, 0, (whole - count) * value_stride * sizeof(float));
    for (int64_t i = 0; i < count; ++i) {
      float *query = work.queries + i * key_stride, *key = work.keys + i * key_stride;
      normalize(query, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)), query);
      normalize(key, key_dim, 1.0f, key);
    }
    for (int64_t i = 0; i < count; i += CHUNK)
      prepare(delta, head, first + i, count - i < CHUNK ? count - i : CHUNK, work.queries + i * key_stride,
              work.keys + i * key_stride, key_stride, work.chunks[i / CHUNK]);
    for (int64_t column = 0; column < value_dim; column += COLUMNS) {
      fetch(state, key_dim, value_dim, column, key_stride, work.state);
      scan(work, whole / CHUNK, key_stride, value_stride, column);
      put_back(work.state, key_dim, value_dim, column, state);
    }
    for (int64_t i = 0; i < count; ++i)
      gated_norm(delta, delta.projected + (first + i) * delta.width(), head, work.values + i * value_stride,
                 delta.out + ((first + i) * delta.heads + head) * value_dim);
  }
}

template <class T>
void run(const Delta<T>& delta, int64_t slot, int64_t tokens) {
  const int64_t channels = delta.channels(), before = delta.kernel - 1;
  T* tail = delta.tail + slot * before * channels;
  const int64_t state_size = delta.key_dim * delta.value_dim;
  parallel(delta.heads, 1, [&](int64_t begin, int64_t end) {
    Work work;
    for (int64_t head = begin; head < end; ++head)
      run_head(delta, tail, tokens, head, delta.state + (slot * delta.heads + head) * state_size, work);
  });
  // Every head reads the tail that was: it moves on behind them.
  for (int64_t i = 0; i < before; ++i) {
    const int64_t token = tokens - before + i;
    const T* from = token < 0 ? tail + (before + token) * channels : delta.projected + token * delta.width();
    std::memcpy(tail + i * channels, from, channels * sizeof(T));
  }
}

}  // namespace

// As `kaminari_delta_step`, for `tokens` tokens of the row in one slot, which must be one: projected [tokens,
// channels + heads * value_dim + 2 * heads], out [tokens, heads, value_dim].
KAMINARI void kaminari_delta_prompt(const void* projected, const void* convolution, const void* decay_log,
                                    const void* time_bias, const void* norm, void* state, void* tail, void* out,
                                    int64_t slot, int64_t tokens, int64_t key_heads, int64_t heads,
                                    int64_t key_dim, int64_t value_dim, int64_t kernel, float eps, int32_t narrow) {
  const auto with = [&](auto kind) {
    using T = decltype(kind);
    run(Delta<T>{static_cast<const T*>(projected), static_cast<const T*>(convolution),
                 static_cast<const T*>(decay_log), static_cast<const T*>(time_bias), static_cast<const T*>(norm),
                 static_cast<float*>(state), static_cast<T*>(tail), static_cast<T*>(out), key_heads, heads, key_dim,
                 value_dim, kernel, eps},
        slot, tokens);
  };
  narrow ? with(bf16{}) : with(float{});
}
