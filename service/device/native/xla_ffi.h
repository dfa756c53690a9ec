// The part of XLA's interface for custom calls that is used here. Versions 0.1 to 0.4 have it alike; a test compares it
// with the header that jaxlib ships.
// Source: XLA, xla/ffi/api/c_api.h

#pragma once

#include <cstddef>
#include <cstdint>

namespace levserve {

constexpr int kMajor = 0, kNewestMinor = 4;
constexpr int kMetadata = 1;                                  // type of an extension
constexpr int kInvalidArgument = 3, kResourceExhausted = 8;  // codes of errors
constexpr int kInt8 = 2, kFloat16 = 10, kFloat32 = 11, kBFloat16 = 16, kFloat8E4M3FN = 20;  // types of elements

struct Extension {
  size_t size;
  int type;
  Extension* next;
};

struct Version {
  size_t size;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  size_t size;
  Version version;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  size_t size;
  Extension* extensions;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {
  size_t size;
  Extension* extensions;
  int64_t count;
  int* types;
  Buffer** buffers;
};

struct Context;  // of one call; opaque
struct Error;    // opaque; null for none

struct ErrorArguments {
  size_t size;
  Extension* extensions;
  const char* message;
  int code;
};

struct DestroyErrorArguments {
  size_t size;
  Extension* extensions;
  Error* error;
};

struct ScheduleArguments {
  size_t size;
  Extension* extensions;
  Context* context;
  void (*task)(void* data);
  void* data;
};

struct NumThreadsArguments {
  size_t size;
  Extension* extensions;
  Context* context;
  int64_t* num_threads;
};

struct Api {
  size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  void* get_error_details;
  void (*destroy_error)(DestroyErrorArguments*);
  void* unused[8];
  Error* (*schedule)(ScheduleArguments*);
  Error* (*count_threads)(NumThreadsArguments*);
};

struct CallFrame {
  size_t size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int stage;
  Buffers arguments;
  Buffers results;
};

}  // namespace levserve
