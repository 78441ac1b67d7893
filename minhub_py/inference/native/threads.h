/* The thread pool of the process (threads.c). */

/* run(context, chunk, thread) computes one chunk of a job; it is called once for each chunk, by any thread. */
typedef void work(void *context, int64_t chunk, int thread);

int claim_threads(int threads);
void release_threads(void);

/* Runs a job. alone: the calling thread does not own the pool, and computes all chunks itself. */
void parallel(int64_t chunks, work *run, void *context, int alone);

/* Seconds of a clock that never goes back. */
double clock_seconds(void);
