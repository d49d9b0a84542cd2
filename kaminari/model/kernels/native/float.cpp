// Linears over float32 weights as they lie in a checkpoint, [outputs][columns], for the few rows of a decode step.
// A result is one chain of fused sums over ascending columns, whatever the other rows and the threads.
#include <algorithm>

#include "parallel.h"
#include "program.h"
#include "vec.h"

namespace {

constexpr int TILE = LANES == 16 ? 8 : 4;  // rows whose sums are held in registers at once
constexpr int TOGETHER = 16;               // outputs that a thread goes through for one tile of rows after the other
constexpr int64_t CHUNK = 1 << 18;         // bytes of weights that a thread takes at once

// `x` and `out` begin with the tile's first row; `weight` with the first of SIDES or fewer outputs.
template <int ROWS, int SIDES>
void products(const float* x, const float* weight, float* out, int64_t columns, int64_t outputs, int64_t there) {
  const float* line[SIDES];
  // where there are fewer, the last one stands in for the others, and is not written
  for (int64_t n = 0; n < SIDES; ++n) line[n] = weight + std::min(n, there - 1) * columns;
  Vec sums[SIDES][ROWS] = {};
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES)
    for (int n = 0; n < SIDES; ++n) {
      const Vec w = load(line[n] + i);
      for (int m = 0; m < ROWS; ++m) sums[n][m] = fma(load(x + m * columns + i), w, sums[n][m]);
    }
  if (i < columns)
    for (int n = 0; n < SIDES; ++n) {
      const Vec w = load(line[n] + i, columns - i);
      for (int m = 0; m < ROWS; ++m) sums[n][m] = fma(load(x + m * columns + i, columns - i), w, sums[n][m]);
    }
  for (int64_t n = 0; n < there; ++n)
    for (int m = 0; m < ROWS; ++m) out[m * outputs + n] = sum(sums[n][m]);
}

// All of [first, last) for a tile of rows.
template <int ROWS>
void products(const float* x, const float* weight, float* out, int64_t columns, int64_t outputs, int64_t first,
              int64_t last) {
  constexpr int SIDES = ROWS <= 2 ? 4 : 2;
  for (int64_t n = first; n < last; n += SIDES)
    products<ROWS, SIDES>(x, weight + n * columns, out + n, columns, outputs, std::min<int64_t>(SIDES, last - n));
}

using Products = void (*)(const float*, const float*, float*, int64_t, int64_t, int64_t, int64_t);
constexpr Products PRODUCTS[] = {products<1>, products<2>, products<3>, products<4>,
                                 products<5>, products<6>, products<7>, products<8>};

}  // namespace

// x [rows][columns], weight [outputs][columns], out [rows][outputs].
KAMINARI void kaminari_float_linear(const float* weight, int64_t columns, int64_t outputs, const float* x, float* out,
                                    int64_t rows) {
  const int64_t tiles = (rows + TILE - 1) / TILE;
  const int64_t blocks = (outputs + TOGETHER - 1) / TOGETHER;
  const int64_t chunk = std::max<int64_t>(1, CHUNK / (TOGETHER * 4 * std::max<int64_t>(columns, 1)));
  parallel(blocks, chunk, [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end; ++block)
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = rows * tile / tiles, tall = rows * (tile + 1) / tiles - row;
        const int64_t last = std::min((block + 1) * TOGETHER, outputs);
        PRODUCTS[tall - 1](x + row * columns, weight, out + row * outputs, columns, outputs, block * TOGETHER, last);
      }
  });
}
RECORDABLE(kaminari_float_linear)
