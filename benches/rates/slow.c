/* Adds 2 ms to each sync of a file, as an ordinary disk would. Loaded into a server with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static void wait_for_disk(void) {
    struct timespec two_ms = {0, 2000000};
    nanosleep(&two_ms, 0);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk();
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk();
    return real(file);
}
