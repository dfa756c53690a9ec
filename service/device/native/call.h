// What every custom call begins and fails with.

#pragma once

#include "xla_ffi.h"

#define EXPORT __attribute__((visibility("default")))

// A call of XLA's: what it does with `call`.
#define HANDLER(name, answer) \
  EXPORT Error* levserve_##name(const CallFrame* call) { return AnswersVersion(*call) ? nullptr : answer; }

namespace levserve {

// Answers XLA's question for the version of the interface; false if the call is another one. XLA refuses a version above
// its own, and a later one has all that is used here.
inline bool AnswersVersion(const CallFrame& call) {
  if (call.extensions == nullptr || call.extensions->type != kMetadata) return false;
  Version& version = reinterpret_cast<MetadataExtension*>(call.extensions)->metadata->version;
  const int minor = call.api->version.minor;
  version.major = kMajor;
  version.minor = minor < kNewestMinor ? minor : kNewestMinor;
  return true;
}

// Returns the bytes of an element; 0 for types that no cache has.
inline int64_t ElementBytes(int type) {
  switch (type) {
    case kInt8:
    case kFloat8E4M3FN:
      return 1;
    case kFloat16:
    case kBFloat16:
      return 2;
    case kFloat32:
      return 4;
    default:
      return 0;
  }
}

inline Error* Fail(const CallFrame& call, int code, const char* message) {
  ErrorArguments arguments{sizeof arguments, nullptr, message, code};
  return call.api->create_error(&arguments);
}

}  // namespace levserve
