// Reads memory and does nothing else, to measure how fast that is.

#include <cstdint>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "call.h"

namespace levserve {

extern "C" {

// Returns the exclusive or of all whole words of 8 bytes, so that no read can be left out.
EXPORT uint64_t levserve_read(const void* memory, int64_t num_bytes) {
  constexpr int64_t kWords = 8, kAheadWords = 2048;  // a line of the cache, and as far ahead as the products read
  const uint64_t* const words = static_cast<const uint64_t*>(memory);
  const int64_t count = num_bytes / static_cast<int64_t>(sizeof(uint64_t));
  uint64_t parts[kWords] = {};
  int64_t i = 0;
  for (; i + kWords <= count; i += kWords) {
    __builtin_prefetch(words + i + kAheadWords, 0, 2);
    for (int64_t word = 0; word < kWords; ++word) parts[word] ^= words[i + word];
  }
  for (; i < count; ++i) parts[0] ^= words[i];
  uint64_t all = 0;
  for (const uint64_t part : parts) all ^= part;
  return all;
}

// Drops memory from all caches of the processor, so that the next read comes from memory.
EXPORT void levserve_flush([[maybe_unused]] const void* memory, [[maybe_unused]] int64_t num_bytes) {
#if defined(__x86_64__)
  constexpr int64_t kLineBytes = 64;
  const char* const bytes = static_cast<const char*>(memory);
  for (int64_t i = 0; i < num_bytes; i += kLineBytes) _mm_clflush(bytes + i);
  _mm_mfence();
#elif defined(__aarch64__)
  constexpr int64_t kLineBytes = 64;
  const char* const bytes = static_cast<const char*>(memory);
  for (int64_t i = 0; i < num_bytes; i += kLineBytes) asm volatile("dc civac, %0" : : "r"(bytes + i) : "memory");
  asm volatile("dsb ish" : : : "memory");
#endif
}

}  // extern "C"
}  // namespace levserve
