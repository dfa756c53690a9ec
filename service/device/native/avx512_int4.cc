// Products of tokens in 8 bits with weights in 4 bits, on processors with AVX-512 and VNNI: the lanes of a vector are 16
// rows. A group's sum of integers is exact, and the groups of a row are added in their order, so a token's product is the
// same in every batch.

#ifdef __x86_64__

#include "avx512.h"

namespace levserve {
namespace {

constexpr int64_t kLanes = 16, kTileTokens = 8;
constexpr int64_t kPart = kWidened;              // columns, of which a token has a scale
constexpr int64_t kPartBytes = kPart / 2, kWords = kPartBytes / 4;  // of a row, that are interleaved at a time
constexpr int64_t kParts = 16, kScales = kParts + 8;  // of a panel; scales are read up to 8 at a time
constexpr int64_t kAheadBytes = 8 * 1024;        // at least so far, the second cache reads values before they are needed

// Some columns of 16 rows.
struct Panel {
  __m512i words[kParts * kWords];                // 8 values of each row, of which the first is in the lowest bits
  __m512 scale[kScales], offset[kScales];        // of groups: what a value is multiplied by, and what is then taken away
  int64_t group_of[kParts];                      // their indices
};

// 16 rows in memory; after the last one, the last one again.
template <bool kIsWhole>
struct Rows {
  const char* first;
  int64_t pitch, last;

