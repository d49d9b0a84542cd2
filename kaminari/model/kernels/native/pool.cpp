// The pool that every kernel here shares with torch.
#include "export.h"
#include "parallel.h"

// How many threads of the pool a kernel uses: what torch.set_num_threads set on the calling thread.
KAMINARI int32_t kaminari_threads() {
  std::atomic<int32_t> waiting{omp_get_max_threads()};
  std::atomic<int32_t> met{0};
  parallel(waiting, 1, [&](int64_t, int64_t) {
    met.fetch_add(1);
    // each thread waits for the others, so that none takes two items
    while (met.load() < waiting.load()) {}
  });
  return met.load();
}
