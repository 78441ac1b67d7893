/* Locks, threads and time: POSIX, or Windows' own functions. */

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define INT8 WINDOWS_INT8 /* decoder.h defines another */
#include <windows.h>
#undef INT8

typedef SRWLOCK mutex;
typedef CONDITION_VARIABLE condition;
#define MUTEX SRWLOCK_INIT
#define CONDITION CONDITION_VARIABLE_INIT

static inline void lock(mutex *m) { AcquireSRWLockExclusive(m); }
static inline int try_lock(mutex *m) { return TryAcquireSRWLockExclusive(m); }
static inline void unlock(mutex *m) { ReleaseSRWLockExclusive(m); }
static inline void wait_for(condition *c, mutex *m) { SleepConditionVariableSRW(c, m, INFINITE, 0); }
static inline void wake_all(condition *c) { WakeAllConditionVariable(c); }
static inline void yield_thread(void) { SwitchToThread(); }

static double now(void) { /* seconds */
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency);
    return (double)ticks.QuadPart / frequency.QuadPart;
}

/* Starts a thread that never ends. Returns 0 on failure. */
static int start(DWORD WINAPI (*run)(void *), intptr_t number) {
    const HANDLE thread = CreateThread(NULL, 0, run, (void *)number, 0, NULL);
    if (thread) CloseHandle(thread);
    return thread != NULL;
}

#define THREAD DWORD WINAPI
typedef int sleeper;
#define current_thread() 0
#define in_each_child(function) ((void)(function)) /* no fork on Windows */

#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

typedef pthread_mutex_t mutex;
typedef pthread_cond_t condition;
#define MUTEX PTHREAD_MUTEX_INITIALIZER
#define CONDITION PTHREAD_COND_INITIALIZER

static inline void lock(mutex *m) { pthread_mutex_lock(m); }
static inline int try_lock(mutex *m) { return !pthread_mutex_trylock(m); }
static inline void unlock(mutex *m) { pthread_mutex_unlock(m); }
static inline void wait_for(condition *c, mutex *m) { pthread_cond_wait(c, m); }
static inline void wake_all(condition *c) { pthread_cond_broadcast(c); }
static inline void yield_thread(void) { sched_yield(); }

static double now(void) { /* seconds */
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Starts a thread that never ends, with all signals blocked. Returns 0 on failure. */
static int start(void *(*run)(void *), intptr_t number) {
    pthread_t thread;
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    const int failed = pthread_create(&thread, NULL, run, (void *)number);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    if (!failed) pthread_detach(thread);
    return !failed;
}

#define THREAD void *

typedef pthread_t sleeper;
#define current_thread pthread_self

/* Calls the function in every process that is forked from this one. */
static void in_each_child(void (*function)(void)) {
    static int registered;
    if (!registered) registered = !pthread_atfork(NULL, NULL, function);
}
#endif

#if defined(__linux__) && !defined(__ANDROID__) /* older versions of Android lack these functions */
/* Linux may wake a thread on the processor of its waker, where it waits for milliseconds: in a virtual machine, Linux takes
 * idle processors that the host has descheduled for busy ones. So a sleeping thread may not use the calling thread's
 * processor. Returns that processor, or -1: the thread cannot use it, has no other one, or the system refuses. */
static int exclude_processor(sleeper thread) {
    const int here = sched_getcpu();
    cpu_set_t allowed;
    if (here < 0 || pthread_getaffinity_np(thread, sizeof allowed, &allowed) || !CPU_ISSET(here, &allowed)) return -1;
    CPU_CLR(here, &allowed);
    return CPU_COUNT(&allowed) && !pthread_setaffinity_np(thread, sizeof allowed, &allowed) ? here : -1;
}

/* Permits the processor to the calling thread again. */
static void allow_processor(int processor) {
    cpu_set_t allowed;
    if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed)) return;
    CPU_SET(processor, &allowed);
    pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
}
#else
#define exclude_processor(thread) ((void)(thread), -1)
#define allow_processor(processor) ((void)(processor))
#endif
