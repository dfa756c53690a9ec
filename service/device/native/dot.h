// Some rows of a weight times a few tokens, as dot products: the lanes of a vector are values of one row.
//
// A `Kind` of product defines the types of values (`X` of a token, `W` of a weight), how many of each a step multiplies,
// a vector of sums, and the operations on vectors.

#pragma once

#include "vectors.h"

namespace levserve {
namespace {

constexpr int kDotRows = 4;

template <class Kind, int kRows, int kTokens>
INLINE void AddProducts(const typename Kind::X* x, const typename Kind::W* w, int64_t stride,
                        typename Kind::Sums* sums) {
  decltype(Kind::LoadW(w)) rows[kRows];
  UNROLL for (int r = 0; r < kRows; ++r) rows[r] = Kind::LoadW(w + r * stride);
  UNROLL for (int t = 0; t < kTokens; ++t) {
    const auto values = Kind::LoadX(x + t * stride);
    UNROLL for (int r = 0; r < kRows; ++r) {
      typename Kind::Sums& sum = sums[t * kDotRows + r];
      sum = Kind::AddProduct(sum, values, rows[r]);
    }
  }
}

template <class Kind, int kRows, int kTokens>
INLINE void DotTile(const Product& p, int64_t row, int64_t token, const int32_t* offsets) {
  using X = typename Kind::X;
  using W = typename Kind::W;
  constexpr int kStep = Kind::kStep;
  const int64_t num_in = p.num_in, whole = num_in / kStep * kStep, rest = num_in - whole;
  const X* x = static_cast<const X*>(p.x) + token * num_in;
  const W* w = static_cast<const W*>(p.weight) + row * num_in;
  typename Kind::Sums sums[kDotRows * Kind::kTokens] = {};
  for (int64_t i = 0; i < whole; i += kStep) {
    // Rows of the next tile: by itself the processor reads ahead within a row.
    UNROLL for (int r = 0; r < kRows; ++r) __builtin_prefetch(w + (r + kRows) * num_in + i);
    AddProducts<Kind, kRows, kTokens>(x + i, w + i, num_in, sums);
  }
  if (rest > 0) {
    X last_x[kTokens][kStep] = {};
    W last_w[kRows][kStep] = {};
    for (int t = 0; t < kTokens; ++t) memcpy(last_x[t], x + t * num_in + whole, rest * sizeof(X));
    for (int r = 0; r < kRows; ++r) memcpy(last_w[r], w + r * num_in + whole, rest * sizeof(W));
    AddProducts<Kind, kRows, kTokens>(last_x[0], last_w[0], kStep, sums);
  }
  const auto totals = Kind::Reduce(sums);  // [token, row]
  UNROLL for (int t = 0; t < kTokens; ++t)
    UNROLL for (int r = 0; r < kRows; ++r)
      p.out[(token + t) * p.num_out + row + r] = Finish(p, totals[t * kDotRows + r], offsets[r], token + t, row + r);
}

template <class Kind, int kRows>
INLINE void DotRows(const Product& p, int64_t row) {
  int32_t offsets[kRows];
  for (int r = 0; r < kRows; ++r) offsets[r] = Kind::Offset(p, row + r);
  int64_t token = 0;
  for (; token + Kind::kTokens <= p.num_tokens; token += Kind::kTokens)
    DotTile<Kind, kRows, Kind::kTokens>(p, row, token, offsets);
  for (; token < p.num_tokens; ++token) DotTile<Kind, kRows, 1>(p, row, token, offsets);
}

template <class Kind>
void Dot(const Product& p, int64_t first_row, int64_t after_row) {
  int64_t row = first_row;
  for (; row + kDotRows <= after_row; row += kDotRows) DotRows<Kind, kDotRows>(p, row);
  for (; row < after_row; ++row) DotRows<Kind, 1>(p, row);
}

}  // namespace
}  // namespace levserve
