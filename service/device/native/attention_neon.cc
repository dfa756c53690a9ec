// Attention on Arm's processors of 64 bits.

#ifdef __aarch64__

#include <arm_neon.h>

#include "attention.h"
#include "vectors.h"

namespace levserve {
namespace {

constexpr int kLanes = 4, kTileRows = 8;

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

INLINE Floats Splat(float value) { return (Floats)vdupq_n_f32(value); }
INLINE Ints SplatInt(int32_t value) { return (Ints)vdupq_n_s32(value); }
INLINE Floats LoadFloats(const float* from) { return (Floats)vld1q_f32(from); }
INLINE void StoreFloats(float* to, Floats values) { vst1q_f32(to, (float32x4_t)values); }
INLINE Floats Fma(Floats a, Floats b, Floats c) {
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
INLINE Floats FloatsOf(Ints values) { return (Floats)vcvtq_f32_s32((int32x4_t)values); }
INLINE Ints WidenInt8(const int8_t* from) {
  int32_t octets;
  memcpy(&octets, from, sizeof octets);
  return (Ints)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(octets)))));
}
INLINE Floats WidenBFloat16(const uint16_t* from) {
  return (Floats)vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}

}  // namespace
}  // namespace levserve

#include "attend.h"

namespace levserve {

const AttentionKernels kNeonAttention = kKernels;

}  // namespace levserve

#endif  // __aarch64__
