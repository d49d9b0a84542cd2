// Linears over bfloat16 weights as they lie in a checkpoint, [outputs][columns], for the few rows of a decode
// step. A result is one chain of fused sums over ascending columns, whatever the other rows and the threads.
//
// One row reads its weights as one stream. More rows are cut into tiles whose sums fit into registers, and go
// through blocks of outputs; a block's columns are cut into passes, so that their rows' part stays in the first cache
// while all of the block's outputs pass. Rows beyond BAND go through a block in bands, one after the other, while the
// block's weights are in the second cache. What comes next is asked for meanwhile, evenly and in the order of memory: as
// one stream that is, which the processor follows, where it does not follow the rows of several outputs.
#include <algorithm>

#include "fold.h"
#include "number.h"
#include "program.h"
#include "scratch.h"
#include "streams.h"
#include "unrolled.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int BLOCK = 16;               // outputs of a block
constexpr int64_t MOST_ROWS = 32;       // of a call
constexpr int64_t BAND = 16;            // the most rows of a band
constexpr int64_t CHUNK = 1 << 17;      // bytes of weights that a thread of one row takes at once
constexpr int64_t BLOCKS = 1 << 16;     // likewise with more rows, or a block
constexpr int IN_L1 = 3, IN_L2 = 2;     // how near __builtin_prefetch brings what it asks for

// Of each level:
//   STEP      columns of weights, and of a row as it is held for a call
//   STEPS     of a pass
//   TILE      the most rows of a tile that is one of several
//   LONE      the most rows of a band that is one tile
//   SIDES     how many outputs go side by side, so that a row's columns are loaded once for all of them
//   IN_TURNS  whether the tiles take turns at each group of such outputs, whose weights then stay in the first cache:
//             the last one asks for the next group's there, so that none waits for them. Else a tile goes through
//             all of the block first.
//   PARTS     what a tile's sums over all columns end as, for each row of a block; `put_totals` makes the results,
//             and `put_total` that of a row alone
#if defined(__AVX2__)
inline float total_of(__m256 eight) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#endif

#if defined(__AVX512BF16__)

constexpr int STEP = 32;
constexpr int STEPS = 16;
constexpr bool IN_TURNS = true;
constexpr int TILE = 4;
constexpr int LONE = 6;
constexpr int SIDES = 4;
constexpr int PARTS = BLOCK / SIDES;
using Sums = __m512;
using Part = __m512;
struct alignas(64) Held { uint16_t columns[STEP]; };

inline Sums nothing() { return _mm512_setzero_ps(); }
inline __m512bh load(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline __m512bh load(const uint16_t* from, int64_t count) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << count) - 1), from);
}
// Where this is not said, gcc loads some weights anew for every row.
inline __m512bh once(__m512bh columns) {
  asm("" : "+v"(columns));
  return columns;
}
inline void keep(Held* to, __m512bh columns) { _mm512_store_si512(to->columns, (__m512i)columns); }
inline __m512bh load(const Held& held) { return (__m512bh)_mm512_load_si512(held.columns); }
inline Sums add_products(Sums sums, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sums, a, b); }
inline float total(Sums sums) {
  return total_of(_mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1)));
}

// The sums of four outputs, each of which is left in four lanes.
inline void fold(const Sums (&sums)[SIDES], Part* parts, int64_t group) {
  parts[group] = fold4(sums);
}
// The processor rounds as `put` does, but that numbers too small to be normal become zero, as its sums do.
inline void put_total(uint16_t* to, float of) {
  *to = static_cast<uint16_t>(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(of)), 0));
}
// The totals of a row's sums, for the first `there` outputs.
inline void put_totals(const Part* parts, uint16_t* to, int64_t there) {
  const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(fold16(parts));
  _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << there) - 1), rounded);
}

#elif defined(__AVX2__)

