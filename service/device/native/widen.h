// Rows in 4 bits, two values in a byte with the first in the lower bits, as wider numbers: (value - zero) * scale.

#pragma once

#include <cstdint>

namespace levserve {

constexpr int64_t kWidened = 32;  // values of a group are a multiple of these

// A row, and the scale and the zero point of each of its groups of columns.
struct FourBits {
  const uint8_t* values;
  const float *scale, *zero;
  int64_t num_groups, group;
};

namespace {

// The values of all 4 bits, which have a sign.
alignas(64) constexpr float kFourBits[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};

// Looks each value up in a table of its group.
inline void WidenRow(const FourBits& row, float* out) {
  const uint8_t* values = row.values;
  for (int64_t group = 0; group < row.num_groups; ++group) {
    float numbers[16];
    for (int i = 0; i < 16; ++i) numbers[i] = (kFourBits[i] - row.zero[group]) * row.scale[group];
    for (int64_t i = 0; i < row.group; i += 2, ++values) {
      *out++ = numbers[*values & 15];
      *out++ = numbers[*values >> 4];
    }
  }
}

}  // namespace
}  // namespace levserve
