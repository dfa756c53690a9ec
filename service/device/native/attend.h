// Attention in blocks of positions with a running softmax, for the vectors `Floats` of one kind of processor.
// Source: Milakov & Gimelshein 2018, arXiv:1805.02867 (online softmax); Dao et al. 2022, arXiv:2205.14135 (blocks).
//
// All loops over positions and dimensions have an order that depends neither on the other rows nor on the batch, and a
// position that a row does not see adds a zero. So a token's result is the same in every batch and every chunk.

#pragma once

#include <utility>

#include "attention.h"
#include "memory.h"
#include "vectors.h"

namespace levserve {
namespace {

constexpr int64_t kBlock = 64;  // positions whose keys and values the caches of a core hold
constexpr float kLowest = -1e30f;

INLINE Floats Select(Ints mask, Floats a, Floats b) { return (Floats)(((Ints)a & mask) | ((Ints)b & ~mask)); }

// Where one of the two is a NaN, the result is the second.
INLINE Floats Max(Floats a, Floats b) { return Select((Ints)(a > b), a, b); }

INLINE Floats Iota() {
  Floats lanes;
  UNROLL for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

template <class Combine>
INLINE float Fold(Floats values, Combine combine) {
  float parts[kLanes];
  StoreFloats(parts, values);
  UNROLL for (int half = kLanes / 2; half > 0; half /= 2)
    UNROLL for (int i = 0; i < half; ++i) parts[i] = combine(parts[i], parts[i + half]);
  return parts[0];
}

// Returns e to the power of values that are not positive, at least 1e-38.
// Source of the polynomial: Cephes, single/expf.c.
INLINE Floats Exp(Floats x) {
  x = Max(Splat(-87.0f), x);
  constexpr float kRound = 0x1.8p23f;  // the last bit of a float of this magnitude is a one
  const Floats rounded = Fma(x, Splat(1.44269504088896341f), Splat(kRound));
  const Floats n = rounded - Splat(kRound);
  const Floats r = Fma(n, Splat(2.12194440e-4f), Fma(n, Splat(-0.693359375f), x));
  Floats p = Splat(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = Fma(p, r, Splat(c));
  const Floats power = Fma(p, r * r, r) + Splat(1.0f);
  return (Floats)((Ints)power + ((Ints)rounded << 23));
}

INLINE Floats SoftCap(Floats scores, float cap) {
  const Ints sign = (Ints)scores & SplatInt(INT32_MIN);
  const Floats magnitude = (Floats)((Ints)scores & SplatInt(INT32_MAX));
  const Floats e = Exp(magnitude * Splat(-2 / cap));
  const Floats tanh = (Splat(1.0f) - e) / (Splat(1.0f) + e);
  return (Floats)((Ints)(tanh * Splat(cap)) | sign);
}

struct CacheFloat32 {
  using Element = float;
  static INLINE Floats Widen(const float* values) { return LoadFloats(values); }
};

struct CacheBFloat16 {
  using Element = uint16_t;
  static INLINE Floats Widen(const uint16_t* values) { return WidenBFloat16(values); }
};

struct CacheInt8 {
  using Element = int8_t;
  static INLINE Floats Widen(const int8_t* values) { return FloatsOf(WidenInt8(values)); }
};

// float8_e4m3fn: a NaN becomes 480, and its vector's scale is a NaN.
struct CacheFloat8 {
  using Element = int8_t;
  static INLINE Floats Widen(const int8_t* values) {
    const Ints bits = WidenInt8(values);
    const Floats normal = (Floats)(((bits & SplatInt(0x7f)) << 20) + SplatInt(120 << 23));
    const Floats subnormal = FloatsOf(bits & SplatInt(7)) * Splat(0x1p-9f);
    const Floats magnitude = Select((bits & SplatInt(0x78)) == SplatInt(0), subnormal, normal);
    return (Floats)((Ints)magnitude | (bits & SplatInt(INT32_MIN)));
  }
};

template <class Cache>
INLINE void WidenRow(const typename Cache::Element* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) StoreFloats(to + i, Cache::Widen(from + i));
  if (i == count) return;
  typename Cache::Element last[kLanes] = {};
  memcpy(last, from + i, (count - i) * sizeof *from);
  StoreFloats(to + i, Cache::Widen(last));
}

template <int kDistance, bool kIsHigh, int... kLane>
INLINE Floats Exchange(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return SHUFFLE(a, b,
                 (kIsHigh ? (kLane & kDistance ? kLane + kLanes : kLane + kDistance)
                          : (kLane & kDistance ? kLane - kDistance + kLanes : kLane))...);
}

template <int kDistance>
INLINE void TransposeBits(Floats* rows) {
  if constexpr (kDistance > 0) {
    constexpr std::make_integer_sequence<int, kLanes> lanes{};
    UNROLL for (int i = 0; i < kLanes; ++i) {
      if (i & kDistance) continue;
      const Floats a = rows[i], b = rows[i + kDistance];
      rows[i] = Exchange<kDistance, false>(a, b, lanes);
      rows[i + kDistance] = Exchange<kDistance, true>(a, b, lanes);
    }
    TransposeBits<kDistance / 2>(rows);
  }
}

// The memory of one call of `Attend`: all rows have a multiple of the lanes.
struct Workspace {
  int64_t dims;         // head_dim, padded
  float *query;         // [row, dims]
  float *keys;          // [dims, kBlock]
  float *values;        // [kBlock, dims]
  float *scores;        // [kTileRows, kBlock]
  float *sum, *total;   // [row, dims], of the split and of all splits
  float *high, *weight, *total_high, *total_weight;  // [row]
  const float* value_rows[kBlock];

  static int64_t Size(int64_t rows, int64_t dims) {
    return 3 * rows * dims + 2 * kBlock * dims + kTileRows * kBlock + 4 * kMaxRows;
  }

  Workspace(float* memory, int64_t rows, int64_t dims) : dims(dims) {
    const auto take = [&memory](int64_t count) { return memory += count, memory - count; };
    query = take(rows * dims);
    sum = take(rows * dims);
    total = take(rows * dims);
    keys = take(kBlock * dims);
    values = take(kBlock * dims);
    scores = take(kTileRows * kBlock);
    high = take(kMaxRows);
    weight = take(kMaxRows);
    total_high = take(kMaxRows);
    total_weight = take(kMaxRows);
  }
};

INLINE void MergeRow(int64_t dims, const float* sum, float high, float weight, float* total, float* total_high,
                     float* total_weight) {
  const float highest = high > *total_high ? high : *total_high;
  const float old_factor = Exp(Splat(*total_high - highest))[0], factor = Exp(Splat(high - highest))[0];
  for (int64_t i = 0; i < dims; ++i) total[i] = total[i] * old_factor + sum[i] * factor;
  *total_weight = *total_weight * old_factor + weight * factor;
  *total_high = highest;
}

INLINE void WriteRow(const Attention& a, const QueryRows& rows, int64_t row, const float* total, float weight) {
  const int64_t token = row / a.group, head = (rows.seq * a.width + token) * a.num_kv_heads + rows.kv_head;
  float* out = a.out + (head * a.group + row % a.group) * a.head_dim;
  const float factor = 1 / weight;
  for (int64_t i = 0; i < a.head_dim; ++i) out[i] = total[i] * factor;
}

// Writes the scores of some rows: [row, kBlock].
template <int kRows, int kVectors>
INLINE void ScoreTile(const float* query, const float* keys, int64_t dims, float* scores) {
  for (int64_t first = 0; first < kBlock; first += kVectors * kLanes) {
    Floats sums[kRows][kVectors] = {};
    for (int64_t i = 0; i < dims; ++i) {
      Floats column[kVectors];
      UNROLL for (int v = 0; v < kVectors; ++v) column[v] = LoadFloats(keys + i * kBlock + first + v * kLanes);
      UNROLL for (int r = 0; r < kRows; ++r) {
        const Floats value = Splat(query[r * dims + i]);
        UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = Fma(value, column[v], sums[r][v]);
      }
    }
    UNROLL for (int r = 0; r < kRows; ++r)
      UNROLL for (int v = 0; v < kVectors; ++v) StoreFloats(scores + r * kBlock + first + v * kLanes, sums[r][v]);
  }
}

// Multiplies sums by a factor of each row and adds the values of positions [first, after) by their weights.
template <int kRows, int kVectors>
INLINE void SumColumns(const float* weights, const float* const* values, int64_t first, int64_t after, int64_t dims,
                       const float* factors, int64_t column, float* sums) {
  Floats columns[kRows][kVectors];
  UNROLL for (int r = 0; r < kRows; ++r)
    UNROLL for (int v = 0; v < kVectors; ++v)
      columns[r][v] = LoadFloats(sums + r * dims + column + v * kLanes) * Splat(factors[r]);
  for (int64_t p = first; p < after; ++p) {
    Floats value[kVectors];
    UNROLL for (int v = 0; v < kVectors; ++v) value[v] = LoadFloats(values[p] + column + v * kLanes);
    UNROLL for (int r = 0; r < kRows; ++r) {
      const Floats weight = Splat(weights[r * kBlock + p]);
      UNROLL for (int v = 0; v < kVectors; ++v) columns[r][v] = Fma(weight, value[v], columns[r][v]);
    }
  }
  UNROLL for (int r = 0; r < kRows; ++r)
    UNROLL for (int v = 0; v < kVectors; ++v) StoreFloats(sums + r * dims + column + v * kLanes, columns[r][v]);
}

// A block of positions as rows see it.
struct Block {
  int64_t begin;                           // position of its first
  const float *key_scales, *value_scales;  // [kBlock]; null for none
};

// Not a part of each `AttendSplit`, which are four.
template <int kRows>
__attribute__((noinline)) void AttendTile(const Attention& a, const QueryRows& rows, const Block& block, int64_t row, Workspace& work) {
  constexpr int kVectors = kRows <= kTileRows / 2 ? 4 : 2;
  const int64_t dims = work.dims, local = row - rows.first;
  float* const scores = work.scores;
  ScoreTile<kRows, kVectors>(work.query + local * dims, work.keys, dims, scores);
  float factors[kRows];
  int64_t first = kBlock, after = 0;
  for (int r = 0; r < kRows; ++r) {
    // Floats hold positions of a block exactly.
    int64_t begin = rows.FirstVisible(a, row + r) - block.begin, end = rows.LastVisible(a, row + r) + 1 - block.begin;
    begin = begin < 0 ? 0 : begin > kBlock ? kBlock : begin;
    end = end < begin ? begin : end > kBlock ? kBlock : end;
    first = begin < end && begin < first ? begin : first;
    after = begin < end && end > after ? end : after;
    float* const row_scores = scores + r * kBlock;
    const auto visible = [begin, end](int64_t i) {
      const Floats lanes = Iota() + Splat(static_cast<float>(i));
      return (Ints)(lanes >= Splat(static_cast<float>(begin))) & (Ints)(lanes < Splat(static_cast<float>(end)));
    };
    Floats highest = Splat(kLowest);
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      Floats part = LoadFloats(row_scores + i);
      if (block.key_scales != nullptr) part = part * LoadFloats(block.key_scales + i);
      if (a.soft_cap > 0) part = SoftCap(part, a.soft_cap);
      part = Select(visible(i), part, Splat(kLowest));
      StoreFloats(row_scores + i, part);
      highest = Max(highest, part);
    }
    float& high = work.high[local + r];
    const float before = high, now = Fold(highest, [](float x, float y) { return x > y ? x : y; });
    high = now > before ? now : before;
    factors[r] = Exp(Splat(before - high))[0];
    Floats sums = Splat(0.0f);
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const Floats part = Select(visible(i), Exp(LoadFloats(row_scores + i) - Splat(high)), Splat(0.0f));
      sums = sums + part;
      StoreFloats(row_scores + i, block.value_scales == nullptr ? part : part * LoadFloats(block.value_scales + i));
    }
    float& weight = work.weight[local + r];
    weight = weight * factors[r] + Fold(sums, [](float x, float y) { return x + y; });
  }
  if (first >= after) return;
  float* const sums = work.sum + local * dims;
  int64_t column = 0;
  for (; column + kVectors * kLanes <= dims; column += kVectors * kLanes)
    SumColumns<kRows, kVectors>(scores, work.value_rows, first, after, dims, factors, column, sums);
  for (; column < dims; column += kLanes)
    SumColumns<kRows, 1>(scores, work.value_rows, first, after, dims, factors, column, sums);
}

// Reads the keys and values of positions [first, after) of a block, widened, the keys as columns.
template <class Cache>
INLINE void ReadBlock(const Attention& a, const QueryRows& rows, int64_t begin, int64_t first, int64_t after,
                      Workspace& work, float* key_scales, float* value_scales) {
  using Element = typename Cache::Element;
  const int64_t dims = work.dims;
  const bool is_in_place = sizeof(Element) == sizeof(float) && dims == a.head_dim;
  const Element* key_rows[kBlock] = {};
  for (int64_t p = first; p < after; ++p) {
    const int64_t page = a.page_table[rows.seq * a.table_width + p / a.page_size];
    const int64_t vector = (page * a.num_kv_heads + rows.kv_head) * a.page_size + p % a.page_size;
    key_rows[p - begin] = reinterpret_cast<const Element*>(a.keys) + vector * a.head_dim;
    const Element* value = reinterpret_cast<const Element*>(a.values) + vector * a.head_dim;
    if (is_in_place) {
      work.value_rows[p - begin] = reinterpret_cast<const float*>(value);
      for (int64_t i = 0; i < dims; i += 16) __builtin_prefetch(value + i, 0, 3);
    } else {
      float* const wide = work.values + (p - begin) * dims;
      WidenRow<Cache>(value, a.head_dim, wide);
      work.value_rows[p - begin] = wide;
    }
    if (a.key_scales != nullptr) {
      key_scales[p - begin] = a.key_scales[vector];
      value_scales[p - begin] = a.value_scales[vector];
    }
  }
  for (int64_t p = 0; p < kBlock; p += kLanes) {
    for (int64_t i = 0; i < dims; i += kLanes) {
      Floats tile[kLanes];
      const int64_t rest = a.head_dim - i;
      UNROLL for (int lane = 0; lane < kLanes; ++lane) {
        const Element* const key = key_rows[p + lane];
        if (key == nullptr) {
          tile[lane] = Splat(0.0f);
        } else if (rest >= kLanes) {
          tile[lane] = Cache::Widen(key + i);
        } else {
          float last[kLanes];
          WidenRow<Cache>(key + i, rest, last);
          tile[lane] = LoadFloats(last);
        }
      }
      TransposeBits<kLanes / 2>(tile);
      UNROLL for (int lane = 0; lane < kLanes; ++lane) StoreFloats(work.keys + (i + lane) * kBlock + p, tile[lane]);
    }
  }
}

template <class Cache>
void AttendSplit(const Attention& a, const QueryRows& rows, int64_t first, int64_t after, Workspace& work) {
  for (int64_t row = 0; row < rows.count; ++row) {
    work.high[row] = kLowest;
    work.weight[row] = 0;
  }
  memset(work.sum, 0, rows.count * work.dims * sizeof(float));
  const int64_t after_row = rows.first + rows.count;
  for (int64_t begin = first / kBlock * kBlock; begin < after; begin += kBlock) {
    const int64_t end = begin + kBlock < after ? begin + kBlock : after;
    float key_scales[kBlock] = {}, value_scales[kBlock] = {};
    ReadBlock<Cache>(a, rows, begin, first > begin ? first : begin, end, work, key_scales, value_scales);
    const bool has_scales = a.key_scales != nullptr;
    const Block block{begin, has_scales ? key_scales : nullptr, has_scales ? value_scales : nullptr};
    for (int64_t row = rows.first; row < after_row;) {
      const int64_t left = after_row - row, next = row + (left < kTileRows ? left : kTileRows);
      // Rows are in the order of positions: those of a tile see nothing of a later block, nor of one before their window.
      if (rows.LastVisible(a, next - 1) < begin || rows.FirstVisible(a, row) >= end) {
        row = next;
      } else if (left >= kTileRows) {
        AttendTile<kTileRows>(a, rows, block, row, work);
        row += kTileRows;
      } else if (left >= 4) {
        AttendTile<4>(a, rows, block, row, work);
        row += 4;
      } else if (left == 3) {
        AttendTile<3>(a, rows, block, row, work);
        row += 3;
      } else if (left == 2) {
        AttendTile<2>(a, rows, block, row, work);
        row += 2;
      } else {
        AttendTile<1>(a, rows, block, row++, work);
      }
    }
  }
}

template <class Cache>
bool Attend(const Attention& a, const QueryRows& rows, int64_t first, int64_t after, float* partial) {
  const int64_t dims = (a.head_dim + kLanes - 1) / kLanes * kLanes;
  const Scratch<float> memory(Workspace::Size(rows.count, dims));
  if (memory.get() == nullptr) return false;
  Workspace work(memory.get(), rows.count, dims);
  memset(work.query, 0, rows.count * dims * sizeof(float));
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t token = (rows.first + row) / a.group, group = (rows.first + row) % a.group;
    const int64_t head = (rows.seq * a.width + token) * a.num_kv_heads + rows.kv_head;
    memcpy(work.query + row * dims, a.query + (head * a.group + group) * a.head_dim, a.head_dim * sizeof(float));
  }
  if (partial != nullptr) {
    AttendSplit<Cache>(a, rows, first, after, work);
    for (int64_t row = 0; row < rows.count; ++row, partial += PartialSize(a)) {
      partial[0] = work.high[row];
      partial[1] = work.weight[row];
      memcpy(partial + 2, work.sum + row * dims, a.head_dim * sizeof(float));
    }
    return true;
  }
  memset(work.total, 0, rows.count * dims * sizeof(float));
  for (int64_t row = 0; row < rows.count; ++row) {
    work.total_high[row] = rows.Sink(a, rows.first + row);
    work.total_weight[row] = 1;
  }
  while (first < after) {
    const int64_t end = (first / kSplitPositions + 1) * kSplitPositions;
    AttendSplit<Cache>(a, rows, first, end < after ? end : after, work);
    for (int64_t row = 0; row < rows.count; ++row)
      MergeRow(a.head_dim, work.sum + row * dims, work.high[row], work.weight[row], work.total + row * dims,
               work.total_high + row, work.total_weight + row);
    first = end;
  }
  for (int64_t row = 0; row < rows.count; ++row)
    WriteRow(a, rows, rows.first + row, work.total + row * dims, work.total_weight[row]);
  return true;
}

void Merge(const Attention& a, const QueryRows& rows, const float* partials, int64_t num_splits) {
  float total[kMaxHeadDim];
  for (int64_t row = 0; row < rows.count; ++row) {
    memset(total, 0, sizeof total);
    float high = rows.Sink(a, rows.first + row), weight = 1;
    for (int64_t split = 0; split < num_splits; ++split) {
      const float* const partial = partials + (split * rows.count + row) * PartialSize(a);
      MergeRow(a.head_dim, partial + 2, partial[0], partial[1], total, &high, &weight);
    }
    WriteRow(a, rows, rows.first + row, total, weight);
  }
}

constexpr AttentionKernels kKernels = {Attend<CacheFloat32>, Attend<CacheBFloat16>, Attend<CacheInt8>,
                                       Attend<CacheFloat8>, Merge};

}  // namespace
}  // namespace levserve
