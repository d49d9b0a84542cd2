// Attention of one row's many new tokens over all that its slot holds, or of a picture's patches over one another.
//
// A piece of work is one key-value head and some tokens, for all query heads that read it. It walks the keys in
// blocks from the row's first key on, with the online softmax of Milakov and Gimelshein (2018): a block is widened
// to float32 once, its keys lie side by side across the lanes of a vector, and scores never leave the cache. Where
// blocks begin depends on nothing but the row, so a token's result is the same bits however a prompt is cut and
// whatever the threads are. Scores, weights and sums are float32. Nothing past the row's length is read.
#include <type_traits>

#include "export.h"
#include "parallel.h"
#include "prompt.h"

namespace {

constexpr int64_t BLOCK = 64;  // keys
constexpr int64_t MOST_DIM = 256;
constexpr int64_t QUERIES = 128;  // query heads of tokens that share a widened block
constexpr int64_t TILE = LANES == 16 ? 4 : 2;  // queries whose sums stay in registers
constexpr int64_t VECS = BLOCK / LANES;
struct Work {
  alignas(64) float q[QUERIES * MOST_DIM], sums[QUERIES * MOST_DIM];
  alignas(64) float keys[MOST_DIM * BLOCK], values[BLOCK * MOST_DIM];  // keys [dim, BLOCK]
  float top[QUERIES], total[QUERIES];
};

// Widens `count` keys and values of a head from `begin` on; what lies behind them is zero.
template <class T>
void widen_block(const PromptCall<T>& call, int64_t kv_head, int64_t begin, int64_t count, Work& work) {
  const int64_t dim = call.dim;
  const T* keys = call.keys + kv_head * call.key.head + begin * call.key.token;
  const T* values = call.values + kv_head * call.value.head + begin * call.value.token;
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t i = 0; i < BLOCK; ++i)
      work.keys[d * BLOCK + i] = i < count ? widen(keys[i * call.key.token + d]) : 0.0f;
  for (int64_t i = 0; i < BLOCK; ++i)
    for (int64_t d = 0; d < dim; d += LANES)
      store(work.values + i * dim + d, i < count ? load(values + i * call.value.token + d) : Vec{});
}

// Scores of TILE queries over a block: [TILE, BLOCK].
void score(const float* q, const float* keys, int64_t dim, float* scores) {
  constexpr int PART = LANES == 16 ? VECS : 4;
  for (int part = 0; part < VECS; part += PART) {
    Vec sums[TILE][PART] = {};
    for (int64_t d = 0; d < dim; ++d) {
      Vec key[PART];
      for (int i = 0; i < PART; ++i) key[i] = load(keys + d * BLOCK + (part + i) * LANES);
      for (int j = 0; j < TILE; ++j) {
        const Vec query = all(q[j * dim + d]);
        for (int i = 0; i < PART; ++i) sums[j][i] = fma(query, key[i], sums[j][i]);
      }
    }
    for (int j = 0; j < TILE; ++j)
      for (int i = 0; i < PART; ++i) store(scores + j * BLOCK + (part + i) * LANES, sums[j][i]);
  }
}

// sums[j] = shrink[j] * sums[j] + weights[j] @ values, over WIDTH vectors of a head.
template <int WIDTH>
void weigh(const float* weights, const float* values, const float* shrink, int64_t dim, float* sums) {
  Vec added[TILE][WIDTH];
  for (int j = 0; j < TILE; ++j)
    for (int w = 0; w < WIDTH; ++w) added[j][w] = all(shrink[j]) * load(sums + j * dim + w * LANES);
  for (int64_t i = 0; i < BLOCK; ++i) {
    Vec value[WIDTH];
    for (int w = 0; w < WIDTH; ++w) value[w] = load(values + i * dim + w * LANES);
    for (int j = 0; j < TILE; ++j) {
      const Vec weight = all(weights[j * BLOCK + i]);
      for (int w = 0; w < WIDTH; ++w) added[j][w] = fma(weight, value[w], added[j][w]);
    }
  }
  for (int j = 0; j < TILE; ++j)
    for (int w = 0; w < WIDTH; ++w) store(sums + j * dim + w * LANES, added[j][w]);
}

