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
    levserve_lazy_zeros, levserve_paged_attention, levserve_memory_attention;
const char* levserve_initialize(bool may_use_avx2, bool may_use_avx512, bool may_use_avx512_bf16, bool may_use_amx);
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
enum Kind { kFloat32, kBFloat16, kRounded, kInt8 };

// Returns how far a token, of numbers up to one, may be from what is multiplied.
double ErrorOf(Kind kind) {
  switch (kind) {
    case kRounded: return 1.0 / 512;  // of 8 bits
    case kInt8: return 1.0 / 254;
    default: return 1e-5;
  }
}

// Returns whether products of some shape are those of plain loops.
bool Multiplies(int64_t num_tokens, int64_t num_in, int64_t num_out, uint32_t seed, bool has_rounded) {
  std::vector<float> x(num_tokens * num_in), weight(num_out * num_in), scale(num_out, 0.5f), out(num_tokens * num_out, 9);
  std::vector<int8_t> values(num_out * num_in);
  std::vector<uint16_t> halves(num_out * num_in);
  for (float& value : x) value = Random(&seed);
  for (size_t i = 0; i < weight.size(); ++i) {
    weight[i] = values[i] = static_cast<int8_t>(Random(&seed) * 128);
    halves[i] = Narrow(weight[i]);
  }
  const std::vector<int64_t> dims{num_out, num_in};
  const Array tokens{{num_tokens, num_in}, XLA_FFI_DataType_F32, x.data()};
  const Array scales{{num_out}, XLA_FFI_DataType_F32, scale.data()};
  const Array result{{num_tokens, num_out}, XLA_FFI_DataType_F32, out.data()};
  const Array in_float32{dims, XLA_FFI_DataType_F32, weight.data()}, in_bfloat16{dims, XLA_FFI_DataType_BF16, halves.data()};
  const Array in_int8{dims, XLA_FFI_DataType_S8, values.data()};
  for (const Kind kind : {kFloat32, kBFloat16, kRounded, kInt8}) {
    const int code = kind == kFloat32   ? Call(levserve_linear_float32, {tokens, in_float32}, {result})
                     : kind == kBFloat16 ? Call(levserve_linear_bfloat16, {tokens, in_bfloat16}, {result})
                     : kind == kRounded  ? Call(levserve_linear_rounded, {tokens, in_bfloat16}, {result})
                                         : Call(levserve_linear_int8, {tokens, in_int8, scales}, {result});
    if (kind == kRounded && !has_rounded && num_in > 0) {
      if (code != XLA_FFI_Error_Code_INVALID_ARGUMENT) return false;
      continue;
    }
    if (code) return false;
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t o = 0; o < num_out; ++o) {
        double sum = 0, most = 0;
        for (int64_t i = 0; i < num_in; ++i) {
          sum += static_cast<double>(x[t * num_in + i]) * weight[o * num_in + i];
          most += std::fabs(weight[o * num_in + i]);  // no token is larger than one
        }
        const double factor = kind == kInt8 ? 0.5 : 1;
        if (!(std::fabs(factor * sum - out[t * num_out + o]) <= factor * most * ErrorOf(kind) * 1.01)) return false;
      }
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
    is_right &= Check(ClearsPages(), "zeros") & Check(Multiplies(3, 0, 5, 1, has_rounded), "empty rows");
    for (const int threads : {1, 4, 64}) {
      num_threads = threads;
      std::atomic<bool> all_right{true};
      std::vector<std::thread> callers;
      for (uint32_t caller = 0; caller < 3; ++caller) {
        callers.emplace_back([caller, has_rounded, &all_right] {
          for (uint32_t i = 0; i < 12; ++i)
            if (!Multiplies(1 + i % 40, 1 + (i * 37 + caller) % 600, 1 + i * 29 % 700, i, has_rounded) ||
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
