// Attention of one to eight new tokens of each row over the slot cache, and the writing of their keys and values.
//
// The keys of a row are cut into segments of a fixed size. A segment of one key-value head is one piece of work,
// for all query heads that read it: it writes what new keys and values lie in it, and reduces the rest to a
// maximum, a sum and a weighted sum of values per query. Who finishes a head's last segment merges them in
// ascending order (the online softmax of Milakov and Gimelshein, 2018). The size is fixed and not the number, so
// a row's result depends neither on its neighbours nor on capacity or threads. Scores and sums are float32.
// Nothing past a row's length is read, and nothing but its new places is written.
#include <cstdlib>

#include "parallel.h"
#include "program.h"
#include "vec.h"

namespace {

constexpr int64_t SEGMENT = 256;  // keys
constexpr int64_t MOST_QUERIES = 8;
constexpr int64_t MOST_DIM = 256;
constexpr int64_t BLOCK = 8;  // queries that share a pass over a segment
constexpr float NOTHING = -__builtin_inff();

template <class T>
struct Call {
  const T *q, *k, *v;
  T *keys, *values, *out;
  int64_t q_stride, k_stride, v_stride;  // from token to token; the heads of a token lie side by side
  int64_t heads, kv_heads, capacity, dim;
  float scale;
};

struct Row {
  int64_t slot, first, queries, length;
  int64_t segments, work, partial;  // how many, the number of its first piece of work, where its results begin
};

// The dot products of QUERIES queries with KEYS keys, one or a multiple of four, that follow one another.
template <int QUERIES, int KEYS, class T>
void dot(const float* q, const T* keys, int64_t dim, float* scores) {
  Vec sums[QUERIES][KEYS] = {};
  for (int64_t d = 0; d < dim; d += LANES) {
    Vec key[KEYS];
    for (int i = 0; i < KEYS; ++i) key[i] = load(keys + i * dim + d);
    for (int j = 0; j < QUERIES; ++j) {
      const Vec query = load(q + j * MOST_DIM + d);
      for (int i = 0; i < KEYS; ++i) sums[j][i] = fma(query, key[i], sums[j][i]);
    }
  }
  for (int j = 0; j < QUERIES; ++j) {
    float* to = scores + j * SEGMENT;
    if constexpr (KEYS == 1) {
      float only[4];
      sum4(sums[j][0], Vec{}, Vec{}, Vec{}, only);
      *to = only[0];
    } else {
      for (int i = 0; i < KEYS; i += 4) sum4(sums[j][i], sums[j][i + 1], sums[j][i + 2], sums[j][i + 3], to + i);
    }
  }
}

template <int QUERIES, class T>
void dot_all(const float* q, const T* keys, int64_t count, int64_t dim, float* scores) {
  constexpr int KEYS = LANES == 16 ? 16 / QUERIES : 4;
  constexpr int TILE = KEYS > 8 ? 8 : KEYS;
  int64_t i = 0;
  for (; i + TILE <= count; i += TILE) dot<QUERIES, TILE>(q, keys + i * dim, dim, scores + i);
  for (; i < count; ++i) dot<QUERIES, 1>(q, keys + i * dim, dim, scores + i);
}

// out[j] = sum of weights[j][i] * values[i] over WIDTH vectors of a head.
template <int QUERIES, int WIDTH, class T>
void weigh(const float* weights, const T* values, int64_t count, int64_t dim, float* out, int64_t out_stride) {
  Vec sums[QUERIES][WIDTH] = {};
  for (int64_t i = 0; i < count; ++i) {
    Vec value[WIDTH];
    for (int w = 0; w < WIDTH; ++w) value[w] = load(values + i * dim + w * LANES);
    for (int j = 0; j < QUERIES; ++j) {
      const Vec weight = all(weights[j * SEGMENT + i]);
      for (int w = 0; w < WIDTH; ++w) sums[j][w] = fma(weight, value[w], sums[j][w]);
    }
  }
  for (int j = 0; j < QUERIES; ++j)
    for (int w = 0; w < WIDTH; ++w) store(out + j * out_stride + w * LANES, sums[j][w]);
}

template <int QUERIES, class T>
void weigh_all(const float* weights, const T* values, int64_t count, int64_t dim, float* out, int64_t out_stride) {
  constexpr int WIDTH = LANES == 16 ? (QUERIES > 2 ? 4 : 8) : (QUERIES > 1 ? 2 : 4);
  int64_t d = 0;
  for (; d + WIDTH * LANES <= dim; d += WIDTH * LANES)
    weigh<QUERIES, WIDTH>(weights, values + d, count, dim, out + d, out_stride);
  for (; d + 2 * LANES <= dim; d += 2 * LANES)
    weigh<QUERIES, 2>(weights, values + d, count, dim, out + d, out_stride);
  for (; d < dim; d += LANES) weigh<QUERIES, 1>(weights, values + d, count, dim, out + d, out_stride);
}

// Turns the first `seen` of `count` scores into weights e^(score - largest) and the rest into zeros. A score that is
// no number is never the largest, and its weight, hence the sum, is none either.
void soften(float* scores, int64_t seen, int64_t count, float* largest_score, float* total) {
  for (int64_t i = seen; i < (count + LANES - 1) / LANES * LANES; ++i) scores[i] = NOTHING;
  Vec top = all(NOTHING);
  for (int64_t i = 0; i < seen; i += LANES) top = larger(load(scores + i), top);
  *largest_score = largest(top);
  const Vec subtracted = all(seen ? *largest_score : 0.0f);
  Vec added{};
  for (int64_t i = 0; i < count; i += LANES) {
    const Vec weight = exp(load(scores + i) - subtracted);
    store(scores + i, weight);
    added += weight;
  }
  *total = sum(added);
}

// One segment for all query heads of one key-value head. partial: per query a maximum, a sum, and `dim` values.
template <class T>
void reduce(const Call<T>& call, const Row& row, int64_t kv_head, int64_t segment, float* partial) {
  const int64_t dim = call.dim, group = call.heads / call.kv_heads;
  const int64_t begin = segment * SEGMENT;
  const int64_t count = row.length - begin < SEGMENT ? row.length - begin : SEGMENT;
  const int64_t place = ((row.slot * call.kv_heads + kv_head) * call.capacity + begin) * dim;
  T *keys = call.keys + place, *values = call.values + place;
  const int64_t old = row.length - row.queries;
  for (int64_t i = old > begin ? old - begin : 0; i < count; ++i) {
    const int64_t token = row.first + begin + i - old;
    std::memcpy(keys + i * dim, call.k + token * call.k_stride + kv_head * dim, dim * sizeof(T));
    std::memcpy(values + i * dim, call.v + token * call.v_stride + kv_head * dim, dim * sizeof(T));
  }
  alignas(64) float q[BLOCK * MOST_DIM], scores[BLOCK * SEGMENT];
  const int64_t queries = row.queries * group, stride = dim + 2;
  for (int64_t done = 0; done < queries; done += BLOCK) {
    const int64_t block = queries - done < BLOCK ? queries - done : BLOCK;
    for (int64_t j = 0; j < block; ++j) {
      const int64_t token = row.first + (done + j) / group, head = kv_head * group + (done + j) % group;
      for (int64_t d = 0; d < dim; d += LANES)
        store(q + j * MOST_DIM + d, call.scale * load(call.q + token * call.q_stride + head * dim + d));
    }
    int64_t j = 0;
    for (; j + 4 <= block; j += 4) dot_all<4>(q + j * MOST_DIM, keys, count, dim, scores + j * SEGMENT);
    for (; j + 2 <= block; j += 2) dot_all<2>(q + j * MOST_DIM, keys, count, dim, scores + j * SEGMENT);
    for (; j < block; ++j) dot_all<1>(q + j * MOST_DIM, keys, count, dim, scores + j * SEGMENT);
    float* results = partial + done * stride;
    for (j = 0; j < block; ++j) {
      int64_t seen = old + (done + j) / group + 1 - begin;
      seen = seen < 0 ? 0 : seen > count ? count : seen;
      soften(scores + j * SEGMENT, seen, count, results + j * stride, results + j * stride + 1);
    }
    float* sums = results + 2;
    for (j = 0; j + 4 <= block; j += 4)
      weigh_all<4>(scores + j * SEGMENT, values, count, dim, sums + j * stride, stride);
    for (; j + 2 <= block; j += 2)
      weigh_all<2>(scores + j * SEGMENT, values, count, dim, sums + j * stride, stride);
    for (; j < block; ++j) weigh_all<1>(scores + j * SEGMENT, values, count, dim, sums + j * stride, stride);
  }
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
  parallel(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      int64_t r = 0;
      while (r + 1 < taken && rows[r + 1].work <= piece) ++r;
      const Row& row = rows[r];
      const int64_t head = (piece - row.work) / row.segments, segment = (piece - row.work) % row.segments;
      const int64_t each = row.queries * group * (call.dim + 2);
      float* results = partials + row.partial + head * row.segments * each;
      reduce(call, row, head, segment, results + segment * each);
      if (__atomic_sub_fetch(&left[r * call.kv_heads + head], 1, __ATOMIC_ACQ_REL) == 0)
        merge(call, row, head, results);
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
