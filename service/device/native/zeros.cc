// Zeros that occupy memory only from when they are written: the pages of a result are given back to the system.

#include "zeros.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "call.h"

namespace levserve {
namespace {

int64_t page_bytes = 0;  // 0 if pages are not given back

// Pages that lie wholly inside are given back; what shares its page with other data is cleared.
void Clear(char* begin, int64_t num_bytes) {
  char* const end = begin + num_bytes;
  if (page_bytes > 0) {
    const uintptr_t mask = ~static_cast<uintptr_t>(page_bytes - 1);
    char* const first_page = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + page_bytes - 1) & mask);
    char* const after_pages = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(end) & mask);
    if (first_page < after_pages && madvise(first_page, after_pages - first_page, MADV_DONTNEED) == 0) {
      memset(begin, 0, first_page - begin);
      memset(after_pages, 0, end - after_pages);
      return;
    }
  }
  memset(begin, 0, num_bytes);
}

}  // namespace

// QEMU's user mode before 7.1 ignores the advice and reports success.
void ProbePages() {
  const int64_t size = sysconf(_SC_PAGESIZE);
  void* const page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  volatile char& value = *static_cast<char*>(page);
  value = 1;
  if (madvise(page, size, MADV_DONTNEED) == 0 && value == 0) page_bytes = size;
  munmap(page, size);
}

extern "C" {

// () -> zeros of any shape
EXPORT Error* levserve_lazy_zeros(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  for (int64_t i = 0; i < call->results.count; ++i) {
    const Buffer& result = *call->results.buffers[i];
    int64_t num_bytes = ElementBytes(result.dtype);
    if (num_bytes == 0) return Fail(*call, kInvalidArgument, "lazy zeros are not of this type");
    for (int64_t axis = 0; axis < result.rank; ++axis) num_bytes *= result.dims[axis];
    Clear(static_cast<char*>(result.data), num_bytes);
  }
  return nullptr;
}

}  // extern "C"
}  // namespace levserve
