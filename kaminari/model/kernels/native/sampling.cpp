// What rows draw: the largest of their logits, or a token by weights that are whole numbers.
//
// Behind the exponential all is exact, so that the order of sums, the number of rows and that of threads change
// nothing. `kaminari.engine.sampler` says what is computed; torch's operators do the same there, slower.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "parallel.h"
#include "program.h"
#include "scratch.h"
#include "vec.h"

namespace {

constexpr int64_t GRAIN = 16 << 10;  // logits that are worth a thread's while
constexpr int32_t DONE = 0, NO_MEMORY = 1, BAD_INDEX = 2;
constexpr int WEIGHT_BITS = 42;
constexpr int64_t HEAVIEST = int64_t{1} << WEIGHT_BITS;
constexpr int64_t NONE = -1;
constexpr int64_t BARRED = 1024;  // tokens that can be barred from a row

template <class T>
int64_t first_equal(const T* row, int64_t vocab, float value) {
  int64_t i = 0;
  for (; i + LANES <= vocab; i += LANES) {
    const Ints equal = load(row + i) == all(value);
    int32_t any = 0;
    for (int lane = 0; lane < LANES; ++lane) any |= equal[lane];
    if (any) break;
  }
  while (i < vocab && widen(row[i]) != value) ++i;
  return i;
}

template <class T>
int64_t greedy(const T* row, int64_t vocab) {
  Vec most[4], odd[4];
  for (int part = 0; part < 4; ++part) most[part] = all(widen(row[0])), odd[part] = Vec{};
  const auto look = [&](int part, Vec x) {
    most[part] = larger(most[part], x);
    odd[part] += x - x;  // zero for a number, and no number for what is none or infinite
  };
  int64_t i = 0;
  for (; i + 4 * LANES <= vocab; i += 4 * LANES)
    for (int part = 0; part < 4; ++part) look(part, load(row + i + part * LANES));
  for (; i + LANES <= vocab; i += LANES) look(0, load(row + i));
  float best = largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
  float strange = sum((odd[0] + odd[1]) + (odd[2] + odd[3]));
  for (; i < vocab; ++i) {
    const float x = widen(row[i]);
    best = x > best ? x : best;
    strange += x - x;
  }
  return strange == 0 ? first_equal(row, vocab, best) : NONE;
}

template <class T>
float peak(const T* row, int64_t vocab) {
  Vec most = all(-__builtin_inff());
  int64_t i = 0;
  for (; i + LANES <= vocab; i += LANES) most = larger(most, load(row + i));
  float best = largest(most);
  for (; i < vocab; ++i) best = std::max(best, widen(row[i]));
  return best;
}

template <class T>
void weigh(const T* row, int64_t vocab, float temperature, int64_t* weights) {
  const Vec top = all(peak(row, vocab)), by = all(temperature);
  for (int64_t i = 0; i < vocab; i += LANES) {
    const int64_t n = std::min<int64_t>(LANES, vocab - i);
    const Vec scaled = exp((load(row + i, n) - top) / by) * static_cast<float>(HEAVIEST);
    const Vec number = scaled == scaled ? scaled : Vec{};
    float some[LANES];
    store(some, number);
    for (int lane = 0; lane < n; ++lane) weights[i + lane] = static_cast<int64_t>(some[lane]);
  }
}

// A weight above zero and whose it is. Heavier ones come first, and lower ids among equals.
struct Ranked {
  int64_t weight, id;
  bool operator<(const Ranked& other) const {
    return weight != other.weight ? weight > other.weight : id < other.id;
  }
};

// The weights of a row by their size, roughly: no weight of a shelf is heavier than one of the next. A weight has the
// 24 bits of the float that it was made of, whose exponent and first bits number the shelves.
class Shelves {
 public:
  Shelves(const int64_t* weights, int64_t vocab) : weights_(weights), vocab_(vocab) {
    for (int64_t id = 0; id < vocab; ++id)
      if (weights[id]) ++counts_[shelf(weights[id])], masses_[shelf(weights[id])] += weights[id];
  }

