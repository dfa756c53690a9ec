// Products on Arm's processors of 64 bits.

#ifdef __aarch64__

#include "neon.h"
#include "quantize.h"
#include "update.h"
#include "widen.h"

namespace levserve {
namespace {

struct Float32 {
  using X = float;
  using W = float;
  using Sums = float32x4_t;
  static constexpr int kStep = 4, kUpdateVectors = 4;

  static INLINE float32x4_t LoadX(const float* x) { return vld1q_f32(x); }
  static INLINE float32x4_t LoadW(const float* w) { return vld1q_f32(w); }
  static INLINE float32x4_t AddProduct(float32x4_t sums, float32x4_t x, float32x4_t w) { return vfmaq_f32(sums, x, w); }
  static INLINE float32x4_t AddNeighbors(float32x4_t a, float32x4_t b) { return vpaddq_f32(a, b); }
};

// A bfloat16 is the upper half of a float32.
struct BFloat16 : Float32 {
  using W = uint16_t;

  static INLINE float32x4_t LoadW(const uint16_t* w) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(w), 16)); }
};

void QuantizeToken(const Product& p, const float* token, int64_t index) {
  p.token_scale[index] = ScaleOf(token, p.num_in);
  p.token_offset[index] = 0;
  Quantize(token, p.num_in, p.token_scale[index], 0, p.TokenInFewerBits<Int8::X>(index));
}

}  // namespace

const Processor kNeon = {Dot<InPairs<Float32>>, Dot<InPairs<BFloat16>>, Dot<InPairs<Int8>>, QuantizeToken,
                         sizeof(Int8::X), 1, AddUpdate<Float32>, WidenRow};
const Processor kNeonDotprod = {Dot<InPairs<Float32>>, Dot<InPairs<BFloat16>>, MultiplyInt8Dotprod, QuantizeToken,
                                sizeof(Int8::X), 1, AddUpdate<Float32>, WidenRow};

}  // namespace levserve

#endif  // __aarch64__
