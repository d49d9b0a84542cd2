// Work shared among the threads of torch's own OpenMP pool.
//
// The runtime's functions are declared here and found at load time in the process, where torch has already
// loaded its libgomp: compiled with -fopenmp, the library could bring a second runtime with a second pool.
#pragma once
#include <atomic>
#include <cstdint>

extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_max_threads(void);
int omp_in_parallel(void);
}

// Calls work(first, end) on ranges of at most `chunk` that together are [0, items), each on whichever thread
// is free: a thread that the system takes away for a while does not hold up the others. The number of threads
// is what torch.set_num_threads set on the calling thread. `work` must not throw.
template <class Work>
void parallel(int64_t items, int64_t chunk, const Work& work) {
  const int64_t chunks = (items + chunk - 1) / chunk;
  int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads > chunks) threads = chunks;
  if (threads <= 1) {
    if (items > 0) work(0, items);
    return;
  }
  struct Shared {
    std::atomic<int64_t> next;
    const int64_t items, chunk;
    const Work& work;
  } shared{{0}, items, chunk, work};
  GOMP_parallel(
      [](void* data) {
        Shared& all = *static_cast<Shared*>(data);
        for (int64_t first; (first = all.next.fetch_add(all.chunk, std::memory_order_relaxed)) < all.items;) {
          const int64_t end = first + all.chunk;
          all.work(first, end < all.items ? end : all.items);
        }
      },
      &shared, static_cast<unsigned>(threads), 0);
}
