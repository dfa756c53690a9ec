// The custom calls: one writes the keys and values of new tokens into their pages, if there are any, and attends over
// them, the other attends to a memory in pages that it leaves alone.

#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "call.h"
#include "memory.h"
#include "parallel.h"
#include "product.h"

namespace levserve {
namespace {

constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kMaxPartialBytes = 64 * 1024 * 1024;
constexpr int64_t kTokensPerTask = 64;  // that are written

// New tokens and the pages that they go into. Arrays of scales have one number for a vector.
struct Tokens {
  const Attention& a;
  int64_t num_pages;
  struct Array {
    const char* from;  // [seq, token, kv_head, bytes]
    char* to;          // [page, kv_head, position, bytes]
    int64_t bytes;
  } arrays[4];
  int num_arrays;

  int64_t CountBlocks() const { return a.num_seqs * ((a.width + kTokensPerTask - 1) / kTokensPerTask); }

  static void Write(const void* data, int64_t block) {
    const Tokens& tokens = *static_cast<const Tokens*>(data);
    const Attention& a = tokens.a;
    const int64_t blocks = (a.width + kTokensPerTask - 1) / kTokensPerTask;
    const int64_t seq = block / blocks, first = block % blocks * kTokensPerTask;
    const int64_t after = std::min(first + kTokensPerTask, a.width);
    for (int64_t token = first; token < after; ++token) {
      const int64_t index = seq * a.width + token, position = a.start[seq] + token;
      if (token >= a.num_tokens[seq]) {
        const int64_t row = a.num_kv_heads * a.group * a.head_dim;
        memset(a.out + index * row, 0, row * sizeof(float));
      } else if (position / a.page_size < a.table_width) {
        const int64_t page = a.page_table[seq * a.table_width + position / a.page_size];
        if (page < 0 || page >= tokens.num_pages) continue;
        for (int i = 0; i < tokens.num_arrays; ++i) {
          const Array& array = tokens.arrays[i];
          for (int64_t head = 0; head < a.num_kv_heads; ++head) {
            const int64_t vector = (page * a.num_kv_heads + head) * a.page_size + position % a.page_size;
            const char* const from = array.from + (index * a.num_kv_heads + head) * array.bytes;
            memcpy(array.to + vector * array.bytes, from, array.bytes);
          }
        }
      }
    }
  }
};

// Rows, and the positions that some of them see.
struct Task {
  QueryRows rows;
  int64_t first, after;
  float* partials;  // [split, row, PartialSize]

  int64_t FirstSplit() const { return first / kSplitPositions; }
  int64_t CountSplits() const { return (after - 1) / kSplitPositions - FirstSplit() + 1; }
};

struct Split {
  const Task* task;
  int64_t index;
};

struct Work {
  const Attention& a;
  AttendRows attend;
  MergeSplits merge;
  const Task* tasks;
  const Split* splits;
  std::atomic<bool>& has_failed;

  static void AttendTask(const void* data, int64_t block) {
    const Work& work = *static_cast<const Work*>(data);
    const Task& task = work.tasks[block];
    if (!work.attend(work.a, task.rows, task.first, task.after, nullptr)) work.has_failed = true;
  }

  static void AttendSplit(const void* data, int64_t block) {
    const Work& work = *static_cast<const Work*>(data);
    const Task& task = *work.splits[block].task;
    const int64_t index = work.splits[block].index, begin = (task.FirstSplit() + index) * kSplitPositions;
    const int64_t first = std::max(begin, task.first), after = std::min(begin + kSplitPositions, task.after);
    float* const partial = task.partials + index * task.rows.count * PartialSize(work.a);
    if (!work.attend(work.a, task.rows, first, after, partial)) work.has_failed = true;
  }

