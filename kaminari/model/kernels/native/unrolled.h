// Loops that are gone before the compiler decides what lives in registers.
//
// An array that is indexed by a loop's counter stays in memory where the loop is unrolled too late for the
// compiler to see constants: sums would be stored and loaded at every step.
#pragma once
#include <utility>

#define ALWAYS_INLINE __attribute__((always_inline))

template <class Body, int... NUMBERS>
ALWAYS_INLINE inline void unrolled(const Body& body, std::integer_sequence<int, NUMBERS...>) {
  (body(std::integral_constant<int, NUMBERS>{}), ...);
}

// body(0), body(1), ..., body(COUNT - 1), each number a constant. Bodies are marked ALWAYS_INLINE.
template <int COUNT, class Body>
ALWAYS_INLINE inline void unrolled(const Body& body) {
  unrolled(body, std::make_integer_sequence<int, COUNT>{});
}
