// A mark between the calls of a program, so that a run of it tells how long each stretch took.
#include <chrono>

#include "program.h"

// Writes the nanoseconds of a clock that only goes forward.
KAMINARI void kaminari_stamp(int64_t* place) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *place = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}
RECORDABLE(kaminari_stamp)
