// Products in int8 on Arm's processors that have the instructions for them, "dotprod".

#ifdef __aarch64__

#include "neon.h"

namespace levserve {
namespace {

struct DotInt8 : Int8 {
  static INLINE int32x4_t AddProduct(int32x4_t sums, int8x16_t x, int8x16_t w) { return vdotq_s32(sums, x, w); }
};

}  // namespace

void MultiplyInt8Dotprod(const Product& p, int64_t first_row, int64_t after_row) {
  Dot<InPairs<DotInt8>>(p, first_row, after_row);
}

}  // namespace levserve

#endif  // __aarch64__
