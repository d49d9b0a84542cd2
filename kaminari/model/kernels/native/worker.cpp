// A thread of its own that runs recorded programs, so that the thread that asks for one can work meanwhile.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <sched.h>
#include <system_error>
#include <thread>

#include "parallel.h"
#include "program.h"

extern "C" void omp_set_num_threads(int threads);
extern "C" int32_t kaminari_run(const int64_t* words, int64_t count, int64_t* failed);

namespace {

using Clock = std::chrono::steady_clock;

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}

  ~Worker() {
    until([](int state) { return state != ASKED; }, PATIENCE);
    set(OVER);
    thread_.join();
  }

  void start(const int64_t* words, int64_t count, int threads) {
    words_ = words, count_ = count, threads_ = threads;
    set(ASKED);
  }

  int32_t wait(int64_t* failed, int64_t* nanoseconds) {
    until([](int state) { return state == DONE; }, PATIENCE_OF_HOST);
    *failed = failed_, *nanoseconds = nanoseconds_;
    state_.store(IDLE, std::memory_order_relaxed);
    return failure_;
  }

 private:
  enum { IDLE, ASKED, DONE, OVER };
  // the next step is asked for some tens of microseconds after the last one, and waking up takes as long
  static constexpr auto PATIENCE = std::chrono::microseconds(100), PATIENCE_OF_HOST = std::chrono::microseconds(10);

  void set(int state) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      state_.store(state, std::memory_order_release);
    }
    changed_.notify_all();
  }

  // Looks again and again for a while, and then sleeps.
  template <class Reached>
  int until(const Reached& reached, Clock::duration patience) {
    const auto end = Clock::now() + patience;
    do {
      if (const int state = state_.load(std::memory_order_acquire); reached(state)) return state;
      sched_yield();
    } while (Clock::now() < end);
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [&] { return reached(state_.load(std::memory_order_relaxed)); });
    return state_.load(std::memory_order_relaxed);
  }

  void work() {
    while (until([](int state) { return state == ASKED || state == OVER; }, PATIENCE) == ASKED) {
      omp_set_num_threads(threads_);
      const auto began = Clock::now();
      failure_ = kaminari_run(words_, count_, &failed_);
      nanoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began).count();
      set(DONE);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> state_{IDLE};
  const int64_t* words_ = nullptr;
  int64_t count_ = 0;
  int threads_ = 1;
  int32_t failure_ = 0;
  int64_t failed_ = 0, nanoseconds_ = 0;
  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace

// Returns a worker, or null where there is no thread for it.
KAMINARI void* kaminari_worker() {
  try {
    return new (std::nothrow) Worker;
  } catch (const std::system_error&) {
    return nullptr;
  }
}

// Ends a worker, once what it runs is over.
KAMINARI void kaminari_worker_end(void* worker) { delete static_cast<Worker*>(worker); }

// Begins a program as `kaminari_run` does, with as many threads as torch.set_num_threads set on the calling thread,
// and returns at once. The worker must be free: each program is waited for before the next is begun.
KAMINARI void kaminari_worker_start(void* worker, const int64_t* words, int64_t count) {
  static_cast<Worker*>(worker)->start(words, count, omp_get_max_threads());
}

// Waits for the program that was begun. Returns what `kaminari_run` does, and how long it ran.
KAMINARI int32_t kaminari_worker_wait(void* worker, int64_t* failed, int64_t* nanoseconds) {
  return static_cast<Worker*>(worker)->wait(failed, nanoseconds);
}
