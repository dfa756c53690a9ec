// Some rows of a weight times a few tokens, as dot products: the lanes of a vector are values of one row.
//
// A `Kind` of product defines the types of values (`X` of a token, `W` of a weight), how many of each a step multiplies,
// a vector of sums, and the operations on vectors.

#pragma once

#include "vectors.h"

namespace levserve {
namespace {

constexpr int kDotRows = 4;

// This far ahead, the second cache has the values when they are needed: of rows that follow one another, and of each of
// several places that are read at once.
constexpr int64_t kAheadBytes = 16 * 1024, kPlaceAheadBytes = 4 * 1024;

constexpr int64_t kChunkBytes = 128 * 1024;  // of rows, and of tokens: both fit in a second cache of 512 KB

template <class Kind, int kRows, int kTokens>
INLINE void AddProducts(const typename Kind::X* x, int64_t x_pitch, const typename Kind::W* w, int64_t pitch,
                        typename Kind::Sums* sums) {
  decltype(Kind::LoadX(x)) values[kTokens];
  UNROLL for (int t = 0; t < kTokens; ++t) values[t] = Kind::LoadX(x + t * x_pitch);
  UNROLL for (int r = 0; r < kRows; ++r) {
    const auto row = Kind::LoadW(w + r * pitch);
    UNROLL for (int t = 0; t < kTokens; ++t) {
      typename Kind::Sums& sum = sums[t * kDotRows + r];
      sum = Kind::AddProduct(sum, values[t], row);
    }
  }
}

// Multiplies rows that lie a stride apart, and reads so many bytes ahead of `kAhead` of them from `first_ahead` on.
template <class Kind, int kRows, int kTokens, int kAhead>
INLINE void DotTile(const Product& p, int64_t row, int64_t stride, int64_t token,
                    [[maybe_unused]] int64_t ahead_bytes = 0, [[maybe_unused]] int first_ahead = 0) {
  using X = typename Kind::X;
  using W = typename Kind::W;
  constexpr int kStep = Kind::kStep;
  constexpr int64_t kStepBytes = kStep * sizeof(W);
  const int64_t num_in = p.num_in, whole = num_in / kStep * kStep, rest = num_in - whole, pitch = stride * num_in;
  const X* x = static_cast<const X*>(p.x) + token * num_in;
  const W* w = static_cast<const W*>(p.weight) + row * num_in;
  typename Kind::Sums sums[kDotRows * Kind::kTokens] = {};
  [[maybe_unused]] const char* ahead = reinterpret_cast<const char*>(w + first_ahead * pitch) + ahead_bytes;
  for (int64_t i = 0; i < whole; i += kStep) {
    if constexpr (kAhead > 0) {
      UNROLL for (int r = 0; r < kAhead; ++r)
        UNROLL for (int64_t byte = 0; byte < kStepBytes; byte += kLineBytes)
          __builtin_prefetch(ahead + r * pitch * int64_t{sizeof(W)} + byte, 0, 2);
      ahead += kStepBytes;
    }
    AddProducts<Kind, kRows, kTokens>(x + i, num_in, w + i, pitch, sums);
  }
  if (rest > 0) {
    X last_x[kTokens][kStep] = {};
    W last_w[kRows][kStep] = {};
    for (int t = 0; t < kTokens; ++t) memcpy(last_x[t], x + t * num_in + whole, rest * sizeof(X));
    for (int r = 0; r < kRows; ++r) memcpy(last_w[r], w + r * pitch + whole, rest * sizeof(W));
    AddProducts<Kind, kRows, kTokens>(last_x[0], kStep, last_w[0], kStep, sums);
  }
  const auto totals = Kind::Reduce(sums);  // [token, row]
  UNROLL for (int t = 0; t < kTokens; ++t)
    UNROLL for (int r = 0; r < kRows; ++r)
      p.out[(token + t) * p.num_out + row + r * stride] =
          Finish(p, totals[t * kDotRows + r], token + t, row + r * stride);
}

// The first tiles of tokens read the rows ahead, each its share, so that memory is read while they multiply; all others
// find the rows in the first cache.
template <class Kind, int kRows, bool kIsAhead>
INLINE void DotRows(const Product& p, int64_t row, int64_t first_token, int64_t after_token) {
  constexpr int kTokens = Kind::kTokens;
  int64_t token = first_token;
  if constexpr (kIsAhead) {
    static_assert(kRows == 4);
    if (token + 4 * kTokens <= after_token) {
      for (int ahead = 0; ahead < 4; ++ahead, token += kTokens)
        DotTile<Kind, kRows, kTokens, 1>(p, row, 1, token, kAheadBytes, ahead);
    } else if (token + 2 * kTokens <= after_token) {
      for (int ahead = 0; ahead < 4; ahead += 2, token += kTokens)
        DotTile<Kind, kRows, kTokens, 2>(p, row, 1, token, kAheadBytes, ahead);
    } else if (token + kTokens <= after_token) {
      DotTile<Kind, kRows, kTokens, kRows>(p, row, 1, token, kAheadBytes);
      token += kTokens;
    }
  }
  for (; token + kTokens <= after_token; token += kTokens) DotTile<Kind, kRows, kTokens, 0>(p, row, 1, token);
  if constexpr (kTokens == 3) {
    if (token + 2 <= after_token) {
      DotTile<Kind, kRows, 2, 0>(p, row, 1, token);
      token += 2;
    }
  }
  for (; token < after_token; ++token) DotTile<Kind, kRows, 1, 0>(p, row, 1, token);
}

// Multiplies rows by few tokens: from four places that lie far apart, of which each row's neighbor is read next. So a
// processor by itself reads memory the fastest, as long as it does little else.
template <class Kind>
INLINE void DotPlaces(const Product& p, int64_t first_row, int64_t after_row) {
  constexpr int kTokens = Kind::kTokens;
  const int64_t stride = (after_row - first_row) / kDotRows, after_places = first_row + stride * kDotRows;
  for (int64_t row = first_row; row < first_row + stride; ++row) {
    int64_t token = 0;
    for (; token + kTokens <= p.num_tokens; token += kTokens)
      DotTile<Kind, kDotRows, kTokens, kDotRows>(p, row, stride, token, kPlaceAheadBytes);
    for (; token < p.num_tokens; ++token) DotTile<Kind, kDotRows, 1, 0>(p, row, stride, token);
  }
  for (int64_t row = after_places; row < after_row; ++row)
    for (int64_t token = 0; token < p.num_tokens; ++token) DotTile<Kind, 1, 1, 0>(p, row, 1, token);
}

// Multiplies rows that the second cache holds by tokens that it holds beside them.
template <class Kind>
INLINE void DotChunk(const Product& p, int64_t first_row, int64_t after_row, int64_t first_token, int64_t after_token,
                     int64_t after_ahead) {
  int64_t row = first_row;
  for (; row + kDotRows <= after_ahead; row += kDotRows) DotRows<Kind, kDotRows, true>(p, row, first_token, after_token);
  for (; row + kDotRows <= after_row; row += kDotRows) DotRows<Kind, kDotRows, false>(p, row, first_token, after_token);
  for (; row < after_row; ++row) DotRows<Kind, 1, false>(p, row, first_token, after_token);
}

template <class Kind>
void Dot(const Product& p, int64_t first_row, int64_t after_row) {
  if (p.num_tokens < 2 * Kind::kTokens) return DotPlaces<Kind>(p, first_row, after_row);
  const int64_t row_bytes = p.num_in * sizeof(typename Kind::W), token_bytes = p.num_in * sizeof(typename Kind::X);
  const int64_t chunk_rows = (kChunkBytes / row_bytes / kDotRows + 1) * kDotRows;
  const int64_t chunk_tokens = (kChunkBytes / token_bytes / Kind::kTokens + 1) * Kind::kTokens;
  // From here on the values ahead are another thread's.
  const int64_t ahead_rows = (kAheadBytes + row_bytes - 1) / row_bytes;
  for (int64_t row = first_row; row < after_row; row += chunk_rows) {
    const int64_t after = row + chunk_rows < after_row ? row + chunk_rows : after_row;
    for (int64_t token = 0; token < p.num_tokens; token += chunk_tokens) {
      const int64_t after_token = token + chunk_tokens < p.num_tokens ? token + chunk_tokens : p.num_tokens;
      const int64_t after_ahead = token > 0 ? row : after < after_row - ahead_rows ? after : after_row - ahead_rows;
      DotChunk<Kind>(p, row, after, token, after_token, after_ahead);
    }
  }
}

}  // namespace
}  // namespace levserve
