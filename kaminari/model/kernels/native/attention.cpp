// Attention of one to eight new tokens of each row over the slot cache, and the writing of their keys and values.
//
// The keys of a row are cut into segments of a fixed size. A segment of one key-value head is one piece of work,
// for all query heads that read it: it writes what new keys and values lie in it, and reduces the rest to a
// maximum, a sum and a weighted sum of values per query. Who finishes a head's last segment merges them in
// ascending order (the online softmax of Milakov and Gimelshein, 2018). The size is fixed and not the number, so
// a row's result depends neither on its neighbours nor on capacity or threads. `segment_bfloat.h` reduces segments of
// bfloat16 where the processor multiplies it, `segment_plain.h` all others. Scores and sums are float32.
// Nothing past a row's length is read, and nothing but its new places is written.
#include <cstdlib>
#include <type_traits>

#include "program.h"
#include "segment.h"
#include "segment_bfloat.h"
#include "segment_plain.h"
#include "streams.h"
#include "vec.h"

namespace {

// One piece of work.
struct Piece {
  int64_t row, kv_head, segment;
};

// partial: per query a maximum, a sum, and `dim` values.
template <class T>
void reduce(const Call<T>& call, const Row& row, const Piece& piece, float* partial) {
  const int64_t dim = call.dim, begin = piece.segment * SEGMENT, old = row.length - row.queries;
  const int64_t place = ((row.slot * call.kv_heads + piece.kv_head) * call.capacity + begin) * dim;
  T *keys = call.keys + place, *values = call.values + place;
  const int64_t left = row.length - begin, count = left < SEGMENT ? left : SEGMENT;
  const Part<T> part{call, row, call.heads / call.kv_heads, piece.kv_head, begin, count, keys, values};
  for (int64_t i = old > begin ? old - begin : 0; i < part.count; ++i) {
    const int64_t token = row.first + begin + i - old;
    std::memcpy(keys + i * dim, call.k + token * call.k_stride + piece.kv_head * dim, dim * sizeof(T));
    std::memcpy(values + i * dim, call.v + token * call.v_stride + piece.kv_head * dim, dim * sizeof(T));
  }
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<T, bf16>) return pairs::reduce(part, partial);
#endif
  plain::reduce(part, partial);
}

// The segments of one key-value head, whose results lie one behind the other, become the output.
template <class T>
void merge(const Call<T>& call, const Row& row, int64_t kv_head, const float* partial) {
  const int64_t dim = call.dim, group = call.heads / call.kv_heads;
  const int64_t queries = row.queries * group, stride = dim + 2, next = queries * stride;
  for (int64_t j = 0; j < queries; ++j) {
    const float* first = partial + j * stride;
    Vec top = all(NOTHING);
    for (int64_t s = 0; s < row.segments; ++s) top = larger(all(first[s * next]), top);
    Vec sums[MOST_DIM / LANES] = {}, total{};
    for (int64_t s = 0; s < row.segments; ++s) {
      const float* one = first + s * next;
      const Vec weight = exp(all(one[0]) - top);
      total = fma(weight, all(one[1]), total);
      for (int64_t d = 0; d < dim; d += LANES) sums[d / LANES] = fma(weight, load(one + 2 + d), sums[d / LANES]);
    }
    const int64_t token = row.first + j / group, head = kv_head * group + j % group;
    T* out = call.out + (token * call.heads + head) * dim;
    for (int64_t d = 0; d < dim; d += LANES) store(out + d, sums[d / LANES] / total);
  }
}

// Memory of the calling thread that grows and stays. nullptr where there is none.
void* scratch(size_t bytes) {
  struct Kept {
    void* memory = nullptr;
    size_t size = 0;
    ~Kept() { std::free(memory); }
  };
  static thread_local Kept kept;
  if (kept.size < bytes) {
    std::free(kept.memory);
    kept.memory = std::malloc(bytes);
    kept.size = kept.memory ? bytes : 0;
  }
  return kept.memory;
}

constexpr int32_t DONE = 0, NO_MEMORY = 1, BAD_ROWS = 2;

