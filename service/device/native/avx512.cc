// Products on processors with AVX-512 and VNNI, whose products of 8 bits sum four pairs in each lane.

#ifdef __x86_64__

#include "avx512.h"
#include "dot.h"
#include "int4.h"
#include "quantize.h"
#include "update.h"
#include "widen.h"

namespace levserve {
namespace {

struct Float32 {
  using X = float;
  using W = float;
  using Sums = Floats;
  static constexpr int kStep = 16, kTokens = 4, kUpdateVectors = 4;

  static INLINE __m512 LoadX(const float* x) { return _mm512_loadu_ps(x); }
  static INLINE __m512 LoadW(const float* w) { return _mm512_loadu_ps(w); }
  static INLINE Floats AddProduct(Floats sums, __m512 x, __m512 w) {
    return (Floats)_mm512_fmadd_ps(x, w, (__m512)sums);
  }
  static INLINE Floats Reduce(const Floats* sums) { return ReduceVectors(sums); }
};

// A bfloat16 is the upper half of a float32.
struct BFloat16 : Float32 {
  using W = uint16_t;

  static INLINE __m512 LoadW(const uint16_t* w) {
    const __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
  }
};

// VNNI multiplies unsigned by signed values, so this is added to those of the weight in the first loop below and to those
// of tokens in the second, which turns its highest bit.
constexpr int kOffset = 128;

struct Int8 {
  using X = int8_t;
  using W = int8_t;
  using Sums = Ints;
  static constexpr int kStep = 64, kTokens = 4;

  static INLINE __m512i LoadX(const int8_t* x) { return _mm512_loadu_si512(x); }
  static INLINE __m512i LoadW(const int8_t* w) {
    return _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8(static_cast<char>(kOffset)));
  }
  static INLINE Ints AddProduct(Ints sums, __m512i x, __m512i w) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, w, x);
  }
  static INLINE Ints Reduce(const Ints* sums) { return ReduceVectors(sums); }
};

// With more tokens than this (measured on Zen 4) the lanes of a vector are tokens: each four values of a row are multiplied
// by those of all tokens at once, so a row is read from the cache once, and no sums are added across lanes. Tokens lie in
// panels of 32, [num_in / 4, token, 4] each.
constexpr int64_t kFewTokens = 48;
constexpr int64_t kLanes = 16, kGroup = 4, kLaneRows = 8, kVectors = 2, kPanelTokens = kVectors * kLanes;

bool HasPanels(const Product& p) { return p.num_tokens > kFewTokens && p.num_in % kGroup == 0; }

// Writes what the offset of tokens adds to the sums of some rows.
template <int kRows>
INLINE void RowOffsets(const Product& p, int64_t row, int32_t* offsets) {
  const int8_t* w = static_cast<const int8_t*>(p.weight) + row * p.num_in;
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kOffset));
  Ints sums[16] = {};
  int64_t i = 0;
  const auto add = [&](int r, __m512i values) { sums[r] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[r], offset, values); };
  for (; i + 64 <= p.num_in; i += 64)
    UNROLL for (int r = 0; r < kRows; ++r) add(r, _mm512_loadu_si512(w + r * p.num_in + i));
  const __mmask64 rest = (uint64_t{1} << (p.num_in - i)) - 1;
  UNROLL for (int r = 0; r < kRows; ++r) add(r, _mm512_maskz_loadu_epi8(rest, w + r * p.num_in + i));
  const Ints totals = ReduceVectors(sums);
  UNROLL for (int r = 0; r < kRows; ++r) offsets[r] = totals[r];
}

