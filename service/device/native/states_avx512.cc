// States on processors with AVX-512.

#ifdef __x86_64__

namespace levserve {
namespace {

constexpr int kLanes = 16, kVectors = 8;

}  // namespace
}  // namespace levserve

#include "change.h"

namespace levserve {

const StateKernels kAvx512States = {Correct, Add};

}  // namespace levserve

#endif  // __x86_64__