  const char* At(int64_t lane) const { return first + (kIsWhole || lane < last ? lane : last) * pitch; }
};

// Writes 4 vectors, each of 32 bits of every row, from 16 bytes of 16 rows.
template <class Rows>
INLINE void Interleave(const Rows& rows, int64_t byte, __mmask16 mask, __m512i* words) {
  __m512i v[4], pairs[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    const auto load = [&](int row) { return _mm_maskz_loadu_epi8(mask, rows.At(row) + byte); };
    const __m512i half = _mm512_inserti32x4(_mm512_castsi128_si512(load(i)), load(i + 4), 1);
    v[i] = _mm512_inserti32x4(_mm512_inserti32x4(half, load(i + 8), 2), load(i + 12), 3);
  }
  UNROLL for (int i = 0; i < 4; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  UNROLL for (int i = 0; i < 2; ++i) {
    words[2 * i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    words[2 * i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
  }
}

// Writes numbers of groups of 16 rows as float32.
template <class Rows>
INLINE void InterleaveNumbers(const Rows& rows, int64_t first, int64_t count, bool is_bfloat16, __m512* numbers) {
  const int64_t of_part = is_bfloat16 ? 8 : 4, bytes = kPartBytes / of_part;
  for (int64_t i = 0; i < count; i += of_part) {
    __m512i words[kWords];
    const int64_t left = (count - i) * bytes;
    Interleave(rows, (first + i) * bytes, static_cast<__mmask16>(left < kPartBytes ? (1 << left) - 1 : 0xffff), words);
    for (int64_t word = 0; word < kWords; ++word) {
      if (is_bfloat16) *numbers++ = _mm512_castsi512_ps(_mm512_slli_epi32(words[word], 16));
      *numbers++ = _mm512_castsi512_ps(is_bfloat16 ? _mm512_and_si512(words[word], _mm512_set1_epi32(0xffff0000)) : words[word]);
    }
  }
}

// Has the second cache read what later panels need.
INLINE void Prefetch(const char* from, int64_t num_bytes) {
  for (int64_t byte = 0; byte < num_bytes; byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

template <bool kIsWhole>
void Read(const Product& p, int64_t row, int64_t column, int64_t num_parts, Panel* panel) {
  const Groups& groups = *p.groups;
  const int64_t group = p.num_in / groups.num_groups, first = column / group;
  const int64_t count = (column + num_parts * kPart - 1) / group - first + 1;
  const auto rows = [&](const void* data, int64_t pitch) {
    return Rows<kIsWhole>{static_cast<const char*>(data) + row * pitch, pitch, p.num_out - 1 - row};
  };
  const int64_t pitch = groups.num_groups * (groups.is_bfloat16 ? 2 : 4);
  const auto values = rows(static_cast<const char*>(p.weight) + column / 2, p.num_in / 2);
  const auto scales = rows(groups.scale, pitch), zeros = rows(groups.zero, pitch);
  const int64_t rows_ahead = (kAheadBytes / (kLanes * values.pitch) + 1) * kLanes;
  const char* const ahead = values.first + rows_ahead * values.pitch + (kLanes - 1) * column / 2;
  for (int64_t part = 0, end = (first + 1) * group - column, index = 0; part < num_parts; ++part) {
    if (part * kPart == end) end += group, ++index;
    panel->group_of[part] = index;
    Prefetch(ahead + kLanes * part * kPartBytes, kLanes * kPartBytes);
    Interleave(values, part * kPartBytes, 0xffff, panel->words + part * kWords);
  }
  const int64_t first_number = kLanes * first * pitch / groups.num_groups, numbers = kLanes * count * pitch / groups.num_groups;
  Prefetch(scales.first + rows_ahead * pitch + first_number, numbers);
  if (groups.zero != nullptr) Prefetch(zeros.first + rows_ahead * pitch + first_number, numbers);
  InterleaveNumbers(scales, first, count, groups.is_bfloat16, panel->scale);
  if (groups.zero != nullptr) InterleaveNumbers(zeros, first, count, groups.is_bfloat16, panel->offset);
  for (int64_t i = 0; i < count; ++i) {
    const __m512 zero = groups.zero != nullptr ? panel->offset[i] : _mm512_setzero_ps();
    panel->offset[i] = _mm512_mul_ps(panel->scale[i], _mm512_add_ps(zero, _mm512_set1_ps(8)));
  }
}

// Adds the products of some tokens with a panel to the result.
template <int kTokens>
INLINE void AddTile(const Product& p, const Panel& panel, int64_t column, int64_t num_parts, __mmask16 mask,
                    int64_t token, float* out) {
  const int64_t of_token = p.num_in / kPart;
  const char* const x = static_cast<const char*>(p.x) + token * p.num_in + column;
  const float* const scales = p.token_scale + 2 * (token * of_token + column / kPart);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x88)), low = _mm512_set1_epi8(15);
  __m512 sums[kTokens];
  UNROLL for (int t = 0; t < kTokens; ++t)
    sums[t] = column == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + t * p.num_out);
  for (int64_t part = 0; part < num_parts; ++part) {
    Ints totals[2][kTokens] = {};
    UNROLL for (int word = 0; word < kWords; ++word) {
      // Values become those from 0 to 15.
      const __m512i values = _mm512_xor_si512(panel.words[part * kWords + word], sign);
      const __m512i halves[] = {_mm512_and_si512(values, low), _mm512_and_si512(_mm512_srli_epi16(values, 4), low)};
      UNROLL for (int half = 0; half < 2; ++half) {
        UNROLL for (int t = 0; t < kTokens; ++t) {
          int32_t four;
          memcpy(&four, x + t * p.num_in + part * kPart + word * 8 + half * 4, sizeof four);
          totals[half][t] = (Ints)_mm512_dpbusd_epi32((__m512i)totals[half][t], halves[half], _mm512_set1_epi32(four));
        }
      }
    }
    UNROLL for (int t = 0; t < kTokens; ++t) {
      const float* const own = scales + 2 * (t * of_token + part);
      const __m512 total = _mm512_cvtepi32_ps((__m512i)(totals[0][t] + totals[1][t]));
      const __m512 scale = _mm512_mul_ps(panel.scale[panel.group_of[part]], _mm512_set1_ps(own[0]));
      const __m512 offset = _mm512_mul_ps(panel.offset[panel.group_of[part]], _mm512_set1_ps(own[1]));
      sums[t] = _mm512_add_ps(sums[t], _mm512_fmsub_ps(total, scale, offset));
    }
  }
  UNROLL for (int t = 0; t < kTokens; ++t) _mm512_mask_storeu_ps(out + t * p.num_out, mask, sums[t]);
}

template <int kTokens>
INLINE void AddTiles(const Product& p, const Panel& panel, int64_t column, int64_t num_parts, __mmask16 mask,
                     int64_t token, float* out) {
  for (; token + kTokens <= p.num_tokens; token += kTokens)
    AddTile<kTokens>(p, panel, column, num_parts, mask, token, out + token * p.num_out);
  if constexpr (kTokens > 1) AddTiles<kTokens / 2>(p, panel, column, num_parts, mask, token, out);
}

}  // namespace

void MultiplyInt4(const Product& p, int64_t first_row, int64_t after_row) {
  for (int64_t row = first_row; row < after_row; row += kLanes) {
    const __mmask16 mask = static_cast<__mmask16>(after_row - row < kLanes ? (1 << (after_row - row)) - 1 : 0xffff);
    for (int64_t column = 0; column < p.num_in; column += kParts * kPart) {
      const int64_t num_parts = p.num_in - column < kParts * kPart ? (p.num_in - column) / kPart : kParts;
      Panel panel;
      if (row + kLanes <= p.num_out) Read<true>(p, row, column, num_parts, &panel);
      else Read<false>(p, row, column, num_parts, &panel);
      AddTiles<kTileTokens>(p, panel, column, num_parts, mask, 0, p.out + row);
    }
  }
}

// Writes a token in 8 bits, of each 8 columns the even ones first, and for each part its scale and that times the sum.
void QuantizeParts(const Product& p, const float* values, int64_t index) {
  int8_t* const to = p.TokenInFewerBits<int8_t>(index);
  float* scales = p.token_scale + 2 * index * p.num_in / kPart;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m256i even_first = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  for (int64_t i = 0; i < p.num_in; i += kPart, scales += 2) {
    const __m512 low = _mm512_loadu_ps(values + i), high = _mm512_loadu_ps(values + i + kLanes);
    // As integers, magnitudes of floats have their order, and a NaN is the largest.
    const __m512i largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                             _mm512_and_si512(_mm512_castps_si512(high), magnitude));
    const int32_t bits = _mm512_reduce_max_epi32(largest);
    float most;
    memcpy(&most, &bits, sizeof most);
    const bool is_zero = most < 0x1p-100f;
    const __m512 inverse = _mm512_set1_ps(is_zero ? 0 : 127 / most);
    const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
    const __m512i last = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
    const __m256i octets = _mm256_set_m128i(_mm512_cvtepi32_epi8(last), _mm512_cvtepi32_epi8(first));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_shuffle_epi8(octets, even_first));
    scales[0] = is_zero ? 0 : most / 127;
    scales[1] = scales[0] * static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(first, last)));
  }
}

}  // namespace levserve

#endif  // __x86_64__
