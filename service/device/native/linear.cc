// The custom calls: products of tokens in float32 with weights in float32 or int8.

#include <algorithm>
#include <cstring>

#include "call.h"
#include "memory.h"
#include "parallel.h"
#include "product.h"

namespace levserve {
namespace {

// A thread multiplies a block of rows at a time. Few large blocks are read the fastest; some more than there are threads
// even out what other processes take of them; the smallest takes as long as it takes to wake a thread.
constexpr int64_t kBlocksPerThread = 4, kMinBlockBytes = 16 * 1024;
constexpr int64_t kBlockRows = 8;         // a block has a multiple of these
constexpr int64_t kTokensPerThread = 32;  // that are quantized at a time: whole lines of what is written

Product ReadProduct(const CallFrame& call) {
  const Buffer &x = *call.arguments.buffers[0], &weight = *call.arguments.buffers[1], &out = *call.results.buffers[0];
  float* result = static_cast<float*>(out.data);
  return {x.data, weight.data, nullptr, nullptr, nullptr, result, x.dims[0], x.dims[1], weight.dims[0]};
}

struct Rows {
  const Product& product;
  const MultiplyRows multiply;
  const int64_t of_block;

  static void Multiply(const void* data, int64_t block) {
    const Rows& rows = *static_cast<const Rows*>(data);
    const int64_t first = block * rows.of_block;
    rows.multiply(rows.product, first, std::min(first + rows.of_block, rows.product.num_out));
  }
};

// Returns whether there are no values to multiply; all sums are then zero.
bool IsEmpty(const Product& product) {
  if (product.num_in > 0) return false;
  memset(product.out, 0, product.num_tokens * product.num_out * sizeof(float));
  return true;
}

void MultiplyInBlocks(const CallFrame& call, const Product& product, MultiplyRows multiply, int64_t value_bytes) {
  const int64_t row_bytes = product.num_in * value_bytes;
  const int64_t even = product.num_out / (kBlocksPerThread * CountThreads(call)), least = kMinBlockBytes / row_bytes;
  const Rows rows{product, multiply, (std::max(even, least) / kBlockRows + 1) * kBlockRows};
  ParallelBlocks(call, (product.num_out + rows.of_block - 1) / rows.of_block, Rows::Multiply, &rows);
}

struct Tokens {
  const Product& product;
  const float* x;
  char* values;
  float* scales;
  int32_t* offsets;

  static void Quantize(const void* data, int64_t block) {
    const Tokens& tokens = *static_cast<const Tokens*>(data);
    const Product& product = tokens.product;
    const int64_t first = block * kTokensPerThread, after = std::min(first + kTokensPerThread, product.num_tokens);
    for (int64_t token = first; token < after; ++token) {
      const float* const values = tokens.x + token * product.num_in;
      const TokenScale scale = processor->quantize(product, values, token, tokens.values);
      tokens.scales[token] = scale.scale;
      tokens.offsets[token] = scale.offset;
    }
  }
};

}  // namespace

extern "C" {

// (x: float32 [token, in], weight: float32 [out, in]) -> float32 [token, out]
EXPORT Error* levserve_linear_float32(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  const Product product = ReadProduct(*call);
  if (!IsEmpty(product)) MultiplyInBlocks(*call, product, processor->multiply_float32, sizeof(float));
  return nullptr;
}

// (x: float32 [token, in], weight: bfloat16 [out, in]) -> float32 [token, out]
EXPORT Error* levserve_linear_bfloat16(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  const Product product = ReadProduct(*call);
  if (!IsEmpty(product)) MultiplyInBlocks(*call, product, processor->multiply_bfloat16, sizeof(uint16_t));
  return nullptr;
}

// (x: float32 [token, in], weight: int8 [out, in], weight's scale: float32 [out]) -> float32 [token, out]
EXPORT Error* levserve_linear_int8(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  Product product = ReadProduct(*call);
  if (IsEmpty(product)) return nullptr;
  const int64_t multiple = processor->multiple_tokens;
  const int64_t room = (product.num_tokens + multiple - 1) / multiple * multiple;
  const Scratch<char> values(room * product.num_in * processor->value_bytes);
  const Scratch<float> scales(room);
  const Scratch<int32_t> offsets(room);
  if (values.get() == nullptr || scales.get() == nullptr || offsets.get() == nullptr)
    return Fail(*call, kResourceExhausted, "no memory for the tokens of a product");
  const Tokens tokens{product, static_cast<const float*>(product.x), values.get(), scales.get(), offsets.get()};
  ParallelBlocks(*call, (product.num_tokens + kTokensPerThread - 1) / kTokensPerThread, Tokens::Quantize, &tokens);
  product.x = values.get();
  product.token_scale = scales.get();
  product.token_offset = offsets.get();
  product.weight_scale = static_cast<const float*>(call->arguments.buffers[2]->data);
  MultiplyInBlocks(*call, product, processor->multiply_int8, sizeof(int8_t));
  return nullptr;
}

}  // extern "C"
}  // namespace levserve
