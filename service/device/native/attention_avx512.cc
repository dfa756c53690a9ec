// Attention on processors with AVX-512.

#ifdef __x86_64__

#include <immintrin.h>

#include "attention.h"
#include "vectors.h"

namespace levserve {
namespace {

constexpr int kLanes = 16, kTileRows = 8;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

INLINE Floats Splat(float value) { return (Floats)_mm512_set1_ps(value); }
INLINE Ints SplatInt(int32_t value) { return (Ints)_mm512_set1_epi32(value); }
INLINE Floats LoadFloats(const float* from) { return (Floats)_mm512_loadu_ps(from); }
INLINE void StoreFloats(float* to, Floats values) { _mm512_storeu_ps(to, (__m512)values); }
INLINE Floats Fma(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE Floats FloatsOf(Ints values) { return (Floats)_mm512_cvtepi32_ps((__m512i)values); }
INLINE Ints WidenInt8(const int8_t* from) {
  return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
INLINE Floats WidenBFloat16(const uint16_t* from) {
  const __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return (Floats)_mm512_slli_epi32(halves, 16);
}

}  // namespace
}  // namespace levserve

#include "attend.h"

namespace levserve {

const AttentionKernels kAvx512Attention = kKernels;

}  // namespace levserve

#endif  // __x86_64__
