/* Lets calls of the C library fail below a folder; see faults.py.
 *
 * FAULT_FLAG names a file that holds the error's number while something is wrong,
 * FAULT_BELOW the folder.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static int number(void) { /* what goes wrong now; 0 for nothing */
  const char *flag = getenv("FAULT_FLAG");
  char text[8] = {0};
  int file = flag ? syscall(SYS_openat, AT_FDCWD, flag, O_RDONLY) : -1;
  if (file < 0) return 0;
  syscall(SYS_read, file, text, 7);
  syscall(SYS_close, file);
  return atoi(text);
}
static int below(const char *path) {
  const char *home = getenv("FAULT_BELOW");
  return home && path && !strncmp(path, home, strlen(home));
}
static int hit(const char *path, int reads) {
  int saved = errno, error = number();
  if (!error || (reads && error != EIO) || !below(path)) { errno = saved; return 0; }
  errno = error;
  return 1;
}
static int hit_fd(int fd, int reads) {
  char link[32], path[4096] = {0};
  if (!number()) return 0;
  snprintf(link, 32, "/proc/self/fd/%d", fd);
  return syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095) > 0 && hit(path, reads);
}
#define REAL(name) static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define OPEN(name) int name(const char *path, int flags, ...) { \
  va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
  REAL(name); if (hit(path, !(flags & (O_WRONLY | O_RDWR | O_CREAT)))) return -1; \
  return real(path, flags, mode); }
#define FD(type, name, reads, given, ...) type name given { \
  REAL(name); if (hit_fd(fd, reads)) return -1; return real(__VA_ARGS__); }
#define PATH(name, given, ...) int name given { \
  REAL(name); if (hit(path, 0)) return -1; return real(__VA_ARGS__); }
OPEN(open) OPEN(open64)
FD(ssize_t, write, 0, (int fd, const void *b, size_t n), fd, b, n)
FD(ssize_t, pwrite, 0, (int fd, const void *b, size_t n, off_t o), fd, b, n, o)
FD(ssize_t, pwrite64, 0, (int fd, const void *b, size_t n, off_t o), fd, b, n, o)
FD(ssize_t, read, 1, (int fd, void *b, size_t n), fd, b, n)
FD(ssize_t, pread, 1, (int fd, void *b, size_t n, off_t o), fd, b, n, o)
FD(ssize_t, pread64, 1, (int fd, void *b, size_t n, off_t o), fd, b, n, o)
FD(int, fsync, 0, (int fd), fd)
FD(int, fdatasync, 0, (int fd), fd)
FD(int, ftruncate, 0, (int fd, off_t n), fd, n)
FD(int, ftruncate64, 0, (int fd, off_t n), fd, n)
PATH(mkdir, (const char *path, mode_t m), path, m)
PATH(rename, (const char *path, const char *to), path, to)
PATH(unlink, (const char *path), path)
