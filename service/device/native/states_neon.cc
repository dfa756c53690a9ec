// States on Arm's processors of 64 bits.

#ifdef __aarch64__

namespace levserve {
namespace {

constexpr int kLanes = 4, kVectors = 8;

}  // namespace
}  // namespace levserve

#include "change.h"

namespace levserve {

const StateKernels kNeonStates = {Correct, Add};

}  // namespace levserve

#endif  // __aarch64__
