// Calls as XLA makes them, by the header that jaxlib ships, with threads that come late or not at all.

#pragma once

#include <xla/ffi/api/c_api.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
};

namespace {

std::atomic<int> num_scheduled{0}, num_running{0}, num_threads{4};

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->errc}; }
void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

// Every seventh task is refused; the others run in a thread each, some after the call has returned.
XLA_FFI_Error* Schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  const int number = ++num_scheduled;
  if (number % 7 == 0) return new XLA_FFI_Error{XLA_FFI_Error_Code_UNAVAILABLE};
  ++num_running;
  std::thread([task = args->task, data = args->data, number] {
    if (number % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    task(data);
    --num_running;
  }).detach();
  return nullptr;
}

XLA_FFI_Error* NumThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = num_threads;
  return nullptr;
}

XLA_FFI_Api Interface(int minor) {
  XLA_FFI_Api api{};
  api.api_version = {sizeof(XLA_FFI_Api_Version), nullptr, XLA_FFI_API_MAJOR, minor};
  api.XLA_FFI_Error_Create = CreateError;
  api.XLA_FFI_Error_Destroy = DestroyError;
  api.XLA_FFI_ThreadPool_Schedule = Schedule;
  api.XLA_FFI_ThreadPool_NumThreads = NumThreads;
  return api;
}

struct Array {
  std::vector<int64_t> dims;
  XLA_FFI_DataType dtype;
  void* data;
};

int Call(XLA_FFI_Handler* handler, const std::vector<Array>& arguments, const std::vector<Array>& results) {
  const XLA_FFI_Api api = Interface(XLA_FFI_API_MINOR);
  std::vector<XLA_FFI_Buffer> buffers;
  for (const auto* arrays : {&arguments, &results})
    for (const Array& array : *arrays)
      buffers.push_back({sizeof(XLA_FFI_Buffer), nullptr, array.dtype, array.data,
                         static_cast<int64_t>(array.dims.size()), const_cast<int64_t*>(array.dims.data())});
  std::vector<void*> pointers;
  for (XLA_FFI_Buffer& buffer : buffers) pointers.push_back(&buffer);
  XLA_FFI_CallFrame frame{};
  frame.api = &api;
  frame.args = {sizeof frame.args, nullptr, static_cast<int64_t>(arguments.size()), nullptr, pointers.data()};
  frame.rets = {sizeof frame.rets, nullptr, static_cast<int64_t>(results.size()), nullptr,
                pointers.data() + arguments.size()};
  XLA_FFI_Error* error = handler(&frame);
  const int code = error == nullptr ? 0 : error->code;
  delete error;
  return code;
}

// Those that begin after their call has returned use nothing of it, but the library.
inline void WaitForThreads() {
  while (num_running > 0) std::this_thread::yield();
}

}  // namespace
