/* Steps the wall clock of one process, Redis or Python, by the seconds that stand in the file
   $TORTURE_CLOCK. The monotonic clock is left alone. LD_PRELOAD; Linux; tests only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *page;

static long offset(void) {
  if (!page) {
    const char *path = getenv("TORTURE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    void *found = mmap(0, 32, PROT_READ, MAP_SHARED, file, 0); /* 32 bytes, written in place */
    close(file);
    if (found == MAP_FAILED) return 0;
    page = found;
  }
  return strtol(page, 0, 10);
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t id, struct timespec *out) {
  int answer = syscall(SYS_clock_gettime, id, out);
  if (!answer && is_wall(id)) out->tv_sec += offset();
  return answer;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

/* Python 3.10 waits for its locks by the wall clock: a deadline has to be the kernel's again. */
int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
  static int (*real)(sem_t *, const struct timespec *);
  if (!real) real = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec kernel = *until;
  kernel.tv_sec -= offset();
  return real(sem, &kernel);
}
