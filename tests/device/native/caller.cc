// Makes the custom calls as XLA does, on several threads at once, and compares the structures with jaxlib's.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <thread>
#include <vector>

#include "frame.h"
#include "xla_ffi.h"

#define SAME(ours, our_field, theirs, their_field) \
  static_assert(offsetof(levserve::ours, our_field) == offsetof(theirs, their_field), #ours "." #our_field)

SAME(Extension, type, XLA_FFI_InternalExtension, type);
SAME(Extension, next, XLA_FFI_InternalExtension, next);
SAME(Version, major, XLA_FFI_Api_Version, major_version);
SAME(Version, minor, XLA_FFI_Api_Version, minor_version);
SAME(Metadata, version, XLA_FFI_Metadata, api_version);
SAME(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME(Buffer, data, XLA_FFI_Buffer, data);
SAME(Buffer, rank, XLA_FFI_Buffer, rank);
SAME(Buffer, dims, XLA_FFI_Buffer, dims);
SAME(Buffers, count, XLA_FFI_Args, size);
SAME(Buffers, types, XLA_FFI_Args, types);
SAME(Buffers, buffers, XLA_FFI_Args, args);
SAME(Buffers, count, XLA_FFI_Rets, size);
SAME(Buffers, buffers, XLA_FFI_Rets, rets);
SAME(ErrorArguments, message, XLA_FFI_Error_Create_Args, message);
SAME(ErrorArguments, code, XLA_FFI_Error_Create_Args, errc);
SAME(DestroyErrorArguments, error, XLA_FFI_Error_Destroy_Args, error);
SAME(ScheduleArguments, context, XLA_FFI_ThreadPool_Schedule_Args, ctx);
SAME(ScheduleArguments, task, XLA_FFI_ThreadPool_Schedule_Args, task);
SAME(ScheduleArguments, data, XLA_FFI_ThreadPool_Schedule_Args, data);
SAME(NumThreadsArguments, context, XLA_FFI_ThreadPool_NumThreads_Args, ctx);
SAME(NumThreadsArguments, num_threads, XLA_FFI_ThreadPool_NumThreads_Args, num_threads);
SAME(Api, version, XLA_FFI_Api, api_version);
SAME(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(Api, destroy_error, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME(Api, schedule, XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule);
SAME(Api, count_threads, XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads);
SAME(CallFrame, api, XLA_FFI_CallFrame, api);
SAME(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME(CallFrame, results, XLA_FFI_CallFrame, rets);
static_assert(sizeof(levserve::Buffers) == sizeof(XLA_FFI_Args) && sizeof(XLA_FFI_Args) == sizeof(XLA_FFI_Rets));
static_assert(levserve::kMajor == XLA_FFI_API_MAJOR && levserve::kMetadata == XLA_FFI_Extension_Metadata);
static_assert(levserve::kInvalidArgument == XLA_FFI_Error_Code_INVALID_ARGUMENT);
static_assert(levserve::kResourceExhausted == XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
static_assert(levserve::kInt8 == XLA_FFI_DataType_S8 && levserve::kFloat16 == XLA_FFI_DataType_F16);
static_assert(levserve::kFloat32 == XLA_FFI_DataType_F32 && levserve::kBFloat16 == XLA_FFI_DataType_BF16);
static_assert(levserve::kFloat8E4M3FN == XLA_FFI_DataType_F8E4M3FN);

extern "C" {
XLA_FFI_Handler levserve_linear_float32, levserve_linear_bfloat16, levserve_linear_rounded, levserve_linear_int8,
    levserve_linear_int4, levserve_linear_quantized_int4, levserve_lazy_zeros, levserve_paged_attention, levserve_memory_attention;
const char* levserve_initialize(bool may_use_avx2, bool may_use_avx512, bool may_use_avx512_bf16, bool may_use_amx);
}

namespace {

std::atomic<int> failing_allocation{0};  // of those to come; 0 for none

}  // namespace

extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t num_bytes);

// The library's, as the linker is told to.
void* __wrap_aligned_alloc(size_t alignment, size_t num_bytes) {
  if (failing_allocation > 0 && --failing_allocation == 0) {
    failing_allocation = -1;
    return nullptr;
  }
  return __real_aligned_alloc(alignment, num_bytes);
}
}

namespace {

int TellsVersion(int minor) {
  const XLA_FFI_Api api = Interface(minor);
  XLA_FFI_Metadata metadata{};
  XLA_FFI_Metadata_Extension extension{{sizeof extension, XLA_FFI_Extension_Metadata, nullptr}, &metadata};
  XLA_FFI_CallFrame frame{};
  frame.extension_start = &extension.extension_base;
  frame.api = &api;
  if (levserve_linear_int8(&frame) != nullptr || metadata.api_version.major_version != XLA_FFI_API_MAJOR) return -1;
  return metadata.api_version.minor_version;
}

float Random(uint32_t* state) {
  *state = *state * 1664525 + 1013904223;
  return static_cast<float>(*state >> 8) / (1 << 23) - 1;
}

// Returns the upper half of a float that has nothing in the lower half.
uint16_t Narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Kinds of products.
enum Kind { kFloat32, kBFloat16, kRounded, kInt8, kInt4, kQuantizedInt4 };

// Returns how far a token, of numbers up to one, may be from what is multiplied.
double ErrorOf(Kind kind) {
  switch (kind) {
    case kRounded: return 1.0 / 512;  // of 8 bits
    case kInt8:
    case kQuantizedInt4: return 1.0 / 254;
    default: return 1e-5;
  }
}

// A weight in every type that has products, and what calls read beside it. In 4 bits it is a half, its zero point.
struct Weight {
  std::vector<int64_t> dims;
  int64_t num_groups;  // 0 if there are no whole panels and groups
  std::vector<float> numbers, scale, zero;
  std::vector<int8_t> values;
  std::vector<uint16_t> halves, group_scale;
  std::vector<uint8_t> nibbles;

  Weight(int64_t num_out, int64_t num_in, uint32_t* seed)
      : dims{num_out, num_in}, num_groups(num_in % 32 == 0 && num_out % 16 == 0 ? num_in / 32 : 0),
        numbers(num_out * num_in),
        scale(num_out, 0.5f), zero(num_out * num_groups, 0.5f), values(numbers.size()), halves(numbers.size()),
        group_scale(zero.size()), nibbles(numbers.size() / 2) {
    for (uint16_t& number : group_scale) number = Narrow(Random(seed) > 0 ? 1 : 0.5f);
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = values[i] = static_cast<int8_t>(Random(seed) * 128);
      halves[i] = Narrow(numbers[i]);
      const int64_t row = i / num_in, column = i % num_in, panel = row / 16 * 16;
      if (num_groups == 0) continue;
      nibbles[panel * num_in / 2 + column / 8 * 64 + row % 16 * 4 + column % 4] |= ((values[i] & 15) ^ 8) << (column / 4 % 2 * 4);
    }
  }

  bool IsHalved(int64_t row, int64_t column) const {
    return group_scale[row / 16 * 16 * num_groups + column / 32 * 16 + row % 16] != Narrow(1);
  }

  float Number(Kind kind, int64_t row, int64_t column) const {
    const int64_t i = row * dims[1] + column;
    if (kind == kInt8) return numbers[i] * 0.5f;
    if (kind != kInt4 && kind != kQuantizedInt4) return numbers[i];
    const float value = (values[i] & 15) - (values[i] & 8 ? 16 : 0);
    const bool has_zero = kind == kInt4;
    return (value - (has_zero ? 0.5f : 0)) * (IsHalved(row, column) ? 0.5f : 1);
  }
};

// Multiplies by a weight in some type; returns the error's code.
int MultiplyBy(Kind kind, const Array& tokens, Weight& weight, const Array& result) {
  const auto of = [&](XLA_FFI_DataType type, void* data) { return Array{weight.dims, type, data}; };
  const std::vector<int64_t> groups{weight.dims[0], weight.num_groups};
  std::vector<float> scales(weight.zero.size());
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = weight.group_scale[i] == Narrow(1) ? 1 : 0.5f;
  switch (kind) {
    case kFloat32: return Call(levserve_linear_float32, {tokens, of(XLA_FFI_DataType_F32, weight.numbers.data())}, {result});
    case kBFloat16: return Call(levserve_linear_bfloat16, {tokens, of(XLA_FFI_DataType_BF16, weight.halves.data())}, {result});
    case kRounded: return Call(levserve_linear_rounded, {tokens, of(XLA_FFI_DataType_BF16, weight.halves.data())}, {result});
    case kInt8: {
      const Array scale{{weight.dims[0]}, XLA_FFI_DataType_F32, weight.scale.data()};
      return Call(levserve_linear_int8, {tokens, of(XLA_FFI_DataType_S8, weight.values.data()), scale}, {result});
    }
    case kInt4: {
      const Array scale{groups, XLA_FFI_DataType_F32, scales.data()}, zero{groups, XLA_FFI_DataType_F32, weight.zero.data()};
      return Call(levserve_linear_int4, {tokens, of(XLA_FFI_DataType_S4, weight.nibbles.data()), scale, zero}, {result});
    }
    default: {
      const Array scale{groups, XLA_FFI_DataType_BF16, weight.group_scale.data()};
      const Array none{{0, 0}, XLA_FFI_DataType_BF16, nullptr};
      return Call(levserve_linear_quantized_int4, {tokens, of(XLA_FFI_DataType_S4, weight.nibbles.data()), scale, none}, {result});
    }
  }
}

// What a processor multiplies by beside float32, bfloat16, int8 and widened 4 bits.
struct Offered {
  bool rounded, quantized_int4;

  bool Has(Kind kind) const { return kind == kRounded ? rounded : kind == kQuantizedInt4 ? quantized_int4 : true; }
};

// Returns whether products of some shape are those of plain loops, and errors where there are none.
bool Multiplies(int64_t num_tokens, int64_t num_in, int64_t num_out, uint32_t seed, Offered offered) {
  std::vector<float> x(num_tokens * num_in), out(num_tokens * num_out, 9);
  for (float& value : x) value = Random(&seed);
  Weight weight(num_out, num_in, &seed);
  const Array tokens{{num_tokens, num_in}, XLA_FFI_DataType_F32, x.data()};
  const Array result{{num_tokens, num_out}, XLA_FFI_DataType_F32, out.data()};
  for (const Kind kind : {kFloat32, kBFloat16, kRounded, kInt8, kInt4, kQuantizedInt4}) {
    const bool is_int4 = kind == kInt4 || kind == kQuantizedInt4;
    const int code = MultiplyBy(kind, tokens, weight, result);
    if (num_in > 0 && (!offered.Has(kind) || (is_int4 && weight.num_groups == 0))) {
      if (code != XLA_FFI_Error_Code_INVALID_ARGUMENT) return false;
      continue;
    }
    if (code) return false;
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t o = 0; o < num_out; ++o) {
        double sum = 0, most = 0;
        for (int64_t i = 0; i < num_in; ++i) {
          const double number = weight.Number(kind, o, i);
          sum += x[t * num_in + i] * number;
          most += std::fabs(number) + (kind == kQuantizedInt4);  // no token is larger than one
        }
        if (!(std::fabs(sum - out[t * num_out + o]) <= most * ErrorOf(kind) * 1.01)) return false;
      }
    }
  }
  return true;
}

// Returns whether products of which any one allocation fails are errors, or right nevertheless.
bool ReportsLackOfMemory(Offered offered) {
  for (const Kind kind : {kFloat32, kBFloat16, kRounded, kInt8, kInt4, kQuantizedInt4}) {
    if (!offered.Has(kind)) continue;
    uint32_t seed = 7;
    Weight weight(48, 64, &seed);
    std::vector<float> x(3 * 64, 1), out(3 * 48), right(out.size());
    const Array tokens{{3, 64}, XLA_FFI_DataType_F32, x.data()};
    if (MultiplyBy(kind, tokens, weight, {{3, 48}, XLA_FFI_DataType_F32, right.data()})) return false;
    for (int fails = 1;; ++fails) {
      failing_allocation = fails;
      const int code = MultiplyBy(kind, tokens, weight, {{3, 48}, XLA_FFI_DataType_F32, out.data()});
      const bool has_failed = failing_allocation.exchange(0) <= 0;
      if (code ? code != XLA_FFI_Error_Code_RESOURCE_EXHAUSTED || !has_failed : out != right) return false;
      if (!has_failed) break;
    }
  }
  return true;
}

// Numbers of one type as a cache stores them.
struct Numbers {
  XLA_FFI_DataType type;
  std::vector<char> bytes;

  Numbers(XLA_FFI_DataType of_type, int64_t count) : type(of_type), bytes(count * Size()) {}
  int64_t Size() const { return type == XLA_FFI_DataType_F32 ? 4 : type == XLA_FFI_DataType_BF16 ? 2 : 1; }
  int64_t Count() const { return static_cast<int64_t>(bytes.size()) / Size(); }

  void Set(int64_t index, float value) {
    const uint16_t half = Narrow(value);
    // A power of two in float8_e4m3fn has its exponent alone; 0x38 is one.
    const char octet = type == XLA_FFI_DataType_S8 ? static_cast<char>(value * 64) : value == 1 ? 0x38 : 0x30;
    const void* const stored = Size() == 4 ? static_cast<const void*>(&value) : Size() == 2 ? static_cast<const void*>(&half) : &octet;
    std::memcpy(&bytes[index * Size()], stored, Size());
  }
};

// Returns whether attention over values that are all one, whatever the scores, is one: of new tokens over pages that
// they are written into, then over all pages as a memory.
bool Attends(XLA_FFI_DataType type, int32_t num_seqs, int32_t width, int32_t start, uint32_t seed) {
  const int64_t heads = 2, group = 3, dims = 40, page_size = 16, pages_of_each = (start + width) / page_size + 1;
  const int64_t num_pages = num_seqs * pages_of_each, cached = num_pages * heads * page_size;
  const int64_t written = num_seqs * width * heads;
  const bool has_scales = type == XLA_FFI_DataType_S8 || type == XLA_FFI_DataType_F8E4M3FN;
  const float one_scale = type == XLA_FFI_DataType_S8 ? 1.0f / 64 : 1;
  std::vector<float> query(written * group * dims), out(query.size(), 9);
  for (float& number : query) number = Random(&seed);
  Numbers keys(type, cached * dims), values(type, cached * dims), new_keys(type, written * dims),
      new_values(type, written * dims);
  for (Numbers* numbers : {&keys, &new_keys})
    for (int64_t i = 0; i < numbers->Count(); ++i) numbers->Set(i, Random(&seed));
  for (Numbers* numbers : {&values, &new_values})
    for (int64_t i = 0; i < numbers->Count(); ++i) numbers->Set(i, 1);
  std::vector<float> scales(cached, one_scale), new_scales(written, one_scale), value_scales(scales),
      new_value_scales(new_scales);
  std::vector<int32_t> starts(num_seqs, start), tokens(num_seqs, width), table(num_pages);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(table.size() - 1 - i);
  int32_t window = INT32_MAX;
  float soft_cap = 0;
  std::vector<float> sinks(heads * group, -1e30f);
  std::vector<int32_t> ahead(num_seqs * width);
  for (int64_t i = 0; i < num_seqs * width; ++i) ahead[i] = static_cast<int32_t>(width - 1 - i % width);
  const Array queries{{num_seqs, width, heads, group, dims}, XLA_FFI_DataType_F32, query.data()};
  const Array attended{queries.dims, queries.dtype, out.data()};
  const Array first{{num_seqs}, XLA_FFI_DataType_S32, starts.data()};
  const Array counts{{num_seqs}, XLA_FFI_DataType_S32, tokens.data()};
  const Array pages_of_seqs{{num_seqs, pages_of_each}, XLA_FFI_DataType_S32, table.data()};
  const std::vector<int64_t> new_dims{num_seqs, width, heads, dims}, new_scale_dims{num_seqs, width, heads, 1};
  std::vector<Array> pages{{{num_pages, heads, page_size, dims}, type, keys.bytes.data()},
                           {{num_pages, heads, page_size, dims}, type, values.bytes.data()}};
  std::vector<Array> arguments{queries,
                               first,
                               counts,
                               pages_of_seqs,
                               {{}, XLA_FFI_DataType_S32, &window},
                               {{}, XLA_FFI_DataType_F32, &soft_cap},
                               {{heads, group}, XLA_FFI_DataType_F32, sinks.data()},
                               {{num_seqs, width}, XLA_FFI_DataType_S32, ahead.data()},
                               {new_dims, type, new_keys.bytes.data()},
                               {new_dims, type, new_values.bytes.data()}};
  if (has_scales) {
    pages.push_back({{num_pages, heads, page_size, 1}, XLA_FFI_DataType_F32, scales.data()});
    pages.push_back({{num_pages, heads, page_size, 1}, XLA_FFI_DataType_F32, value_scales.data()});
    arguments.push_back({new_scale_dims, XLA_FFI_DataType_F32, new_scales.data()});
    arguments.push_back({new_scale_dims, XLA_FFI_DataType_F32, new_value_scales.data()});
  }
  std::vector<Array> results{attended};
  arguments.insert(arguments.end(), pages.begin(), pages.end());
  results.insert(results.end(), pages.begin(), pages.end());
  const auto is_one = [&out] {
    for (const float value : out)
      if (!(std::fabs(value - 1) <= 1e-5f)) return false;
    return true;
  };
  if (Call(levserve_paged_attention, arguments, results) || !is_one()) return false;
  std::fill(out.begin(), out.end(), 9.0f);
  std::vector<int32_t> lengths(num_seqs, start + width);
  std::vector<Array> remembered{queries, {{num_seqs}, XLA_FFI_DataType_S32, lengths.data()}, counts, pages_of_seqs};
  remembered.insert(remembered.end(), pages.begin(), pages.end());
  return Call(levserve_memory_attention, remembered, {attended}) == 0 && is_one();
}

bool ClearsPages() {
  std::vector<char> memory(100000, 1);
  if (Call(levserve_lazy_zeros, {}, {{{90000}, XLA_FFI_DataType_S8, memory.data() + 77}})) return false;
  for (size_t i = 0; i < memory.size(); ++i)
    if (memory[i] != (i < 77 || i >= 90077)) return false;
  return Call(levserve_lazy_zeros, {}, {{{4}, XLA_FFI_DataType_C64, memory.data()}}) ==
         XLA_FFI_Error_Code_INVALID_ARGUMENT;
}

constexpr XLA_FFI_DataType kTypes[] = {XLA_FFI_DataType_F32, XLA_FFI_DataType_BF16, XLA_FFI_DataType_S8,
                                       XLA_FFI_DataType_F8E4M3FN};

bool Check(bool is_right, const char* name) {
  if (!is_right) std::printf("wrong: %s\n", name);
  return is_right;
}

}  // namespace

int main() {
  bool is_right = true;
  for (const int minor : {1, 2, 3, 4}) is_right &= Check(TellsVersion(minor) == minor, "version");
  is_right &= Check(TellsVersion(9) == levserve::kNewestMinor, "newer version");
  const char* before = "base";
  for (const int most : {0, 1, 2, 3}) {  // AVX2, AVX-512, AVX512-BF16, and AMX
    const char* const found = levserve_initialize(true, most >= 1, most >= 2, most == 3);
    if (std::strcmp(found, "base") == 0 || std::strcmp(found, before) == 0) continue;
    before = found;
    const bool has_rounded = std::strcmp(found, "avx512_bf16") == 0 || std::strcmp(found, "amx") == 0;
    const Offered offered{has_rounded, std::strcmp(found, "neon") != 0};
    is_right &= Check(ClearsPages(), "zeros") & Check(Multiplies(3, 0, 5, 1, offered), "empty rows");
    is_right &= Check(ReportsLackOfMemory(offered), "lack of memory");
    for (const int threads : {1, 4, 64}) {
      num_threads = threads;
      std::atomic<bool> all_right{true};
      std::vector<std::thread> callers;
      for (uint32_t caller = 0; caller < 3; ++caller) {
        callers.emplace_back([caller, offered, &all_right] {
          for (uint32_t i = 0; i < 12; ++i)
            if (!Multiplies(1 + i % 40, 1 + (i * 37 + caller) % 600, 1 + i * 29 % 700, i, offered) ||
                !Multiplies(1 + i % 23, 32 * (1 + (i + caller) % 20), 16 * (1 + i * 29 % 13), i, offered) ||
                !Attends(kTypes[(i + caller) % 4], 1 + i % 3, 1 + i % 5 * 9, i * 67 % 1300, i))
              all_right = false;
        });
      }
      for (std::thread& caller : callers) caller.join();
      is_right &= Check(all_right, "products and attention");
    }
  }
  WaitForThreads();
  if (is_right) std::printf("all is right\n");
  return is_right ? 0 : 1;
}