constexpr int STEP = 16;
constexpr int STEPS = 64;
constexpr bool IN_TURNS = false;
constexpr int TILE = 4;
constexpr int LONE = TILE;
constexpr int SIDES = 1;
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
inline void keep(Held* to, Pair columns) {
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
constexpr int STEPS = 64;
constexpr bool IN_TURNS = false;
constexpr int TILE = 1;
constexpr int LONE = TILE;
constexpr int SIDES = 1;
struct Sums { float lane[STEP]; };
using Held = Sums;

inline Sums nothing() { return {}; }
inline Held load(const uint16_t* from, int64_t count = STEP) {
  Held some{};
  for (int64_t i = 0; i < count; i++) some.lane[i] = to_float(from[i]);
  return some;
}
inline void keep(Held* to, const Held& columns) { *to = columns; }
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
template <class Columns>
inline Columns once(Columns columns) {
  return columns;
}
constexpr int PARTS = BLOCK;
using Part = float;
inline void fold(const Sums (&sums)[SIDES], Part* parts, int64_t group) {
  for (int s = 0; s < SIDES; s++) parts[group + s * (BLOCK / SIDES)] = total(sums[s]);
}
inline void put_total(uint16_t* to, float of) { put(to, of); }
inline void put_totals(const Part* parts, uint16_t* to, int64_t there) {
  for (int i = 0; i < there; i++) put_total(to + i, parts[i]);
}
#endif

// A group of SIDES outputs, each BLOCK / SIDES behind the one before, and the rows of a tile, which go through the
// columns [first, last) of a block together.
struct Pass {
  const Held* x;  // [steps][rows]
  const uint16_t* lines[SIDES];
  Sums* sums;   // [rows][SIDES], between the passes of a block
  Part* parts;  // [rows][PARTS], behind the last one
  int64_t group, first, last, columns;
  const char* next;  // what is asked for into the second cache, so many lines a step
  int64_t asks;
  int64_t ahead;  // how far from this pass's weights those of the next one lie, where they are asked for, or 0
};

template <int ROWS>
void add_columns(const Pass& pass) {
  Sums here[ROWS][SIDES];
  const auto each_sum = [&](const auto& body) ALWAYS_INLINE {
    unrolled<ROWS>([&](auto m) ALWAYS_INLINE { unrolled<SIDES>([&](auto n) ALWAYS_INLINE { body(m, n); }); });
  };
  if (pass.first == 0)
    each_sum([&](auto m, auto n) ALWAYS_INLINE { here[m][n] = nothing(); });
  else
    each_sum([&](auto m, auto n) ALWAYS_INLINE { here[m][n] = pass.sums[m * SIDES + n]; });
  const Held* x = pass.x + pass.first / STEP * ROWS;
  const auto add = [&](auto load_weights) ALWAYS_INLINE {
    decltype(load_weights(0)) weights[SIDES];
    unrolled<SIDES>([&](auto n) ALWAYS_INLINE { weights[n] = once(load_weights(n)); });
    unrolled<ROWS>([&](auto m) ALWAYS_INLINE {
      const auto row = load(x[m]);
      unrolled<SIDES>([&](auto n) ALWAYS_INLINE { here[m][n] = add_products(here[m][n], row, weights[n]); });
    });
  };
  const uint16_t* lines[SIDES];
  unrolled<SIDES>([&](auto n) ALWAYS_INLINE { lines[n] = pass.lines[n]; });
  const char* next = pass.next;
  const int64_t last = pass.last, asks = pass.asks, ahead = pass.ahead;
  int64_t i = pass.first;
  for (; i + STEP <= last; i += STEP, x += ROWS) {
    add([&](auto n) ALWAYS_INLINE { return load(lines[n] + i); });
    // behind the loads, which would wait for them
    for (int64_t a = 0; a < asks; a++, next += 2 * STEP) __builtin_prefetch(next, 0, IN_L2);
    if (ahead) unrolled<SIDES>([&](auto n) ALWAYS_INLINE { __builtin_prefetch(lines[n] + i + ahead, 0, IN_L1); });
  }
  if (i < last) add([&](auto n) ALWAYS_INLINE { return load(lines[n] + i, last - i); });
  if (last == pass.columns)
    unrolled<ROWS>([&](auto m) ALWAYS_INLINE { fold(here[m], pass.parts + m * PARTS, pass.group); });
  else
    each_sum([&](auto m, auto n) ALWAYS_INLINE { pass.sums[m * SIDES + n] = here[m][n]; });
}

// As add_columns, of as many rows as the tile has.
template <int ROWS = LONE>
void add_columns_of(int64_t rows, const Pass& pass) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) return add_columns_of<ROWS - 1>(rows, pass);
  }
  add_columns<ROWS>(pass);
}

// A row's columns as they are held.
inline int64_t steps_of(int64_t columns) { return (columns + STEP - 1) / STEP; }

// The rows of a band as they are held: in tiles, [steps][rows of the tile].
class Rows {
 public:
  struct Tile {
    const Held* x;
    int64_t first, rows;
    int64_t asks;  // its share of the lines that are asked for at each step
  };

  // to [rows][steps_of(columns)]
  void hold(Held* to, const uint16_t* x, int64_t rows, int64_t columns) {
    rows_ = rows;
    count_ = rows <= LONE ? 1 : (rows + TILE - 1) / TILE;
    for (int64_t t = 0; t < count_; t++) {
      const int64_t first = rows * t / count_, some = rows * (t + 1) / count_ - first;
      const int64_t asking = std::max<int64_t>(1, count_ - IN_TURNS);
      tiles_[t] = {to, first, some, t < asking ? SIDES * (t + 1) / asking - SIDES * t / asking : 0};
      for (int64_t m = 0; m < some; m++) {
        const uint16_t* from = x + (first + m) * columns;
        Held* each = to + m;
        int64_t i = 0;
        for (; i + STEP <= columns; i += STEP, each += some) keep(each, load(from + i));
        if (i < columns) keep(each, load(from + i, columns - i));
      }
      to += steps_of(columns) * some;
    }
  }

  int64_t rows() const { return rows_; }
  const Tile* begin() const { return tiles_; }
  const Tile* end() const { return tiles_ + count_; }

