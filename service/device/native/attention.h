#pragma once

#include <cstdint>

namespace levserve {

// Attention with grouped heads over pages of keys and values: of every token up to its own position or one ahead, or to
// all positions of a memory.
struct Attention {
  const float* query;  // [seq, token, kv_head, group, head_dim], multiplied by the factor of scores
  const char *keys, *values;                  // [page, kv_head, position, head_dim]
  const float *key_scales, *value_scales;     // [page, kv_head, position]; null unless the cache has 8 bits
  const int32_t *start, *num_tokens;          // [seq]; `start` is a memory's length
  const int32_t* page_table;                  // [seq, page]
  const float* sinks;  // [kv_head, group]: scores that take their share for nothing; null for none
  const int32_t* ahead;  // [seq, token]: positions after its own that a token sees; null for none
  float* out;                                 // as the query
  int64_t num_seqs, width, num_kv_heads, group, head_dim, page_size, table_width;
  int64_t window;  // visible positions, a token's own included
  float soft_cap;  // 0 for none
  bool is_memory;
};

constexpr float kNoSink = -1e30f;  // a score whose share is below the rounding of the others

// Some of the queries of a sequence that share a KV head, in the order of tokens: row `r` is of token `r / group`.
struct QueryRows {
  int64_t seq, kv_head, first, count;

  // Both do not decrease from row to row.
  int64_t FirstVisible(const Attention& a, int64_t row) const {
    const int64_t first = Position(a, row) - a.window + 1;
    return first > 0 ? first : 0;
  }
  int64_t LastVisible(const Attention& a, int64_t row) const {
    return Position(a, row) + (a.ahead == nullptr ? 0 : a.ahead[seq * a.width + row / a.group]);
  }
  float Sink(const Attention& a, int64_t row) const {
    return a.sinks == nullptr ? kNoSink : a.sinks[kv_head * a.group + row % a.group];
  }

 private:
  int64_t Position(const Attention& a, int64_t row) const { return a.start[seq] + (a.is_memory ? -1 : row / a.group); }
};

// The positions of a context are cut into splits, which are computed one after the other or in parallel. A row's result
// is the same in both: that of each split apart, merged in their order.
constexpr int64_t kSplitPositions = 512;
constexpr int64_t kMaxRows = 64;
constexpr int64_t kMaxHeadDim = 1024;

// A row's part of a split: highest score, sum of weights, and weighted sum of values.
inline int64_t PartialSize(const Attention& a) { return a.head_dim + 2; }

// Attends from some rows, at most `kMaxRows`, to the positions [first, after), which are in one split if there is a
// `partial` to be written, [row, PartialSize]; else writes the output. Returns false if there is no memory.
using AttendRows = bool (*)(const Attention& a, const QueryRows& rows, int64_t first, int64_t after, float* partial);

// Writes the output of some rows from the partial results of each split, [split, row, PartialSize].
using MergeSplits = void (*)(const Attention& a, const QueryRows& rows, const float* partials, int64_t num_splits);

struct AttentionKernels {
  AttendRows float32, bfloat16, int8, float8;
  MergeSplits merge;
};

extern const AttentionKernels kAvx2Attention, kAvx512Attention, kNeonAttention;

extern const AttentionKernels* attention_kernels;  // of this processor; null if there are none

}  // namespace levserve