  static void MergeTask(const void* data, int64_t block) {
    const Work& work = *static_cast<const Work*>(data);
    const Task& task = work.tasks[block];
    work.merge(work.a, task.rows, task.partials, task.CountSplits());
  }
};

int64_t CountChunks(const Attention& a, int64_t seq) {
  return (a.num_tokens[seq] * a.group + kMaxRows - 1) / kMaxRows;
}

void ListTasks(const Attention& a, Task* task) {
  for (int64_t seq = 0; seq < a.num_seqs; ++seq) {
    const int64_t num_rows = a.num_tokens[seq] * a.group;
    for (int64_t first = 0; first < num_rows; first += kMaxRows) {
      for (int64_t head = 0; head < a.num_kv_heads; ++head) {
        const QueryRows rows{seq, head, first, std::min(kMaxRows, num_rows - first)};
        *task++ = {rows, rows.FirstVisible(a, first), rows.LastVisible(a, first + rows.count - 1) + 1, nullptr};
      }
    }
  }
}

// Attends from all rows. Rows that are too few for all threads are computed by splits of their context.
bool AttendAll(const CallFrame& call, const Attention& a, AttendRows attend, MergeSplits merge) {
  int64_t num_tasks = 0, num_splits = 0, num_partials = 0;
  for (int64_t seq = 0; seq < a.num_seqs; ++seq) num_tasks += CountChunks(a, seq) * a.num_kv_heads;
  const Scratch<Task> tasks(num_tasks);
  if (tasks.get() == nullptr) return false;
  ListTasks(a, tasks.get());
  std::atomic<bool> has_failed{false};
  for (int64_t i = 0; i < num_tasks; ++i) {
    const Task& task = tasks.get()[i];
    num_splits += task.CountSplits();
    num_partials += task.CountSplits() * task.rows.count * PartialSize(a);
  }
  const bool is_split = num_splits > num_tasks && num_tasks < kTasksPerThread * CountThreads(call) &&
                        num_partials * static_cast<int64_t>(sizeof(float)) <= kMaxPartialBytes;
  const Scratch<Split> splits(is_split ? num_splits : 0);
  const Scratch<float> partials(is_split ? num_partials : 0);
  if (splits.get() == nullptr || partials.get() == nullptr) return false;
  const Work work{a, attend, merge, tasks.get(), splits.get(), has_failed};
  if (!is_split) {
    ParallelBlocks(call, num_tasks, Work::AttendTask, &work);
    return !has_failed;
  }
  Split* split = splits.get();
  float* partial = partials.get();
  for (int64_t i = 0; i < num_tasks; ++i) {
    Task& task = tasks.get()[i];
    task.partials = partial;
    partial += task.CountSplits() * task.rows.count * PartialSize(a);
    for (int64_t index = 0; index < task.CountSplits(); ++index) *split++ = {&task, index};
  }
  ParallelBlocks(call, num_splits, Work::AttendSplit, &work);
  if (!has_failed) ParallelBlocks(call, num_tasks, Work::MergeTask, &work);
  return !has_failed;
}

AttendRows ChooseAttend(const AttentionKernels& kernels, int type) {
  switch (type) {
    case kFloat32:
      return kernels.float32;
    case kBFloat16:
      return kernels.bfloat16;
    case kInt8:
      return kernels.int8;
    case kFloat8E4M3FN:
      return kernels.float8;
    default:
      return nullptr;
  }
}

const float* Floats(const Buffer* buffer) { return static_cast<const float*>(buffer->data); }
const int32_t* Integers(const Buffer* buffer) { return static_cast<const int32_t*>(buffer->data); }

// Writes the new tokens and attends from all.
Error* Run(const CallFrame& call, const Attention& a, int type, const Tokens& tokens) {
  const AttendRows attend = attention_kernels == nullptr ? nullptr : ChooseAttend(*attention_kernels, type);
  if (attend == nullptr || a.head_dim > kMaxHeadDim)
    return Fail(call, kInvalidArgument, "attention in C++ does not take these keys and values");
  ParallelBlocks(call, tokens.CountBlocks(), Tokens::Write, &tokens);
  if (AttendAll(call, a, attend, attention_kernels->merge)) return nullptr;
  return Fail(call, kResourceExhausted, "no memory for attention");
}

}  // namespace

extern "C" {

// (query: float32 [seq, token, kv_head, group, head_dim], start, num_tokens: int32 [seq], page_table: int32 [seq, page],
//  window: int32 [], soft_cap: float32 [], sinks: float32 [kv_head, group], ahead: int32 [seq, token] or [0, 0] for none,
//  new keys and values [seq, token, kv_head, head_dim],
//  pages of keys and values [page, kv_head, position, head_dim]) -> (float32 as the query, the pages)
// In 8 bits the scales of keys and values follow each pair, with 1 for head_dim. The pages are updated in place. Without
// new keys and values, the pages are no results and stay as they are.
EXPORT Error* levserve_paged_attention(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  Buffer* const* const arguments = call->arguments.buffers;
  Buffer* const* const results = call->results.buffers;
  const int num_new = static_cast<int>(call->results.count - 1);
  const int num_arrays = num_new > 0 ? num_new : static_cast<int>(call->arguments.count - 8);
  Buffer* const* const cache = num_new > 0 ? results + 1 : arguments + 8;
  const Buffer &query = *arguments[0], &table = *arguments[3], &ahead = *arguments[7], &pages = *cache[0];
  const bool has_scales = num_arrays == 4;
  const Attention a{Floats(&query),
                    static_cast<const char*>(pages.data),
                    static_cast<const char*>(cache[1]->data),
                    has_scales ? Floats(cache[2]) : nullptr,
                    has_scales ? Floats(cache[3]) : nullptr,
                    Integers(arguments[1]),
                    Integers(arguments[2]),
                    Integers(&table),
                    Floats(arguments[6]),
                    ahead.dims[0] == 0 ? nullptr : Integers(&ahead),
                    static_cast<float*>(results[0]->data),
                    query.dims[0],
                    query.dims[1],
                    query.dims[2],
                    query.dims[3],
                    query.dims[4],
                    pages.dims[2],
                    table.dims[1],
                    *Integers(arguments[4]),
                    *Floats(arguments[5]),
                    false};
  Tokens tokens{a, pages.dims[0], {}, num_new};
  for (int i = 0; i < num_new; ++i) {
    const Buffer& from = *arguments[8 + i];
    const int64_t bytes = ElementBytes(from.dtype) * from.dims[3];
    tokens.arrays[i] = {static_cast<const char*>(from.data), static_cast<char*>(cache[i]->data), bytes};
  }
  return Run(*call, a, pages.dtype, tokens);
}

// (query: float32 [seq, token, kv_head, group, head_dim], length, num_tokens: int32 [seq], page_table: int32 [seq, page],
//  pages of keys and values [page, kv_head, position, head_dim]) -> float32 as the query
// In 8 bits the scales of keys and values follow them, with 1 for head_dim.
EXPORT Error* levserve_memory_attention(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  Buffer* const* const arguments = call->arguments.buffers;
  const Buffer &query = *arguments[0], &table = *arguments[3], &pages = *arguments[4];
  const bool has_scales = call->arguments.count == 8;
  const Attention a{Floats(&query),
                    static_cast<const char*>(pages.data),
                    static_cast<const char*>(arguments[5]->data),
                    has_scales ? Floats(arguments[6]) : nullptr,
                    has_scales ? Floats(arguments[7]) : nullptr,
                    Integers(arguments[1]),
                    Integers(arguments[2]),
                    Integers(&table),
                    nullptr,
                    nullptr,
                    static_cast<float*>(call->results.buffers[0]->data),
                    query.dims[0],
                    query.dims[1],
                    query.dims[2],
                    query.dims[3],
                    query.dims[4],
                    pages.dims[2],
                    table.dims[1],
                    INT32_MAX,
                    0,
                    true};
  return Run(*call, a, pages.dtype, Tokens{a, pages.dims[0], {}, 0});
}

}  // extern "C"
}  // namespace levserve
