// States on processors with AVX2.

#ifdef __x86_64__

namespace levserve {
namespace {

constexpr int kLanes = 8, kVectors = 4;

}  // namespace
}  // namespace levserve

#include "change.h"

namespace levserve {

const StateKernels kAvx2States = {Correct, Add};

}  // namespace levserve

#endif  // __x86_64__
