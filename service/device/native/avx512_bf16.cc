// Products on processors with AVX512-BF16, whose products of bfloat16 sum two pairs in each lane, in float32: twice as many
// as those of float32. A number below the smallest normal float32 counts as zero.

#ifdef __x86_64__

#include "avx512.h"
#include "dot.h"

namespace levserve {
namespace {

struct Rounded {
  using X = uint16_t;
  using W = uint16_t;
  using Sums = Floats;
  static constexpr int kStep = 32, kTokens = 4;

  static INLINE __m512bh LoadX(const uint16_t* x) { return (__m512bh)_mm512_loadu_si512(x); }
  static INLINE __m512bh LoadW(const uint16_t* w) { return (__m512bh)_mm512_loadu_si512(w); }
  static INLINE Floats AddProduct(Floats sums, __m512bh x, __m512bh w) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, x, w);
  }
  static INLINE Floats Reduce(const Floats* sums) { return ReduceVectors(sums); }
};

void Round(const Product& p, const float* values, int64_t index) {
  constexpr int64_t kLanes = 16;
  const int64_t count = p.num_in;
  uint16_t* const rounded = p.TokenInFewerBits<uint16_t>(index);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = static_cast<__mmask16>(count - i < kLanes ? (1u << (count - i)) - 1 : 0xffff);
    const __m256bh halves = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, values + i));
    _mm256_mask_storeu_epi16(rounded + i, mask, (__m256i)halves);
  }
}

}  // namespace

const RoundedProducts kAvx512BFloat16 = {Dot<Rounded>, Round};

}  // namespace levserve

#endif  // __x86_64__
