#include "parallel.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <new>

namespace levserve {
namespace {

constexpr int kSpins = 256;  // some microseconds, as long as a block takes

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps until `Wake`, unless the value is another one by now; may return early.
void Sleep(std::atomic<int>& value, int now) {
  syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
}

void Wake(std::atomic<int>& value) { syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

struct Work {
  const int num_blocks;
  void (*const body)(const void* data, int64_t block);
  const void* const data;
  std::atomic<int> next{0}, left;  // blocks that nobody has begun, and that have not ended
  std::atomic<int> holders;        // threads that have yet to release this

  void TakeBlocks() {
    for (int block; (block = next.fetch_add(1, std::memory_order_relaxed)) < num_blocks;) {
      body(data, block);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) Wake(left);
    }
  }

  // Waits for the blocks of other threads. The processor may have been taken from one of them: then this thread sleeps,
  // so that the other can have this one's.
  void Wait() {
    for (int spin = 0; spin < kSpins && left.load(std::memory_order_acquire) > 0; ++spin) Pause();
    for (int now; (now = left.load(std::memory_order_acquire)) > 0;) Sleep(left, now);
  }

  void Release() {
    if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) free(this);
  }
};

void Help(void* data) {
  Work* work = static_cast<Work*>(data);
  work->TakeBlocks();
  work->Release();
}

// Returns whether XLA did as it was asked.
bool Succeeds(const CallFrame& call, Error* error) {
  if (error == nullptr) return true;
  DestroyErrorArguments arguments{sizeof arguments, nullptr, error};
  call.api->destroy_error(&arguments);
  return false;
}

}  // namespace

int64_t CountThreads(const CallFrame& call) {
  int64_t num_threads = 1;
  NumThreadsArguments arguments{sizeof arguments, nullptr, call.context, &num_threads};
  return Succeeds(call, call.api->count_threads(&arguments)) && num_threads > 1 ? num_threads : 1;
}

void ParallelBlocks(const CallFrame& call, int64_t num_blocks, void (*body)(const void* data, int64_t block),
                    const void* data) {
  const int64_t num_threads = num_blocks > 1 && num_blocks < INT_MAX / 2 ? CountThreads(call) : 1;
  const int num_helpers = static_cast<int>(num_threads < num_blocks ? num_threads : num_blocks) - 1;
  void* const memory = num_helpers > 0 ? malloc(sizeof(Work)) : nullptr;
  if (memory == nullptr) {
    for (int64_t block = 0; block < num_blocks; ++block) body(data, block);
    return;
  }
  const int blocks = static_cast<int>(num_blocks);
  Work* work = new (memory) Work{blocks, body, data, {0}, {blocks}, {num_helpers + 1}};
  for (int helper = 0; helper < num_helpers; ++helper) {
    ScheduleArguments arguments{sizeof arguments, nullptr, call.context, Help, work};
    if (!Succeeds(call, call.api->schedule(&arguments))) work->Release();
  }
  work->TakeBlocks();
  work->Wait();
  work->Release();
}

}  // namespace levserve
