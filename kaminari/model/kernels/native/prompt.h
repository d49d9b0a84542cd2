// One row's attention: what `prompt.cpp` and `prompt_bfloat.cpp` are called with, and the online softmax in both.
#pragma once
#include <cstdint>

#include "vec.h"

constexpr float NOTHING = -__builtin_inff();

// From token to token and from head to head, in elements.
struct Strides {
  int64_t token, head;
};

// Tensors as `kaminari_attend_prompt` says.
template <class T>
struct PromptCall {
  const T *q, *keys, *values;
  T* out;
  int64_t q_stride;  // from token to token
  Strides key, value;
  int64_t tokens, heads, kv_heads, length, dim;
  float scale;
  bool causal;

  // How many keys a token reads.
  int64_t reach(int64_t token) const { return causal ? length - tokens + token + 1 : length; }
};

// Turns one query's scores over a block of keys into weights beside the largest score so far; returns what older
// sums shrink by. A score that is no number is never the largest, and its weight, hence the sum, is none either.
template <int64_t BLOCK>
float soften(float* scores, int64_t seen, float* top, float* total) {
  for (int64_t i = seen < 0 ? 0 : seen; i < BLOCK; ++i) scores[i] = NOTHING;
  Vec largest_yet = all(*top);
  for (int64_t i = 0; i < BLOCK; i += LANES) largest_yet = larger(load(scores + i), largest_yet);
  const float now = largest(largest_yet);
  const float shrink = *top == now ? 1.0f : exp(all(*top - now))[0];
  Vec added{};
  for (int64_t i = 0; i < BLOCK; i += LANES) {
    const Vec weight = exp(load(scores + i) - now);
    store(scores + i, weight);
    added += weight;
  }
  *total = *total * shrink + sum(added);
  *top = now;
  return shrink;
}

#if defined(__AVX512BF16__)
// As `kaminari_attend_prompt`, by products of bfloat16 numbers: weights are rounded to it.
void attend_prompt_in_bfloat(const PromptCall<bf16>& call);
#endif
