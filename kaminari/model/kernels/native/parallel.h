// Work shared among the threads of torch's own OpenMP pool.
//
// The runtime's functions are declared here and found at load time in the process, where torch has already
// loaded its libgomp: compiled with -fopenmp, the library could bring a second runtime with a second pool.
#pragma once
#include <atomic>
#include <cstdint>

#include "team.h"

extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_max_threads(void);
int omp_in_parallel(void);
}

// Calls work(first, end) on ranges of at most `chunk` that together are [0, items), each on whichever thread
// is free: a thread that the system takes away for a while does not hold up the others. The threads are those
// of the team that the calling thread leads, else as many as torch.set_num_threads set on it. `work` must not
// throw.
template <class Work>
void parallel(int64_t items, int64_t chunk, const Work& work) {
  const int64_t chunks = (items + chunk - 1) / chunk;
  Team* const team = Team::led;
  int64_t threads = team ? team->threads() : omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads > chunks) threads = chunks;
  if (threads <= 1) {
    if (items > 0) work(0, items);
    return;
  }
  Chunks shared(items, chunk, work);
  if (team)
    team->share(shared);
  else
    GOMP_parallel([](void* data) { static_cast<Chunks*>(data)->take(); }, &shared, static_cast<unsigned>(threads), 0);
}
