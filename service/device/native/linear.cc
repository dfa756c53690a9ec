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

// A product, and its tokens as they came.
struct Group {
  Product product;
  const float* x;
};

Group ReadProduct(const CallFrame& call) {
  const Buffer &x = *call.arguments.buffers[0], &weight = *call.arguments.buffers[1], &out = *call.results.buffers[0];
  float* result = static_cast<float*>(out.data);
  const Product product{x.data, weight.data, nullptr, nullptr, nullptr, result, x.dims[0], x.dims[1], weight.dims[0]};
  return {product, static_cast<const float*>(x.data)};
}

// Blocks of rows of groups, whose weights have one shape.
struct Rows {
  const Group* groups;
  const MultiplyRows multiply;
  const int64_t of_block, blocks_of_group;

  static void Multiply(const void* data, int64_t block) {
    const Rows& rows = *static_cast<const Rows*>(data);
    const Product& product = rows.groups[block / rows.blocks_of_group].product;
    const int64_t first = block % rows.blocks_of_group * rows.of_block;
    rows.multiply(product, first, std::min(first + rows.of_block, product.num_out));
  }
};

// Returns whether there are no values to multiply; all sums are then zero.
bool IsEmpty(const Buffer& x, const Buffer& out) {
  int64_t num_sums = 1;
  for (int64_t axis = 0; axis < out.rank; ++axis) num_sums *= out.dims[axis];
  if (x.dims[1] == 0) memset(out.data, 0, num_sums * sizeof(float));
  return x.dims[1] == 0 || num_sums == 0;
}

void MultiplyInBlocks(const CallFrame& call, const Group* groups, int64_t num_groups, MultiplyRows multiply,
                      int64_t value_bytes) {
  const Product& product = groups[0].product;
  const int64_t row_bytes = product.num_in * value_bytes, num_rows = num_groups * product.num_out;
  const int64_t even = num_rows / (kBlocksPerThread * CountThreads(call)), least = kMinBlockBytes / row_bytes;
  const int64_t of_block = (std::max(even, least) / kBlockRows + 1) * kBlockRows;
  const Rows rows{groups, multiply, of_block, (product.num_out + of_block - 1) / of_block};
  ParallelBlocks(call, num_groups * rows.blocks_of_group, Rows::Multiply, &rows);
}

struct Tokens {
  const Group* groups;
  int64_t blocks_of_group;

  static void Quantize(const void* data, int64_t block) {
    const Tokens& tokens = *static_cast<const Tokens*>(data);
    const Group& group = tokens.groups[block / tokens.blocks_of_group];
    const Product& product = group.product;
    const int64_t first = block % tokens.blocks_of_group * kTokensPerThread;
    const int64_t after = std::min(first + kTokensPerThread, product.num_tokens);
    for (int64_t token = first; token < after; ++token) {
      const float* const values = group.x + token * product.num_in;
      const TokenScale scale = processor->quantize(product, values, token, const_cast<void*>(product.x));
      const_cast<float*>(product.token_scale)[token] = scale.scale;
      const_cast<int32_t*>(product.token_offset)[token] = scale.offset;
    }
  }
};

int64_t RoomFor(int64_t num_tokens) {
  const int64_t multiple = processor->multiple_tokens;
  return (num_tokens + multiple - 1) / multiple * multiple;
}

// Quantizes the tokens of each group, and multiplies them.
Error* MultiplyInt8(const CallFrame& call, Group* groups, int64_t num_groups) {
  const int64_t num_in = groups[0].product.num_in;
  int64_t room = 0, most_tokens = 0;
  for (int64_t i = 0; i < num_groups; ++i) {
    room += RoomFor(groups[i].product.num_tokens);
    most_tokens = std::max(most_tokens, groups[i].product.num_tokens);
  }
  const Scratch<char> values(room * num_in * processor->value_bytes);
  const Scratch<float> scales(room);
  const Scratch<int32_t> offsets(room);
  if (values.get() == nullptr || scales.get() == nullptr || offsets.get() == nullptr)
    return Fail(call, kResourceExhausted, "no memory for the tokens of a product");
  int64_t first = 0;
  for (int64_t i = 0; i < num_groups; ++i) {
    Product& product = groups[i].product;
    product.x = values.get() + first * num_in * processor->value_bytes;
    product.token_scale = scales.get() + first;
    product.token_offset = offsets.get() + first;
    first += RoomFor(product.num_tokens);
  }
  const Tokens tokens{groups, (most_tokens + kTokensPerThread - 1) / kTokensPerThread};
  ParallelBlocks(call, num_groups * tokens.blocks_of_group, Tokens::Quantize, &tokens);
  MultiplyInBlocks(call, groups, num_groups, processor->multiply_int8, sizeof(int8_t));
  return nullptr;
}

