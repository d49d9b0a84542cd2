// What greedy rows draw: the largest of their logits, found where a decode step leaves them.
#include "parallel.h"
#include "program.h"
#include "vec.h"

namespace {

constexpr int64_t GRAIN = 16 << 10;  // logits that are worth a thread's while
constexpr int32_t DONE = 0, BAD_INDEX = 2;
constexpr int64_t NONE = -1;

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