  // How far the first `count` weights reach, and what they weigh in all: {0, ...} for one past the last.
  // Returns false without memory.
  bool by_count(int64_t count, Ranked& last, int64_t& mass) {
    mass = 0;
    for (int at = COUNT - 1; at >= 0; --at) {
      if (count > counts_[at]) {
        count -= counts_[at], mass += masses_[at];
        continue;
      }
      Ranked* const these = sorted(at);
      if (!these) return false;
      for (int64_t i = 0; i < count; ++i) mass += these[i].weight;
      last = these[count - 1];
      return true;
    }
    last = {0, 0};
    return true;
  }

  // The last weight before which less than `limit` lies. Returns false without memory.
  bool by_mass(double limit, Ranked& last) {
    int64_t before = 0;
    last = {0, 0};
    for (int at = COUNT - 1; at >= 0; --at) {
      if (static_cast<double>(before + masses_[at]) < limit) {
        before += masses_[at];
        continue;
      }
      if (!counts_[at]) continue;
      Ranked* const these = sorted(at);
      if (!these) return false;
      last = these[0];
      for (int64_t i = 0; i < counts_[at] && static_cast<double>(before) < limit; before += these[i++].weight)
        last = these[i];
      return true;
    }
    return true;
  }

 private:
  static constexpr int SHIFT = 17, FIRST = 127 << (23 - SHIFT);
  static constexpr int COUNT = ((127 + WEIGHT_BITS) << (23 - SHIFT)) - FIRST + 1;

  static int shelf(int64_t weight) {
    const float number = static_cast<float>(weight);
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return static_cast<int>(bits >> SHIFT) - FIRST;
  }

  Ranked* sorted(int at) {
    static thread_local Scratch scratch;
    Ranked* const these = static_cast<Ranked*>(scratch.reserve(counts_[at] * sizeof(Ranked)));
    if (!these) return nullptr;
    int64_t count = 0;
    for (int64_t id = 0; id < vocab_; ++id)
      if (weights_[id] && shelf(weights_[id]) == at) these[count++] = {weights_[id], id};
    std::sort(these, these + count);
    return these;
  }

  const int64_t* const weights_;
  const int64_t vocab_;
  std::array<int64_t, COUNT> counts_{}, masses_{};
};

int32_t keep(int64_t* weights, int64_t vocab, int64_t top_k, double top_p, int64_t lightest) {
  Ranked last{0, 0};
  if (top_k > 0 || top_p != 1) {
    Shelves shelves(weights, vocab);
    Ranked by_count, by_mass;
    int64_t mass;
    if (!shelves.by_count(top_k > 0 ? top_k : vocab, by_count, mass)) return NO_MEMORY;
    if (!shelves.by_mass(top_p * static_cast<double>(mass), by_mass)) return NO_MEMORY;
    // the heavier of the two cuts more
    last = by_count < by_mass ? by_count : by_mass;
  }
  for (int64_t id = 0; id < vocab; ++id)
    if (weights[id] < lightest || (last.weight && last < Ranked{weights[id], id})) weights[id] = 0;
  return DONE;
}

// What each line of a cache's slots asks for, see `kaminari_choose`.
struct Tables {
  int32_t* made;
  const uint8_t* prompt;
  const float* penalties;
  const int64_t* bias_ids;
  const float* biases;
  int64_t most_biased;
  const int64_t* ends;
  int64_t most_ended;
};

struct Orders {
  int64_t line;
  bool penalized;
  int64_t biased, barred;
};

struct Draw {
  double temperature, top_k, top_p, min_p, noise;
};

// A row's logits as `kaminari.engine.logit_edits` edits them; a barred one is minus infinity. False for an id that is
// none.
template <class T>
bool edit(const T* row, int64_t vocab, const Orders& order, const Tables& tables, float* edited) {
  for (int64_t id = 0; id < vocab; ++id) edited[id] = widen(row[id]);
  if (order.penalized) {
    const int32_t* const made = tables.made + order.line * vocab;
    const uint8_t* const prompt = tables.prompt + order.line * vocab;
    const float *const by = tables.penalties + order.line * 3, repetition = by[0], frequency = by[1], presence = by[2];
    for (int64_t id = 0; id < vocab; ++id) {
      const float x = edited[id], repeated = x > 0 ? x / repetition : x * repetition;
      const float seen = prompt[id] || made[id] > 0 ? repeated : x;
      edited[id] = (seen - static_cast<float>(made[id]) * frequency) - (made[id] > 0 ? presence : 0.0f);
    }
  }
  for (int64_t i = 0; i < order.biased; ++i) {
    const int64_t id = tables.bias_ids[order.line * tables.most_biased + i];
    if (id < 0 || id >= vocab) return false;
    edited[id] += tables.biases[order.line * tables.most_biased + i];
  }
  constexpr float LIMIT = std::numeric_limits<float>::max();
  if (order.penalized || order.biased)
    for (int64_t id = 0; id < vocab; ++id) edited[id] = std::min(std::max(edited[id], -LIMIT), LIMIT);
  return true;
}

// Bars tokens from a row, unless that leaves nothing. False for an id that is none.
bool bar(float* edited, int64_t vocab, const int64_t* ends, int64_t count) {
  float before[BARRED];
  if (count > BARRED) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (ends[i] < 0 || ends[i] >= vocab) return false;
    before[i] = edited[ends[i]];
    edited[ends[i]] = -__builtin_inff();
  }
  if (peak(edited, vocab) == -__builtin_inff())
    while (count-- > 0) edited[ends[count]] = before[count];
  return true;
}

