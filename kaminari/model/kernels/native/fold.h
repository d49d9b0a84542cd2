// Sums of the lanes of many vectors at once.
//
// One vector is summed by halves, quarters, eighths and sixteenths. These do a step for two at once: after the first,
// the halves of `a` lie beside those of `b`.
#pragma once
#if defined(__AVX512F__)
#include <immintrin.h>

inline __m512 halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
inline __m512 quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline __m512 eighths(__m512 a, __m512 b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
inline __m512 sixteenths(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Four vectors become one: lanes 4 n to 4 n + 3 add up to the sum of vector n.
inline __m512 fold4(const __m512 (&of)[4]) { return quarters(halves(of[0], of[1]), halves(of[2], of[3])); }

// Four such become one: lane 4 n + i is the sum of vector n of the i-th.
inline __m512 fold16(const __m512* of) { return sixteenths(eighths(of[0], of[1]), eighths(of[2], of[3])); }
#endif
