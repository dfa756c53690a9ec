// Vectors of AVX-512, and their sums.

#pragma once

#include <immintrin.h>

#include "vectors.h"

namespace levserve {
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

// Returns the sums of 16 vectors.
template <class Sums>
INLINE Sums ReduceVectors(const Sums* sums) {
  Sums halves[8], quarters[4], eighths[2];
  UNROLL for (int i = 0; i < 8; ++i) {
    const Sums a = sums[2 * i], b = sums[2 * i + 1];
    halves[i] = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  UNROLL for (int i = 0; i < 4; ++i) {
    const Sums a = halves[2 * i], b = halves[2 * i + 1];
    quarters[i] = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                  SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  UNROLL for (int i = 0; i < 2; ++i) {
    const Sums a = quarters[2 * i], b = quarters[2 * i + 1];
    eighths[i] = SHUFFLE(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
                 SHUFFLE(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  }
  return SHUFFLE(eighths[0], eighths[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         SHUFFLE(eighths[0], eighths[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

}  // namespace
}  // namespace levserve
