// A disk that is full from a chosen write on: loaded before the C library, it answers ENOSPC below one folder.
//
// FULL_DISK_FOLDER names the folder, and FULL_DISK_ROOM how many writes succeed; unset, all do. Whatever takes room
// counts: bytes, new files and folders, links and new names.
// The last bytes that fit are written, as a file system does, and nothing more from then on.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long num_writes;
static atomic_long last_write = LONG_MAX;  // that has room

// Let `room` more writes succeed, all for a negative number; return how many there were since the last call.
long full_disk_after(long room) {
  long counted = atomic_exchange(&num_writes, 0);
  atomic_store(&last_write, room < 0 ? LONG_MAX : room);
  return counted;
}

__attribute__((constructor)) static void begin(void) {
  const char* room = getenv("FULL_DISK_ROOM");
  if (room != NULL) full_disk_after(atol(room));
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_below(const char* path) {
  const char* folder = getenv("FULL_DISK_FOLDER");
  size_t length = folder == NULL ? 0 : strlen(folder);
  return length > 0 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int is_full(void) { return atomic_fetch_add(&num_writes, 1) >= atomic_load(&last_write); }

static int at_full(int folder, const char* path) {
  char whole[PATH_MAX] = "", link[64];
  if (path[0] != '/' && folder != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, sizeof whole - 1);
    whole[length < 0 ? 0 : length] = 0;
  }
  return is_below(path[0] == '/' ? path : whole) && is_full();
}

static int to_full(int file) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path) && is_full();
}

static int no_space(void) {
  errno = ENOSPC;
  return -1;
}

#define OPENS(name)                                                                        \
  int name(const char* path, int flags, ...) {                                             \
    va_list rest;                                                                          \
    va_start(rest, flags);                                                                 \
    mode_t mode = va_arg(rest, mode_t);                                                    \
    va_end(rest);                                                                          \
    if ((flags & O_CREAT) && access(path, F_OK) != 0 && at_full(AT_FDCWD, path)) return no_space(); \
    return NEXT(name)(path, flags, mode);                                                  \
  }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                     \
  int name(int folder, const char* path, int flags, ...) {                                 \
    va_list rest;                                                                          \
    va_start(rest, flags);                                                                 \
    mode_t mode = va_arg(rest, mode_t);                                                    \
    va_end(rest);                                                                          \
    if ((flags & O_CREAT) && faccessat(folder, path, F_OK, 0) != 0 && at_full(folder, path)) return no_space(); \
    return NEXT(name)(folder, path, flags, mode);                                          \
  }
OPENS_AT(openat)
OPENS_AT(openat64)

int mkdir(const char* path, mode_t mode) {
  if (access(path, F_OK) != 0 && at_full(AT_FDCWD, path)) return no_space();
  return NEXT(mkdir)(path, mode);
}

int mkdirat(int folder, const char* path, mode_t mode) {
  if (faccessat(folder, path, F_OK, 0) != 0 && at_full(folder, path)) return no_space();
  return NEXT(mkdirat)(folder, path, mode);
}

int link(const char* path, const char* name) {
  if (at_full(AT_FDCWD, name)) return no_space();
  return NEXT(link)(path, name);
}

int linkat(int folder, const char* path, int other, const char* name, int flags) {
  if (at_full(other, name)) return no_space();
  return NEXT(linkat)(folder, path, other, name, flags);
}

int rename(const char* path, const char* name) {
  if (at_full(AT_FDCWD, name)) return no_space();
  return NEXT(rename)(path, name);
}

ssize_t write(int file, const void* data, size_t size) {
  if (!to_full(file)) return NEXT(write)(file, data, size);
  if (size < 2 || atomic_load(&num_writes) != atomic_load(&last_write) + 1) return no_space();
  return NEXT(write)(file, data, size / 2);
}

#define WRITES_AT(name, offset_type)                                                       \
  ssize_t name(int file, const void* data, size_t size, offset_type offset) {              \
    if (!to_full(file)) return NEXT(name)(file, data, size, offset);                       \
    if (size < 2 || atomic_load(&num_writes) != atomic_load(&last_write) + 1) return no_space(); \
    return NEXT(name)(file, data, size / 2, offset);                                       \
  }
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec* parts, int count) {
  return to_full(file) ? no_space() : NEXT(writev)(file, parts, count);
}

ssize_t sendfile(int target, int source, off_t* offset, size_t size) {
  return to_full(target) ? no_space() : NEXT(sendfile)(target, source, offset, size);
}

ssize_t sendfile64(int target, int source, off64_t* offset, size_t size) {
  return to_full(target) ? no_space() : NEXT(sendfile64)(target, source, offset, size);
}

ssize_t copy_file_range(int source, off64_t* from, int target, off64_t* to, size_t size, unsigned flags) {
  return to_full(target) ? no_space() : NEXT(copy_file_range)(source, from, target, to, size, flags);
}

int posix_fallocate(int file, off_t offset, off_t size) {
  return to_full(file) ? ENOSPC : NEXT(posix_fallocate)(file, offset, size);
}

int posix_fallocate64(int file, off64_t offset, off64_t size) {
  return to_full(file) ? ENOSPC : NEXT(posix_fallocate64)(file, offset, size);
}

int fsync(int file) { return to_full(file) ? no_space() : NEXT(fsync)(file); }
