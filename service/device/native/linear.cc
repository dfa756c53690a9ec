// The custom calls: products of tokens in float32 with weights in float32, bfloat16, int8 or 4 bits.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "call.h"
#include "memory.h"
#include "parallel.h"
#include "product.h"
#include "widen.h"

namespace levserve {
namespace {

// A thread multiplies a block of rows at a time. Few large blocks are read the fastest; some more than there are threads
// even out what other processes take of them; the smallest takes as long as it takes to wake a thread.
constexpr int64_t kBlocksPerThread = 4, kMinBlockBytes = 16 * 1024;
constexpr int64_t kBlockRows = kPanelRows;  // a block has a multiple of these
constexpr int64_t kChunkBytes = 256 * 1024;  // of rows that several runs of tokens are multiplied by
constexpr int64_t kTokensPerThread = 32;  // that are narrowed at a time: whole lines of what is written

// What is multiplied: tokens as they came, except where it says otherwise.
enum class Values { kFloat32, kBFloat16, kRounded /* both in bfloat16 */, kInt8 /* both */, kInt4, kQuantizedInt4 };

// Of 4 bits, what takes as long to multiply.
int64_t BytesOf(Values values) {
  return values == Values::kFloat32 ? 4 : values == Values::kBFloat16 || values == Values::kRounded ? 2 : 1;
}

// A product, and its tokens as they came.
struct Group {
  Product product;
  const float* x;
};

// A weight, and the runs of tokens that it multiplies: all of them, or those inside the spans that are the argument
// `index`, if there is one. Spans are in order; those that touch are one run.
int64_t ReadRuns(const CallFrame& call, int64_t index, Group* runs) {
  const Buffer &x = *call.arguments.buffers[0], &weight = *call.arguments.buffers[1], &out = *call.results.buffers[0];
  const int64_t num_tokens = x.dims[0], num_in = x.dims[1], num_out = weight.dims[0];
  const int32_t all[2] = {0, static_cast<int32_t>(num_tokens)};
  const bool has_spans = call.arguments.count > index;
  const int32_t* const spans = has_spans ? static_cast<const int32_t*>(call.arguments.buffers[index]->data) : all;
  const int64_t num_spans = has_spans ? call.arguments.buffers[index]->dims[0] : 1;
  float* const result = static_cast<float*>(out.data);
  int64_t num_runs = 0, done = 0;
  for (int64_t i = 0; i < num_spans; ++i) {
    const int64_t first = std::max<int64_t>(spans[2 * i], done), after = std::min<int64_t>(spans[2 * i + 1], num_tokens);
    if (first >= after) continue;
    memset(result + done * num_out, 0, (first - done) * num_out * sizeof(float));
    if (num_runs > 0 && first == done) {
      runs[num_runs - 1].product.num_tokens += after - first;
    } else {
      const float* const own = static_cast<const float*>(x.data) + first * num_in;
      float* const to = result + first * num_out;
      runs[num_runs++] = {{own, weight.data, nullptr, nullptr, nullptr, to, after - first, num_in, num_out}, own};
    }
    done = after;
  }
  memset(result + done * num_out, 0, (num_tokens - done) * num_out * sizeof(float));
  return num_runs;
}

int64_t MaxRuns(const CallFrame& call, int64_t index) {
  return call.arguments.count > index ? std::max<int64_t>(call.arguments.buffers[index]->dims[0], 1) : 1;
}

// Blocks of rows of groups, whose weights have one shape; or of one weight that multiplies the tokens of all groups.
struct Rows {
  const Group* groups;
  const int64_t num_runs;  // of the weight; 1 if each group has its own
  const MultiplyRows multiply;
  const int64_t of_block, blocks_of_group;

