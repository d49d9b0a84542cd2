// Linears whose weights are int8 or int4 codes and whose activations are quantized to int8 per row and group
// of columns (activations.h).
//
// A panel holds 16 outputs. Its bytes come in lines of 64: four columns of each output, one behind the other
// in the order of columns, so that a call reads its weights as one ascending stream per thread.
//   int8:  a line per 4 columns, of codes + 128. Scales lie apart, a float per output.
//   int4:  a line per 8 columns, the first four in the low nibbles; behind each group's lines one line of the
//          16 outputs' scales and then zeros, in bfloat16.
// The last panel's missing outputs and the last line's missing columns hold codes that nothing is read from.
//
// A result is the sum over groups, in ascending order, of exact integer sums times scales: it depends neither
// on the other rows nor on threads.
#include "activations.h"
#include "export.h"
#include "parallel.h"
#include "simd.h"

namespace {

constexpr int PANEL = 16;
constexpr int LINE = 64;
constexpr int64_t INT8_GROUP = 64;   // columns of a group of activations beside int8 weights
constexpr int IN_L2 = 2;             // how near __builtin_prefetch brings what it asks for
constexpr int64_t CHUNK = 1 << 17;   // bytes of weights that a thread takes at once, or SIDES panels
constexpr int SIDES = 4;             // panels that are read side by side where that streams faster

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Asks for weights before they are needed. With a row or two the system's own prefetching keeps up; with more,
// lines wait for the products of those before them, and asking was measured to be up to a third faster; int8,
// which reads twice as much per product, gains from a second, FAR distance.
template <int ROWS, int FAR>
inline void ask_ahead(const uint8_t* line) {
  if (ROWS <= 2) return;
  __builtin_prefetch(line + 4096);
  if (FAR) __builtin_prefetch(line + FAR, 0, IN_L2);
}

struct Int8 {
  const uint8_t* panels;
  const float* scales;
  int64_t columns;

  int64_t group() const { return INT8_GROUP; }
  bool side_by_side() const { return true; }
  int64_t panel_bytes() const { return ceil_div(columns, 8) * 2 * LINE; }

  // The sums of LANES outputs from `lane` on, of SIDES panels, for every row of a tile.
  template <int ROWS, int SIDES>
  void sums(int64_t panel, int lane, const Tile& tile, float (*result)[TILE][PANEL]) const {
    const int64_t apart = panel_bytes();
    const uint8_t* line = panels + panel * apart + lane * 4;
    const int8_t* x = tile.codes;
    Floats total[SIDES][ROWS];
    for (auto& side : total)
      for (auto& each : side) each = splat(0.0f);
    const int64_t lines = ceil_div(columns, 8) * 2;
    for (int64_t first = 0, at = 0; first < lines; first += INT8_GROUP / 4, at += ROWS) {
      Ints dots[SIDES][ROWS];
      for (auto& side : dots)
        for (int m = 0; m < ROWS; m++) side[m] = splat(INT8_START * tile.sum[at + m]);
      const int64_t end = std::min(first + INT8_GROUP / 4, lines);
      for (int64_t l = first; l < end; l++, line += LINE, x += 4 * ROWS)
        for (int s = 0; s < SIDES; s++) {
          ask_ahead<ROWS, 16384>(line + s * apart);
          const Bytes codes = load(line + s * apart);
          for (int m = 0; m < ROWS; m++) dots[s][m] = dot_biased(dots[s][m], codes, x + 4 * m);
        }
      for (int s = 0; s < SIDES; s++)
        for (int m = 0; m < ROWS; m++)
          total[s][m] = fused(to_float(dots[s][m]), splat(tile.scale[at + m]), total[s][m]);
    }
    for (int s = 0; s < SIDES; s++) {
      const Floats scale = load_floats(scales + (panel + s) * PANEL + lane);
      for (int m = 0; m < ROWS; m++) store(result[s][m] + lane, multiply(total[s][m], scale));
    }
  }
};

struct Int4 {
  const uint8_t* panels;
  int64_t columns;
  int64_t group_size;

  int64_t group() const { return group_size; }
  // measured: of panels that are this long, several stream faster than one, and of shorter ones slower
  bool side_by_side() const { return columns >= 4096; }
  int64_t panel_bytes() const { return (ceil_div(columns, 8) + ceil_div(columns, group_size)) * LINE; }

