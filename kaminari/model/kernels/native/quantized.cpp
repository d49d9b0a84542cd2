// Linears whose weights are int8 or int4 codes and whose activations are quantized to int8 per row and group
// of columns (activations.h).
//
// A panel holds 32 outputs. Its bytes come in rows of 32 times 4: four columns of each output, one behind the
// other in the order of columns, so that a thread reads its weights as one ascending stream.
//   int8:  a row per 4 columns, of codes + 128. Scales lie apart, a float per output.
//   int4:  a row per 8 columns, the first four in the low nibbles; behind each group's rows one of the outputs'
//          scales and then zeros, in bfloat16.
// The last panel's missing outputs and the last row's missing columns hold codes that nothing is read from.
//
// A result is the sum over groups, in ascending order, of exact integer sums times scales: it depends neither
// on the other rows nor on threads.
#include "activations.h"
#include "program.h"
#include "simd.h"
#include "streams.h"
#include "unrolled.h"

namespace {

constexpr int PANEL = 32;
constexpr int LINE = 4 * PANEL;      // bytes of a panel's row
constexpr int64_t INT8_GROUP = 64;   // columns of a group of activations beside int8 weights
constexpr int64_t CHUNK = 1 << 17;   // bytes of weights that a thread takes at once, or a panel

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Asks for weights before they are needed. With a few rows the system's own prefetching keeps up; with more, lines
// wait for the products of those before them, and asking was measured to be faster by up to an eighth.
template <bool ASKS>
ALWAYS_INLINE inline void ask_ahead(const uint8_t* line) {
  if (ASKS) __builtin_prefetch(line + 4096);
}

// body(m, v) for every row m and vector v.
template <int ROWS, int VECTORS, class Body>
ALWAYS_INLINE inline void each_sum(const Body& body) {
  unrolled<ROWS>([&](auto m) ALWAYS_INLINE { unrolled<VECTORS>([&](auto v) ALWAYS_INLINE { body(m, v); }); });
}

struct Int8 {
  const uint8_t* panels;
  const float* scales;
  int64_t columns;

  int64_t group() const { return INT8_GROUP; }
  int64_t panel_bytes() const { return ceil_div(columns, 8) * 2 * LINE; }

  // The sums of VECTORS times LANES outputs from `lane` on, for every row of a tile.
  template <int ROWS, int VECTORS>
  void sums(int64_t panel, int lane, const Tile& tile, float (*result)[PANEL]) const {
    const uint8_t* line = panels + panel * panel_bytes() + lane * 4;
    const int8_t* x = tile.codes;
    Floats total[ROWS][VECTORS];
    each_sum<ROWS, VECTORS>([&](auto m, auto v) ALWAYS_INLINE { total[m][v] = splat(0.0f); });
    const int64_t lines = ceil_div(columns, 8) * 2;
    for (int64_t first = 0, at = 0; first < lines; first += INT8_GROUP / 4, at += ROWS) {
      Ints dots[ROWS][VECTORS];
      each_sum<ROWS, VECTORS>([&](auto m, auto v) ALWAYS_INLINE { dots[m][v] = splat(INT8_START * tile.sum[at + m]); });
      const int64_t end = std::min(first + INT8_GROUP / 4, lines);
      for (int64_t l = first; l < end; l++, line += LINE, x += 4 * ROWS) {
        Bytes codes[VECTORS];
        unrolled<VECTORS>([&](auto v) ALWAYS_INLINE {
          ask_ahead<(ROWS > 4)>(line + v * LANES * 4);
          codes[v] = load(line + v * LANES * 4);
        });
        unrolled<ROWS>([&](auto m) ALWAYS_INLINE {
          const auto columns = splat_bytes(x + 4 * m);
          unrolled<VECTORS>([&](auto v) ALWAYS_INLINE { dots[m][v] = dot_biased(dots[m][v], codes[v], columns); });
        });
      }
      each_sum<ROWS, VECTORS>([&](auto m, auto v) ALWAYS_INLINE {
        total[m][v] = fused(to_float(dots[m][v]), splat(tile.scale[at + m]), total[m][v]);
      });
    }
    unrolled<VECTORS>([&](auto v) ALWAYS_INLINE {
      const Floats scale = load_floats(scales + panel * PANEL + lane + v * LANES);
      unrolled<ROWS>([&](auto m) ALWAYS_INLINE { store(result[m] + lane + v * LANES, multiply(total[m][v], scale)); });
    });
  }
};

struct Int4 {
  const uint8_t* panels;
  int64_t columns;
  int64_t group_size;

