// Reduces a segment in float32, whatever the keys and values are.
#pragma once
#include "segment.h"
#include "vec.h"

namespace plain {

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

// partial: per query a maximum, a sum, and `dim` values.
template <class T>
void reduce(const Part<T>& part, float* partial) {
  const int64_t dim = part.call.dim, count = part.count, queries = part.queries(), stride = dim + 2;
  const T *keys = part.keys, *values = part.values;
  alignas(64) float q[BLOCK * MOST_DIM], scores[BLOCK * SEGMENT];
  for (int64_t done = 0; done < queries; done += BLOCK) {
    const int64_t block = queries - done < BLOCK ? queries - done : BLOCK;
    int64_t j = 0;
    for (; j < block; ++j)
      for (int64_t d = 0; d < dim; d += LANES)
        store(q + j * MOST_DIM + d, part.call.scale * load(part.query(done + j) + d));
    for (j = 0; j + 4 <= block; j += 4) dot_all<4>(q + j * MOST_DIM, keys, count, dim, scores + j * SEGMENT);
    for (; j + 2 <= block; j += 2) dot_all<2>(q + j * MOST_DIM, keys, count, dim, scores + j * SEGMENT);
    for (; j < block; ++j) dot_all<1>(q + j * MOST_DIM, keys, count, dim, scores + j * SEGMENT);
    float* results = partial + done * stride;
    for (j = 0; j < block; ++j)
      soften(scores + j * SEGMENT, part.seen(done + j), count, results + j * stride, results + j * stride + 1);
    float* sums = results + 2;
    for (j = 0; j + 4 <= block; j += 4)
      weigh_all<4>(scores + j * SEGMENT, values, count, dim, sums + j * stride, stride);
    for (; j + 2 <= block; j += 2)
      weigh_all<2>(scores + j * SEGMENT, values, count, dim, sums + j * stride, stride);
    for (; j < block; ++j) weigh_all<1>(scores + j * SEGMENT, values, count, dim, sums + j * stride, stride);
  }
}

}  // namespace plain
