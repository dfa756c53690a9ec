// States on Arm's processors of 64 bits.

#ifdef __aarch64__

namespace levserve {
namespace {

constexpr int kLanes = 4, kVectors = 8;

}  // namespace
}  // namespace levserve

#include "correct.h"

namespace levserve {

const CorrectHead kNeonCorrect = Correct;

}  // namespace levserve

#endif  // __aarch64__
