/* A wall clock that a test moves. Preloaded into one server, it adds to every reading
 * of the wall clock what the file named by WALL_CLOCK says: numbers of 64 bits, the
 * shift and the most that a reading wobbles by, in microseconds; and a third, for how long
 * whoever reads it is held up before. The file is mapped, so a change of it is seen by
 * the next reading. The monotonic clock is left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct wall_clock {
    volatile int64_t shift_us;
    volatile int64_t wobble_us;
    volatile int64_t hold_up_us;
};

/* Other libraries may read the clock before this one is ready. */
static struct wall_clock untouched;
static struct wall_clock *wall_clock = &untouched;

__attribute__((constructor)) static void map_the_file(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) abort(); /* a test without its clock would pass for nothing */
    void *map = mmap(NULL, sizeof(struct wall_clock), PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) abort();
    close(file);
    wall_clock = map;
}

/* From -most to most. Threads may share a step of it: it is noise. */
static int64_t wobble(int64_t most) {
    static uint64_t state = 88172645463325252u;
    if (most == 0) return 0;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)(2 * most + 1)) - most;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    /* The system call, not the next library's: nothing to look up, nothing to loop. */
    int is_wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    if (is_wall && wall_clock->hold_up_us > 0) usleep((useconds_t)wall_clock->hold_up_us);
    int result = (int)syscall(SYS_clock_gettime, id, now);
    if (is_wall && result == 0) {
        int64_t us = now->tv_sec * 1000000 + now->tv_nsec / 1000;
        us += wall_clock->shift_us + wobble(wall_clock->wobble_us);
        now->tv_nsec = us % 1000000 * 1000 + now->tv_nsec % 1000;
        now->tv_sec = us / 1000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}

/* Valkey looks for a module's symbols in the module's own libraries first, and so past
 * this one. */
void *dlopen(const char *file, int flags) {
    void *(*next)(const char *, int);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    return next(file, flags & ~RTLD_DEEPBIND);
}
