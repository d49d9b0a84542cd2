// Memory that a thread keeps for its next call.
#pragma once
#include <cstdlib>

class Scratch {
 public:
  ~Scratch() { std::free(memory_); }

  // At least `bytes`, on a cache line; what was there is lost. Null where there is no memory.
  void* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = 0;
      if (posix_memalign(&memory_, 64, bytes)) memory_ = nullptr;
      if (memory_) size_ = bytes;
    }
    return memory_;
  }

 private:
  void* memory_ = nullptr;
  size_t size_ = 0;
};
