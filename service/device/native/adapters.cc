// The custom call that adds to the products of tokens with a weight those with the tokens' adapters. It reads the
// adapters that tokens have, and no others; a token without one costs nothing, and its product stays as it is.

#include <algorithm>
#include <cstring>

#include "call.h"
#include "memory.h"
#include "parallel.h"
#include "product.h"

namespace levserve {
namespace {

// Most calls are over before a thread is awake: with smaller blocks a step of one adapter takes a tenth more of the
// processors' time.
constexpr int64_t kBlockBytes = 256 * 1024;
constexpr int64_t kBlockRows = 8, kBlockColumns = 64;  // a block has a multiple of these

// The tokens of one adapter.
struct Group {
  Product narrow;          // with A, of all parts of the weight
  Update update;           // with B
};

struct Step {
  const Group* groups;
  int64_t of_block, blocks_of_group;
  const int32_t* ends;  // of the parts, in columns of a period
  int64_t num_parts, rank;

  static void MultiplyA(const void* data, int64_t block) {
    const Step& step = *static_cast<const Step*>(data);
    const Product& product = step.groups[block / step.blocks_of_group].narrow;
    const int64_t first = block % step.blocks_of_group * step.of_block;
    processor->multiply_float32(product, first, std::min(first + step.of_block, product.num_out));
  }

  // Each column takes the products of its own part with A.
  static void AddB(const void* data, int64_t block) {
    const Step& step = *static_cast<const Step*>(data);
    Update update = step.groups[block / step.blocks_of_group].update;
    const float* const narrow = update.narrow;
    const int64_t first = block % step.blocks_of_group * step.of_block;
    const int64_t after = std::min(first + step.of_block, update.num_out), period = step.ends[step.num_parts - 1];
    for (int64_t column = first; column < after;) {
      const int64_t begin = column / period * period;
      int64_t part = 0;
      while (begin + step.ends[part] <= column) ++part;
      const int64_t end = std::min(begin + step.ends[part], after);
      update.narrow = narrow + part * step.rank;
      processor->add_update(update, column, end);
      column = end;
    }
  }
};

void RunInBlocks(const CallFrame& call, Step& step, int64_t num_groups, int64_t num_rows, int64_t row_bytes,
                 int64_t multiple, void (*body)(const void* data, int64_t block)) {
  const int64_t even = num_groups * num_rows / (2 * CountThreads(call)), least = kBlockBytes / row_bytes;
  step.of_block = (std::max(std::min(even, num_rows), least) + multiple - 1) / multiple * multiple;
  step.of_block = std::max(step.of_block, multiple);
  step.blocks_of_group = (num_rows + step.of_block - 1) / step.of_block;
  ParallelBlocks(call, num_groups * step.blocks_of_group, body, &step);
}

Error* AddAdapters(const CallFrame& call) {
  const Buffer* const* const arguments = call.arguments.buffers;
  const Buffer &x = *arguments[1], &a = *arguments[2], &b = *arguments[3];
  const int64_t num_tokens = x.dims[0], num_in = x.dims[1], num_slots = a.dims[0];
  const int64_t num_parts = a.dims[1], rank = a.dims[2], num_out = b.dims[2], num_narrow = num_parts * rank;
  const int32_t* const slots = static_cast<const int32_t*>(arguments[4]->data);
  const int32_t* const ends = static_cast<const int32_t*>(arguments[5]->data);
  float* const out = static_cast<float*>(call.results.buffers[0]->data);
  if (out != arguments[0]->data) memcpy(out, arguments[0]->data, num_tokens * num_out * sizeof(float));

  int64_t num_adapted = 0;
  for (int64_t token = 0; token < num_tokens; ++token) num_adapted += slots[token] >= 0 && slots[token] < num_slots;
  if (num_adapted == 0 || num_in == 0 || num_out == 0) return nullptr;
  if (num_parts == 0 || ends[num_parts - 1] <= 0 || num_out % ends[num_parts - 1] != 0)
    return Fail(call, kInvalidArgument, "the parts of a weight are not those of its rows");

  const Scratch<Group> groups(std::min(num_slots, num_adapted));
  const Scratch<int32_t> tokens(num_adapted);
  const Scratch<float> narrow(num_adapted * num_narrow), copies(num_adapted * num_in);
  if (groups.get() == nullptr || tokens.get() == nullptr || narrow.get() == nullptr || copies.get() == nullptr)
    return Fail(call, kResourceExhausted, "no memory for the adapters of a product");
  int64_t num_groups = 0, first = 0;
  for (int64_t slot = 0; slot < num_slots && first < num_adapted; ++slot) {
    int64_t end = first;
    for (int64_t token = 0; token < num_tokens; ++token)
      if (slots[token] == slot) tokens.get()[end++] = static_cast<int32_t>(token);
    if (end == first) continue;
    const int32_t* const own = tokens.get() + first;
    const int64_t count = end - first;
    const float* rows = static_cast<const float*>(x.data) + own[0] * num_in;
    if (own[count - 1] - own[0] != count - 1) {  // they do not follow one another
      float* const copy = copies.get() + first * num_in;
      for (int64_t i = 0; i < count; ++i)
        memcpy(copy + i * num_in, static_cast<const float*>(x.data) + own[i] * num_in, num_in * sizeof(float));
      rows = copy;
    }
    const float* const own_a = static_cast<const float*>(a.data) + slot * num_narrow * num_in;
    const float* const own_b = static_cast<const float*>(b.data) + slot * rank * num_out;
    float* const own_narrow = narrow.get() + first * num_narrow;
    groups.get()[num_groups++] = {
        {rows, own_a, nullptr, nullptr, nullptr, own_narrow, count, num_in, num_narrow},
        {own_narrow, own_b, out, own, count, num_narrow, rank, num_out},
    };
    first = end;
  }
  Step step{groups.get(), 0, 0, ends, num_parts, rank};
  RunInBlocks(call, step, num_groups, num_narrow, num_in * sizeof(float), kBlockRows, Step::MultiplyA);
  RunInBlocks(call, step, num_groups, num_out, rank * sizeof(float), kBlockColumns, Step::AddB);
  return nullptr;
}

}  // namespace

extern "C" {

// The first argument becomes the result. Slots below 0 mean no adapter; `ends` are those of each part of the weight's
// rows, which repeat.
// (out: float32 [token, out], x: float32 [token, in], A: float32 [slot, part, rank, in], B: float32 [slot, rank, out],
//  slots: int32 [token], ends: int32 [part]) -> float32 [token, out]
HANDLER(adapters, AddAdapters(*call))

}  // extern "C"
}  // namespace levserve
