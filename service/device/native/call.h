// What every custom call begins and fails with.

#pragma once

#include "xla_ffi.h"

#define EXPORT __attribute__((visibility("default")))

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

inline Error* Fail(const CallFrame& call, int code, const char* message) {
  ErrorArguments arguments{sizeof arguments, nullptr, message, code};
  return call.api->create_error(&arguments);
}

}  // namespace levserve
