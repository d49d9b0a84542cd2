// Linears over bfloat16 weights as they lie in a checkpoint, [outputs][columns], for the few rows of a decode
// step. A result is one chain of fused sums over ascending columns, whatever the other rows and the threads.
//
// One row reads its weights as one stream. More rows are cut into tiles that fit into registers, and go through
// blocks of outputs: a block's columns are cut too, so that the rows' part stays in the first cache while all of
// the block's outputs pass, and the next block's weights are asked for meanwhile in the order of memory. As one
// stream that is, which the processor follows, where it does not follow the rows of several outputs.
#include <algorithm>

#include "number.h"
#include "program.h"
#include "scratch.h"
#include "streams.h"
#include "unrolled.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int BLOCK = 48;               // outputs of a block
constexpr int SUMMED = 16;              // outputs whose totals are taken at once
constexpr int64_t ROW_BYTES = 1 << 14;  // of a tile's rows that go through a block together
constexpr int64_t CHUNK = 1 << 17;      // bytes of weights that a thread of one row that a thread takes at once
constexpr int IN_L2 = 2;                // how near __builtin_prefetch brings what it asks for

// Of each level: STEP columns of weights and of a row as it is held for a call; the most rows of a tile, and by
// their number how many outputs go side by side, so that a row's columns are loaded once for all of them.
#if defined(__AVX2__)
inline float total_of(__m256 eight) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#endif

#if defined(__AVX512BF16__)

constexpr int STEP = 32;
constexpr int TILE = 8;
constexpr int SIDES[TILE + 1] = {0, 1, 6, 4, 2, 2, 2, 3, 3};
using Sums = __m512;
struct alignas(64) Held { uint16_t columns[STEP]; };

inline Sums nothing() { return _mm512_setzero_ps(); }
inline __m512bh load(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline __m512bh load(const uint16_t* from, int64_t count) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << count) - 1), from);
}
inline void hold(Held* to, __m512bh columns) { _mm512_store_si512(to->columns, (__m512i)columns); }
inline __m512bh load(const Held& held) { return (__m512bh)_mm512_load_si512(held.columns); }
inline Sums add_products(Sums sums, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sums, a, b); }
inline float total(Sums sums) {
  return total_of(_mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1)));
}

// One vector is summed by halves, quarters, eighths and sixteenths. These do a step for several at once: after
// the first, the halves of `a` lie beside those of `b`.
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
inline void totals(const Sums* sums, int64_t apart, float* to) {
  __m512 some[4];  // of the vectors n, n + 4, n + 8 and n + 12
  unrolled<4>([&](auto n) ALWAYS_INLINE {
    some[n] = quarters(halves(sums[n * apart], sums[(n + 4) * apart]),
                       halves(sums[(n + 8) * apart], sums[(n + 12) * apart]));
  });
  _mm512_storeu_ps(to, sixteenths(eighths(some[0], some[1]), eighths(some[2], some[3])));
}

#elif defined(__AVX2__)

constexpr int STEP = 16;
constexpr int TILE = 4;
constexpr int SIDES[TILE + 1] = {0, 1, 2, 1, 1};
struct Pair { __m256 even, odd; };
using Sums = Pair;
struct alignas(32) Held { float even[STEP / 2], odd[STEP / 2]; };

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
inline void hold(Held* to, Pair columns) {
  _mm256_store_ps(to->even, columns.even);
  _mm256_store_ps(to->odd, columns.odd);
}
inline Pair load(const Held& held) { return {_mm256_load_ps(held.even), _mm256_load_ps(held.odd)}; }
inline Sums add_products(Sums sums, Pair a, Pair b) {
  return {_mm256_fmadd_ps(a.even, b.even, sums.even), _mm256_fmadd_ps(a.odd, b.odd, sums.odd)};
}
inline float total(Sums sums) { return total_of(_mm256_add_ps(sums.even, sums.odd)); }

#else

