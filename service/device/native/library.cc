// What Python asks of the library before XLA calls it.

#include "call.h"
#include "product.h"
#include "zeros.h"

namespace levserve {

extern "C" {

// Returns the digest of the sources that were compiled.
EXPORT const char* levserve_sources() { return LEVSERVE_SOURCES; }

// Prepares all calls, and returns the instructions that they use.
EXPORT const char* levserve_initialize(bool may_use_avx2, bool may_use_avx512) {
  ProbePages();
  return ChooseProcessor(may_use_avx2, may_use_avx512);
}

}  // extern "C"
}  // namespace levserve
