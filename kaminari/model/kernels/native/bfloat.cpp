// Linears over bfloat16 weights as they lie in a checkpoint, [outputs][columns], for the few rows of a decode
// step. A result is one chain of fused sums over ascending columns, whatever the other rows and the threads.
#include <algorithm>

#include "number.h"
#include "parallel.h"
#include "program.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int TILE = 8;              // rows whose sums are held in registers at once
constexpr int TOGETHER = 16;         // outputs that a thread goes through for one tile of rows after the other
constexpr int IN_L2 = 2;              // how near __builtin_prefetch brings what it asks for
constexpr int64_t CHUNK = 1 << 18;   // bytes of weights that a thread takes at once

#if defined(__AVX512BF16__)

constexpr int OUTPUTS = 4;  // outputs whose weights are read side by side for several rows
constexpr int STEP = 32;    // columns of a vector
using Sums = __m512;

inline Sums nothing() { return _mm512_setzero_ps(); }
inline __m512bh load(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline __m512bh load(const uint16_t* from, int64_t count) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << count) - 1), from);
}
inline Sums add_products(Sums sums, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sums, a, b); }
inline float total(Sums sums) { return _mm512_reduce_add_ps(sums); }

#elif defined(__AVX2__)

constexpr int OUTPUTS = 2;
constexpr int STEP = 16;
struct Pair { __m256 even, odd; };
using Sums = Pair;

inline Sums nothing() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Pair load(const uint16_t* from) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
}
inline Pair load(const uint16_t* from, int64_t count) {
  uint16_t some[STEP] = {};
  std::memcpy(some, from, count * sizeof *from);
  return load(some);
}
inline Sums add_products(Sums sums, Pair a, Pair b) {
  return {_mm256_fmadd_ps(a.even, b.even, sums.even), _mm256_fmadd_ps(a.odd, b.odd, sums.odd)};
}
inline float total(Sums sums) {
  const __m256 eight = _mm256_add_ps(sums.even, sums.odd);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#else

constexpr int OUTPUTS = 1;
constexpr int STEP = 16;
struct Sums { float lane[STEP]; };
using Some = Sums;

inline Sums nothing() { return {}; }
inline Some load(const uint16_t* from, int64_t count = STEP) {
  Some some{};
  for (int64_t i = 0; i < count; i++) some.lane[i] = to_float(from[i]);
  return some;
}
inline Sums add_products(Sums sums, const Some& a, const Some& b) {
  for (int i = 0; i < STEP; i++) sums.lane[i] += a.lane[i] * b.lane[i];
  return sums;
}
inline float total(const Sums& sums) {
  float all = 0;
  for (float each : sums.lane) all += each;
  return all;
}

#endif

// `x` and `out` begin with the tile's first row; `weight` with the first of SIDES or fewer outputs.
template <int ROWS, int SIDES>
void products(const uint16_t* x, const uint16_t* weight, uint16_t* out, int64_t columns, int64_t outputs,
              int64_t there) {
  const uint16_t* line[SIDES];
  // where there are fewer, the last one stands in for the others, and is not written
  for (int64_t n = 0; n < SIDES; n++) line[n] = weight + std::min(n, there - 1) * columns;
  Sums sums[SIDES][ROWS];
  for (auto& row : sums)
    for (auto& each : row) each = nothing();
  int64_t i = 0;
  // The next outputs' weights are asked for in the order of memory: as one stream, which is faster than SIDES
  // streams that lie a row apart. One stream alone needs no asking.
  const char* next = reinterpret_cast<const char*>(line[0] + SIDES * columns);
  for (; i + STEP <= columns; i += STEP)
    for (int n = 0; n < SIDES; n++, next += STEP * 2) {
      if (SIDES > 1) __builtin_prefetch(next, 0, IN_L2);
      const auto w = load(line[n] + i);
      for (int m = 0; m < ROWS; m++) sums[n][m] = add_products(sums[n][m], load(x + m * columns + i), w);
    }
  if (i < columns)
    for (int n = 0; n < SIDES; n++) {
      const auto w = load(line[n] + i, columns - i);
      for (int m = 0; m < ROWS; m++) sums[n][m] = add_products(sums[n][m], load(x + m * columns + i, columns - i), w);
    }
  for (int64_t n = 0; n < there; n++)
    for (int m = 0; m < ROWS; m++) put(out + m * outputs + n, total(sums[n][m]));
}

// All of [first, last) for a tile of rows.
template <int ROWS>
void products(const uint16_t* x, const uint16_t* weight, uint16_t* out, int64_t columns, int64_t outputs,
              int64_t first, int64_t last) {
  constexpr int SIDES = ROWS == 1 ? 1 : OUTPUTS;
  for (int64_t n = first; n < last; n += SIDES)
    products<ROWS, SIDES>(x, weight + n * columns, out + n, columns, outputs, std::min<int64_t>(SIDES, last - n));
}

using Products = void (*)(const uint16_t*, const uint16_t*, uint16_t*, int64_t, int64_t, int64_t, int64_t);
constexpr Products PRODUCTS[TILE] = {products<1>, products<2>, products<3>, products<4>,
                                     products<5>, products<6>, products<7>, products<8>};

}  // namespace

// x [rows][columns], weight [outputs][columns], out [rows][outputs].
KAMINARI void kaminari_bfloat_linear(const uint16_t* weight, int64_t columns, int64_t outputs, const uint16_t* x,
                                     uint16_t* out, int64_t rows) {
  const int64_t tiles = (rows + TILE - 1) / TILE;
  const int64_t blocks = (outputs + TOGETHER - 1) / TOGETHER;
  const int64_t chunk = std::max<int64_t>(1, CHUNK / (TOGETHER * 2 * std::max<int64_t>(columns, 1)));
  parallel(blocks, chunk, [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end; block++)
      for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t row = rows * tile / tiles, tall = rows * (tile + 1) / tiles - row;
        const int64_t last = std::min((block + 1) * TOGETHER, outputs);
        PRODUCTS[tall - 1](x + row * columns, weight, out + row * outputs, columns, outputs, block * TOGETHER, last);
      }
  });
}
RECORDABLE(kaminari_bfloat_linear)