  static void Multiply(const void* data, int64_t block) {
    const Rows& rows = *static_cast<const Rows*>(data);
    const Group* const group = rows.groups + block / rows.blocks_of_group;
    const int64_t first = block % rows.blocks_of_group * rows.of_block;
    const int64_t after = std::min(first + rows.of_block, group->product.num_out);
    // A chunk of rows stays in the second cache while the runs are multiplied by it.
    const int64_t row_bytes = std::max<int64_t>(group->product.num_in, 1) * sizeof(float);
    const int64_t of_chunk = rows.num_runs == 1 ? after - first : (kChunkBytes / row_bytes / kBlockRows + 1) * kBlockRows;
    for (int64_t row = first; row < after; row += of_chunk)
      for (int64_t run = 0; run < rows.num_runs; ++run)
        rows.multiply(group[run].product, row, std::min(row + of_chunk, after));
  }
};

// Returns whether there are no values to multiply; all sums are then zero.
bool IsEmpty(const Buffer& x, const Buffer& out) {
  int64_t num_sums = 1;
  for (int64_t axis = 0; axis < out.rank; ++axis) num_sums *= out.dims[axis];
  if (x.dims[1] == 0) memset(out.data, 0, num_sums * sizeof(float));
  return x.dims[1] == 0 || num_sums == 0;
}

void MultiplyInBlocks(const CallFrame& call, const Group* groups, int64_t num_groups, int64_t num_runs,
                      MultiplyRows multiply, int64_t value_bytes) {
  const Product& product = groups[0].product;
  const int64_t row_bytes = product.num_in * value_bytes, num_rows = num_groups * product.num_out;
  const int64_t even = num_rows / (kBlocksPerThread * CountThreads(call)), least = kMinBlockBytes / row_bytes;
  const int64_t of_block = (std::max(even, least) / kBlockRows + 1) * kBlockRows;
  const Rows rows{groups, num_runs, multiply, of_block, (product.num_out + of_block - 1) / of_block};
  ParallelBlocks(call, num_groups * rows.blocks_of_group, Rows::Multiply, &rows);
}

// Tokens of groups, which are written in fewer bits where products read them.
struct Tokens {
  const Group* groups;
  NarrowToken narrow;
  int64_t blocks_of_group;