Error* Multiply(const CallFrame& call, MultiplyRows multiply, int64_t value_bytes) {
  if (IsEmpty(*call.arguments.buffers[0], *call.results.buffers[0])) return nullptr;
  const Group group = ReadProduct(call);
  MultiplyInBlocks(call, &group, 1, multiply, value_bytes);
  return nullptr;
}

// Multiplies the rows of each group by its weight; groups without rows cost nothing. Of int8 if `multiply` is null.
Error* MultiplyGroups(const CallFrame& call, MultiplyRows multiply, int64_t value_bytes) {
  const Buffer &x = *call.arguments.buffers[0], &weight = *call.arguments.buffers[1], &out = *call.results.buffers[0];
  if (IsEmpty(x, out)) return nullptr;
  const int64_t num_rows = x.dims[0], num_in = x.dims[1], num_out = weight.dims[1], num_groups = weight.dims[0];
  const int32_t* const sizes = static_cast<const int32_t*>(call.arguments.buffers[2]->data);
  const float* const scale = multiply ? nullptr : static_cast<const float*>(call.arguments.buffers[3]->data);
  const float* const rows = static_cast<const float*>(x.data);
  const Scratch<Group> groups(std::min(num_groups, num_rows));
  if (groups.get() == nullptr) return Fail(call, kResourceExhausted, "no memory for the groups of a product");
  int64_t num_used = 0, first = 0;
  for (int64_t i = 0; i < num_groups; ++i) {
    if (sizes[i] == 0) continue;
    if (sizes[i] < 0 || sizes[i] > num_rows - first)
      return Fail(call, kInvalidArgument, "the sizes of groups are not those of the rows");
    const float* const own = rows + first * num_in;
    const char* const own_weight = static_cast<const char*>(weight.data) + i * num_out * num_in * value_bytes;
    float* const to = static_cast<float*>(out.data) + first * num_out;
    const float* const own_scale = scale ? scale + i * num_out : nullptr;
    groups.get()[num_used++] = {{own, own_weight, nullptr, nullptr, own_scale, to, sizes[i], num_in, num_out}, own};
    first += sizes[i];
  }
  memset(static_cast<float*>(out.data) + first * num_out, 0, (num_rows - first) * num_out * sizeof(float));
  if (num_used == 0) return nullptr;
  if (multiply == nullptr) return MultiplyInt8(call, groups.get(), num_used);
  MultiplyInBlocks(call, groups.get(), num_used, multiply, value_bytes);
  return nullptr;
}

}  // namespace

extern "C" {

// (x: float32 [token, in], weight: float32 [out, in]) -> float32 [token, out]
EXPORT Error* levserve_linear_float32(const CallFrame* call) {
  return AnswersVersion(*call) ? nullptr : Multiply(*call, processor->multiply_float32, sizeof(float));
}

// (x: float32 [token, in], weight: bfloat16 [out, in]) -> float32 [token, out]
EXPORT Error* levserve_linear_bfloat16(const CallFrame* call) {
  return AnswersVersion(*call) ? nullptr : Multiply(*call, processor->multiply_bfloat16, sizeof(uint16_t));
}

// (x: float32 [token, in], weight: int8 [out, in], weight's scale: float32 [out]) -> float32 [token, out]
EXPORT Error* levserve_linear_int8(const CallFrame* call) {
  if (AnswersVersion(*call) || IsEmpty(*call->arguments.buffers[0], *call->results.buffers[0])) return nullptr;
  Group group = ReadProduct(*call);
  group.product.weight_scale = static_cast<const float*>(call->arguments.buffers[2]->data);
  return MultiplyInt8(*call, &group, 1);
}

// (x: float32 [row, in], weight: float32 [group, out, in], sizes: int32 [group]) -> float32 [row, out]
EXPORT Error* levserve_grouped_float32(const CallFrame* call) {
  return AnswersVersion(*call) ? nullptr : MultiplyGroups(*call, processor->multiply_float32, sizeof(float));
}

// (x: float32 [row, in], weight: bfloat16 [group, out, in], sizes: int32 [group]) -> float32 [row, out]
EXPORT Error* levserve_grouped_bfloat16(const CallFrame* call) {
  return AnswersVersion(*call) ? nullptr : MultiplyGroups(*call, processor->multiply_bfloat16, sizeof(uint16_t));
}

// (x: float32 [row, in], weight: int8 [group, out, in], sizes: int32 [group], weight's scale: float32 [group, out])
//   -> float32 [row, out]
EXPORT Error* levserve_grouped_int8(const CallFrame* call) {
  return AnswersVersion(*call) ? nullptr : MultiplyGroups(*call, nullptr, sizeof(int8_t));
}

}  // extern "C"
}  // namespace levserve