int64_t draw(const int64_t* weights, int64_t vocab, double noise) {
  int64_t total = 0;
  for (int64_t id = 0; id < vocab; ++id) total += weights[id];
  // the product is rounded to 53 bits and may reach the total
  const int64_t target = std::min(static_cast<int64_t>(noise * static_cast<double>(total)), total - 1);
  int64_t mass = 0, id = 0;
  for (; id < vocab - 1; ++id)
    if ((mass += weights[id]) > target) break;
  return id;
}

template <class T>
int32_t draw(const T* row, int64_t vocab, const Draw& by, int64_t* weights, int64_t& id) {
  weigh(row, vocab, static_cast<float>(by.temperature), weights);
  const int64_t lightest = static_cast<int64_t>(std::ceil(by.min_p * static_cast<double>(HEAVIEST)));
  if (keep(weights, vocab, static_cast<int64_t>(by.top_k), by.top_p, lightest) != DONE) return NO_MEMORY;
  id = draw(weights, vocab, by.noise);
  return DONE;
}

template <class T>
int32_t choose(const T* row, int64_t vocab, const Orders& order, const Draw& by, const Tables& tables, int64_t& id) {
  static thread_local Scratch scratch;
  const bool edits = order.penalized || order.biased > 0 || order.barred > 0;
  id = greedy(row, vocab);
  if (id == NONE || (!edits && by.temperature == 0)) return DONE;
  int64_t* const weights = static_cast<int64_t*>(scratch.reserve(vocab * (sizeof(int64_t) + sizeof(float))));
  if (!weights) return NO_MEMORY;
  if (!edits) return draw(row, vocab, by, weights, id);
  float* const edited = reinterpret_cast<float*>(weights + vocab);
  const bool fits = edit(row, vocab, order, tables, edited) &&
                    bar(edited, vocab, tables.ends + order.line * tables.most_ended, order.barred);
  if (!fits) return BAD_INDEX;
  if (by.temperature == 0)
    id = first_equal(edited, vocab, peak(edited, vocab));
  else if (draw(edited, vocab, by, weights, id) != DONE)
    return NO_MEMORY;
  if (order.penalized) ++tables.made[order.line * vocab + id];
  return DONE;
}

}  // namespace

// logits [rows, vocab], bfloat16 where `narrow` is set, else float32 -> ids [rows]: the first of the largest, or -1
// where one of the row's logits is no number or infinite.
KAMINARI void kaminari_greedy(const void* logits, int64_t rows, int64_t vocab, int64_t* ids, int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    parallel(rows, 1 + GRAIN / vocab, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) ids[row] = greedy(static_cast<const T*>(logits) + row * vocab, vocab);
    });
  });
}
RECORDABLE(kaminari_greedy)

