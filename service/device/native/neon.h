// What the products on Arm's processors of 64 bits share: one of them is compiled with instructions that not all have.

#pragma once

#include <arm_neon.h>

#include "dot.h"

namespace levserve {

// With the products of 8 bits that sum four pairs in each lane.
void MultiplyInt8Dotprod(const Product& p, int64_t first_row, int64_t after_row);

namespace {

template <class Vector>
struct Pair {
  Vector low, high;

  auto operator[](int i) const { return i < 4 ? low[i] : high[i - 4]; }
};
template <class Vector>
Pair(Vector, Vector) -> Pair<Vector>;

// Two vectors of a row at a time, whose sums overlap where there is one token.
template <class Kind>
struct InPairs {
  using X = typename Kind::X;
  using W = typename Kind::W;
  using Sums = Pair<typename Kind::Sums>;
  static constexpr int kStep = 2 * Kind::kStep, kTokens = 2;

  static INLINE auto LoadX(const X* x) { return Pair{Kind::LoadX(x), Kind::LoadX(x + Kind::kStep)}; }
  static INLINE auto LoadW(const W* w) { return Pair{Kind::LoadW(w), Kind::LoadW(w + Kind::kStep)}; }
  template <class Vector>
  static INLINE Sums AddProduct(Sums sums, Pair<Vector> x, Pair<Vector> w) {
    return {Kind::AddProduct(sums.low, x.low, w.low), Kind::AddProduct(sums.high, x.high, w.high)};
  }
  static INLINE Sums Reduce(const Sums* sums) {
    typename Kind::Sums halves[8], quarters[4];
    UNROLL for (int i = 0; i < 8; ++i) halves[i] = sums[i].low + sums[i].high;
    UNROLL for (int i = 0; i < 4; ++i) quarters[i] = Kind::AddNeighbors(halves[2 * i], halves[2 * i + 1]);
    return {Kind::AddNeighbors(quarters[0], quarters[1]), Kind::AddNeighbors(quarters[2], quarters[3])};
  }
};

// No value of a token is -128, so 16 bits hold the sum of two products.
struct Int8 {
  using X = int8_t;
  using W = int8_t;
  using Sums = int32x4_t;
  static constexpr int kStep = 16;

  static INLINE int8x16_t LoadX(const int8_t* x) { return vld1q_s8(x); }
  static INLINE int8x16_t LoadW(const int8_t* w) { return vld1q_s8(w); }
  static INLINE int32x4_t AddProduct(int32x4_t sums, int8x16_t x, int8x16_t w) {
    return vpadalq_s16(sums, vmlal_high_s8(vmull_s8(vget_low_s8(x), vget_low_s8(w)), x, w));
  }
  static INLINE int32x4_t AddNeighbors(int32x4_t a, int32x4_t b) { return vpaddq_s32(a, b); }
};

}  // namespace
}  // namespace levserve