 private:
  Tile tiles_[BAND];
  int64_t rows_ = 0, count_ = 0;
};

// The products of a band and a block of `there` outputs; `more` where the next block is to be asked for. `weight` and `out`
// begin with the block.
void block(const Rows& x, const uint16_t* weight, uint16_t* out, int64_t columns, int64_t outputs, int64_t there,
           bool more, Sums* sums, Part* parts) {
  constexpr int64_t GROUPS = BLOCK / SIDES, LAST = GROUPS - 1;
  constexpr int64_t SOME = STEPS * STEP;
  Pass pass;
  pass.columns = columns;
  pass.next = reinterpret_cast<const char*>(weight + BLOCK * columns);
  pass.first = 0;
  do {
    pass.last = std::min(pass.first + SOME, columns);
    const auto run = [&](const Rows::Tile& tile) {
      // where there are fewer, the last one stands in for the others, and is not written
      for (int s = 0; s < SIDES; s++)
        pass.lines[s] = weight + std::min(pass.group + s * GROUPS, there - 1) * columns;
      pass.x = tile.x;
      pass.sums = sums + (pass.group * x.rows() + tile.first) * SIDES;
      pass.parts = parts + tile.first * PARTS;
      pass.asks = more ? tile.asks : 0;
      pass.ahead = !IN_TURNS || &tile + 1 < x.end() ? 0
                   : pass.group < LAST              ? columns
                   : pass.last < columns            ? SOME - LAST * columns
                                                    : (BLOCK - LAST) * columns - pass.first;
      add_columns_of(tile.rows, pass);
      pass.next += pass.asks * ((pass.last - pass.first) / STEP) * 2 * STEP;
    };
    if (IN_TURNS) {
      for (pass.group = 0; pass.group < GROUPS; pass.group++)
        for (const Rows::Tile& tile : x) run(tile);
    } else {
      for (const Rows::Tile& tile : x)
        for (pass.group = 0; pass.group < GROUPS; pass.group++) run(tile);
    }
    pass.first += SOME;
  } while (pass.first < columns);
  for (int64_t m = 0; m < x.rows(); m++) put_totals(parts + m * PARTS, out + m * outputs, there);
}

// One stream needs no asking, and the fewer instructions a line of weights takes, the more of them are on their
// way at once.
void one_row(const Held* x, const uint16_t* weight, uint16_t* out, int64_t columns, int64_t there) {
  const int64_t steps = columns / STEP, rest = columns % STEP;
  for (int64_t n = 0; n < there; n++, weight += rest) {
    Sums sums = nothing();
    for (int64_t i = 0; i < steps; i++, weight += STEP) sums = add_products(sums, load(x[i]), load(weight));
    if (rest) sums = add_products(sums, load(x[steps]), load(weight, rest));
    put_total(out + n, total(sums));
  }
}

}  // namespace

// x [rows][columns], weight [outputs][columns], out [rows][outputs]. Returns 0, or 1 where there is no memory, or
// where there are more rows than MOST_ROWS.
KAMINARI int32_t kaminari_bfloat_linear(const uint16_t* weight, int64_t columns, int64_t outputs, const uint16_t* x,
                                        uint16_t* out, int64_t rows) {
  static thread_local Scratch scratch;
  Rows held[MOST_ROWS / BAND];
  const int64_t bands = (rows + BAND - 1) / BAND;
  const auto first_of = [&](int64_t band) { return rows * band / bands; };
  if (rows > MOST_ROWS) return 1;
  Held* memory = static_cast<Held*>(scratch.reserve(rows * steps_of(columns) * sizeof(Held)));
  if (!memory) return 1;
  for (int64_t b = 0; b < bands; b++)
    held[b].hold(memory + first_of(b) * steps_of(columns), x + first_of(b) * columns, first_of(b + 1) - first_of(b),
                 columns);
  if (rows == 1) {
    const int64_t chunk = std::max<int64_t>(1, CHUNK / (2 * std::max<int64_t>(columns, 1)));
    parallel_streams(outputs, chunk, [&](int64_t first, int64_t end) {
      one_row(memory, weight + first * columns, out + first, columns, end - first);
    });
    return 0;
  }
  const int64_t blocks = (outputs + BLOCK - 1) / BLOCK;
  const int64_t chunk = std::max<int64_t>(1, BLOCKS / (2 * BLOCK * std::max<int64_t>(columns, 1)));
  parallel_streams(blocks, chunk, [&](int64_t first, int64_t end) {
    alignas(64) Sums sums[BLOCK * BAND];
    alignas(64) Part parts[PARTS * BAND];
    for (int64_t at = first; at < end; at++) {
      const int64_t n = at * BLOCK, there = std::min<int64_t>(BLOCK, outputs - n);
      for (int64_t b = 0; b < bands; b++)
        block(held[b], weight + n * columns, out + first_of(b) * outputs + n, columns, outputs, there,
              b + 1 == bands && at + 1 < blocks, sums, parts);
    }
  });
  return 0;
}
RECORDABLE(kaminari_bfloat_linear)
