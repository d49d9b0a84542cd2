// Activations as int8 codes with a float scale per row and group of columns: x[i] ~ code[i] * scale.
//
// Rows are cut into tiles of at most TILE rows. Within a tile the codes of four columns of each row lie side
// by side ([columns / 4][rows][4]), as the kernels read them. A row's codes depend on that row alone.
#pragma once
#include <algorithm>
#include <cstdint>

#include "number.h"
#include "scratch.h"

constexpr int TILE = 8;

// Below this a group of activations counts as zero: 127 / absmax would overflow.
constexpr float LEAST_MAXIMUM = 1e-30f;

// scale: [groups][rows], step of a code; sum: [groups][rows], of the codes; lift: scale * sum
struct Tile {
  int rows;
  const int8_t* codes;
  const float* scale;
  const int32_t* sum;
  const float* lift;
};

// Quantizes one group of `width` columns to `codes` (of `padded` columns, zero behind the width).
template <class Number>
void quantize_group(const Number* x, int64_t width, int64_t padded, int8_t* codes, float* scale, int32_t* sum) {
  // As integers the magnitudes of floats have the order of their values, and NaN is above all of them:
  // a NaN or an infinity makes the scale one, and with it the whole row's results.
  uint32_t most = 0;
  for (int64_t i = 0; i < width; i++) most = std::max(most, bits_of(to_float(x[i])) & 0x7fffffff);
  const float maximum = float_of(most);
  const bool none = maximum < LEAST_MAXIMUM;
  const float inverse = none ? 0.0f : 127.0f / maximum;
  *scale = none ? 0.0f : maximum / 127.0f;
  // Added to this, a small float has its nearest integer (ties to even) in its lowest bits.
  const float shift = 12582912.0f;
  int32_t total = 0;
  for (int64_t i = 0; i < width; i++) {
    const int8_t code = static_cast<int8_t>(bits_of(to_float(x[i]) * inverse + shift) - bits_of(shift));
    codes[i] = code;
    total += code;
  }
  for (int64_t i = width; i < padded; i++) codes[i] = 0;
  *sum = total;
}

// All rows of a call, quantized. `padded` columns of a whole group; `group` a multiple of 8.
class Activations {
 public:
  template <class Number>
  bool quantize(Scratch& scratch, const Number* x, int64_t rows, int64_t columns, int64_t group) {
    const int64_t groups = (columns + group - 1) / group, padded = (columns + 7) / 8 * 8;
    tiles_ = (rows + TILE - 1) / TILE;
    rows_ = rows;
    padded_ = padded;
    groups_ = groups;
    memory_ = static_cast<char*>(scratch.reserve(rows * (padded + groups * 12) + tiles_ * 64));
    if (!memory_) return false;
    int8_t codes[128];
    for (int64_t t = 0; t < tiles_; t++) {
      const Tile tile = this->tile(t);
      for (int64_t m = 0; m < tile.rows; m++)
        for (int64_t g = 0; g < groups; g++) {
          const int64_t first = g * group, end = std::min(first + group, padded);
          const int64_t at = g * tile.rows + m;
          float scale;
          int32_t sum;
          quantize_group(x + (first_row(t) + m) * columns + first, std::min(group, columns - first), end - first,
                         codes, &scale, &sum);
          const_cast<float*>(tile.scale)[at] = scale;
          const_cast<int32_t*>(tile.sum)[at] = sum;
          const_cast<float*>(tile.lift)[at] = scale * static_cast<float>(sum);
          int8_t* to = const_cast<int8_t*>(tile.codes) + first * tile.rows + m * 4;
          for (int64_t i = 0; i < end - first; i += 4, to += tile.rows * 4) std::memcpy(to, codes + i, 4);
        }
    }
    return true;
  }

  int64_t tiles() const { return tiles_; }
  int64_t first_row(int64_t tile) const { return rows_ * tile / tiles_; }

  Tile tile(int64_t number) const {
    const int64_t first = first_row(number), rows = first_row(number + 1) - first;
    char* at = memory_ + first * (padded_ + groups_ * 12) + number * 64;
    at += -reinterpret_cast<intptr_t>(at) & 3;
    float* scale = reinterpret_cast<float*>(at);
    int32_t* sum = reinterpret_cast<int32_t*>(scale + rows * groups_);
    float* lift = reinterpret_cast<float*>(sum + rows * groups_);
    return {static_cast<int>(rows), reinterpret_cast<int8_t*>(lift + rows * groups_), scale, sum, lift};
  }

 private:
  char* memory_ = nullptr;
  int64_t rows_ = 0, tiles_ = 0, padded_ = 0, groups_ = 0;
};
