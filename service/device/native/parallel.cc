#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace levserve {
namespace {

constexpr int kSpins = 256;  // some microseconds, as long as a block takes

struct Work {
  const int num_blocks;
  void (*const body)(const void* data, int64_t block);
  const void* const data;
  std::atomic<int> next{0}, left;  // blocks that nobody has begun, and that have not ended
  std::atomic<int> holders;        // threads that have yet to release this

  void TakeBlocks() {
    for (int block; (block = next.fetch_add(1, std::memory_order_relaxed)) < num_blocks;) {
      body(data, block);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) left.notify_one();
    }
  }

  // Waits for the blocks of other threads. The processor may have been taken from one of them: then this thread sleeps,
  // so that the other can have this one's.
  void Wait() {
    for (int spin = 0; spin < kSpins && left.load(std::memory_order_acquire) > 0; ++spin) __builtin_ia32_pause();
    for (int now; (now = left.load(std::memory_order_acquire)) > 0;) left.wait(now, std::memory_order_acquire);
  }

  void Release() {
    if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
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

// Returns the number of threads of XLA's pool, which may have none.
int CountThreads(const CallFrame& call) {
  int64_t num_threads = 1;
  NumThreadsArguments arguments{sizeof arguments, nullptr, call.context, &num_threads};
  return Succeeds(call, call.api->count_threads(&arguments)) ? static_cast<int>(num_threads) : 1;
}

}  // namespace

void ParallelBlocks(const CallFrame& call, int64_t num_blocks, void (*body)(const void* data, int64_t block),
                    const void* data) {
  const int blocks = static_cast<int>(num_blocks);
  const int num_helpers = blocks > 1 ? std::min(CountThreads(call), blocks) - 1 : 0;
  Work* work = num_helpers > 0 ? new (std::nothrow) Work{blocks, body, data, {0}, {blocks}, {num_helpers + 1}} : nullptr;
  if (work == nullptr) {
    for (int64_t block = 0; block < num_blocks; ++block) body(data, block);
    return;
  }
  for (int helper = 0; helper < num_helpers; ++helper) {
    ScheduleArguments arguments{sizeof arguments, nullptr, call.context, Help, work};
    if (!Succeeds(call, call.api->schedule(&arguments))) work->Release();
  }
  work->TakeBlocks();
  work->Wait();
  work->Release();
}

}  // namespace levserve