  int64_t group() const { return group_size; }
  int64_t panel_bytes() const { return (ceil_div(columns, 8) + ceil_div(columns, group_size)) * LINE; }

  template <int ROWS, int VECTORS>
  void sums(int64_t panel, int lane, const Tile& tile, float (*result)[PANEL]) const {
    const uint8_t* line = panels + panel * panel_bytes() + lane * 4;
    const int8_t* x = tile.codes;
    Floats total[ROWS][VECTORS];
    each_sum<ROWS, VECTORS>([&](auto m, auto v) ALWAYS_INLINE { total[m][v] = splat(0.0f); });
    const int64_t lines = ceil_div(columns, 8), lines_of_group = group_size / 8;
    for (int64_t first = 0, at = 0; first < lines; first += lines_of_group, at += ROWS) {
      Ints dots[ROWS][VECTORS];
      each_sum<ROWS, VECTORS>([&](auto m, auto v) ALWAYS_INLINE { dots[m][v] = splat(-8 * tile.sum[at + m]); });
      const int64_t end = std::min(first + lines_of_group, lines);
      for (int64_t l = first; l < end; l++, line += LINE, x += 8 * ROWS) {
        Bytes low[VECTORS], high[VECTORS];
        unrolled<VECTORS>([&](auto v) ALWAYS_INLINE {
          ask_ahead<(ROWS > 2)>(line + v * LANES * 4);
          const Bytes both = load(line + v * LANES * 4);
          low[v] = low_nibbles(both);
          high[v] = high_nibbles(both);
        });
        const auto add_products = [&](const Bytes(&codes)[VECTORS], const int8_t* x) ALWAYS_INLINE {
          unrolled<ROWS>([&](auto m) ALWAYS_INLINE {
            const auto columns = splat_bytes(x + 4 * m);
            unrolled<VECTORS>([&](auto v) ALWAYS_INLINE { dots[m][v] = dot_unsigned(dots[m][v], codes[v], columns); });
          });
        };
        add_products(low, x);
        add_products(high, x + 4 * ROWS);
      }
      const uint16_t* numbers = reinterpret_cast<const uint16_t*>(line - lane * 4);
      unrolled<VECTORS>([&](auto v) ALWAYS_INLINE {
        const Floats scale = load_bfloats(numbers + lane + v * LANES);
        const Floats zero = load_bfloats(numbers + PANEL + lane + v * LANES);
        unrolled<ROWS>([&](auto m) ALWAYS_INLINE {
          Floats& sum = total[m][v];
          sum = fused(to_float(dots[m][v]), multiply(scale, splat(tile.scale[at + m])), sum);
          sum = fused(zero, splat(tile.lift[at + m]), sum);
        });
      });
      line += LINE;
    }
    each_sum<ROWS, VECTORS>([&](auto m, auto v) ALWAYS_INLINE { store(result[m] + lane + v * LANES, total[m][v]); });
  }
};

// Computes the sums of a tile's rows for a panel.
template <int ROWS = TILE, class Weight>
void panel_sums(const Weight& weight, int64_t panel, const Tile& tile, float (*result)[PANEL]) {
  if constexpr (ROWS > 1) {
    if (tile.rows < ROWS) return panel_sums<ROWS - 1>(weight, panel, tile, result);
  }
  constexpr int VECTORS = std::min(PANEL / LANES, vectors_of(ROWS));
  for (int lane = 0; lane < PANEL; lane += VECTORS * LANES)
    weight.template sums<ROWS, VECTORS>(panel, lane, tile, result);
}

// Returns 0, or 1 where there is no memory for the activations.
template <class Weight, class Number>
int32_t linear(const Weight& weight, const Number* x, Number* out, int64_t rows, int64_t outputs) {
  static thread_local Scratch scratch;
  Activations activations;
  if (!activations.quantize(scratch, x, rows, weight.columns, weight.group())) return 1;
  const int64_t chunk = ceil_div(CHUNK, weight.panel_bytes());
  parallel_streams(ceil_div(outputs, PANEL), chunk, [&](int64_t first, int64_t end) {
    alignas(64) float result[TILE][PANEL];
    for (int64_t panel = first; panel < end; panel++)
      for (int64_t t = 0; t < activations.tiles(); t++) {
        const Tile tile = activations.tile(t);
        panel_sums(weight, panel, tile, result);
        const int64_t there = std::min<int64_t>(PANEL, outputs - panel * PANEL);
        for (int m = 0; m < tile.rows; m++) {
          Number* to = out + (activations.first_row(t) + m) * outputs + panel * PANEL;
          if (there == PANEL)
            for (int i = 0; i < PANEL; i++) put(to + i, result[m][i]);
          else
            for (int i = 0; i < there; i++) put(to + i, result[m][i]);
        }
      }
  });
  return 0;
}

// Puts rows of a weight into its panels, whose bytes are zero before: a stretch of each row at a time, so that the
// lines it goes to stay in cache while their 32 outputs are written. to_line(lane's row, l): the four bytes of row l
// of a panel; line_of(l): where that row lies.
template <class ToLine, class LineOf>
void put_rows(int64_t first, int64_t count, int64_t lines, int64_t panel_bytes, uint8_t* panels,
              const ToLine& to_line, const LineOf& line_of) {
  constexpr int64_t STRETCH = 16;
  for (int64_t row = 0; row < count;) {
    const int64_t lane = (first + row) % PANEL, rows = std::min(PANEL - lane, count - row);
    uint8_t* const panel = panels + (first + row) / PANEL * panel_bytes + lane * 4;
    for (int64_t start = 0; start < lines; start += STRETCH) {
      const int64_t end = std::min(start + STRETCH, lines);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t l = start; l < end; l++) {
          const uint32_t four = to_line(row + r, l);
          std::memcpy(panel + line_of(l) * LINE + r * 4, &four, sizeof four);
        }
    }
    row += rows;
  }
}

