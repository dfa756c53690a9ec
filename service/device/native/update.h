// Rows of a result, to which products of narrow rows are added: a tile of columns and tokens at a time.

#pragma once

#include <cstring>

#include "dot.h"

namespace levserve {
namespace {

constexpr int64_t kUpdateAheadBytes = 1024;  // of each row of B, so that a tile's is there when it is needed

template <class F, int kTokens, int kVectors>
INLINE void UpdateTile(const Update& u, const int32_t* tokens, const float* narrow, int64_t column) {
  using Sums = typename F::Sums;
  constexpr int64_t kLanes = sizeof(Sums) / sizeof(float);
  Sums sums[kTokens][kVectors];
  UNROLL for (int t = 0; t < kTokens; ++t)
    UNROLL for (int v = 0; v < kVectors; ++v)
      memcpy(&sums[t][v], u.out + tokens[t] * u.num_out + column + v * kLanes, sizeof(Sums));
  for (int64_t r = 0; r < u.rank; ++r) {
    const float* const row = u.b + r * u.num_out + column;
    UNROLL for (int v = 0; v < kVectors; ++v)
      __builtin_prefetch(reinterpret_cast<const char*>(row + v * kLanes) + kUpdateAheadBytes);
    UNROLL for (int v = 0; v < kVectors; ++v) {
      const auto values = F::LoadW(row + v * kLanes);
      UNROLL for (int t = 0; t < kTokens; ++t) {
        const Sums factor = narrow[t * u.stride + r] + Sums{};
        sums[t][v] = F::AddProduct(sums[t][v], reinterpret_cast<decltype(values)>(factor), values);
      }
    }
  }
  UNROLL for (int t = 0; t < kTokens; ++t)
    UNROLL for (int v = 0; v < kVectors; ++v)
      memcpy(u.out + tokens[t] * u.num_out + column + v * kLanes, &sums[t][v], sizeof(Sums));
}

template <class F, int kVectors>
INLINE void UpdateColumns(const Update& u, int64_t column) {
  constexpr int kTokens = 4;
  int64_t t = 0;
  for (; t + kTokens <= u.num_tokens; t += kTokens)
    UpdateTile<F, kTokens, kVectors>(u, u.tokens + t, u.narrow + t * u.stride, column);
  for (; t < u.num_tokens; ++t) UpdateTile<F, 1, kVectors>(u, u.tokens + t, u.narrow + t * u.stride, column);
}

template <class F>
void AddUpdate(const Update& u, int64_t first, int64_t after) {
  constexpr int64_t kLanes = sizeof(typename F::Sums) / sizeof(float);
  constexpr int kVectors = F::kUpdateVectors;
  int64_t column = first;
  for (; column + kVectors * kLanes <= after; column += kVectors * kLanes) UpdateColumns<F, kVectors>(u, column);
  for (; column + kLanes <= after; column += kLanes) UpdateColumns<F, 1>(u, column);
  for (; column < after; ++column)
    for (int64_t t = 0; t < u.num_tokens; ++t) {
      float& sum = u.out[u.tokens[t] * u.num_out + column];
      for (int64_t r = 0; r < u.rank; ++r)
        sum = __builtin_fmaf(u.narrow[t * u.stride + r], u.b[r * u.num_out + column], sum);
    }
}

}  // namespace
}  // namespace levserve
