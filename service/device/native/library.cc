// What Python asks of the library before XLA calls it.

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "attention.h"
#include "call.h"
#include "product.h"
#include "states.h"
#include "zeros.h"

namespace levserve {

const Processor* processor = nullptr;
const RoundedProducts* rounded_products = nullptr;
const AttentionKernels* attention_kernels = nullptr;
const StateKernels* state_kernels = nullptr;

namespace {

#if defined(__x86_64__)
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID, leaf 7.
bool HasAmx() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 25 & 1);
}
#endif

// Chooses the instructions of all calls, and returns their name; "base" if this processor has none that calls use.
const char* ChooseProcessor([[maybe_unused]] bool may_use_avx2, [[maybe_unused]] bool may_use_avx512,
                            [[maybe_unused]] bool may_use_avx512_bf16, [[maybe_unused]] bool may_use_amx) {
  processor = nullptr;
  rounded_products = nullptr;
  attention_kernels = nullptr;
  state_kernels = nullptr;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (may_use_avx512 && has_avx512) {
    processor = &kAvx512;
    attention_kernels = &kAvx512Attention;
    state_kernels = &kAvx512States;
    if (!may_use_avx512_bf16 || !__builtin_cpu_supports("avx512bf16")) return "avx512";
    rounded_products = &kAvx512BFloat16;
    return may_use_amx && HasAmx() ? "amx" : "avx512_bf16";
  }
  if (may_use_avx2 && has_avx2) {
    processor = &kAvx2;
    attention_kernels = &kAvx2Attention;
    state_kernels = &kAvx2States;
    return "avx2";
  }
#elif defined(__aarch64__)
  processor = getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? &kNeonDotprod : &kNeon;
  attention_kernels = &kNeonAttention;
  state_kernels = &kNeonStates;
  return "neon";
#endif
  return "base";
}

}  // namespace

extern "C" {

// Returns the digest of the sources that were compiled.
EXPORT const char* levserve_sources() { return LEVSERVE_SOURCES; }

// Prepares all calls, and returns the instructions that they use.
EXPORT const char* levserve_initialize(bool may_use_avx2, bool may_use_avx512, bool may_use_avx512_bf16,
                                       bool may_use_amx) {
  ProbePages();
  return ChooseProcessor(may_use_avx2, may_use_avx512, may_use_avx512_bf16, may_use_amx);
}

}  // extern "C"
}  // namespace levserve
