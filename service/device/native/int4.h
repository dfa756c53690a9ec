// Products of tokens in 8 bits with weights in 4 bits: the lanes of vectors are the rows of a panel. A part's sum of integers
// is exact, and the parts of a row are added in their order, so a token's product is the same in every batch.
//
// A `Kind` defines the vectors of bytes, of sums of their products and of float32, and the operations on them; `Number` is
// the type of scales and zero points.

#pragma once

#include "quantize.h"
#include "vectors.h"

namespace levserve {
namespace {

constexpr int64_t kPart = kWidened;  // columns, of which a token has a scale
constexpr int64_t kPartBytes = kPanelRows * kPart / 2;
constexpr int64_t kStepColumns = 8;  // 4 bytes of each row
constexpr int64_t kPanelAheadBytes = 8 * 1024;  // so far ahead, the second cache reads panels

// Adds the products of a part to the sums of some tokens.
template <class Kind, int kVectors, int kTokens>
INLINE void AddPart(const uint8_t* w, const int8_t* x, int64_t x_pitch, typename Kind::Sums (*totals)[kTokens]) {
  ONCE for (int64_t column = 0; column < kPart; column += kStepColumns, w += kPanelRows * kStepColumns / 2) {
    typename Kind::Bytes low[kVectors], high[kVectors];
    UNROLL for (int v = 0; v < kVectors; ++v) Kind::LoadHalves(w + v * Kind::kLanes * 4, &low[v], &high[v]);
    UNROLL for (int t = 0; t < kTokens; ++t) {
      const auto first = Kind::LoadFour(x + t * x_pitch + column), last = Kind::LoadFour(x + t * x_pitch + column + 4);
      UNROLL for (int v = 0; v < kVectors; ++v) {
        totals[v][t] = Kind::AddProducts(totals[v][t], low[v], first);
        totals[v][t] = Kind::AddProducts(totals[v][t], high[v], last);
      }
    }
  }
}

template <class Kind, class Number, int kTokens>
INLINE void PanelTile(const Product& p, int64_t row, int64_t token) {
  constexpr int kVectors = kPanelRows / Kind::kLanes;
  const int64_t num_parts = p.num_in / kPart, of_group = num_parts / p.groups->num_groups;
  const uint8_t* w = static_cast<const uint8_t*>(p.weight) + row * p.num_in / 2;
  const int8_t* x = p.TokenInFewerBits<int8_t>(token);
  const float* token_scale = p.token_scale + 2 * token * num_parts;
  typename Kind::Numbers sums[kVectors][kTokens] = {};
  for (int64_t group = 0; group < p.groups->num_groups; ++group) {
    typename Kind::Numbers scales[kVectors], zeros[kVectors];
    UNROLL for (int v = 0; v < kVectors; ++v) {
      const int64_t index = row * p.groups->num_groups + group * kPanelRows + v * Kind::kLanes;
      scales[v] = Kind::LoadNumbers(static_cast<const Number*>(p.groups->scale) + index);
      zeros[v] = typename Kind::Numbers{} + 8;  // values are those from 0 to 15
      if (p.groups->zero != nullptr) zeros[v] += Kind::LoadNumbers(static_cast<const Number*>(p.groups->zero) + index);
    }
    for (int64_t part = 0; part < of_group; ++part) {
      if (token == 0)
        UNROLL for (int64_t byte = 0; byte < kPartBytes; byte += kLineBytes)
          __builtin_prefetch(w + kPanelAheadBytes + byte, 0, 2);
      typename Kind::Sums totals[kVectors][kTokens] = {};
      AddPart<Kind, kVectors, kTokens>(w, x, p.num_in, totals);
      UNROLL for (int t = 0; t < kTokens; ++t) {
        const float scale = token_scale[2 * t * num_parts], sum = token_scale[2 * t * num_parts + 1];
        UNROLL for (int v = 0; v < kVectors; ++v) {
          const auto total = Kind::AddProduct(Kind::Total(totals[v][t]), zeros[v], typename Kind::Numbers{} + sum);
          sums[v][t] = Kind::AddProduct(sums[v][t], total, scales[v] * scale);
        }
      }
      w += kPartBytes, x += kPart, token_scale += 2;
    }
  }
  UNROLL for (int t = 0; t < kTokens; ++t)
    UNROLL for (int v = 0; v < kVectors; ++v)
      memcpy(p.out + (token + t) * p.num_out + row + v * Kind::kLanes, &sums[v][t], sizeof sums[v][t]);
}

template <class Kind, class Number, int kTokens>
INLINE void PanelTiles(const Product& p, int64_t row, int64_t token) {
  for (; token + kTokens <= p.num_tokens; token += kTokens) PanelTile<Kind, Number, kTokens>(p, row, token);
  if constexpr (kTokens > 1) PanelTiles<Kind, Number, kTokens / 2>(p, row, token);
}

// Multiplies by whole panels.
template <class Kind>
void MultiplyPanels(const Product& p, int64_t first_row, int64_t after_row) {
  for (int64_t row = first_row; row < after_row; row += kPanelRows) {
    if (p.groups->is_bfloat16) PanelTiles<Kind, uint16_t, Kind::kTokens>(p, row, 0);
    else PanelTiles<Kind, float, Kind::kTokens>(p, row, 0);
  }
}

// Writes a token in 8 bits, and for each part its scale and the sum of its integers, negated. Tiny numbers count as zero.
void QuantizeParts(const Product& p, const float* values, int64_t index) {
  int8_t* to = p.TokenInFewerBits<int8_t>(index);
  float* scales = p.token_scale + 2 * index * p.num_in / kPart;
  for (int64_t i = 0; i < p.num_in; i += kPart, to += kPart, scales += 2) {
    const float scale = ScaleOf(values + i, kPart);
    const bool is_zero = scale < 0x1p-100f;
    Quantize(values + i, kPart, is_zero ? 1 : scale, 0, to);
    int32_t sum = 0;
    for (int64_t j = 0; j < kPart; ++j) sum += to[j];
    scales[0] = is_zero ? 0 : scale;
    scales[1] = static_cast<float>(-sum);
  }
}

}  // namespace
}  // namespace levserve
