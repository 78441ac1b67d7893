/* What decoder.c asks of the operating system: locks, threads and the time. POSIX, and Windows' own functions there. */

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define INT8 WINDOWS_INT8 /* decoder.c has another */
#include <windows.h>
#undef INT8

#define API __declspec(dllexport)

typedef SRWLOCK mutex;
typedef CONDITION_VARIABLE condition;
#define MUTEX SRWLOCK_INIT
#define CONDITION CONDITION_VARIABLE_INIT

static inline void lock(mutex *m) { AcquireSRWLockExclusive(m); }
static inline int try_lock(mutex *m) { return TryAcquireSRWLockExclusive(m); }
static inline void unlock(mutex *m) { ReleaseSRWLockExclusive(m); }
static inline void wait_for(condition *c, mutex *m) { SleepConditionVariableSRW(c, m, INFINITE, 0); }
static inline void wake_all(condition *c) { WakeAllConditionVariable(c); }
static inline void give_way(void) { SwitchToThread(); }

static double now(void) { /* seconds */
    LARGE_INTEGER ticks, each;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&each);
    return (double)ticks.QuadPart / each.QuadPart;
}

/* A thread without end; returns 0 if there is none to be had. */
static int start(DWORD WINAPI (*run)(void *), intptr_t number) {
    const HANDLE thread = CreateThread(NULL, 0, run, (void *)number, 0, NULL);
    if (thread) CloseHandle(thread);
    return thread != NULL;
}

#define THREAD DWORD WINAPI
typedef int sleeper;
#define myself() 0
#define in_each_child(renew) ((void)(renew)) /* there is no fork */

#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#define API __attribute__((visibility("default")))

typedef pthread_mutex_t mutex;
typedef pthread_cond_t condition;
#define MUTEX PTHREAD_MUTEX_INITIALIZER
#define CONDITION PTHREAD_COND_INITIALIZER

static inline void lock(mutex *m) { pthread_mutex_lock(m); }
static inline int try_lock(mutex *m) { return !pthread_mutex_trylock(m); }
static inline void unlock(mutex *m) { pthread_mutex_unlock(m); }
static inline void wait_for(condition *c, mutex *m) { pthread_cond_wait(c, m); }
static inline void wake_all(condition *c) { pthread_cond_broadcast(c); }
static inline void give_way(void) { sched_yield(); }

static double now(void) { /* seconds */
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* A thread without end, and without signals, which are for the program's own; returns 0 if there is none to be had. */
static int start(void *(*run)(void *), intptr_t number) {
    pthread_t thread;
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    const int failed = pthread_create(&thread, NULL, run, (void *)number);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(thread);
    return !failed;
}

#define THREAD void *

typedef pthread_t sleeper;
#define myself pthread_self

/* Has the function called in every process that is forked from this one. */
static void in_each_child(void (*renew)(void)) {
    static int registered;
    if (!registered) registered = !pthread_atfork(NULL, NULL, renew);
}
#endif

#if defined(__linux__) && !defined(__ANDROID__) /* whose older versions lack these functions */
/* Linux may wake a thread on the processor of who wakes it, and there it waits for milliseconds: in a virtual machine,
 * whose Linux takes idle processors, which the host has meanwhile taken away, for busy ones. So a sleeper is forbidden
 * the processor of the thread that calls. Gives that, or -1: it is none of the sleeper's, or its only one, or the
 * system does not allow it. */
static int keep_off(sleeper thread) {
    const int here = sched_getcpu();
    cpu_set_t may;
    if (here < 0 || pthread_getaffinity_np(thread, sizeof may, &may) || !CPU_ISSET(here, &may)) return -1;
    CPU_CLR(here, &may);
    return CPU_COUNT(&may) && !pthread_setaffinity_np(thread, sizeof may, &may) ? here : -1;
}

/* Allows the thread that calls a processor again. */
static void let_back(int processor) {
    cpu_set_t may;
    if (pthread_getaffinity_np(pthread_self(), sizeof may, &may)) return;
    CPU_SET(processor, &may);
    pthread_setaffinity_np(pthread_self(), sizeof may, &may);
}
#else
#define keep_off(thread) ((void)(thread), -1)
#define let_back(processor) ((void)(processor))
#endif
