// Reduces a segment of bfloat16 keys and values by the processor's products of bfloat16 pairs.
//
// A product of two bfloat16 numbers is exact in float32, and sums are float32, so scores are as exact as those of
// `segment_plain.h`. Weights are rounded to bfloat16 before they multiply values, as torch's attention does, but
// those that are summed are the rounded ones: what all of a row's weights are off by alike is divided away. The
// order of every sum depends on the head's size alone, so that a query's result is the same bits beside any others.
// What is read next is asked for meanwhile, values while keys pass and the next piece's keys while values do: from
// memory it is one stream, which the processor does not see in pieces of keys and values by turns.
#pragma once
#if defined(__AVX512BF16__)
#include <cstring>

#include "pairs.h"
#include "segment.h"
#include "unrolled.h"

namespace pairs {

constexpr int64_t KEYS = 16;      // whose scores are a vector
constexpr int64_t HALF = 16;      // channels of a query in half a vector
constexpr int64_t CHANNELS = 32;  // of values in a vector
constexpr int IN_L2 = 1;          // how near __builtin_prefetch brings what it asks for
constexpr int64_t LINE = 32;       // numbers of a line of the cache

// Inlined, or the compiler takes it for a function without effect.
ALWAYS_INLINE inline void ask(const bf16* from, int64_t numbers) {
  for (int64_t i = 0; i < numbers; i += LINE) __builtin_prefetch(from + i, 0, IN_L2);
}

// Sums of neighbouring 128-bit parts, of neighbouring halves of those, and of neighbours, of two vectors at once.
inline __m512 add_parts(__m512 a, __m512 b) {
  return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
}
inline __m512 add_halves(__m512 a, __m512 b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) + _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
}
inline __m512 add_neighbours(__m512 a, __m512 b) {
  return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd);
}

// Scores of some queries over 16 keys. A vector of sums holds two keys, half of it each. q: of every 16 channels of a
// query two copies.
// DIM: the head's size where the compiler is to know it, else 0.
template <int QUERIES, int64_t DIM>
ALWAYS_INLINE inline void score_keys(const bf16* q, const bf16* keys, int64_t size, float scale, float* scores) {
  const int64_t dim = DIM ? DIM : size;
  __m512 sums[QUERIES][8];
  unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
    unrolled<8>([&](auto i) ALWAYS_INLINE { sums[j][i] = _mm512_setzero_ps(); });
  });
  for (int64_t d = 0; d < dim; d += HALF) {
    const auto half = [&](int64_t i) ALWAYS_INLINE {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i * dim + d));
    };
    unrolled<8>([&](auto i) ALWAYS_INLINE {
      const __m512i two = _mm512_inserti64x4(_mm512_castsi256_si512(half(i)), half(i + 8), 1);
      unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
        sums[j][i] = add_products(sums[j][i], _mm512_load_si512(q + 2 * (j * dim + d)), two);
      });
    });
  }
  unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
    const __m512* of = sums[j];
    const __m512 each = add_neighbours(add_halves(add_parts(of[0], of[4]), add_parts(of[1], of[5])),
                                       add_halves(add_parts(of[2], of[6]), add_parts(of[3], of[7])));
    // by parts of 128 bits it holds keys 0 to 3, 8 to 11, 4 to 7 and 12 to 15
    _mm512_store_ps(scores + j * SEGMENT, scale * _mm512_shuffle_f32x4(each, each, 0xd8));
  });
}

template <int QUERIES, int64_t DIM>
void score(const bf16* q, const Part<bf16>& part, bool asks, float* scores) {
  const int64_t dim = part.call.dim;
  int64_t i = 0;
  for (; i + KEYS <= part.count; i += KEYS) {
    if (asks) ask(part.values + i * dim, KEYS * dim);
    score_keys<QUERIES, DIM>(q, part.keys + i * dim, dim, part.call.scale, scores + i);
  }
  if (i == part.count) return;
  alignas(64) bf16 some[KEYS * MOST_DIM];
  const int64_t rest = (part.count - i) * dim;
  if (asks) ask(part.values + i * dim, rest);
  std::memcpy(some, part.keys + i * dim, rest * sizeof(bf16));
  std::memset(some + rest, 0, (KEYS * dim - rest) * sizeof(bf16));
  score_keys<QUERIES, DIM>(q, some, dim, part.call.scale, scores + i);
}

template <int QUERIES>
void score_all(const bf16* q, const Part<bf16>& part, bool asks, float* scores) {
  switch (part.call.dim) {
    case 32: return score<QUERIES, 32>(q, part, asks, scores);
    case 64: return score<QUERIES, 64>(q, part, asks, scores);
    case 128: return score<QUERIES, 128>(q, part, asks, scores);
    case 256: return score<QUERIES, 256>(q, part, asks, scores);
    default: return score<QUERIES, 0>(q, part, asks, scores);
  }
}

