// Makes the calls of a library that are requested through its input, for a process on another machine: `emulation.py`
// writes the requests and reads the answers.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <vector>

#include "frame.h"

namespace {

template <class Value>
void Read(Value* values, size_t count) {
  if (count > 0 && std::fread(values, sizeof(Value), count, stdin) != count) {
    WaitForThreads();
    std::exit(0);  // no more requests
  }
}

int64_t ReadNumber() {
  int64_t number;
  Read(&number, 1);
  return number;
}

// Reads type, size in bytes, dimensions and bytes of each array.
std::vector<Array> ReadArrays(std::list<std::vector<char>>* memory) {
  std::vector<Array> arrays(ReadNumber());
  for (Array& array : arrays) {
    array.dtype = static_cast<XLA_FFI_DataType>(ReadNumber());
    std::vector<char>& bytes = memory->emplace_back(ReadNumber());
    array.dims.resize(ReadNumber());
    Read(array.dims.data(), array.dims.size());
    Read(bytes.data(), bytes.size());
    array.data = bytes.data();
  }
  return arrays;
}

}  // namespace

int main(int, char** arguments) {
  void* const library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto initialize = reinterpret_cast<const char* (*)(bool, bool, bool, bool)>(dlsym(library, "levserve_initialize"));
  std::printf("%s\n", initialize(true, true, true, true));
  std::fflush(stdout);
  while (true) {
    std::vector<char> name(ReadNumber() + 1);
    Read(name.data(), name.size() - 1);
    std::list<std::vector<char>> operands, made;
    const std::vector<Array> of_call = ReadArrays(&operands), results = ReadArrays(&made);
    const int64_t code = Call(reinterpret_cast<XLA_FFI_Handler*>(dlsym(library, name.data())), of_call, results);
    std::fwrite(&code, sizeof code, 1, stdout);
    for (const std::vector<char>& bytes : made) std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
  }
}
