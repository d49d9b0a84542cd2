// Vectors of float32 in whatever width the library is built for, and bfloat16 as torch rounds it.
//
// GCC's and clang's vector types carry the arithmetic; only the fused multiply-add needs a name per CPU. The
// library is compiled without contraction, so a product and a sum are fused where `fma` says so and nowhere else.
#pragma once
#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int LANES = 16;
#elif defined(__AVX2__)
#include <immintrin.h>
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

struct bf16 {
  uint16_t bits;
};

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

static inline Vec all(float x) { return x - Vec{}; }

static inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

static inline Vec load(const float* from) {
  Vec x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

static inline Vec load(const bf16* from) {
  Halves x;
  std::memcpy(&x, from, sizeof x);
  return (Vec)(__builtin_convertvector(x, Bits) << 16);
}

static inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }

// The upper halves of bfloat16 numbers, rounded to nearest, ties to even; a NaN stays one. What the lower halves hold is
// of no meaning.
static inline Bits rounded_bits(Vec x) {
  const Bits bits = (Bits)x;
  return x == x ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x400000;
}

static inline void store(bf16* to, Vec x) {
  const Halves halves = __builtin_convertvector(rounded_bits(x) >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// The first n numbers, zeros behind them where n is less than LANES.
template <class T>
static inline Vec load(const T* from, int64_t n) {
  if (n >= LANES) return load(from);
  T some[LANES] = {};
  std::memcpy(some, from, n * sizeof(T));
  return load(some);
}

template <class T>
static inline void store(T* to, Vec x, int64_t n) {
  if (n >= LANES) return store(to, x);
  T some[LANES];
  store(some, x);
  std::memcpy(to, some, n * sizeof(T));
}

static inline float widen(float x) { return x; }

static inline float widen(bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// The float32 of x rounded to T, as torch rounds the result of an operator.
template <class T>
static inline Vec rounded(Vec x);

template <>
inline Vec rounded<float>(Vec x) {
  return x;
}

template <>
inline Vec rounded<bf16>(Vec x) {
  return (Vec)(rounded_bits(x) & 0xffff0000);
}

// Adds the upper half of a vector to its lower one until one number is left: always in this order.
static inline float sum(Vec x) {
#if defined(__AVX512F__)
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#elif defined(__AVX2__)
  const __m256 eight = x;
#endif
#if defined(__AVX2__)
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

// The sums of four vectors at once, each in the same order whatever the other three are.
static inline void sum4(Vec a, Vec b, Vec c, Vec d, float* to) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m512 ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  const __m512 cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  const __m512 sixteen = _mm512_shuffle_ps(ab, cd, 0x44) + _mm512_shuffle_ps(ab, cd, 0xee);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sixteen), _mm512_extractf32x8_ps(sixteen, 1));
#else
  const __m256 ab = _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b);
  const __m256 cd = _mm256_unpacklo_ps(c, d) + _mm256_unpackhi_ps(c, d);
  const __m256 eight = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
#endif
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
#else
  for (const Vec& x : {a, b, c, d}) *to++ = sum(x);
#endif
}

// b where one of the two is no number.
static inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

static inline float largest(Vec x) {
#if defined(__AVX512F__)
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#elif defined(__AVX2__)
  const __m256 eight = x;
#endif
#if defined(__AVX2__)
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  float most = x[0];
  for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

// e^x within a unit in the last place: e^x = 2^n e^r with |r| <= ln(2) / 2, and e^r by its series. Below -87.3
// it is zero, above 88.37 infinite.
static inline Vec exp(Vec x) {
  const float lowest = -87.3f, highest = 88.37f;
  const Vec shifter = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec within = x < lowest ? all(lowest) : x > highest ? all(highest) : x;
  const Vec shifted = fma(within, all(1.44269504f), shifter);
  const Vec n = shifted - shifter;
  const Vec r = fma(n, all(-1.42860677e-6f), fma(n, all(-0.693145752f), within));
  Vec series = all(1.0f / 5040);
  series = fma(series, r, all(1.0f / 720));
  series = fma(series, r, all(1.0f / 120));
  series = fma(series, r, all(1.0f / 24));
  series = fma(series, r, all(1.0f / 6));
  series = fma(series, r, all(0.5f));
  series = fma(series, r, all(1.0f));
  series = fma(series, r, all(1.0f));
  const Vec scale = (Vec)(((Ints)shifted + (127 - 0x4b400000)) << 23);
  const Vec result = series * scale;
  return x < lowest ? Vec{} : x > highest ? all(__builtin_inff()) : result;
}

// x / (1 + e^-x)
static inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

// Calls run with a number of the type of a model's tensors: bfloat16 where `narrow` is set, else float32.
template <class Run>
static inline void with_type(int32_t narrow, const Run& run) {
  if (narrow)
    run(bf16{});
  else
    run(float{});
}