// The bytes [at, at + 4) of a row of `length`, and zeros past its end.
ALWAYS_INLINE inline uint32_t four_of(const uint8_t* row, int64_t at, int64_t length) {
  uint32_t four = 0;
  if (at + 4 <= length)
    std::memcpy(&four, row + at, 4);
  else if (at < length)
    std::memcpy(&four, row + at, static_cast<size_t>(length - at));
  return four;
}

// Eight nibbles, the first lowest -> the first four in the low nibbles of four bytes, the others in the high ones.
ALWAYS_INLINE inline uint32_t fold_nibbles(uint32_t eight) {
  const auto spread = [](uint32_t four) {
    four = (four | four << 8) & 0x00FF00FFu;
    return (four | four << 4) & 0x0F0F0F0Fu;
  };
  return spread(eight & 0xFFFFu) | spread(eight >> 16) << 4;
}

void pack_int8(const int8_t* codes, int64_t columns, int64_t first, int64_t count, uint8_t* panels) {
  const Int8 weight{nullptr, nullptr, columns};
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  put_rows(
      first, count, ceil_div(columns, 8) * 2, weight.panel_bytes(), panels,
      [&](int64_t row, int64_t l) { return four_of(bytes + row * columns, l * 4, columns) ^ 0x80808080u; },
      [](int64_t l) { return l; });
}

// Writes row `output` of a weight: the inverse of pack_int8, times the scale.
template <class Number>
void unpack_int8(const Int8& weight, int64_t output, Number* to) {
  const uint8_t* from = weight.panels + output / PANEL * weight.panel_bytes() + output % PANEL * 4;
  const float scale = weight.scales[output];
  for (int64_t i = 0; i < weight.columns; i++)
    put(to + i, static_cast<float>(from[i / 4 * LINE + i % 4] - 128) * scale);
}

// Returns 0, or 2 and writes nothing where a token is no output.
template <class Number>
int32_t rows_of(const Int8& weight, int64_t outputs, const int64_t* tokens, Number* out, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= outputs) return 2;
  parallel(count, 8, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) unpack_int8(weight, tokens[i], out + i * weight.columns);
  });
  return 0;
}

