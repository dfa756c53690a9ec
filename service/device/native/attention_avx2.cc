// Attention on processors with AVX2 and FMA.

#ifdef __x86_64__

#include <immintrin.h>

#include "attention.h"
#include "vectors.h"

namespace levserve {
namespace {

constexpr int kLanes = 8, kTileRows = 6;

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

INLINE Floats Splat(float value) { return (Floats)_mm256_set1_ps(value); }
INLINE Ints SplatInt(int32_t value) { return (Ints)_mm256_set1_epi32(value); }
INLINE Floats LoadFloats(const float* from) { return (Floats)_mm256_loadu_ps(from); }
INLINE void StoreFloats(float* to, Floats values) { _mm256_storeu_ps(to, (__m256)values); }
INLINE Floats Fma(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE Floats FloatsOf(Ints values) { return (Floats)_mm256_cvtepi32_ps((__m256i)values); }
INLINE Ints WidenInt8(const int8_t* from) {
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
INLINE Floats WidenBFloat16(const uint16_t* from) {
  const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return (Floats)_mm256_slli_epi32(halves, 16);
}

}  // namespace
}  // namespace levserve

#include "attend.h"

namespace levserve {

const AttentionKernels kAvx2Attention = kKernels;

}  // namespace levserve

#endif  // __x86_64__