constexpr int STEP = 16;
constexpr int TILE = 1;
constexpr int SIDES[TILE + 1] = {0, 1};
struct Sums { float lane[STEP]; };
using Held = Sums;

inline Sums nothing() { return {}; }
inline Held load(const uint16_t* from, int64_t count = STEP) {
  Held some{};
  for (int64_t i = 0; i < count; i++) some.lane[i] = to_float(from[i]);
  return some;
}
inline void hold(Held* to, const Held& columns) { *to = columns; }
inline const Held& load(const Held& held) { return held; }
inline Sums add_products(Sums sums, const Held& a, const Held& b) {
  for (int i = 0; i < STEP; i++) sums.lane[i] += a.lane[i] * b.lane[i];
  return sums;
}
inline float total(const Sums& sums) {
  float all = 0;
  for (float each : sums.lane) all += each;
  return all;
}

#endif

#if !defined(__AVX512BF16__)
inline void totals(const Sums* sums, int64_t apart, float* to) {
  for (int n = 0; n < SUMMED; n++) to[n] = total(sums[n * apart]);
}
#endif

// Adds the products of the columns [first, last) of SIDES outputs to `sums`, [outputs][rows]. Returns what is to
// be asked for next.
template <int ROWS, int SIDES, bool ASKS>
const char* add_columns(const Held* x, const uint16_t* const (&lines)[SIDES], Sums* sums, int64_t first, int64_t last,
                        const char* next) {
  Sums here[SIDES][ROWS];
  const auto each_sum = [&](const auto& body) ALWAYS_INLINE {
    unrolled<SIDES>([&](auto n) ALWAYS_INLINE { unrolled<ROWS>([&](auto m) ALWAYS_INLINE { body(n, m); }); });
  };
  const auto add = [&](auto load_weights) ALWAYS_INLINE {
    decltype(load_weights(0)) weights[SIDES];
    unrolled<SIDES>([&](auto n) ALWAYS_INLINE { weights[n] = load_weights(n); });
    unrolled<ROWS>([&](auto m) ALWAYS_INLINE {
      const auto row = load(x[m]);
      unrolled<SIDES>([&](auto n) ALWAYS_INLINE { here[n][m] = add_products(here[n][m], row, weights[n]); });
    });
  };
  each_sum([&](auto n, auto m) ALWAYS_INLINE { here[n][m] = sums[n * ROWS + m]; });
  int64_t i = first;
  for (x += first / STEP * ROWS; i + STEP <= last; i += STEP, x += ROWS, next += SIDES * STEP * 2)
    add([&](auto n) ALWAYS_INLINE {
      if (ASKS) __builtin_prefetch(next + n * STEP * 2, 0, IN_L2);
      return load(lines[n] + i);
    });
  if (i < last) add([&](auto n) ALWAYS_INLINE { return load(lines[n] + i, last - i); });
  each_sum([&](auto n, auto m) ALWAYS_INLINE { sums[n * ROWS + m] = here[n][m]; });
  return next;
}

// The products of a tile of rows and a block of `there` outputs. `weight` and `out` begin with the block.
template <int ROWS, bool ASKS>
void block(const Held* x, const uint16_t* weight, uint16_t* out, int64_t columns, int64_t outputs, int64_t there) {
  constexpr int AT_ONCE = SIDES[ROWS];
  constexpr int64_t SOME = std::max<int64_t>(1, ROW_BYTES / (ROWS * sizeof(Held))) * STEP;
  Sums sums[BLOCK * ROWS];
  for (auto& each : sums) each = nothing();
  const char* next = reinterpret_cast<const char*>(weight + BLOCK * columns);
  for (int64_t first = 0; first < columns; first += SOME)
    for (int64_t n = 0; n < there; n += AT_ONCE) {
      const uint16_t* lines[AT_ONCE];
      // where there are fewer, the last one stands in for the others, and is not written
      unrolled<AT_ONCE>(
          [&](auto s) ALWAYS_INLINE { lines[s] = weight + std::min<int64_t>(n + s, there - 1) * columns; });
      next = add_columns<ROWS, AT_ONCE, ASKS>(x, lines, sums + n * ROWS, first, std::min(first + SOME, columns), next);
    }
  for (int m = 0; m < ROWS; m++)
    for (int64_t n = 0; n < there; n += SUMMED) {
      float values[SUMMED];
      totals(sums + n * ROWS + m, ROWS, values);
      uint16_t* to = out + m * outputs + n;
      if (there - n >= SUMMED)
        for (int i = 0; i < SUMMED; i++) put(to + i, values[i]);
      else
        for (int i = 0; i < there - n; i++) put(to + i, values[i]);
    }
}

