// Rows in 4 bits as wider numbers: (value - zero) * scale.
//
// 16 rows are a panel, in which columns follow one another: of each 8 columns first 4 bytes of one row, then those of the
// next. The lower bits of the bytes are the first four columns, and a value is stored as itself plus 8. Of groups of
// columns, scales and zero points of the rows follow one another.

#pragma once

#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace levserve {

// A row of a panel.
struct FourBits {
  const uint8_t* values;
  const float *scale, *zero;  // of each group
  int64_t num_groups, group;  // columns of one
};

namespace {

inline void WidenRow(const FourBits& row, float* out) {
  typedef uint32_t Octet __attribute__((vector_size(32)));
  typedef int32_t Signed __attribute__((vector_size(32)));
  typedef float Wide __attribute__((vector_size(32)));
  const uint8_t* values = row.values;
  for (int64_t group = 0; group < row.num_groups; ++group) {
    const Wide zero = Wide{} + row.zero[group], scale = Wide{} + row.scale[group];
    for (int64_t i = 0; i < row.group; i += 8, values += kPanelRows * 4, out += 8) {
      uint32_t word;
      memcpy(&word, values, sizeof word);
      const Octet octet = (Octet{} + word) >> Octet{0, 8, 16, 24, 4, 12, 20, 28} & 15;
      const Wide wide = (__builtin_convertvector((Signed)octet - 8, Wide) - zero) * scale;
      memcpy(out, &wide, sizeof wide);
    }
  }
}

}  // namespace
}  // namespace levserve
