// A segment of a row's keys, as `attention.cpp` hands it to the code that reduces it.
#pragma once
#include <cstdint>

constexpr int64_t SEGMENT = 256;  // keys
constexpr int64_t MOST_QUERIES = 8;
constexpr int64_t MOST_DIM = 256;
constexpr int64_t BLOCK = 8;  // queries that share a pass over a segment
constexpr float NOTHING = -__builtin_inff();

struct Row {
  int64_t slot, first, queries, length;
  int64_t segments, work, partial;  // how many, the number of its first piece of work, where its results begin
};

template <class T>
struct Call {
  const T *q, *k, *v;
  T *keys, *values, *out;
  int64_t q_stride, k_stride, v_stride;  // from token to token; the heads of a token lie side by side
  int64_t heads, kv_heads, capacity, dim;
  float scale;
};

// One segment of one key-value head for all query heads that read it, its new keys and values written.
template <class T>
struct Part {
  const Call<T>& call;
  const Row& row;
  int64_t group, kv_head;
  int64_t begin, count;  // the number of its first key in the row, and how many there are
  const T *keys, *values;

  int64_t queries() const { return row.queries * group; }

  // In 32 bits, which processors divide faster.
  int64_t token(int64_t number) const { return static_cast<uint32_t>(number) / static_cast<uint32_t>(group); }
  int64_t head(int64_t number) const { return static_cast<uint32_t>(number) % static_cast<uint32_t>(group); }

  // Queries go token by token, and within a token head by head.
  const T* query(int64_t number) const {
    return call.q + (row.first + token(number)) * call.q_stride + (kv_head * group + head(number)) * call.dim;
  }

  // How many of its keys a query may read.
  int64_t seen(int64_t number) const {
    const int64_t keys_seen = row.length - row.queries + token(number) + 1 - begin;
    return keys_seen < 0 ? 0 : keys_seen > count ? count : keys_seen;
  }
};
