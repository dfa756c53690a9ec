// The part of XLA's interface for custom calls that the products use.
// Source: XLA, xla/ffi/api/c_api.h, version 0.4; structures and their order are stable within version 0.

#pragma once

#include <cstddef>
#include <cstdint>

namespace levserve {

constexpr int kMajor = 0, kMinor = 4, kMetadata = 1, kResourceExhausted = 8;

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