template <int kRows>
INLINE void LaneTile(const Product& p, int64_t row, int64_t first_token, const int32_t* offsets) {
  const uint8_t* x = static_cast<const uint8_t*>(p.x) + first_token * p.num_in;
  const int8_t* w = static_cast<const int8_t*>(p.weight) + row * p.num_in;
  Ints sums[kRows][kVectors] = {};
  for (int64_t i = 0; i < p.num_in; i += kGroup, x += kGroup * kPanelTokens) {
    __m512i tokens[kVectors];
    UNROLL for (int v = 0; v < kVectors; ++v) tokens[v] = _mm512_loadu_si512(x + v * kGroup * kLanes);
    UNROLL for (int r = 0; r < kRows; ++r) {
      int32_t group;
      memcpy(&group, w + r * p.num_in + i, sizeof group);
      const __m512i values = _mm512_set1_epi32(group);
      UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[r][v], tokens[v], values);
    }
  }
  float results[kRows][kPanelTokens];
  UNROLL for (int v = 0; v < kVectors; ++v) {
    const __m512 token_scale = _mm512_loadu_ps(p.token_scale + first_token + v * kLanes);
    UNROLL for (int r = 0; r < kRows; ++r) {
      const __m512 total = _mm512_cvtepi32_ps((__m512i)(sums[r][v] - offsets[r]));
      const __m512 scale = _mm512_mul_ps(token_scale, _mm512_set1_ps(p.weight_scale[row + r]));
      _mm512_storeu_ps(results[r] + v * kLanes, _mm512_mul_ps(total, scale));
    }
  }
  const int64_t num_tokens = p.num_tokens - first_token < kPanelTokens ? p.num_tokens - first_token : kPanelTokens;
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* out = p.out + (first_token + t) * p.num_out + row;
    UNROLL for (int r = 0; r < kRows; ++r) out[r] = results[r][t];
  }
}

template <int kRows>
INLINE void LaneRows(const Product& p, int64_t row) {
  int32_t offsets[kRows];
  RowOffsets<kRows>(p, row, offsets);
  for (int64_t token = 0; token < p.num_tokens; token += kPanelTokens) LaneTile<kRows>(p, row, token, offsets);
}

void MultiplyInt8(const Product& p, int64_t first_row, int64_t after_row) {
  if (!HasPanels(p)) return Dot<Int8>(p, first_row, after_row);
  int64_t row = first_row;
  for (; row + kLaneRows <= after_row; row += kLaneRows) LaneRows<kLaneRows>(p, row);
  for (; row < after_row; ++row) LaneRows<1>(p, row);
}

void QuantizeToken(const Product& p, const float* token, int64_t index) {
  const float scale = p.token_scale[index] = ScaleOf(token, p.num_in);
  p.token_offset[index] = 0;
  if (!HasPanels(p)) {
    int8_t* const to = p.TokenInFewerBits<int8_t>(index);
    Quantize(token, p.num_in, scale, 0, to);
    int32_t sum = 0;
    for (int64_t i = 0; i < p.num_in; ++i) sum += to[i];
    p.token_offset[index] = kOffset * sum;
    return;
  }
  uint8_t* to = p.TokenInFewerBits<uint8_t>(index / kPanelTokens * kPanelTokens) + index % kPanelTokens * kGroup;
  uint8_t part[1024];  // `RowOffsets` finds what the offset adds
  for (int64_t i = 0; i < p.num_in; i += sizeof part) {
    const int64_t count = p.num_in - i < int64_t{sizeof part} ? p.num_in - i : sizeof part;
    Quantize(token + i, count, scale, kOffset, part);
    for (int64_t j = 0; j < count; j += kGroup, to += kPanelTokens * kGroup) memcpy(to, part + j, kGroup);
  }
}

struct Int4 {
  using Bytes = __m512i;
  using Sums = Ints;
  using Numbers = Floats;
  static constexpr int kLanes = 16, kTokens = 8;

  static INLINE void LoadHalves(const uint8_t* w, __m512i* low, __m512i* high) {
    const __m512i bytes = _mm512_loadu_si512(w), mask = _mm512_set1_epi8(15);
    *low = _mm512_and_si512(bytes, mask), *high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  }
  static INLINE __m512i LoadFour(const int8_t* x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static INLINE Ints AddProducts(Ints sums, __m512i w, __m512i x) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, w, x);
  }
  static INLINE Floats Total(Ints sums) { return (Floats)_mm512_cvtepi32_ps((__m512i)sums); }
  static INLINE Floats LoadNumbers(const float* numbers) { return (Floats)Float32::LoadW(numbers); }
  static INLINE Floats LoadNumbers(const uint16_t* numbers) { return (Floats)BFloat16::LoadW(numbers); }
  static INLINE Floats AddProduct(Floats sums, Floats a, Floats b) { return Float32::AddProduct(sums, (__m512)a, (__m512)b); }
};

}  // namespace

const Processor kAvx512 = {Dot<Float32>, Dot<BFloat16>, MultiplyInt8, QuantizeToken, sizeof(uint8_t), kPanelTokens,
                           AddUpdate<Float32>, WidenRow, MultiplyPanels<Int4>, QuantizeParts};

}  // namespace levserve

#endif  // __x86_64__