void pack_int4(const uint8_t* codes, const uint16_t* scales, const uint16_t* zeros, const Int4& weight, int64_t first,
               int64_t count, uint8_t* panels) {
  const int64_t columns = weight.columns, groups = ceil_div(columns, weight.group_size), lines = ceil_div(columns, 8);
  const int64_t bytes = ceil_div(columns, 2), lines_of_group = weight.group_size / 8;
  const int64_t panel_bytes = weight.panel_bytes();
  // the high nibble behind an odd width's last column is none
  const uint32_t last = columns % 8 ? (1u << columns % 8 * 4) - 1 : ~0u;
  put_rows(
      first, count, lines, panel_bytes, panels,
      [&](int64_t row, int64_t l) {
        return fold_nibbles(four_of(codes + row * bytes, l * 4, bytes) & (l + 1 < lines ? ~0u : last));
      },
      [&](int64_t l) { return l + l / lines_of_group; });
  for (int64_t row = 0; row < count; row++) {
    uint8_t* const panel = panels + (first + row) / PANEL * panel_bytes;
    const int64_t lane = (first + row) % PANEL;
    for (int64_t g = 0; g < groups; g++) {
      uint8_t* numbers = panel + (std::min((g + 1) * lines_of_group, lines) + g) * LINE;
      std::memcpy(numbers + lane * 2, scales + row * groups + g, 2);
      std::memcpy(numbers + (PANEL + lane) * 2, zeros + row * groups + g, 2);
    }
  }
}

}  // namespace

// x, out: [rows][columns], [rows][outputs], bfloat16 where `bfloat`, else float. scales: of whole panels.
KAMINARI int32_t kaminari_int8_linear(const uint8_t* panels, const float* scales, int64_t columns, int64_t outputs,
                                      int32_t bfloat, const void* x, void* out, int64_t rows) {
  const Int8 weight{panels, scales, columns};
  if (bfloat) return linear(weight, static_cast<const uint16_t*>(x), static_cast<uint16_t*>(out), rows, outputs);
  return linear(weight, static_cast<const float*>(x), static_cast<float*>(out), rows, outputs);
}
RECORDABLE(kaminari_int8_linear)

KAMINARI int32_t kaminari_int4_linear(const uint8_t* panels, int64_t group_size, int64_t columns, int64_t outputs,
                                      int32_t bfloat, const void* x, void* out, int64_t rows) {
  const Int4 weight{panels, columns, group_size};
  if (bfloat) return linear(weight, static_cast<const uint16_t*>(x), static_cast<uint16_t*>(out), rows, outputs);
  return linear(weight, static_cast<const float*>(x), static_cast<float*>(out), rows, outputs);
}
RECORDABLE(kaminari_int4_linear)

// The rows of an int8 weight by their numbers. tokens: [count]; out: [count][columns], bfloat16 where `bfloat`.
KAMINARI int32_t kaminari_int8_rows(const uint8_t* panels, const float* scales, int64_t columns, int64_t outputs,
                                    int32_t bfloat, const int64_t* tokens, void* out, int64_t count) {
  const Int8 weight{panels, scales, columns};
  if (bfloat) return rows_of(weight, outputs, tokens, static_cast<uint16_t*>(out), count);
  return rows_of(weight, outputs, tokens, static_cast<float*>(out), count);
}
RECORDABLE(kaminari_int8_rows)

KAMINARI int64_t kaminari_int8_bytes(int64_t columns, int64_t outputs) {
  return ceil_div(outputs, PANEL) * Int8{nullptr, nullptr, columns}.panel_bytes();
}

KAMINARI int64_t kaminari_int4_bytes(int64_t group_size, int64_t columns, int64_t outputs) {
  return ceil_div(outputs, PANEL) * Int4{nullptr, columns, group_size}.panel_bytes();
}

// Rows from output `first` on, into panels whose bytes are zero where they go. Runs on the calling thread alone, so
// that several weights, or other rows of the same, may be packed at once.
// codes: [count][columns]
KAMINARI void kaminari_int8_pack(const int8_t* codes, int64_t columns, int64_t first, int64_t count, uint8_t* panels) {
  pack_int8(codes, columns, first, count, panels);
}

// codes: [count][(columns + 1) / 2], the even column in the low nibble; scales, zeros: bfloat16 [count][groups]
KAMINARI void kaminari_int4_pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* zeros,
                                 int64_t group_size, int64_t columns, int64_t first, int64_t count, uint8_t* panels) {
  pack_int4(codes, scales, zeros, Int4{nullptr, columns, group_size}, first, count, panels);
}
