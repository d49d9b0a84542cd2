// Reduces a segment of bfloat16 keys and values by the processor's products of bfloat16 pairs.
//
// A product of two bfloat16 numbers is exact in float32, and sums are float32, so scores are as exact as those of
// `segment_plain.h`. Weights are rounded to bfloat16 before they multiply values, as torch's attention does, but
// those that are summed are the rounded ones: what all of a row's weights are off by alike is divided away. The
// order of every sum depends on the head's size alone, so that a query's result is the same bits beside any others.
// Keys and values are read line after line, which the processor follows and fetches ahead; asking for them besides
// only slowed it down.
#pragma once
#if defined(__AVX512BF16__)
#include <cstring>

#include "fold.h"
#include "pairs.h"
#include "segment.h"
#include "unrolled.h"

namespace pairs {

constexpr int64_t KEYS = 16;      // whose scores are a vector
constexpr int64_t CHANNELS = 32;  // of a key or value in a vector

// Scores of some queries [QUERIES][dim] over 16 keys, which are read as one stream.
// DIM: the head's size where the compiler is to know it, else 0.
template <int QUERIES, int64_t DIM>
ALWAYS_INLINE inline void score_keys(const bf16* q, const bf16* keys, int64_t size, float scale, float* scores) {
  const int64_t dim = DIM ? DIM : size;
  __m512 parts[QUERIES][4];  // of four keys each: a quarter for each
  unrolled<4>([&](auto four) ALWAYS_INLINE {
    __m512 sums[QUERIES][4];
    unrolled<4>([&](auto i) ALWAYS_INLINE {
      const bf16* key = keys + (4 * four + i) * dim;
      unrolled<QUERIES>([&](auto j) ALWAYS_INLINE { sums[j][i] = _mm512_setzero_ps(); });
      int64_t d = 0;
      for (; d + CHANNELS <= dim; d += CHANNELS) {
        const __m512i some = _mm512_loadu_si512(key + d);
        unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
          sums[j][i] = add_products(sums[j][i], _mm512_loadu_si512(q + j * dim + d), some);
        });
      }
      if (d < dim) {
        const __m512i some = _mm512_maskz_loadu_epi16(0xffff, key + d);
        unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
          sums[j][i] = add_products(sums[j][i], _mm512_maskz_loadu_epi16(0xffff, q + j * dim + d), some);
        });
      }
    });
    unrolled<QUERIES>([&](auto j) ALWAYS_INLINE { parts[j][four] = fold4(sums[j]); });
  });
  unrolled<QUERIES>([&](auto j) ALWAYS_INLINE {
    // lane 4 n + i holds key 4 i + n
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_store_ps(scores + j * SEGMENT, scale * _mm512_permutexvar_ps(order, fold16(parts[j])));
  });
}

template <int QUERIES, int64_t DIM>
void score(const bf16* q, const Part<bf16>& part, float* scores) {
  const int64_t dim = part.call.dim;
  int64_t i = 0;
  for (; i + KEYS <= part.count; i += KEYS) {
    score_keys<QUERIES, DIM>(q, part.keys + i * dim, dim, part.call.scale, scores + i);
  }
  if (i == part.count) return;
  alignas(64) bf16 some[KEYS * MOST_DIM];
  const int64_t rest = (part.count - i) * dim;
  std::memcpy(some, part.keys + i * dim, rest * sizeof(bf16));
  std::memset(some + rest, 0, (KEYS * dim - rest) * sizeof(bf16));
  score_keys<QUERIES, DIM>(q, some, dim, part.call.scale, scores + i);
}

template <int QUERIES>
void score_all(const bf16* q, const Part<bf16>& part, float* scores) {
  switch (part.call.dim) {
    case 32: return score<QUERIES, 32>(q, part, scores);
    case 64: return score<QUERIES, 64>(q, part, scores);
    case 128: return score<QUERIES, 128>(q, part, scores);
    case 256: return score<QUERIES, 256>(q, part, scores);
    default: return score<QUERIES, 0>(q, part, scores);
  }
}

// out[j] = sum of weights[j][i] * values[i] over WIDTH vectors of a head, or the lower half of one, where every
// CHAINSth pair of keys is summed on its own.
template <int QUERIES, int WIDTH, int CHAINS, bool HALVED = false>
void weigh(const float* weights, const Part<bf16>& part, int64_t first, float* out, int64_t stride) {
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
void weigh_head(const float* weights, const Part<bf16>& part, float* out, int64_t stride) {
  const int64_t dim = part.call.dim;
  int64_t d = 0;
  for (; d + WIDTH * CHANNELS <= dim; d += WIDTH * CHANNELS)
    weigh<QUERIES, WIDTH, CHAINS>(weights, part, d, out, stride);
  for (; d + CHANNELS <= dim; d += CHANNELS)
    weigh<QUERIES, 1, CHAINS>(weights, part, d, out, stride);
  if (d < dim) weigh<QUERIES, 1, CHAINS, true>(weights, part, d, out, stride);
}

template <int QUERIES>
void weigh_all(const float* weights, const Part<bf16>& part, float* out, int64_t stride) {
  if (part.call.dim < 128)
    weigh_head<QUERIES, QUERIES == 4 ? 1 : 2, 2>(weights, part, out, stride);
  else
    weigh_head<QUERIES, QUERIES == 4 ? 2 : 4, 1>(weights, part, out, stride);
}

// partial: per query a maximum, a sum, and `dim` values.
inline void reduce(const Part<bf16>& part, float* partial) {
  const int64_t dim = part.call.dim, queries = part.queries(), stride = dim + 2;
  alignas(64) bf16 q[BLOCK * MOST_DIM];
  alignas(64) float scores[BLOCK * SEGMENT];
  for (int64_t done = 0; done < queries; done += BLOCK) {
    const int64_t block = queries - done < BLOCK ? queries - done : BLOCK;
    int64_t j = 0;
    for (; j < block; ++j) std::memcpy(q + j * dim, part.query(done + j), dim * sizeof(bf16));
    for (j = 0; j + 2 <= block; j += 2) score_all<2>(q + j * dim, part, scores + j * SEGMENT);
    if (j < block) score_all<1>(q + j * dim, part, scores + j * SEGMENT);
    float* results = partial + done * stride;
    for (j = 0; j < block; ++j) {
      float *own = scores + j * SEGMENT, *top = results + j * stride;
      *top = NOTHING;
      top[1] = soften(own, part.seen(done + j), part.count, top, own);
    }
    float* sums = results + 2;
    const auto weigh_some = [&](auto some) {
      for (; j + some <= block; j += some)
        weigh_all<some>(scores + j * SEGMENT, part, sums + j * stride, stride);
    };
    j = 0;
    weigh_some(std::integral_constant<int, 4>{});
    weigh_some(std::integral_constant<int, 2>{});
    weigh_some(std::integral_constant<int, 1>{});
  }
}

}  // namespace pairs
#endif
