// What the loops over tiles share. The order in which values are summed depends neither on the number of tokens nor on
// the tile, so a token's result is the same in every batch that one kind of loop serves.

#pragma once

#include <cstdint>
#include <cstring>

#include "product.h"

#define INLINE inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#define ONCE _Pragma("nounroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define ONCE _Pragma("GCC unroll 1")
#endif

// A vector of elements of two others, by their indices. GCC 11 has its own form alone.
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

namespace levserve {
namespace {

constexpr int64_t kLineBytes = 64;  // of a cache

INLINE float Finish(const Product&, float sum, int64_t, int64_t) { return sum; }

// Sums of the longest rows wrap on the way, and are right once the offset is taken away.
INLINE float Finish(const Product& p, int32_t sum, int64_t token, int64_t row) {
  const uint32_t total = static_cast<uint32_t>(sum) - static_cast<uint32_t>(p.token_offset[token]);
  return static_cast<float>(static_cast<int32_t>(total)) * (p.token_scale[token] * p.weight_scale[row]);
}

}  // namespace
}  // namespace levserve