// logits as above -> ids [rows]: a token drawn from what the filters leave of the row's weights; the first of the largest
// where the temperature is 0; -1 as above.
//   index [rows]      the row's line in the tables below, of which there are `lines`
//   orders [3, rows]  whether the row has penalties, how many biases, and how many tokens are barred from it
//   draws [5, rows]   temperature, top_k, top_p, min_p and noise, as below
//   made, prompt      [lines, vocab], how often the line's answer has a token, and whether its prompt does
//   penalties         [lines, 3]: repetition, frequency, presence
//   bias_ids, biases  [lines, most_biased]; ends [lines, most_ended], the tokens that are barred
// A token that is drawn counts as made where the row has penalties. Returns 0; 1 where memory ran out; 2 for numbers
// that do not fit.
KAMINARI int32_t kaminari_choose(const void* logits, int64_t rows, int64_t vocab, const int64_t* index, int64_t lines,
                                 const int64_t* orders, const double* draws, int32_t* made, const uint8_t* prompt,
                                 const float* penalties, const int64_t* bias_ids, const float* biases,
                                 int64_t most_biased, const int64_t* ends, int64_t most_ended, int64_t* ids,
                                 int32_t narrow) {
  const Tables tables{made, prompt, penalties, bias_ids, biases, most_biased, ends, most_ended};
  std::atomic<int32_t> failure{DONE};
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    parallel(rows, 1 + GRAIN / vocab, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        const Orders order{index[row], orders[row] != 0, orders[rows + row], orders[2 * rows + row]};
        const Draw by{draws[row], draws[rows + row], draws[2 * rows + row], draws[3 * rows + row], draws[4 * rows + row]};
        const bool fits = order.line >= 0 && order.line < lines && order.biased <= most_biased && order.barred <= most_ended;
        const int32_t outcome =
            fits ? choose(static_cast<const T*>(logits) + row * vocab, vocab, order, by, tables, ids[row]) : BAD_INDEX;
        if (outcome != DONE) failure = outcome;
      }
    });
  });
  return failure;
}
RECORDABLE(kaminari_choose)

// table[index[row]] = ids[row], and 0 for an id below it, in a table of `lines` numbers. Returns 0; 2, with some
// unwritten, for an index that is none.
KAMINARI int32_t kaminari_leave(int64_t* table, int64_t lines, const int64_t* index, const int64_t* ids, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    if (index[row] < 0 || index[row] >= lines) return BAD_INDEX;
    table[index[row]] = ids[row] < 0 ? 0 : ids[row];
  }
  return DONE;
}
RECORDABLE(kaminari_leave)

// logits as above, temperature [rows], 0 counting as 1 -> weights [rows, vocab]: floor(2^42 e^((x - max) / temperature)).
KAMINARI void kaminari_weigh(const void* logits, int64_t rows, int64_t vocab, const float* temperature, int64_t* weights,
                             int32_t narrow) {
  with_type(narrow, [&](auto kind) {
    using T = decltype(kind);
    parallel(rows, 1 + GRAIN / vocab, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row)
        weigh(static_cast<const T*>(logits) + row * vocab, vocab, temperature[row] == 0 ? 1 : temperature[row],
              weights + row * vocab);
    });
  });
}

// Sets to zero which of weights [rows, vocab] are not among the top_k heaviest (0: all are), behind those that make up
// top_p of what those weigh (1: none is), or below `lightest`; each [rows]. Returns 0; 1 where memory ran out.
KAMINARI int32_t kaminari_keep(int64_t* weights, int64_t rows, int64_t vocab, const int64_t* top_k, const double* top_p,
                               const int64_t* lightest) {
  std::atomic<int32_t> failure{DONE};
  parallel(rows, 1 + GRAIN / vocab, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row)
      if (keep(weights + row * vocab, vocab, top_k[row], top_p[row], lightest[row]) != DONE) failure = NO_MEMORY;
  });
  return failure;
}

// weights [rows, vocab], noise [rows] in [0, 1) -> ids [rows]: the first whose weights up to it exceed noise * total.
KAMINARI void kaminari_draw(const int64_t* weights, int64_t rows, int64_t vocab, const double* noise, int64_t* ids) {
  parallel(rows, 1 + GRAIN / vocab, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) ids[row] = draw(weights + row * vocab, vocab, noise[row]);
  });
}
