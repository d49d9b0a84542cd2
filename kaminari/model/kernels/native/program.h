// Calls of this library's functions as plain words, so that a program of them can be kept and run again.
//
// A call is the address of the function's `_again`, the number of its arguments, and the arguments, a word of 64
// bits each: pointers and integers as they are, floats as their bits in the low half.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "export.h"

using Again = int32_t (*)(const int64_t* arguments);

template <class T>
T argument(int64_t word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<intptr_t>(word));
  } else if constexpr (std::is_same_v<T, float>) {
    const uint32_t bits = static_cast<uint32_t>(word);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    static_assert(std::is_integral_v<T>);
    return static_cast<T>(word);
  }
}

template <class... Arguments, size_t... I>
int32_t call(int32_t (*function)(Arguments...), const int64_t* words, std::index_sequence<I...>) {
  return function(argument<Arguments>(words[I])...);
}

template <class... Arguments, size_t... I>
int32_t call(void (*function)(Arguments...), const int64_t* words, std::index_sequence<I...>) {
  function(argument<Arguments>(words[I])...);
  return 0;
}

template <class Result, class... Arguments>
int32_t call(Result (*function)(Arguments...), const int64_t* words) {
  return call(function, words, std::index_sequence_for<Arguments...>{});
}

// Stands behind a function that may be part of a program: one that returns nothing, or 0 where all went well.
#define RECORDABLE(function) \
  KAMINARI int32_t function##_again(const int64_t* arguments) { return call(function, arguments); }
