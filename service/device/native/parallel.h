#pragma once

#include "xla_ffi.h"

namespace levserve {

// Returns the number of threads of XLA's pool; 1 if it has none.
int64_t CountThreads(const CallFrame& call);

// Runs `body(data, block)` for each block on the calling thread and on threads of XLA's pool, and returns when all are
// done. A thread that arrives when no block is left is not waited for, so concurrent calls never wait for each other.
void ParallelBlocks(const CallFrame& call, int64_t num_blocks, void (*body)(const void* data, int64_t block),
                    const void* data);

}  // namespace levserve
