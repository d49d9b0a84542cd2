// Work on memory that is read once from one end to the other.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "parallel.h"

// What is left to do of [low, high), taken from either end.
class alignas(64) Stretch {
 public:
  void set(int64_t low, int64_t high) { left_.store(pack(low, high), std::memory_order_relaxed); }

  // Takes up to `chunk` items from the lower end, or from the upper one; false where none is left.
  bool take(int64_t chunk, bool lower, int64_t* first, int64_t* end) {
    uint64_t left = left_.load(std::memory_order_relaxed), then;
    do {
      const int64_t low = left & 0xffffffff, high = left >> 32;
      if (low == high) return false;
      *first = lower ? low : std::max(low, high - chunk);
      *end = lower ? std::min(low + chunk, high) : high;
      then = lower ? pack(*end, high) : pack(low, *first);
    } while (!left_.compare_exchange_weak(left, then, std::memory_order_relaxed));
    return true;
  }

 private:
  static uint64_t pack(int64_t low, int64_t high) { return static_cast<uint64_t>(high) << 32 | low; }
  std::atomic<uint64_t> left_;
};

// Calls work(first, end) on ranges of at most `chunk` that together are [0, items), items below 2^32. Each
// thread walks up a stretch of its own: where threads take turns along one stretch, what the processor fetches
// ahead for one is read by another. A thread that is done takes from the upper ends of the others' stretches,
// so that one which the system takes away for a while holds up nobody.
template <class Work>
void parallel_streams(int64_t items, int64_t chunk, const Work& work) {
  constexpr int64_t MOST = 64;
  const int64_t count = std::min<int64_t>({omp_get_max_threads(), MOST, (items + chunk - 1) / chunk});
  if (count <= 1) {
    if (items > 0) work(0, items);
    return;
  }
  Stretch stretches[MOST];
  for (int64_t n = 0; n < count; n++) stretches[n].set(items * n / count, items * (n + 1) / count);
  parallel(count, 1, [&](int64_t from, int64_t to) {
    int64_t first, end;
    for (int64_t n = from; n < to; n++)
      while (stretches[n].take(chunk, true, &first, &end)) work(first, end);
    for (int64_t n = to; n < from + count; n++)
      while (stretches[n % count].take(chunk, false, &first, &end)) work(first, end);
  });
}
