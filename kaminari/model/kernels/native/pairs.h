// Attention's weights as pairs of bfloat16 numbers, for the processor's products of such pairs.
#pragma once
#if defined(__AVX512BF16__)
#include "vec.h"

namespace pairs {

constexpr float UNSEEN = -__builtin_inff();

inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// e^x for x up to zero, within 4 units in the last place near it: 2^n 2^r with |r| <= 1/2, and 2^r by the polynomial of
// least relative error (9.2e-8) of degree 5. Below -87 it is zero.
inline Vec exp_below(Vec x) {
  const Vec shifter = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = fma(x, all(1.44269504f), shifter);
  const Vec n = shifted - shifter;
  const Vec r = fma(x, all(1.44269504f), -n);
  Vec power = all(1.32647e-3f);
  power = fma(power, r, all(9.67151e-3f));
  power = fma(power, r, all(5.550734e-2f));
  power = fma(power, r, all(0.24022242f));
  power = fma(power, r, all(0.69314698f));
  power = fma(power, r, all(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, all(-87.0f), _CMP_NLT_UQ), power, n);
}

// Raises `top` to the largest of the first `seen` of `count` scores, turns those into weights e^(score - top) and the
// rest into zeros, and returns the sum of the weights as they are rounded: what they are all off by alike is then
// divided away. weights: count / 2 pairs, rounded up to 16; may begin where the scores do. A score that is no number is
// never the largest, and its weight, hence the sum, is none either.
inline float soften(const float* scores, int64_t seen, int64_t count, float* top, void* weights) {
  const auto read = [&](int64_t i) {
    const int64_t left = seen - i;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : left <= 0 ? 0 : (1 << left) - 1);
    return (Vec)_mm512_mask_load_ps(all(UNSEEN), mask, scores + i);
  };
  Vec first = all(*top), second = first;
  for (int64_t i = 0; i < seen; i += 32) {
    first = larger(read(i), first);
    second = larger(read(i + 16), second);
  }
  *top = largest(larger(first, second));
  const Vec subtracted = all(*top == UNSEEN ? 0.0f : *top);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  Vec even{}, odd{};
  for (int64_t i = 0; i < count; i += 32) {
    const Vec low = exp_below(read(i) - subtracted), high = exp_below(read(i + 16) - subtracted);
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_store_si512(static_cast<float*>(weights) + i / 2, rounded);
    even += (Vec)_mm512_slli_epi32(rounded, 16);
    odd += (Vec)_mm512_and_si512(rounded, upper);
  }
  return sum(even + odd);
}

}  // namespace pairs
#endif
