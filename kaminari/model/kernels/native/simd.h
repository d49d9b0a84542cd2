// The few vector operations that the quantized linears need, for each level of `build.py`.
//
// Products of codes are sums of integers, and floats are combined in the same order by the same fused
// operations at every level: all levels give the same bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

inline int32_t four_bytes(const int8_t* from) {
  int32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

constexpr int LANES = 16;      // outputs in a vector; each lane of Bytes holds four columns of its output
constexpr int vectors_of(int) { return 2; }  // how many vectors' sums have registers, for so many rows
constexpr int INT8_START = -128;  // what a sum of int8 codes starts from, times the sum of the activations
using Bytes = __m512i;
// As a vector of its own elements: kept as __m512i, gcc copies every sum at every step of a loop.
typedef int32_t Ints __attribute__((vector_size(64)));
using Floats = __m512;

inline Bytes load(const uint8_t* from) { return _mm512_loadu_si512(from); }
inline Bytes low_nibbles(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes b) { return low_nibbles(_mm512_srli_epi16(b, 4)); }
inline Ints splat(int32_t value) { return (Ints)_mm512_set1_epi32(value); }
inline Floats splat(float value) { return _mm512_set1_ps(value); }
inline Floats to_float(Ints a) { return _mm512_cvtepi32_ps((__m512i)a); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load_bfloats(const uint16_t* from) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
}
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
inline Bytes splat_bytes(const int8_t* from) { return _mm512_set1_epi32(four_bytes(from)); }
inline Ints dot_unsigned(Ints sum, Bytes codes, Bytes x) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, codes, x);
}
// The codes stay biased by 128, which INT8_START has taken back.
inline Ints dot_biased(Ints sum, Bytes codes, Bytes x) { return dot_unsigned(sum, codes, x); }

#elif defined(__AVX2__)

constexpr int LANES = 8;
constexpr int vectors_of(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
constexpr int INT8_START = 0;
using Bytes = __m256i;
typedef int32_t Ints __attribute__((vector_size(32)));
using Floats = __m256;

inline Bytes load(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline Bytes low_nibbles(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes b) { return low_nibbles(_mm256_srli_epi16(b, 4)); }
inline Ints splat(int32_t value) { return (Ints)_mm256_set1_epi32(value); }
inline Floats splat(float value) { return _mm256_set1_ps(value); }
inline Floats to_float(Ints a) { return _mm256_cvtepi32_ps((__m256i)a); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
inline Floats load_bfloats(const uint16_t* from) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16));
}
inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
// Sums of two products fit into 16 bits: 2 * 15 * 127, and 2 * 127 * 127 for int8.
inline Ints add_products(Ints sum, Bytes codes, Bytes x) {
  return sum + (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
}
inline Bytes splat_bytes(const int8_t* from) { return _mm256_set1_epi32(four_bytes(from)); }
inline Ints dot_unsigned(Ints sum, Bytes codes, Bytes x) { return add_products(sum, codes, x); }
inline Ints dot_biased(Ints sum, Bytes codes, Bytes x) {
  const Bytes steps = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
  return add_products(sum, _mm256_abs_epi8(steps), _mm256_sign_epi8(x, steps));
}

#else

constexpr int LANES = 16;
constexpr int vectors_of(int) { return 1; }
constexpr int INT8_START = 0;
struct Bytes { uint8_t lane[LANES][4]; };
struct Ints { int32_t lane[LANES]; };
struct Floats { float lane[LANES]; };

template <class To, class Of>
inline To each(const Of& of) {
  To result;
  for (int i = 0; i < LANES; i++) result.lane[i] = of(i);
  return result;
}
inline Bytes load(const uint8_t* from) { Bytes b; std::memcpy(&b, from, sizeof b); return b; }
inline Bytes low_nibbles(Bytes b) { for (auto& lane : b.lane) for (auto& byte : lane) byte &= 15; return b; }
inline Bytes high_nibbles(Bytes b) { for (auto& lane : b.lane) for (auto& byte : lane) byte >>= 4; return b; }
inline Ints splat(int32_t value) { return each<Ints>([&](int) { return value; }); }
inline Floats splat(float value) { return each<Floats>([&](int) { return value; }); }
inline Floats to_float(const Ints& a) { return each<Floats>([&](int i) { return static_cast<float>(a.lane[i]); }); }
inline Floats multiply(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return each<Floats>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
inline Floats load_floats(const float* from) { Floats a; std::memcpy(&a, from, sizeof a); return a; }
inline Floats load_bfloats(const uint16_t* from) {
  return each<Floats>([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  });
}
inline void store(float* to, const Floats& a) { std::memcpy(to, &a, sizeof a); }
// Four columns of a row, the same for every output.
using Columns = const int8_t*;
inline Columns splat_bytes(const int8_t* from) { return from; }
inline Ints dot(Ints sum, const Bytes& codes, int bias, Columns x) {
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < 4; j++) sum.lane[i] += (codes.lane[i][j] - bias) * x[j];
  return sum;
}
inline Ints dot_unsigned(const Ints& sum, const Bytes& codes, Columns x) { return dot(sum, codes, 0, x); }
inline Ints dot_biased(const Ints& sum, const Bytes& codes, Columns x) { return dot(sum, codes, 128, x); }

#endif
