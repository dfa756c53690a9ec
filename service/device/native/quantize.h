// Quantizes tokens as `service.kernels.products.quantized.quantize_tokens` does, but for the last bit of some scales:
// XLA multiplies by 1/127.

#pragma once

#include <cstdint>
#include <cstring>

namespace levserve {
namespace {

// Returns the largest magnitude divided by 127, or 1 if that is zero. That of a NaN or an infinity is one too, so that
// every product with the token is.
inline float ScaleOf(const float* token, int64_t num_in) {
  // As integers, the magnitudes of floats have the order of the floats, and a NaN is the largest.
  uint32_t largest_bits = 0;
  for (int64_t i = 0; i < num_in; ++i) {
    uint32_t bits;
    memcpy(&bits, token + i, sizeof bits);
    bits &= 0x7fffffff;
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  float largest;
  memcpy(&largest, &largest_bits, sizeof largest);
  return largest == 0 ? 1 : largest / 127;
}

// Writes values divided by a scale, rounded half to even, plus an offset.
template <class Value>
inline void Quantize(const float* values, int64_t count, float scale, int offset, Value* quantized) {
  // The last bit of a float of this magnitude is a one, so an addition rounds.
  constexpr float kRound = 0x1.8p23f;
  constexpr uint32_t kZero = 0x4b400000;  // its bits
  for (int64_t i = 0; i < count; ++i) {
    const float rounded = values[i] / scale + kRound;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    quantized[i] = static_cast<Value>(bits - kZero + offset);
  }
}

}  // namespace
}  // namespace levserve
