// `prompt.cpp` by the processor's products of bfloat16 pairs, at twice the rate, over bfloat16 keys and values on
// CPUs that have them.
//
// A product of two bfloat16 numbers is exact in float32, so scores are as exact as those of `prompt.cpp`; weights
// are rounded to bfloat16 before they multiply values, as torch's attention does, and so they are summed. Sums are
// float32. A piece of work is one key-value head and some tokens; the row's keys are walked in blocks from its first,
// so that a token's result is the same bits however a prompt is cut. In a block every step takes all queries: scores,
// softmax, values.
#if defined(__AVX512BF16__)
#include "pairs.h"
#include "parallel.h"
#include "prompt.h"

namespace {

using pairs::add_products;

constexpr int64_t BLOCK = 128;    // keys
constexpr int64_t SLAB = 32;      // keys, or channels of values, that stay in the first-level cache
constexpr int64_t MOST_DIM = 256;
constexpr int64_t QUERIES = 128;  // query heads of tokens that share a block
constexpr int64_t TILE = 8;       // queries whose sums stay in registers

// A pair of neighbours in each 32-bit lane: channels of a query or key, or a channel of two keys' values.
using Pairs = uint32_t;

struct Work {
  alignas(64) Pairs q[QUERIES * MOST_DIM / 2];
  alignas(64) Pairs keys[MOST_DIM / 2 * BLOCK];    // [SLAB of keys, pair of channels, key]
  alignas(64) Pairs values[BLOCK / 2 * MOST_DIM];  // [SLAB of channels, pair of keys, channel]
  alignas(64) float scores[QUERIES * BLOCK], sums[QUERIES * MOST_DIM];
  alignas(64) Pairs weights[QUERIES * BLOCK / 2];
  float top[QUERIES], total[QUERIES], shrink[QUERIES];
};

inline __m512i splat(const Pairs* from) { return _mm512_set1_epi32(static_cast<int32_t>(*from)); }

inline __mmask16 first_lanes(int64_t count) { return count < LANES ? (1u << count) - 1 : 0xffff; }

// Turns 16 vectors of 16 lanes over their diagonal.
void transpose(__m512i (&rows)[16]) {
  __m512i other[16];
  for (int i = 0; i < 16; i += 2) {
    other[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    other[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm512_unpacklo_epi64(other[i + j], other[i + 2 + j]);
      rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(other[i + j], other[i + 2 + j]);
    }
  // rows[4 g + c] holds, in its part p of 128 bits, column 4 p + c of the rows 4 g to 4 g + 3
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
    const __m512i high_odd = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
    other[c] = _mm512_shuffle_i32x4(low, high, 0x88);
    other[8 + c] = _mm512_shuffle_i32x4(low, high, 0xdd);
    other[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    other[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = other[i];
}

// Lays `count` keys and values of a head, from `begin` on, side by side; what lies behind them is zero.
void lay_block(const PromptCall<bf16>& call, int64_t kv_head, int64_t begin, int64_t count, Work& work) {
  const bf16* keys = call.keys + kv_head * call.key.head + begin * call.key.token;
  const bf16* values = call.values + kv_head * call.value.head + begin * call.value.token;
  const int64_t dim = call.dim, pairs = dim / 2;
  for (int64_t key = 0; key < count; key += 16)
    for (int64_t pair = 0; pair < pairs; pair += 16) {
      const __mmask16 mask = first_lanes(pairs - pair);
      __m512i rows[16];
      for (int64_t i = 0; i < 16; ++i)
        rows[i] = key + i < count ? _mm512_maskz_loadu_epi32(mask, keys + (key + i) * call.key.token + 2 * pair)
                                  : _mm512_setzero_si512();
      transpose(rows);
      Pairs* to = work.keys + key / SLAB * SLAB * pairs + pair * SLAB + key % SLAB;
      for (int64_t i = 0; i < 16 && pair + i < pairs; ++i) _mm512_store_si512(to + i * SLAB, rows[i]);
    }
  for (int64_t key = 0; key < count; key += 2)
    for (int64_t d = 0; d < dim; d += 16) {
      const __mmask16 mask = first_lanes(dim - d);
      const auto wide = [&](int64_t k) {
        return k < count
                   ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, values + k * call.value.token + d))
                   : _mm512_setzero_si512();
      };
      Pairs* to = work.values + d / SLAB * SLAB * (BLOCK / 2) + key / 2 * SLAB + d % SLAB;
      _mm512_store_si512(to, _mm512_or_si512(wide(key), _mm512_slli_epi32(wide(key + 1), 16)));
    }
}

// Scores of TILE queries over a slab of keys.
void score(const Pairs* q, const Pairs* keys, int64_t pairs, float scale, float* scores) {
  __m512 sums[TILE][2] = {};
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512i left = _mm512_load_si512(keys + p * SLAB), right = _mm512_load_si512(keys + p * SLAB + 16);
    for (int64_t j = 0; j < TILE; ++j) {
      const __m512i query = splat(q + j * pairs + p);
      sums[j][0] = add_products(sums[j][0], query, left);
      sums[j][1] = add_products(sums[j][1], query, right);
    }
  }
  for (int64_t j = 0; j < TILE; ++j)
    for (int64_t w = 0; w < 2; ++w) _mm512_store_ps(scores + j * BLOCK + w * 16, scale * sums[j][w]);
}

// sums[j] = shrink[j] * sums[j] + weights[j] @ values, over WIDTH vectors of TILE queries.
template <int WIDTH>
void weigh(const Pairs* weights, const Pairs* values, int64_t pairs, const float* shrink, int64_t width,
           float* sums) {
  __m512 added[TILE][WIDTH];
  for (int64_t j = 0; j < TILE; ++j)
    for (int64_t w = 0; w < WIDTH; ++w) added[j][w] = shrink[j] * _mm512_loadu_ps(sums + j * width + w * 16);
  for (int64_t p = 0; p < pairs; ++p) {
    __m512i value[WIDTH];
    for (int64_t w = 0; w < WIDTH; ++w) value[w] = _mm512_load_si512(values + p * SLAB + w * 16);
    for (int64_t j = 0; j < TILE; ++j) {
      const __m512i weight = splat(weights + j * (BLOCK / 2) + p);
      for (int64_t w = 0; w < WIDTH; ++w) added[j][w] = add_products(added[j][w], weight, value[w]);
    }
  }
  for (int64_t j = 0; j < TILE; ++j)
    for (int64_t w = 0; w < WIDTH; ++w) _mm512_storeu_ps(sums + j * width + w * 16, added[j][w]);
}

// The weights of one query over a block of `count` keys, from its scores.
void weigh_keys(Work& work, int64_t query, int64_t seen, int64_t count) {
  const float before = work.top[query];
  const float added = pairs::soften(work.scores + query * BLOCK, seen < count ? seen : count, count,
                                    work.top + query, work.weights + query * (BLOCK / 2));
  const float now = work.top[query];
  work.shrink[query] = before == now ? 1.0f : exp(all(before - now))[0];
  work.total[query] = work.total[query] * work.shrink[query] + added;
}

// Some tokens, from `first` on, of one key-value head.
void attend(const PromptCall<bf16>& call, int64_t kv_head, int64_t first, int64_t tokens, Work& work) {
  const int64_t dim = call.dim, pairs = dim / 2, group = call.heads / call.kv_heads, queries = tokens * group;
  const int64_t tiled = (queries + TILE - 1) / TILE * TILE;
  const int64_t width = (dim + LANES - 1) / LANES * LANES;  // of a query's sums
  for (int64_t j = 0; j < tiled; ++j) {
    const bf16* q = call.q + (first + j / group) * call.q_stride + (kv_head * group + j % group) * dim;
    if (j < queries)
      std::memcpy(work.q + j * pairs, q, dim * sizeof(bf16));
    else
      std::memset(work.q + j * pairs, 0, dim * sizeof(bf16));
    for (int64_t d = 0; d < width; d += LANES) store(work.sums + j * width + d, Vec{});
    work.top[j] = NOTHING;
    work.total[j] = 0;
  }
  const int64_t reach = call.reach(first + tokens - 1);  // keys that any of the tokens reads
  for (int64_t begin = 0; begin < reach; begin += BLOCK) {
    const int64_t count = reach - begin < BLOCK ? reach - begin : BLOCK;
    lay_block(call, kv_head, begin, count, work);
    for (int64_t key = 0; key < count; key += SLAB)
      for (int64_t tile = 0; tile < tiled; tile += TILE)
        score(work.q + tile * pairs, work.keys + key * pairs, pairs, call.scale, work.scores + tile * BLOCK + key);
    for (int64_t j = 0; j < tiled; ++j) weigh_keys(work, j, call.reach(first + j / group) - begin, count);
    for (int64_t d = 0; d < width; d += SLAB)
      for (int64_t tile = 0; tile < tiled; tile += TILE) {
        const auto run = width - d < SLAB ? weigh<1> : weigh<2>;
        run(work.weights + tile * (BLOCK / 2), work.values + d * (BLOCK / 2), (count + 1) / 2, work.shrink + tile,
            width, work.sums + tile * width + d);
      }
  }
  for (int64_t j = 0; j < queries; ++j) {
    bf16* out = call.out + ((first + j / group) * call.heads + kv_head * group + j % group) * dim;
    for (int64_t d = 0; d < dim; d += LANES)
      store(out + d, load(work.sums + j * width + d) / work.total[j], dim - d);
  }
}

}  // namespace

void attend_prompt_in_bfloat(const PromptCall<bf16>& call) {
  const int64_t each = QUERIES / (call.heads / call.kv_heads);
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
#endif