  template <int ROWS, int SIDES>
  void sums(int64_t panel, int lane, const Tile& tile, float (*result)[TILE][PANEL]) const {
    const int64_t apart = panel_bytes();
    const uint8_t* line = panels + panel * apart + lane * 4;
    const int8_t* x = tile.codes;
    Floats total[SIDES][ROWS];
    for (auto& side : total)
      for (auto& each : side) each = splat(0.0f);
    const int64_t lines = ceil_div(columns, 8), lines_of_group = group_size / 8;
    for (int64_t first = 0, at = 0; first < lines; first += lines_of_group, at += ROWS) {
      Ints dots[SIDES][ROWS], others[SIDES][ROWS];
      for (int s = 0; s < SIDES; s++)
        for (int m = 0; m < ROWS; m++) dots[s][m] = splat(-8 * tile.sum[at + m]), others[s][m] = splat(0);
      const int64_t end = std::min(first + lines_of_group, lines);
      for (int64_t l = first; l < end; l++, line += LINE, x += 8 * ROWS)
        for (int s = 0; s < SIDES; s++) {
          ask_ahead<ROWS, 0>(line + s * apart);
          const Bytes both = load(line + s * apart);
          const Bytes low = low_nibbles(both), high = high_nibbles(both);
          for (int m = 0; m < ROWS; m++) dots[s][m] = dot_unsigned(dots[s][m], low, x + 4 * m);
          for (int m = 0; m < ROWS; m++) others[s][m] = dot_unsigned(others[s][m], high, x + 4 * (ROWS + m));
        }
      for (int s = 0; s < SIDES; s++) {
        const uint16_t* numbers = reinterpret_cast<const uint16_t*>(line + s * apart - lane * 4);
        const Floats scale = load_bfloats(numbers + lane), zero = load_bfloats(numbers + PANEL + lane);
        for (int m = 0; m < ROWS; m++) {
          const Floats sum = to_float(add(dots[s][m], others[s][m]));
          total[s][m] = fused(sum, multiply(scale, splat(tile.scale[at + m])), total[s][m]);
          total[s][m] = fused(zero, splat(tile.lift[at + m]), total[s][m]);
        }
      }
      line += LINE;
    }
    for (int s = 0; s < SIDES; s++)
      for (int m = 0; m < ROWS; m++) store(result[s][m] + lane, total[s][m]);
  }
};

template <int ROWS, class Weight>
int panel_sums(const Weight& weight, int64_t panel, int64_t end, const Tile& tile, float (*result)[TILE][PANEL]) {
  // with more rows there are no registers for it, and enough to do between two lines
  constexpr int SOME = ROWS <= 2 ? SIDES : 1;
  if (weight.side_by_side() && end - panel >= SOME) {
    for (int lane = 0; lane < PANEL; lane += LANES) weight.template sums<ROWS, SOME>(panel, lane, tile, result);
    return SOME;
  }
  for (int lane = 0; lane < PANEL; lane += LANES) weight.template sums<ROWS, 1>(panel, lane, tile, result);
  return 1;
}

// Computes the sums of a tile's rows for the panel and as many behind it as it returns.
template <class Weight>
int panel_sums(const Weight& weight, int64_t panel, int64_t end, const Tile& tile, float (*result)[TILE][PANEL]) {
  switch (tile.rows) {
    case 1: return panel_sums<1>(weight, panel, end, tile, result);
    case 2: return panel_sums<2>(weight, panel, end, tile, result);
    case 3: return panel_sums<3>(weight, panel, end, tile, result);
    case 4: return panel_sums<4>(weight, panel, end, tile, result);
    case 5: return panel_sums<5>(weight, panel, end, tile, result);
    case 6: return panel_sums<6>(weight, panel, end, tile, result);
    case 7: return panel_sums<7>(weight, panel, end, tile, result);
    default: return panel_sums<8>(weight, panel, end, tile, result);
  }
}

// Returns 0, or 1 where there is no memory for the activations.
template <class Weight, class Number>
int32_t linear(const Weight& weight, const Number* x, Number* out, int64_t rows, int64_t outputs) {
  static thread_local Scratch scratch;
  Activations activations;
  if (!activations.quantize(scratch, x, rows, weight.columns, weight.group())) return 1;
  const int64_t chunk = ceil_div(CHUNK, weight.panel_bytes() * SIDES) * SIDES;
  parallel(ceil_div(outputs, PANEL), chunk, [&](int64_t first, int64_t end) {
    alignas(64) float result[SIDES][TILE][PANEL];
    for (int64_t panel = first, done = 1; panel < end; panel += done)
      for (int64_t t = 0; t < activations.tiles(); t++) {
        const Tile tile = activations.tile(t);
        done = panel_sums(weight, panel, end, tile, result);
        const int64_t there = std::min<int64_t>(PANEL * done, outputs - panel * PANEL);
        for (int m = 0; m < tile.rows; m++) {
          Number* to = out + (activations.first_row(t) + m) * outputs + panel * PANEL;
          for (int64_t i = 0; i < there; i++) put(to + i, result[i / PANEL][m][i % PANEL]);
        }
      }
  });
  return 0;
}

void pack_int8(const int8_t* codes, int64_t columns, int64_t outputs, int64_t panel, uint8_t* to) {
  const int64_t padded = ceil_div(columns, 8) * 8;
  for (int64_t lane = 0; lane < PANEL; lane++) {
    const int64_t output = panel * PANEL + lane;
    for (int64_t i = 0; i < padded; i++) {
      const int8_t code = output < outputs && i < columns ? codes[output * columns + i] : int8_t{0};
      to[i / 4 * LINE + lane * 4 + i % 4] = static_cast<uint8_t>(code + 128);
    }
  }
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

void pack_int4(const uint8_t* codes, const uint16_t* scales, const uint16_t* zeros, const Int4& weight,
               int64_t outputs, int64_t panel, uint8_t* to) {
  const int64_t columns = weight.columns, groups = ceil_div(columns, weight.group_size);
  const int64_t bytes = ceil_div(columns, 2), lines_of_group = weight.group_size / 8;
  std::memset(to, 0, weight.panel_bytes());
  for (int64_t lane = 0; lane < PANEL && panel * PANEL + lane < outputs; lane++) {
    const int64_t output = panel * PANEL + lane;
    const auto code = [&](int64_t i) -> unsigned {
      return i < columns ? codes[output * bytes + i / 2] >> (i % 2 * 4) & 15u : 0u;
    };
    for (int64_t l = 0; l * 8 < columns; l++) {
      uint8_t* line = to + (l + l / lines_of_group) * LINE + lane * 4;
      for (int64_t j = 0; j < 4; j++)
        line[j] = static_cast<uint8_t>(code(l * 8 + j) | code(l * 8 + 4 + j) << 4);
    }
    for (int64_t g = 0; g < groups; g++) {
      uint8_t* numbers = to + (std::min((g + 1) * lines_of_group, ceil_div(columns, 8)) + g) * LINE;
      std::memcpy(numbers + lane * 2, scales + output * groups + g, 2);
      std::memcpy(numbers + (PANEL + lane) * 2, zeros + output * groups + g, 2);
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

KAMINARI int32_t kaminari_int4_linear(const uint8_t* panels, int64_t group_size, int64_t columns, int64_t outputs,
                                      int32_t bfloat, const void* x, void* out, int64_t rows) {
  const Int4 weight{panels, columns, group_size};
  if (bfloat) return linear(weight, static_cast<const uint16_t*>(x), static_cast<uint16_t*>(out), rows, outputs);
  return linear(weight, static_cast<const float*>(x), static_cast<float*>(out), rows, outputs);
}

// The rows of an int8 weight by their numbers. tokens: [count]; out: [count][columns], bfloat16 where `bfloat`.
KAMINARI int32_t kaminari_int8_rows(const uint8_t* panels, const float* scales, int64_t columns, int64_t outputs,
                                    int32_t bfloat, const int64_t* tokens, void* out, int64_t count) {
  const Int8 weight{panels, scales, columns};
  if (bfloat) return rows_of(weight, outputs, tokens, static_cast<uint16_t*>(out), count);
  return rows_of(weight, outputs, tokens, static_cast<float*>(out), count);
}

KAMINARI int64_t kaminari_int8_bytes(int64_t columns, int64_t outputs) {
  return ceil_div(outputs, PANEL) * Int8{nullptr, nullptr, columns}.panel_bytes();
}

KAMINARI int64_t kaminari_int4_bytes(int64_t group_size, int64_t columns, int64_t outputs) {
  return ceil_div(outputs, PANEL) * Int4{nullptr, columns, group_size}.panel_bytes();
}

// codes: [outputs][columns]
KAMINARI void kaminari_int8_pack(const int8_t* codes, int64_t columns, int64_t outputs, uint8_t* panels) {
  const int64_t bytes = Int8{nullptr, nullptr, columns}.panel_bytes();
  parallel(ceil_div(outputs, PANEL), 4, [&](int64_t first, int64_t end) {
    for (int64_t panel = first; panel < end; panel++)
      pack_int8(codes, columns, outputs, panel, panels + panel * bytes);
  });
}

// codes: [outputs][(columns + 1) / 2], the even column in the low nibble; scales, zeros: bfloat16 [outputs][groups]
KAMINARI void kaminari_int4_pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* zeros,
                                 int64_t group_size, int64_t columns, int64_t outputs, uint8_t* panels) {
  const Int4 weight{nullptr, columns, group_size};
  parallel(ceil_div(outputs, PANEL), 4, [&](int64_t first, int64_t end) {
    for (int64_t panel = first; panel < end; panel++)
      pack_int4(codes, scales, zeros, weight, outputs, panel, panels + panel * weight.panel_bytes());
  });
}
