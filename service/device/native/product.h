#pragma once

#include <atomic>
#include <cstdint>

namespace levserve {

struct FourBits;

constexpr int64_t kWidened = 32;    // columns of a group of a weight in 4 bits are a multiple of these
constexpr int64_t kPanelRows = 16;  // and its rows, which are interleaved; see `widen.h`

// The scales and zero points of a weight in 4 bits, in float32 or bfloat16.
struct Groups {
  const void *scale, *zero;  // [num_out / 16, num_groups, 16]; zero may be null
  int64_t num_groups;
  bool is_bfloat16;
  std::atomic<bool>* lacks_memory;  // set where rows could not be multiplied
};

// `x @ weight.T`, row by row in memory.
struct Product {
  const void* x;              // [num_tokens, num_in] in float32, or what a `NarrowToken` wrote
  const void* weight;         // [num_out, num_in] in float32, bfloat16 or int8, or panels in 4 bits
  float* token_scale;         // [num_tokens], or of parts of tokens; null if x is in float32
  int32_t* token_offset;      // [num_tokens]: what the sums of a token in int8 are too large by
  const float* weight_scale;  // [num_out]
  float* out;                 // [num_tokens, num_out]
  int64_t num_tokens, num_in, num_out;
  const Groups* groups = nullptr;  // of a weight in 4 bits

  template <class Value>
  __attribute__((always_inline)) Value* TokenInFewerBits(int64_t index) const {
    return static_cast<Value*>(const_cast<void*>(x)) + index * num_in;
  }
};

// What is added to rows of a result: products of narrow rows with a matrix.
struct Update {
  const float* narrow;    // [num_tokens, stride], of which the first `rank` are used
  const float* b;         // [rank, num_out]
  float* out;             // [.., num_out]
  const int32_t* tokens;  // [num_tokens]: the rows of the result
  int64_t num_tokens, stride, rank, num_out;
};

// Multiplies the rows [first, after) of the weight.
using MultiplyRows = void (*)(const Product& product, int64_t first_row, int64_t after_row);

// Writes a token in fewer bits, and its scales and offset, where products read them.
using NarrowToken = void (*)(const Product& product, const float* token, int64_t index);

// Adds to the columns [first, after).
using AddColumns = void (*)(const Update& update, int64_t first_column, int64_t after_column);

// The products of one kind of processor.
struct Processor {
  MultiplyRows multiply_float32, multiply_bfloat16, multiply_int8;
  NarrowToken quantize;     // to 8 bits, for `multiply_int8`
  int64_t value_bytes;      // of a value that `quantize` writes
  int64_t multiple_tokens;  // there is room for a multiple of these
  AddColumns add_update;
  void (*widen)(const FourBits& row, float* out);
  MultiplyRows multiply_int4 = nullptr;  // by tokens in 8 bits, with two scales for each `kWidened` columns
  NarrowToken quantize_parts = nullptr;  // for them
};

// Products of tokens that are rounded to bfloat16, to the nearest and half to even, with weights in it.
struct RoundedProducts {
  MultiplyRows multiply;
  NarrowToken round;
};

extern const Processor kAvx2, kAvx512, kNeon, kNeonDotprod;
extern const RoundedProducts kAvx512BFloat16;

extern const Processor* processor;  // null if there are no products for this one
extern const RoundedProducts* rounded_products;  // null if it multiplies no bfloat16

}  // namespace levserve
