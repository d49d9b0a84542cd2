// Threads that stay together from one parallel piece of work to the next, so that none has to be woken.
#pragma once
#include <atomic>
#include <cstdint>
#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A piece of work in chunks, which threads take as they come.
class Chunks {
 public:
  template <class Work>
  Chunks(int64_t items, int64_t chunk, const Work& work)
      : items_(items), chunk_(chunk), work_(&work), call_([](const void* of, int64_t first, int64_t end) {
          (*static_cast<const Work*>(of))(first, end);
        }) {}

  // Runs chunks until there are no more to take; others may still be running theirs.
  void take() {
    for (int64_t first; (first = next_.fetch_add(chunk_, std::memory_order_relaxed)) < items_;)
      call_(work_, first, first + chunk_ < items_ ? first + chunk_ : items_);
  }

 private:
  std::atomic<int64_t> next_{0};
  const int64_t items_, chunk_;
  const void* const work_;
  void (*const call_)(const void*, int64_t, int64_t);
};

// One leader, who runs the code between the pieces alone and shares the pieces, and helpers who wait for them.
//
// A helper that the system has taken away when a piece is shared misses it, and nobody waits for it; the
// leader waits for those who take part. Who waits spins for some microseconds, and then gives its processor to
// whoever else wants it.
class Team {
 public:
  // The one that this thread leads now, if any.
  static inline thread_local Team* led = nullptr;

  explicit Team(int64_t threads) : threads_(threads) {}
  int64_t threads() const { return threads_; }

  template <class Work>
  void lead(const Work& work) {
    led = this;
    work();
    led = nullptr;
    state_.store(OVER, std::memory_order_release);
  }

  // The leader's: runs a piece with whoever of the team is there, and returns once it is done.
  void share(Chunks& chunks) {
    chunks_ = &chunks;
    state_.store(number_ += NEXT, std::memory_order_release);
    chunks.take();
    state_.fetch_or(CLOSED, std::memory_order_relaxed);
    for (int spins = 0; state_.load(std::memory_order_acquire) & INSIDE;) wait(spins);
  }

  // A helper's: takes part until the leader is through.
  void help() {
    for (uint64_t mine = 0;;) {
      uint64_t state = state_.load(std::memory_order_acquire);
      for (int spins = 0; (state & CLOSED) || (state & ~INSIDE) == mine;) {
        if (state == OVER) return;
        wait(spins);
        state = state_.load(std::memory_order_acquire);
      }
      if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) continue;
      mine = state & ~INSIDE;
      chunks_->take();
      state_.fetch_sub(1, std::memory_order_release);
    }
  }

 private:
  // state_: how many helpers are inside, whether none may come in any more, and the number of the piece
  static constexpr uint64_t INSIDE = 0xffff, CLOSED = 1 << 16, NEXT = 1 << 17, OVER = ~uint64_t{0};
  static constexpr int SPINS = 4000;

  static void wait(int& spins) {
    if (++spins > SPINS) {
      sched_yield();
      return;
    }
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const int64_t threads_;
  alignas(64) std::atomic<uint64_t> state_{CLOSED};
  alignas(64) Chunks* chunks_ = nullptr;
  uint64_t number_ = 0;
};