// One stream needs no asking, and the fewer instructions a line of weights takes, the more of them are on their
// way at once.
void one_row(const Held* x, const uint16_t* weight, uint16_t* out, int64_t columns, int64_t there) {
  const int64_t steps = columns / STEP, rest = columns % STEP;
  for (int64_t n = 0; n < there; n++, weight += rest) {
    Sums sums = nothing();
    for (int64_t i = 0; i < steps; i++, weight += STEP) sums = add_products(sums, load(x[i]), load(weight));
    if (rest) sums = add_products(sums, load(x[steps]), load(weight, rest));
    put(out + n, total(sums));
  }
}

// As `block`, of as many rows as the tile has.
template <int ROWS = TILE>
void some_rows(int64_t rows, bool asks, const Held* x, const uint16_t* weight, uint16_t* out, int64_t columns,
               int64_t outputs, int64_t there) {
  if constexpr (ROWS == 1) {
    one_row(x, weight, out, columns, there);
  } else {
    if (rows < ROWS) return some_rows<ROWS - 1>(rows, asks, x, weight, out, columns, outputs, there);
    (asks ? block<ROWS, true> : block<ROWS, false>)(x, weight, out, columns, outputs, there);
  }
}

}  // namespace

// x [rows][columns], weight [outputs][columns], out [rows][outputs]. Returns 0, or 1 where there is no memory.
KAMINARI int32_t kaminari_bfloat_linear(const uint16_t* weight, int64_t columns, int64_t outputs, const uint16_t* x,
                                        uint16_t* out, int64_t rows) {
  static thread_local Scratch scratch;
  const int64_t steps = (columns + STEP - 1) / STEP, tiles = (rows + TILE - 1) / TILE;
  const auto first_row = [=](int64_t tile) { return rows * tile / tiles; };
  Held* held = static_cast<Held*>(scratch.reserve(rows * steps * sizeof(Held)));  // [tiles][steps][rows of tile]
  if (!held) return 1;
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t row = first_row(tile), tall = first_row(tile + 1) - row;
    for (int64_t m = 0; m < tall; m++)
      for (int64_t i = 0; i < columns; i += STEP)
        hold(held + row * steps + i / STEP * tall + m,
             load(x + (row + m) * columns + i, std::min<int64_t>(STEP, columns - i)));
  }
  if (rows == 1) {
    const int64_t chunk = std::max<int64_t>(1, CHUNK / (2 * std::max<int64_t>(columns, 1)));
    parallel_streams(outputs, chunk, [&](int64_t first, int64_t end) {
      one_row(held, weight + first * columns, out + first, columns, end - first);
    });
    return 0;
  }
  parallel_streams((outputs + BLOCK - 1) / BLOCK, 1, [&](int64_t first, int64_t end) {
    for (int64_t n = first * BLOCK; n < std::min(end * BLOCK, outputs); n += BLOCK)
      for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t row = first_row(tile);
        some_rows(first_row(tile + 1) - row, tile == 0, held + row * steps, weight + n * columns,
                  out + row * outputs + n, columns, outputs, std::min<int64_t>(BLOCK, outputs - n));
      }
  });
  return 0;
}
RECORDABLE(kaminari_bfloat_linear)