// Some tokens, from `first` on, of one key-value head.
template <class T>
void attend(const PromptCall<T>& call, int64_t kv_head, int64_t first, int64_t tokens, Work& work) {
  const int64_t dim = call.dim, group = call.heads / call.kv_heads, queries = tokens * group;
  const int64_t tiled = (queries + TILE - 1) / TILE * TILE;
  for (int64_t j = 0; j < tiled; ++j) {
    const T* q = call.q + (first + j / group) * call.q_stride + (kv_head * group + j % group) * dim;
    for (int64_t d = 0; d < dim; d += LANES) {
      store(work.q + j * dim + d, j < queries ? call.scale * load(q + d) : Vec{});
      store(work.sums + j * dim + d, Vec{});
    }
    work.top[j] = NOTHING;
    work.total[j] = 0;
  }
  for (int64_t begin = 0; begin < call.reach(first + tokens - 1); begin += BLOCK) {
    const int64_t count = call.length - begin < BLOCK ? call.length - begin : BLOCK;
    widen_block(call, kv_head, begin, count, work);
    for (int64_t tile = 0; tile < tiled; tile += TILE) {
      // the tile's last token reads the most keys; what no token of it reads changes nothing
      if (call.reach(first + (tile + TILE - 1) / group) <= begin) continue;
      alignas(64) float scores[TILE * BLOCK], shrink[TILE];
      score(work.q + tile * dim, work.keys, dim, scores);
      for (int64_t j = 0; j < TILE; ++j) {
        const int64_t seen = call.reach(first + (tile + j) / group) - begin;
        if (seen <= 0) {
          for (int64_t i = 0; i < BLOCK; ++i) scores[j * BLOCK + i] = 0;
          shrink[j] = 1;
        } else {
          shrink[j] = soften<BLOCK>(scores + j * BLOCK, seen < BLOCK ? seen : BLOCK, work.top + tile + j,
                             work.total + tile + j);
        }
      }
      constexpr int WIDTH = 4;
      int64_t d = 0;
      float* sums = work.sums + tile * dim;
      for (; d + WIDTH * LANES <= dim; d += WIDTH * LANES) weigh<WIDTH>(scores, work.values + d, shrink, dim, sums + d);
      for (; d + 2 * LANES <= dim; d += 2 * LANES) weigh<2>(scores, work.values + d, shrink, dim, sums + d);
      for (; d < dim; d += LANES) weigh<1>(scores, work.values + d, shrink, dim, sums + d);
    }
  }
  for (int64_t j = 0; j < queries; ++j) {
    T* out = call.out + ((first + j / group) * call.heads + kv_head * group + j % group) * dim;
    for (int64_t d = 0; d < dim; d += LANES) store(out + d, load(work.sums + j * dim + d) / work.total[j]);
  }
}

template <class T>
void run(const PromptCall<T>& call) {
  const int64_t group = call.heads / call.kv_heads, each = QUERIES / group;
  const int64_t pieces = (call.tokens + each - 1) / each;
  parallel(call.kv_heads * pieces, 1, [&](int64_t begin, int64_t end) {
    Work work;
    for (int64_t item = begin; item < end; ++item) {
      // those with the most keys first, so that no thread is left with one at the end
      const int64_t first = (pieces - 1 - item / call.kv_heads) * each;
      attend(call, item % call.kv_heads, first, call.tokens - first < each ? call.tokens - first : each, work);
    }
  });
}

}  // namespace

// q [tokens, heads, dim] with a stride from token to token; keys and values [length, kv_heads, dim], written
// already, with strides from token to token and from head to head; out [tokens, heads, dim]; strides in elements.
// All bfloat16 where `narrow` is set, else float32. Where `causal` is set, the tokens are the last of `length`, and
// each reads up to its own; there dim is a multiple of 16, else even, in both up to 256. At most 128 heads read one of
// keys.
KAMINARI void kaminari_attend_prompt(const void* q, const void* keys, const void* values, void* out, int64_t q_stride,
                                     int64_t key_stride, int64_t key_head_stride, int64_t value_stride,
                                     int64_t value_head_stride, int64_t tokens, int64_t heads, int64_t kv_heads,
                                     int64_t length, int64_t dim, float scale, int32_t causal, int32_t narrow) {
  const auto with = [&](auto kind) {
    using T = decltype(kind);
    const PromptCall<T> call{static_cast<const T*>(q),
                             static_cast<const T*>(keys),
                             static_cast<const T*>(values),
                             static_cast<T*>(out),
                             q_stride,
                             {key_stride, key_head_stride},
                             {value_stride, value_head_stride},
                             tokens,
                             heads,
                             kv_heads,
                             length,
                             dim,
                             scale,
                             causal != 0};
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>)
      return attend_prompt_in_bfloat(call);
#endif
    run(call);
  };
  narrow ? with(bf16{}) : with(float{});
}