template <class T>
int32_t attend(const Call<T>& call, const int64_t* slots, const int32_t* q_lens, const int32_t* kv_lens,
               int64_t row_count, int64_t tokens, int64_t slot_count) {
  const int64_t group = call.heads / call.kv_heads;
  int64_t pieces = 0, floats = 0;
  for (int64_t r = 0; r < row_count; ++r) {
    tokens -= q_lens[r];
    if (slots[r] < 0 || slots[r] >= slot_count || q_lens[r] < 1 || kv_lens[r] < q_lens[r] ||
        kv_lens[r] > call.capacity)
      return BAD_ROWS;
    if (q_lens[r] > MOST_QUERIES) continue;
    const int64_t work = call.kv_heads * ((kv_lens[r] + SEGMENT - 1) / SEGMENT);
    pieces += work;
    floats += work * q_lens[r] * group * (call.dim + 2);
  }
  if (tokens != 0) return BAD_ROWS;
  const size_t row_bytes = row_count * sizeof(Row), left_bytes = row_count * call.kv_heads * sizeof(int32_t);
  char* memory = static_cast<char*>(scratch(row_bytes + floats * sizeof(float) + left_bytes));
  if (memory == nullptr) return NO_MEMORY;
  Row* rows = reinterpret_cast<Row*>(memory);
  float* partials = reinterpret_cast<float*>(memory + row_bytes);
  int32_t* left = reinterpret_cast<int32_t*>(partials + floats);  // segments of a head that are not reduced yet
  int64_t first = 0, work = 0, partial = 0, taken = 0;
  for (int64_t r = 0; r < row_count; ++r) {
    const int64_t queries = q_lens[r], segments = (kv_lens[r] + SEGMENT - 1) / SEGMENT;
    if (queries <= MOST_QUERIES) {
      for (int64_t h = 0; h < call.kv_heads; ++h) left[taken * call.kv_heads + h] = segments;
      rows[taken++] = {slots[r], first, queries, kv_lens[r], segments, work, partial};
      work += call.kv_heads * segments;
      partial += call.kv_heads * segments * queries * group * (call.dim + 2);
    }
    first += queries;
  }
  parallel_streams(pieces, 1, [&](int64_t begin, int64_t end) {
    Piece piece{};
    while (piece.row + 1 < taken && rows[piece.row + 1].work <= begin) ++piece.row;
    piece.kv_head = (begin - rows[piece.row].work) / rows[piece.row].segments;
    piece.segment = (begin - rows[piece.row].work) % rows[piece.row].segments;
    for (int64_t number = begin; number < end; ++number) {
      const int64_t r = piece.row, head = piece.kv_head;
      const Row& row = rows[r];
      const int64_t each = row.queries * group * (call.dim + 2);
      float* results = partials + row.partial + head * row.segments * each;
      reduce(call, row, piece, results + piece.segment * each);
      if (__atomic_sub_fetch(&left[r * call.kv_heads + head], 1, __ATOMIC_ACQ_REL) == 0)
        merge(call, row, head, results);
      if (++piece.segment == row.segments) {
        piece.segment = 0;
        if (++piece.kv_head == call.kv_heads) piece = {r + 1, 0, 0};
      }
    }
  });
  return DONE;
}

}  // namespace

// q [tokens, heads, dim], k and v [tokens, kv_heads, dim], with strides from token to token in elements; keys and
// values [slot_count, kv_heads, capacity, dim]; out [tokens, heads, dim]; all bfloat16 where `narrow` is set, else
// float32. dim is a multiple of 16 up to 256. Rows of more than 8 new tokens are left alone, in the cache and in
// the output. Returns 0; 1 where there is no memory; 2, with nothing done, for rows that do not fit.
KAMINARI int32_t kaminari_attend(const void* q, const void* k, const void* v, void* keys, void* values, void* out,
                                 int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t tokens,
                                 int64_t heads, int64_t kv_heads, int64_t slot_count, int64_t capacity, int64_t dim,
                                 const int64_t* slots, const int32_t* q_lens, const int32_t* kv_lens, int64_t rows,
                                 float scale, int32_t narrow) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    const Call<T> call{static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                       static_cast<T*>(keys),    static_cast<T*>(values),  static_cast<T*>(out),
                       q_stride,                 k_stride,                 v_stride,
                       heads,                    kv_heads,                 capacity,
                       dim,                      scale};
    return attend(call, slots, q_lens, kv_lens, rows, tokens, slot_count);
  };
  return narrow ? run(bf16{}) : run(float{});
}
RECORDABLE(kaminari_attend)
