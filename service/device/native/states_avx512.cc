// States on processors with AVX-512.

#ifdef __x86_64__

namespace levserve {
namespace {

constexpr int kLanes = 16, kVectors = 8;

}  // namespace
}  // namespace levserve

#include "correct.h"

namespace levserve {

const CorrectHead kAvx512Correct = Correct;

}  // namespace levserve

#endif  // __x86_64__
