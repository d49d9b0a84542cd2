// Conversions between float and bfloat16 (held as its 16 bits), in forms that compilers vectorize.
#pragma once
#include <cstdint>
#include <cstring>

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(float value) { return value; }
inline float to_float(uint16_t bfloat) { return float_of(static_cast<uint32_t>(bfloat) << 16); }

// To the nearest, ties to even; a NaN stays one.
inline void put(uint16_t* to, float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *to = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
inline void put(float* to, float value) { *to = value; }
