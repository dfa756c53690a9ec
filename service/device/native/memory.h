#pragma once

#include <cstdint>
#include <cstdlib>

namespace levserve {

// Memory of a call, aligned to a line of the cache; null where there is none.
template <class Value>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : values_(static_cast<Value*>(aligned_alloc(kAlignment, RoundUp(count * static_cast<int64_t>(sizeof(Value)))))) {}
  ~Scratch() { free(values_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Value* get() const { return values_; }

 private:
  static constexpr int64_t kAlignment = 64;

  static size_t RoundUp(int64_t num_bytes) {
    return static_cast<size_t>((num_bytes + kAlignment - 1) / kAlignment * kAlignment + (num_bytes == 0) * kAlignment);
  }

  Value* const values_;
};

}  // namespace levserve
