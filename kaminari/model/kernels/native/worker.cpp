// A thread of its own that runs recorded programs one behind the other, so that the thread that asks for one can work
// meanwhile and the next one begins as soon as the last is over.
#include <chrono>
#include <condition_variable>
#include <cstring>
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

struct Copy {
  const void* from;
  void* to;
  int64_t bytes;

  void make() const {
    if (bytes) std::memcpy(to, from, bytes);
  }
};

// A program that was asked for: what it takes from whoever asks, what it gives back, and how it went.
struct Task {
  const int64_t* words;
  int64_t count;
  Copy given, found;
  int threads;
  int32_t failure = 0;
  int64_t failed = 0, nanoseconds = 0;

  void run() {
    omp_set_num_threads(threads);
    const auto began = Clock::now();
    given.make();
    failure = kaminari_run(words, count, &failed);
    found.make();
    nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began).count();
  }
};

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}

  ~Worker() {
    over_ = true;
    announce();
    thread_.join();
  }

  // The number of the task; numbers ascend from 1.
  int64_t start(const Task& task) {
    const int64_t number = asked_.load(std::memory_order_relaxed) + 1;
    until([&] { return is_over(number - ROOM); }, PATIENCE_OF_HOST);
    place(number) = task;
    asked_.store(number, std::memory_order_release);
    announce();
    return number;
  }

  bool is_over(int64_t number) const { return finished_.load(std::memory_order_acquire) >= number; }

  void wait(int64_t number) {
    until([&] { return is_over(number); }, PATIENCE_OF_HOST);
  }

  // How a task went that is over and has fewer than ROOM behind it.
  void tell(int64_t number, int64_t* outcome) {
    const Task& task = place(number);
    outcome[0] = task.failure, outcome[1] = task.failed, outcome[2] = task.nanoseconds;
  }

 private:
  static constexpr int64_t ROOM = 16;
  // the next step is asked for some tens of microseconds after the last one, and waking up takes as long
  static constexpr auto PATIENCE = std::chrono::microseconds(100), PATIENCE_OF_HOST = std::chrono::microseconds(10);

  Task& place(int64_t number) { return tasks_[number % ROOM]; }

  void announce() {
    { std::lock_guard<std::mutex> guard(mutex_); }
    changed_.notify_all();
  }

  // Looks again and again for a while, and then sleeps.
  template <class Reached>
  void until(const Reached& reached, Clock::duration patience) {
    const auto end = Clock::now() + patience;
    do {
      if (reached()) return;
      sched_yield();
    } while (Clock::now() < end);
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, reached);
  }

  void work() {
    for (int64_t number = 1;; ++number) {
      const auto asked = [&] { return asked_.load(std::memory_order_acquire) >= number; };
      until([&] { return asked() || over_; }, PATIENCE);
      if (!asked()) return;
      place(number).run();
      finished_.store(number, std::memory_order_release);
      announce();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int64_t> asked_{0}, finished_{0};
  std::atomic<bool> over_{false};
  Task tasks_[ROOM];
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

// Ends a worker, once what it was asked for is over.
KAMINARI void kaminari_worker_end(void* worker) { delete static_cast<Worker*>(worker); }

// Asks for a program, to be run as `kaminari_run` does with as many threads as torch.set_num_threads set on the calling
// thread, and returns its number: at once, unless sixteen wait already. Right before it `given` is copied to `block`
// (bytes), right behind it `chosen` to `found`; all must stay where they are until it is over. Programs run in the order
// in which they were asked for.
KAMINARI int64_t kaminari_worker_start(void* worker, const int64_t* words, int64_t count, const void* given, void* block,
                                       int64_t given_bytes, const void* chosen, void* found, int64_t found_bytes) {
  const Task task{words, count, {given, block, given_bytes}, {chosen, found, found_bytes}, omp_get_max_threads()};
  return static_cast<Worker*>(worker)->start(task);
}

// Whether a program, one of the last sixteen, is over: then `outcome` [3] holds what `kaminari_run` returned, where it
// failed, and the nanoseconds that it took.
KAMINARI int32_t kaminari_worker_over(void* worker, int64_t number, int64_t* outcome) {
  Worker& of = *static_cast<Worker*>(worker);
  if (!of.is_over(number)) return 0;
  of.tell(number, outcome);
  return 1;
}

// Waits for a program, and tells as `kaminari_worker_over` does.
KAMINARI void kaminari_worker_wait(void* worker, int64_t number, int64_t* outcome) {
  Worker& of = *static_cast<Worker*>(worker);
  of.wait(number);
  of.tell(number, outcome);
}
