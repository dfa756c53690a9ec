// Products on processors with AVX2 and FMA.

#ifdef __x86_64__

#include <immintrin.h>

#include "dot.h"
#include "int4.h"
#include "quantize.h"
#include "update.h"
#include "widen.h"

namespace levserve {
namespace {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

// Returns the sums of 8 vectors.
template <class Sums>
INLINE Sums ReduceVectors(const Sums* sums) {
  Sums halves[4], quarters[2];
  UNROLL for (int i = 0; i < 4; ++i) {
    const Sums a = sums[2 * i], b = sums[2 * i + 1];
    halves[i] = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  UNROLL for (int i = 0; i < 2; ++i) {
    const Sums a = halves[2 * i], b = halves[2 * i + 1];
    quarters[i] = SHUFFLE(a, b, 0, 1, 4, 5, 8, 9, 12, 13) +
                  SHUFFLE(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
  }
  return SHUFFLE(quarters[0], quarters[1], 0, 2, 4, 6, 8, 10, 12, 14) +
         SHUFFLE(quarters[0], quarters[1], 1, 3, 5, 7, 9, 11, 13, 15);
}

// Of up to three tokens and four rows.
struct Totals {
  Floats parts[2];

  INLINE float operator[](int index) const { return parts[index / 8][index % 8]; }
};

struct Float32 {
  using X = float;
  using W = float;
  using Sums = Floats;
  static constexpr int kStep = 8, kTokens = 3, kUpdateVectors = 2;

  static INLINE __m256 LoadX(const float* x) { return _mm256_loadu_ps(x); }
  static INLINE __m256 LoadW(const float* w) { return _mm256_loadu_ps(w); }
  static INLINE Floats AddProduct(Floats sums, __m256 x, __m256 w) {
    return (Floats)_mm256_fmadd_ps(x, w, (__m256)sums);
  }
  static INLINE Totals Reduce(const Floats* sums) {
    const Floats last[8] = {sums[8], sums[9], sums[10], sums[11]};
    return {{ReduceVectors(sums), ReduceVectors(last)}};
  }
};

// A bfloat16 is the upper half of a float32.
struct BFloat16 : Float32 {
  using W = uint16_t;

  static INLINE __m256 LoadW(const uint16_t* w) {
    const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
  }
};

// Sums of two products of 8 bits overflow the 16 bits of AVX2's, so values are widened: those of tokens by `quantize`.
struct Int8 {
  using X = int16_t;
  using W = int8_t;
  using Sums = Ints;
  static constexpr int kStep = 16, kTokens = 2;

  static INLINE __m256i LoadX(const int16_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
  static INLINE __m256i LoadW(const int8_t* w) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
  }
  static INLINE Ints AddProduct(Ints sums, __m256i x, __m256i w) {
    return (Ints)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16(x, w));
  }
  static INLINE Ints Reduce(const Ints* sums) { return ReduceVectors(sums); }
};

// 16 bits hold the sums of the products of a part: four columns of both halves, by values up to 15 and 127.
struct Int4 {
  using Bytes = __m256i;
  using Sums = __m256i;
  using Numbers = Floats;
  static constexpr int kLanes = 8, kTokens = 4;

  static INLINE void LoadHalves(const uint8_t* w, __m256i* low, __m256i* high) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)), mask = _mm256_set1_epi8(15);
    *low = _mm256_and_si256(bytes, mask), *high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  }
  static INLINE __m256i LoadFour(const int8_t* x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static INLINE __m256i AddProducts(__m256i sums, __m256i w, __m256i x) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
  }
  static INLINE Floats Total(__m256i sums) {
    return (Floats)_mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
  }
  static INLINE Floats LoadNumbers(const float* numbers) { return (Floats)Float32::LoadW(numbers); }
  static INLINE Floats LoadNumbers(const uint16_t* numbers) { return (Floats)BFloat16::LoadW(numbers); }
  static INLINE Floats AddProduct(Floats sums, Floats a, Floats b) { return Float32::AddProduct(sums, (__m256)a, (__m256)b); }
};

void QuantizeToken(const Product& p, const float* token, int64_t index) {
  p.token_scale[index] = ScaleOf(token, p.num_in);
  p.token_offset[index] = 0;
  Quantize(token, p.num_in, p.token_scale[index], 0, p.TokenInFewerBits<Int8::X>(index));
}

}  // namespace

const Processor kAvx2 = {Dot<Float32>, Dot<BFloat16>, Dot<Int8>, QuantizeToken, sizeof(Int8::X), 1, AddUpdate<Float32>,
                         WidenRow, MultiplyPanels<Int4>, QuantizeParts};

}  // namespace levserve

#endif  // __x86_64__
