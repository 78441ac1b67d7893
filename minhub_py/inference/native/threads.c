/* The thread pool.
 *
 * A job is a number of chunks. Each thread starts with a contiguous range of them, because memory is fastest in one
 * direction, and then takes chunks of the other threads: if another program uses a core, the remaining threads continue.
 * Between the jobs of a token helpers spin, because the next job follows within microseconds; after a millisecond they
 * sleep. */

#include "decoder.h"
#include "platform.h"
#include "threads.h"
#include <stdatomic.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_THREADS = 64, CHUNK_BITS = 20 };
static const uint64_t CHUNK_MASK = (1u << CHUNK_BITS) - 1;

static struct {
    mutex caller;           /* held by the thread that owns the jobs */
    mutex guard;            /* protects `wake`, `more` and `sleepers` */
    condition wake;         /* a job is available */
    condition more;         /* more threads participate */
    int helpers;            /* started threads */
    uint64_t jobs;          /* counter */
    atomic_int threads;     /* participating threads */
    atomic_int asleep;
    struct {
        sleeper thread;
        int sleeps;
        int excluded; /* the processor that it may not use until it has woken, or -1 */
    } sleepers[MAX_THREADS];
    atomic_int_fast64_t unfinished; /* chunks */
    work *run;
    void *context;
    struct { /* job number | end of the range | next chunk: one word, so that they are consistent */
        _Alignas(64) atomic_uint_fast64_t ticket;
    } ranges[MAX_THREADS];
} pool = {.caller = MUTEX, .guard = MUTEX, .wake = CONDITION, .more = CONDITION};

static inline void pause_thread(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int is_open(uint64_t ticket) {
    return (ticket & CHUNK_MASK) < (ticket >> CHUNK_BITS & CHUNK_MASK);
}

/* Takes a chunk for a thread. Returns 0 if no chunk remains. The job cannot change until the chunk is finished. */
static int take(int thread, int64_t *chunk) {
    const int threads = atomic_load(&pool.threads);
    for (int i = 0; i < threads; i++) {
        atomic_uint_fast64_t *range = &pool.ranges[(thread + i) % threads].ticket;
        uint64_t ticket = atomic_load_explicit(range, memory_order_acquire);
        /* Checked after reading the ticket: if the exchange succeeds, these are still the threads of its job. */
        while (is_open(ticket) && thread < atomic_load(&pool.threads))
            if (atomic_compare_exchange_weak_explicit(range, &ticket, ticket + 1, memory_order_acq_rel,
                                                      memory_order_acquire)) {
                *chunk = ticket & CHUNK_MASK;
                return 1;
            }
    }
    return 0;
}

static int any_open(void) {
    for (int i = 0; i < atomic_load(&pool.threads); i++)
        if (is_open(atomic_load(&pool.ranges[i].ticket))) return 1;
    return 0;
}

static THREAD help(void *number) {
    const int thread = (int)(intptr_t)number;
    double idle_since = now();
    for (unsigned turn = 1;; turn++) {
        int64_t chunk;
        int worked = 0;
        while (take(thread, &chunk)) {
            pool.run(pool.context, chunk, thread);
            atomic_fetch_sub_explicit(&pool.unfinished, 1, memory_order_release);
            worked = 1;
        }
        if (worked) {
            turn = 0;
            idle_since = now();
        } else if (turn % 64) {
            pause_thread();
        } else if (now() - idle_since < 1e-3) {
            yield_thread();
        } else {
            lock(&pool.guard);
            while (thread >= atomic_load(&pool.threads)) wait_for(&pool.more, &pool.guard);
            pool.sleepers[thread].thread = current_thread();
            pool.sleepers[thread].sleeps = 1;
            pool.sleepers[thread].excluded = -1;
            atomic_fetch_add(&pool.asleep, 1); /* before the next check: the creator of a new job sees it, and wakes this thread */
            while (thread < atomic_load(&pool.threads) && !any_open()) {
                wait_for(&pool.wake, &pool.guard);
                if (pool.sleepers[thread].excluded >= 0) allow_processor(pool.sleepers[thread].excluded);
                pool.sleepers[thread].excluded = -1;
            }
            atomic_fetch_sub(&pool.asleep, 1);
            pool.sleepers[thread].sleeps = 0;
            unlock(&pool.guard);
            idle_since = now();
        }
    }
    return 0;
}

static void after_fork(void) { /* the child has no helpers, and locks in an arbitrary state */
    pool.caller = pool.guard = (mutex)MUTEX;
    pool.wake = pool.more = (condition)CONDITION;
    pool.helpers = 0;
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.threads, 0);
    for (int i = 0; i < MAX_THREADS; i++) {
        atomic_store(&pool.ranges[i].ticket, 0);
        pool.sleepers[i].sleeps = 0;
    }
}

static void start_helpers(int count) {
    in_each_child(after_fork);
    while (pool.helpers < count && start(help, pool.helpers + 1)) pool.helpers++; /* fewer threads suffice */
}

void parallel(int64_t chunks, work *run, void *context, int alone) {
    if (alone || chunks == 1 || chunks > (int64_t)CHUNK_MASK) {
        for (int64_t chunk = 0; chunk < chunks; chunk++) run(context, chunk, 0);
        return;
    }
    const int threads = atomic_load(&pool.threads);
    pool.run = run;
    pool.context = context;
    pool.jobs++;
    atomic_store(&pool.unfinished, chunks);
    for (int i = 0; i < threads; i++) {
        const uint64_t first = chunks * i / threads, end = chunks * (i + 1) / threads;
        atomic_store(&pool.ranges[i].ticket, pool.jobs << 2 * CHUNK_BITS | end << CHUNK_BITS | first);
    }
    if (atomic_load(&pool.asleep)) {
        lock(&pool.guard);
        for (int i = 1; i < threads; i++)
            if (pool.sleepers[i].sleeps && pool.sleepers[i].excluded < 0)
                pool.sleepers[i].excluded = exclude_processor(pool.sleepers[i].thread);
        wake_all(&pool.wake);
        unlock(&pool.guard);
    }
    int64_t chunk;
    while (take(0, &chunk)) {
        run(context, chunk, 0);
        atomic_fetch_sub_explicit(&pool.unfinished, 1, memory_order_release);
    }
    for (unsigned turn = 1; atomic_load_explicit(&pool.unfinished, memory_order_acquire); turn++)
        if (turn % 1024) pause_thread();
        else yield_thread();
}

/* Claims the pool for the calling thread, with this number of threads. Returns 0 if another thread uses it: then the
 * caller computes alone. */
int claim_threads(int threads) {
    if (threads < 2 || !try_lock(&pool.caller)) return 0;
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    if (pool.helpers < threads - 1) start_helpers(threads - 1);
    const int available = pool.helpers + 1 < threads ? pool.helpers + 1 : threads;
    if (atomic_exchange(&pool.threads, available) != available) {
        lock(&pool.guard);
        wake_all(&pool.wake); /* surplus threads wait for `more` */
        wake_all(&pool.more);
        unlock(&pool.guard);
    }
    return 1;
}

void release_threads(void) {
    unlock(&pool.caller);
}

double clock_seconds(void) {
    return now();
}