// out[j] = sum of weights[j][i] * values[i] over WIDTH vectors of a head, or the lower half of one, where every
// CHAINSth pair of keys is summed on its own.
template <int QUERIES, int WIDTH, int CHAINS, bool HALVED = false>
void weigh(const float* weights, const Part<bf16>& part, int64_t first, bool asks, float* out, int64_t stride) {
  __m512 low[CHAINS][QUERIES][WIDTH], high[CHAINS][QUERIES][WIDTH];
  unrolled<CHAINS>([&](auto c) ALWAYS_INLINE {
    unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
      unrolled<WIDTH>([&](auto w) ALWAYS_INLINE { low[c][j][w] = high[c][j][w] = _mm512_setzero_ps(); });
    });
  });
  const int64_t dim = part.call.dim, count = part.count;
  const auto value = [&](int64_t i, int w) ALWAYS_INLINE {
    const bf16* from = part.values + i * dim + first + w * CHANNELS;
    return HALVED ? _mm512_maskz_loadu_epi16(0xffff, from) : _mm512_loadu_si512(from);
  };
  const auto add = [&](auto c, int64_t i, int64_t next) ALWAYS_INLINE {
    unrolled<WIDTH>([&](auto w) ALWAYS_INLINE {
      const __m512i a = value(i, w), b = value(next, w);
      const __m512i left = _mm512_unpacklo_epi16(a, b), right = _mm512_unpackhi_epi16(a, b);
      unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
        const __m512i weight = (__m512i)_mm512_set1_ps(weights[j * SEGMENT + i / 2]);
        low[c][j][w] = add_products(low[c][j][w], weight, left);
        high[c][j][w] = add_products(high[c][j][w], weight, right);
      });
    });
  };
  constexpr int64_t STEP = 2 * CHAINS;
  int64_t i = 0;
  for (; i + STEP <= count; i += STEP) {
    if (asks && i < part.next_count) ask(part.next + i * dim, STEP * dim);
    unrolled<CHAINS>([&](auto c) ALWAYS_INLINE { add(c, i + 2 * c, i + 2 * c + 1); });
  }
  unrolled<CHAINS>([&](auto c) ALWAYS_INLINE {  // behind an odd last key its weight is followed by a zero
    const int64_t rest = i + 2 * c;
    if (rest < count) add(c, rest, rest + 1 < count ? rest + 1 : rest);
  });
  // a vector of pairs holds channels 8 n to 8 n + 3 of its 128-bit parts n, or 8 n + 4 to 8 n + 7
  const __m512i lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i upper = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
    unrolled<WIDTH>([&](auto w) ALWAYS_INLINE {
      __m512 a = low[0][j][w], b = high[0][j][w];
      if constexpr (CHAINS == 2) a += low[1][j][w], b += high[1][j][w];
      float* to = out + j * stride + first + w * CHANNELS;
      _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, lower, b));
      if constexpr (!HALVED) _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(a, upper, b));
    });
  });
}

// All of a head, by as many sums as registers hold; the number of chains must not depend on QUERIES.
template <int QUERIES, int WIDTH, int CHAINS>
void weigh_head(const float* weights, const Part<bf16>& part, bool asks, float* out, int64_t stride) {
  const int64_t dim = part.call.dim;
  int64_t d = 0;
  for (; d + WIDTH * CHANNELS <= dim; d += WIDTH * CHANNELS)
    weigh<QUERIES, WIDTH, CHAINS>(weights, part, d, asks && d == 0, out, stride);
  for (; d + CHANNELS <= dim; d += CHANNELS)
    weigh<QUERIES, 1, CHAINS>(weights, part, d, asks && d == 0, out, stride);
  if (d < dim) weigh<QUERIES, 1, CHAINS, true>(weights, part, d, asks && d == 0, out, stride);
}

template <int QUERIES>
void weigh_all(const float* weights, const Part<bf16>& part, bool asks, float* out, int64_t stride) {
  if (part.call.dim < 128)
    weigh_head<QUERIES, QUERIES == 4 ? 1 : 2, 2>(weights, part, asks, out, stride);
  else
    weigh_head<QUERIES, QUERIES == 4 ? 2 : 4, 1>(weights, part, asks, out, stride);
}

// partial: per query a maximum, a sum, and `dim` values.
inline void reduce(const Part<bf16>& part, float* partial) {
  const int64_t dim = part.call.dim, queries = part.queries(), stride = dim + 2;
  alignas(64) bf16 q[BLOCK * MOST_DIM * 2];
  alignas(64) float scores[BLOCK * SEGMENT];
  for (int64_t done = 0; done < queries; done += BLOCK) {
    const int64_t block = queries - done < BLOCK ? queries - done : BLOCK;
    int64_t j = 0;
    for (; j < block; ++j) {
      const bf16* from = part.query(done + j);
      for (int64_t d = 0; d < dim; d += HALF)
        for (int64_t copy = 0; copy < 2; ++copy)
          std::memcpy(q + 2 * (j * dim + d) + copy * HALF, from + d, HALF * sizeof(bf16));
    }
    for (j = 0; j + 2 <= block; j += 2) score_all<2>(q + 2 * j * dim, part, done + j == 0, scores + j * SEGMENT);
    if (j < block) score_all<1>(q + 2 * j * dim, part, done + j == 0, scores + j * SEGMENT);
    float* results = partial + done * stride;
    for (j = 0; j < block; ++j) {
      float *own = scores + j * SEGMENT, *top = results + j * stride;
      *top = NOTHING;
      top[1] = soften(own, part.seen(done + j), part.count, top, own);
    }
    float* sums = results + 2;
    const auto weigh_some = [&](auto some) {
      for (; j + some <= block; j += some)
        weigh_all<some>(scores + j * SEGMENT, part, done + j == 0, sums + j * stride, stride);
    };
    j = 0;
    weigh_some(std::integral_constant<int, 4>{});
    weigh_some(std::integral_constant<int, 2>{});
    weigh_some(std::integral_constant<int, 1>{});
  }
}

}  // namespace pairs
#endif
