// States on processors with AVX2.

#ifdef __x86_64__

namespace levserve {
namespace {

constexpr int kLanes = 8, kVectors = 4;

}  // namespace
}  // namespace levserve

#include "correct.h"

namespace levserve {

const CorrectHead kAvx2Correct = Correct;

}  // namespace levserve

#endif  // __x86_64__