  static void Narrow(const void* data, int64_t block) {
    const Tokens& tokens = *static_cast<const Tokens*>(data);
    const Group& group = tokens.groups[block / tokens.blocks_of_group];
    const int64_t first = block % tokens.blocks_of_group * kTokensPerThread;
    const int64_t after = std::min(first + kTokensPerThread, group.product.num_tokens);
    for (int64_t token = first; token < after; ++token)
      tokens.narrow(group.product, group.x + token * group.product.num_in, token);
  }
};

void NarrowInBlocks(const CallFrame& call, const Group* groups, int64_t num_groups, NarrowToken narrow) {
  int64_t most_tokens = 0;
  for (int64_t i = 0; i < num_groups; ++i) most_tokens = std::max(most_tokens, groups[i].product.num_tokens);
  const Tokens tokens{groups, narrow, (most_tokens + kTokensPerThread - 1) / kTokensPerThread};
  ParallelBlocks(call, num_groups * tokens.blocks_of_group, Tokens::Narrow, &tokens);
}

// Returns number `index` as float32; one in bfloat16 is the upper half of it.
float ReadNumber(const void* data, int64_t index, bool is_bfloat16) {
  if (!is_bfloat16) return static_cast<const float*>(data)[index];
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[index]} << 16;
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

// Widens the rows of one panel of a weight in 4 bits after the other, and multiplies by them while they are in a cache.
void MultiplyWidened(const Product& p, int64_t first_row, int64_t after_row) {
  const auto& [scales, zeros, num_groups, is_bfloat16, lacks_memory] = *p.groups;
  const Scratch<float> rows(kPanelRows * p.num_in), numbers(2 * num_groups);
  if (rows.get() == nullptr || numbers.get() == nullptr) return lacks_memory->store(true, std::memory_order_relaxed);
  float *const scale = numbers.get(), *const zero = scale + num_groups;
  Product panel = p;
  panel.weight = rows.get();
  for (int64_t first = first_row; first < after_row; first += kPanelRows) {
    const uint8_t* const values = static_cast<const uint8_t*>(p.weight) + first * p.num_in / 2;
    for (int64_t row = 0; row < kPanelRows; ++row) {
      for (int64_t group = 0; group < num_groups; ++group) {
        const int64_t index = first * num_groups + group * kPanelRows + row;
        scale[group] = ReadNumber(scales, index, is_bfloat16);
        zero[group] = zeros == nullptr ? 0 : ReadNumber(zeros, index, is_bfloat16);
      }
      processor->widen({values + row * 4, scale, zero, num_groups, p.num_in / num_groups}, rows.get() + row * p.num_in);
    }
    panel.out = p.out + first;
    processor->multiply_float32(panel, 0, kPanelRows);
  }
}

// How tokens in fewer bits are written and multiplied.
struct Narrowed {
  int64_t value_bytes, num_scales;  // of a token's value, and of a token
  NarrowToken narrow;               // null if this processor has none, as is the other
  MultiplyRows multiply;
};

Narrowed NarrowedFor(Values values, int64_t num_in) {
  if (values == Values::kInt8) return {processor->value_bytes, 1, processor->quantize, processor->multiply_int8};
  if (values == Values::kQuantizedInt4)
    return {1, 2 * num_in / kWidened, processor->quantize_parts, processor->multiply_int4};
  return rounded_products == nullptr ? Narrowed{} : Narrowed{2, 0, rounded_products->round, rounded_products->multiply};
}

Error* MultiplyNarrowed(const CallFrame& call, Group* groups, int64_t num_groups, int64_t num_runs, Values values_of) {
  const int64_t num_in = groups[0].product.num_in, num_parts = num_groups * num_runs;
  const Narrowed narrowed = NarrowedFor(values_of, num_in);
  if (narrowed.multiply == nullptr)
    return Fail(call, kInvalidArgument, "this processor does not multiply tokens in fewer bits");
  const int64_t multiple = processor->multiple_tokens;
  const auto room_for = [&](const Group& group) { return (group.product.num_tokens + multiple - 1) / multiple * multiple; };
  int64_t room = 0, first = 0;
  for (int64_t i = 0; i < num_parts; ++i) room += room_for(groups[i]);
  const Scratch<char> values(room * num_in * narrowed.value_bytes);
  const Scratch<float> scales(room * narrowed.num_scales);
  const Scratch<int32_t> offsets(room);
  if (values.get() == nullptr || scales.get() == nullptr || offsets.get() == nullptr)
    return Fail(call, kResourceExhausted, "no memory for the tokens of a product");
  for (int64_t i = 0; i < num_parts; ++i) {
    Product& product = groups[i].product;
    product.x = values.get() + first * num_in * narrowed.value_bytes;
    product.token_scale = scales.get() + first * narrowed.num_scales;
    product.token_offset = offsets.get() + first;
    first += room_for(groups[i]);
  }
  NarrowInBlocks(call, groups, num_parts, narrowed.narrow);
  MultiplyInBlocks(call, groups, num_groups, num_runs, narrowed.multiply, BytesOf(values_of));
  return nullptr;
}

// Multiplies the tokens of each group by its weight; or those of all runs by one weight.
Error* MultiplyGiven(const CallFrame& call, Group* groups, int64_t num_groups, int64_t num_runs, Values values) {
  if (values == Values::kInt8 || values == Values::kRounded || values == Values::kQuantizedInt4)
    return MultiplyNarrowed(call, groups, num_groups, num_runs, values);
  const MultiplyRows multiply = values == Values::kBFloat16 ? processor->multiply_bfloat16
                                : values == Values::kInt4   ? MultiplyWidened
                                                            : processor->multiply_float32;
  MultiplyInBlocks(call, groups, num_groups, num_runs, multiply, BytesOf(values));
  return nullptr;
}

// Multiplies tokens by a weight; in int8 its scale comes next, in 4 bits the scales and zero points of its groups, then
// the optional spans.
Error* Multiply(const CallFrame& call, Values values) {
  if (IsEmpty(*call.arguments.buffers[0], *call.results.buffers[0])) return nullptr;
  const bool is_int4 = values == Values::kInt4 || values == Values::kQuantizedInt4;
  const int64_t index = is_int4 ? 4 : values == Values::kInt8 ? 3 : 2;
  const Scratch<Group> runs(MaxRuns(call, index));
  if (runs.get() == nullptr) return Fail(call, kResourceExhausted, "no memory for the spans of a product");
  const int64_t num_runs = ReadRuns(call, index, runs.get());
  if (num_runs == 0) return nullptr;
  if (values == Values::kInt8)
    for (int64_t run = 0; run < num_runs; ++run)
      runs.get()[run].product.weight_scale = static_cast<const float*>(call.arguments.buffers[2]->data);
  Groups groups{};
  std::atomic<bool> lacks_memory{false};
  if (is_int4) {
    const Buffer &scale = *call.arguments.buffers[2], &zero = *call.arguments.buffers[3];
    const int64_t num_groups = scale.dims[1];
    const Product& product = runs.get()[0].product;
    if (num_groups == 0 || product.num_in % (num_groups * kWidened) != 0 || product.num_out % kPanelRows != 0)
      return Fail(call, kInvalidArgument, "the groups or the panels of a weight in 4 bits are not whole");
    groups = {scale.data, zero.dims[0] == 0 ? nullptr : zero.data, num_groups, scale.dtype == kBFloat16,
              &lacks_memory};
    for (int64_t run = 0; run < num_runs; ++run) runs.get()[run].product.groups = &groups;
  }
  Error* const error = MultiplyGiven(call, runs.get(), 1, num_runs, values);
  if (!lacks_memory.load(std::memory_order_relaxed)) return error;
  return Fail(call, kResourceExhausted, "no memory for the rows of a weight in 4 bits");
}

// Multiplies the rows of each group by its weight; groups without rows cost nothing.
Error* MultiplyGroups(const CallFrame& call, Values values) {
  const Buffer &x = *call.arguments.buffers[0], &weight = *call.arguments.buffers[1], &out = *call.results.buffers[0];
  if (IsEmpty(x, out)) return nullptr;
  const int64_t num_rows = x.dims[0], num_in = x.dims[1], num_out = weight.dims[1], num_groups = weight.dims[0];
  const int32_t* const sizes = static_cast<const int32_t*>(call.arguments.buffers[2]->data);
  const float* const scale =
      values == Values::kInt8 ? static_cast<const float*>(call.arguments.buffers[3]->data) : nullptr;
  const float* const rows = static_cast<const float*>(x.data);
  const Scratch<Group> groups(std::min(num_groups, num_rows));
  if (groups.get() == nullptr) return Fail(call, kResourceExhausted, "no memory for the groups of a product");
  int64_t num_used = 0, first = 0;
  for (int64_t i = 0; i < num_groups; ++i) {
    if (sizes[i] == 0) continue;
    if (sizes[i] < 0 || sizes[i] > num_rows - first)
      return Fail(call, kInvalidArgument, "the sizes of groups are not those of the rows");
    const float* const own = rows + first * num_in;
    const char* const own_weight = static_cast<const char*>(weight.data) + i * num_out * num_in * BytesOf(values);
    float* const to = static_cast<float*>(out.data) + first * num_out;
    const float* const own_scale = scale ? scale + i * num_out : nullptr;
    groups.get()[num_used++] = {{own, own_weight, nullptr, nullptr, own_scale, to, sizes[i], num_in, num_out}, own};
    first += sizes[i];
  }
  memset(static_cast<float*>(out.data) + first * num_out, 0, (num_rows - first) * num_out * sizeof(float));
  return num_used == 0 ? nullptr : MultiplyGiven(call, groups.get(), num_used, 1, values);
}

}  // namespace

extern "C" {

// With the optional spans, int32 [span, 2], the products of other tokens are zero.
// (x: float32 [token, in], weight: float32 [out, in], spans) -> float32 [token, out]
HANDLER(linear_float32, Multiply(*call, Values::kFloat32))

// (x: float32 [token, in], weight: bfloat16 [out, in], spans) -> float32 [token, out]
HANDLER(linear_bfloat16, Multiply(*call, Values::kBFloat16))

// The same, with the tokens rounded to bfloat16.
HANDLER(linear_rounded, Multiply(*call, Values::kRounded))

// (x: float32 [token, in], weight: int8 [out, in], weight's scale: float32 [out], spans) -> float32 [token, out]
HANDLER(linear_int8, Multiply(*call, Values::kInt8))

// The weight, its scales and zero points are in panels; see `widen.h`.
// (x: float32 [token, in], weight: int4 [out, in], scale: float32 or bfloat16 [out, group], zero point: the same or [0, 0],
//  spans) -> float32 [token, out]
HANDLER(linear_int4, Multiply(*call, Values::kInt4))

// The same, with each 32 columns of a token quantized to 8 bits.
HANDLER(linear_quantized_int4, Multiply(*call, Values::kQuantizedInt4))

// (x: float32 [row, in], weight: float32 [group, out, in], sizes: int32 [group]) -> float32 [row, out]
HANDLER(grouped_float32, MultiplyGroups(*call, Values::kFloat32))

// (x: float32 [row, in], weight: bfloat16 [group, out, in], sizes: int32 [group]) -> float32 [row, out]
HANDLER(grouped_bfloat16, MultiplyGroups(*call, Values::kBFloat16))

// The same, with the rows rounded to bfloat16.
HANDLER(grouped_rounded, MultiplyGroups(*call, Values::kRounded))

// (x: float32 [row, in], weight: int8 [group, out, in], sizes: int32 [group], weight's scale: float32 [group, out])
//   -> float32 [row, out]
HANDLER(grouped_int8, MultiplyGroups(*call, Values::kInt8))

}  // extern "C"
}  // namespace levserve
