// Runs a recorded program: many calls of this library one after the other, without Python between them, and with
// the same threads from the first to the last.
#include "program.h"

#include "parallel.h"

extern "C" int omp_get_thread_num(void);

namespace {

struct Program {
  const int64_t* words;
  int64_t count;
  int64_t at = 0;  // the first word of the call that runs, or failed

  int32_t run() {
    for (; at < count; at += 2 + words[at + 1])
      if (const int32_t failure = argument<Again>(words[at])(words + at + 2)) return failure;
    return 0;
  }
};

}  // namespace

// words [count]: calls as program.h lays them out. Returns 0, or what the first call that failed returned, with
// the place of its first word in `failed`; the calls behind it are not made.
KAMINARI int32_t kaminari_run(const int64_t* words, int64_t count, int64_t* failed) {
  Program program{words, count};
  int32_t failure = 0;
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads <= 1) {
    failure = program.run();
  } else {
    struct Shared {
      Team team;
      Program& program;
      int32_t& failure;
    } shared{Team(threads), program, failure};
    GOMP_parallel(
        [](void* data) {
          Shared& all = *static_cast<Shared*>(data);
          if (omp_get_thread_num() == 0)
            all.team.lead([&] { all.failure = all.program.run(); });
          else
            all.team.help();
        },
        &shared, static_cast<unsigned>(threads), 0);
  }
  *failed = program.at;
  return failure;
}
