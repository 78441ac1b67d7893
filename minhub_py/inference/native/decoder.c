/* A language model's way from ids to logits for a few tokens at a time, on a CPU, without Python or PyTorch in between.
 *
 * Writing text one id after another reads every weight once for each id, and does little else: what counts is how fast
 * weights come from memory, and that nothing else takes time. compiled.py hands over the model as a list of operations
 * (a model's own `steps`), with pointers to the weights that PyTorch holds; decode() runs the list. Arithmetic is
 * float32 whatever the weights' dtype is, but for products of int8 and nf4 weights, which are of whole numbers, and of
 * bfloat16 where the processor multiplies it: with weights (but for experts), and with keys and values. Plain C, no
 * Python: the library is opened by ctypes.
 */

#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "system.h"

/* IN_REGISTERS: a loop over an array that is to be in registers. clang has it in memory, unless all loops over it are
 * unrolled from the start; GCC unrolls them by itself, and better than told to. Products of floats go without: unrolled,
 * they took clang 2 to 3 times as long where registers are few (NOTES.md). */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define IN_REGISTERS UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#define IN_REGISTERS
#endif

/* compiled.py has the same numbers and structures. */
enum { FLOAT32, BFLOAT16, FLOAT16, INT8, NF4, MXFP4,
       Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, /* types of GGUF */
       BLOCKS }; /* for the compiler: one of these, which is known when it runs */
enum { NONE, GELU, GELU_TANH, RELU, SILU, TANH, SIGMOID };
enum { EMBED, NORM, LINEAR, ADD, ATTEND, RECUR, LOGITS, RMS_NORM, ROTATE, GATE, KEEP, COPY, ROUTE, EXPERTS, COMBINE,
       PLACE, DELTA_RULE, CROSS_ATTEND, REMEMBER };
enum { WHOLE = 1, INTERLEAVED = 2 }; /* bits of `more` of ROTATE */
enum { KEPT = 1, STREAM = 2 };       /* of NORM */
#define UNIT 68 /* bytes of 128 NF4 weights */
#define MOST_TOKENS 128 /* of a product; a source may have more */
#define APART 64 /* inputs of bfloat16 more for each token: 4 KB apart, all would share a few places of the nearest cache */
#define MOST_OUTPUTS 256 /* of a chunk; that, and a unit of 64, times the tokens is the room for its sums */
#define MOST_CHOICES 1024 /* experts of all tokens of a call */
#define QUERIES 6 /* tokens that attend together */
#define PANEL (1 << 15) /* floats that are unpacked at a time */
#define AHEAD 8192 /* bytes that weights are asked for in advance; measured (NOTES.md) */
#define AHEAD_OF_HEADS 4096 /* keys and values likewise */

typedef struct {
    const void *data;     /* (rows, columns): a linear layer's outputs and inputs; transposed: stored (columns, rows) */
    const void *scales;   /* INT8, NF4: floats (rows,); MXFP4: exponents, bytes (rows, groups) */
    int64_t rows, columns;
    int64_t stride;       /* bytes from a row of the store to the next */
    int32_t dtype, transposed;
    int32_t coarse;       /* INT8, NF4: whether inputs are rounded to 8 bits, not 16 */
} matrix;

typedef struct {
    int32_t kind, activation;
    int32_t layer, heads; /* ATTEND, ROTATE: heads of q; DELTA_RULE: of v; GATE: width of its output */
    int32_t groups, size; /* ATTEND, ROTATE: heads of k and v, numbers of a head; DELTA_RULE: of q and k; ROUTE: experts
                             of a token */
    int32_t gate;         /* ATTEND, ROTATE: numbers of the gate that follows each head of q */
    int64_t window;       /* positions that ATTEND looks back on, itself included; 0: all */
    float number;         /* norms, also those of other operations: epsilon; a factor: EMBED: of ids, ATTEND: of scores,
                             EXPERTS: of the gate, LOGITS: of its input */
    float cap;            /* ATTEND, LOGITS: soft cap of the scores, of the result; 0: none; EXPERTS: the limit */
    int32_t more;         /* LINEAR: the next one's output stands beside this one's; NORM, RMS_NORM: bits, KEPT for the
                             norm of what KEEP kept, STREAM if x is replaced, too (NORM only); ROTATE: bits, WHOLE if the
                             norms are of all heads at once, INTERLEAVED; ATTEND: both ways, to the whole source */
    int32_t rotated;      /* ROTATE: numbers of a head that turn, the first ones; ATTEND: the reach R of `second` */
    matrix weight, second; /* EMBED: ids, positions; PLACE: positions; RECUR: weight_ih, weight_hh; ROTATE: norms of q's
                              and k's heads; ADD: the layer, the norm of its result; EXPERTS, COMBINE: the first expert's
                              weight, which the others' follow, and the biases (experts, outputs); DELTA_RULE: the
                              convolution, (taps, channels), and the norm of a head's output; REMEMBER: of keys, of
                              values; ATTEND: the second: by head what scores get, for each distance from -R to R, or
                              NULL */
    const float *bias;    /* NORM, LINEAR, ADD, RECUR, LOGITS, ROUTE; ROTATE: by position cos and sin for q, then for k;
                             ATTEND: a sink for each head, or NULL; DELTA_RULE: of each head the factor of its decay,
                             then of each what softplus has added */
} operation;

typedef struct {
    int64_t tokens;
    const int64_t *ids, *rows, *positions; /* of each token: its id, its row of the cache, its position there */
    const int64_t *sources; /* of each token: the length of its row's source, where there is one */
    void *const *keys;    /* by layer: (B, H, size, D); the LSTM's h, (B, H); the window of DELTA_RULE, float32 */
    void *const *values;  /* by layer: likewise; the LSTM's c; the state of DELTA_RULE, (B, H, K, V) in float32 */
    const int64_t *sizes; /* by layer: positions that the buffers hold; position p is in slot p % size */
    int32_t cache_dtype, threads;
    const int64_t *wanted; /* the tokens after which logits are wanted */
    int64_t wanted_count;
    float *logits;        /* (wanted_count, V) */
    float *x, *h, *g, *kept; /* room for (tokens, width) each */
    float *codes;         /* room for MOST_TOKENS floats, and as many times `width` 16-bit numbers */
    int64_t width;        /* a multiple of 128, at least that of the widest operation */
    float *scratch;       /* (threads, scratch_width) */
    int64_t scratch_width;
} call;

typedef struct { /* what a head has kept of a text */
    const uint8_t *keys, *values; /* (size, D); position p is in slot p % size */
    int64_t size, D;
    int32_t dtype;
    float scale, cap; /* of scores; no cap: 0 */
    int64_t reach;    /* of what a query's scores get by distance */
} memory;

typedef struct { /* a token's question to a head */
    const float *q;
    float *out, *scores; /* (D,); room for as many as positions, and LANES more */
    int64_t position, first, end; /* its own; those that it looks at: from `first` to before `end` */
    const float *bias; /* bias[d] is added to the score of a key at distance d, d from -reach to reach; or NULL */
    const float *sink; /* one more score, without a value; or NULL */
    const int16_t *rounded; /* q in bfloat16, with zeros to a multiple of 32, where products are; else NULL */
    float *sums;            /* then: outputs on the way, as many */
} query;

typedef float four_at __attribute__((vector_size(16), aligned(4), may_alias));
typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));

enum { SCORES, OUTPUTS }; /* of attention */

typedef void of_codes(const matrix *, int64_t, int64_t, const int16_t *, int64_t, const float *, float *, int64_t, int64_t,
                      float *);

typedef struct {
    void (*linear)(const matrix *, int64_t, int64_t, const float *, int64_t, float *, int64_t, int64_t, float *);
    void (*round_inputs)(const float *, int64_t, int64_t, int, int16_t *, float *);
    void (*round_groups)(const float *, int64_t, int64_t, int, int16_t *, float *);
    of_codes *linear_codes, *linear_bytes;
    void (*finish)(float *, const float *, int64_t, int);
    void (*row)(const matrix *, int64_t, float *);
    void (*attend)(const memory *, query *, int64_t);
    void (*recur)(float *, float *, float *, int64_t);
    void (*norm)(const float *, const float *, const float *, float, int64_t, float *);
    void (*rms_norm)(const float *, const float *, float, int64_t, float *);
    void (*gate)(const float *, const float *, float *, int64_t, int);
    void (*cap)(float *, int64_t, float);
    void (*gate_in_turn)(const float *, const float *, int64_t, float, float, float *);
    void (*convolve)(float *, const float *, int64_t, int64_t, float *, int64_t, int);
    void (*unit)(float *, float, int64_t);
    void (*delta_rule)(float *, const float *, const float *, const float *, float, float, int64_t, int64_t, float *);
} kernels;

/* quantize.py says why these. */
static const int8_t nf4[16] = {0, 3, 6, 9, 12, 15, 19, 25, 31, -31, -23, -17, -13, -9, -6, -3};
/* Times each scale, and twice, as an instruction looks it up by five bits. `choose` fills it. */
static _Alignas(64) int16_t nf4_scaled[64][32];

/* Sign and size, as OCP's Microscaling Formats specification (2023) has them. */
static const float mxfp4[16] = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
};

static inline float power_of_two(uint8_t exponent) { /* 2 to the exponent - 127 */
    const uint32_t whole = exponent ? (uint32_t)exponent << 23 : 1u << 22;
    float value;
    memcpy(&value, &whole, 4);
    return value;
}

static float half_to_float(uint16_t half) {
    uint32_t shifted = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value, factor = 0x1p112f; /* moves the exponent; a subnormal becomes normal by it */
    memcpy(&value, &shifted, 4);
    value = (half & 0x7c00) == 0x7c00 ? (half & 0x3ff ? NAN : INFINITY) : value * factor;
    uint32_t whole;
    memcpy(&whole, &value, 4);
    whole |= sign;
    memcpy(&value, &whole, 4);
    return value;
}

static uint16_t float_to_half(float value) {
    uint32_t whole, sign;
    memcpy(&whole, &value, 4);
    sign = whole >> 16 & 0x8000;
    whole &= 0x7fffffff;
    if (whole > 0x7f800000) return sign | 0x7e00;  /* NaN */
    if (whole >= 0x477ff000) return sign | 0x7c00; /* 65520 and more: infinity */
    if (whole < 0x38800000) {                      /* subnormal: the sum's last bit is the half's last bit */
        value = fabsf(value) + 0.5f;
        memcpy(&whole, &value, 4);
        return sign | (whole - 0x3f000000);
    }
    return sign | ((whole - 0x38000000 + 0xfff + (whole >> 13 & 1)) >> 13); /* to the nearest, of two the even one */
}

static uint16_t float_to_bfloat16(float value) {
    uint32_t whole;
    memcpy(&whole, &value, 4);
    if ((whole & 0x7fffffff) > 0x7f800000) return 0x7fc0; /* NaN */
    return (whole + 0x7fff + (whole >> 16 & 1)) >> 16;    /* to the nearest, of two the even one */
}

static int vnni, tiles, dots; /* whether products of whole numbers use these instructions: of x86, and of ARM */
static int pairs;             /* whether products in bfloat16 do: of x86 */
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10 /* assemblers of older systems do not know them */
#define PAIRS 1
#else
#define PAIRS 0
#endif

#if defined(__aarch64__)
#define NEON 1 /* which every such processor has */
#else
#define NEON 0
#endif

#define TARGET plain
#define LANES 4
#include "kernels.h"
#undef TARGET
#undef LANES

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define TARGET avx2
#define LANES 8
#include "kernels.h"
#undef TARGET
#undef LANES
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#endif
#define TARGET avx512
#define LANES 16
#include "kernels.h"
#undef TARGET
#undef LANES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

static const kernels *chosen;

#include "tiles.h"
#include "dot.h"
#include "pack.h"

/* Takes the best kernels that the processor runs, or those of a name; gives their name, or NULL: it has no such. */
API const char *choose(const char *name) {
    /* Each has what follows it, too. */
    static const char *const names[] = {"amx", "bf16", "vnni", "avx512", "avx2", "dotprod", NEON ? "neon" : "plain"};
    enum { AMX, BF16, VNNI, AVX512, AVX2, DOTPROD, PLAIN };
    int has[] = {0, 0, 0, 0, 0, has_dots(), 1};
#if defined(__x86_64__)
    /* Asked of the processor itself: what compilers have for it is not in all of their libraries. */
    unsigned a, b, c = 0, d, first = 0, second = 0, third = 0, fourth = 0, states = 0;
    if (__get_cpuid(1, &a, &b, &first, &d) && first >> 27 & 1) /* the registers that the system keeps */
        __asm__("xgetbv" : "=a"(states), "=d"(d) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) second = b, third = c;
    if (a && __get_cpuid_count(7, 1, &a, &b, &c, &d)) fourth = a;
    has[AVX2] = (states & 6) == 6 && first >> 12 & 1 && first >> 29 & 1 && second >> 5 & 1; /* fma, f16c, avx2 */
    has[AVX512] = has[AVX2] && (states & 0xe6) == 0xe6 && (second & 0xc0030000u) == 0xc0030000u; /* f, dq, bw, vl */
    has[VNNI] = has[AVX512] && third >> 11 & 1;
    has[BF16] = has[VNNI] && fourth >> 5 & 1 && PAIRS;
    has[AMX] = has[BF16] && allow_tiles();
#endif
    for (int i = AMX; i <= PLAIN; i++) {
        if (!has[i] || (name && strcmp(name, names[i]))) continue;
        chosen = &kernels_plain;
        for (int scale = 0; scale < 64; scale++)
            for (int code = 0; code < 32; code++) nf4_scaled[scale][code] = nf4[code % 16] * scale;
#if defined(__x86_64__)
        if (i <= AVX2) chosen = i <= AVX512 ? &kernels_avx512 : &kernels_avx2;
#endif
        tiles = i == AMX, pairs = i <= BF16, vnni = i <= VNNI, dots = i == DOTPROD;
        return names[i];
    }
    return NULL;
}

/* Whether the processor has instructions for tiles of bfloat16 (AMX), which PyTorch's products use. */
API int has_bfloat16_tiles(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 && d >> 24 & 1;
#else
    return 0;
#endif
}

/* What compiled.py has to agree with: a checkout may have moved on since it was compiled. */
API int64_t interface(void) {
    return 15 + 1000 * (int64_t)(sizeof(operation) + 1000 * sizeof(call)); /* 15: the count of changes of meaning */
}

/* --- threads ---
 *
 * A job is a number of chunks. Each thread begins with a stretch of them, as memory is read fastest in one direction,
 * and then takes what the others have not come to: if another program has a core, the rest goes on without it. Between
 * the jobs of a token helpers wait without sleeping, as the next job comes in microseconds; after a millisecond
 * without one they sleep.
 */

typedef void work(void *context, int64_t chunk, int thread);

enum { MOST_THREADS = 64, CHUNK_BITS = 20 };
static const uint64_t CHUNK_MASK = (1u << CHUNK_BITS) - 1;

static struct {
    mutex caller;           /* held by the thread whose jobs these are */
    mutex guard;            /* of `wake`, `more` and `sleepers` */
    condition wake;         /* there is a job */
    condition more;         /* more threads take part */
    int helpers;            /* started */
    uint64_t jobs;          /* so far */
    atomic_int threads;     /* that take part */
    atomic_int asleep;
    struct {
        sleeper thread;
        int sleeps;
        int off; /* the processor that it is kept off until it has woken, or -1 */
    } sleepers[MOST_THREADS];
    atomic_int_fast64_t left; /* chunks not finished */
    work *run;
    void *context;
    struct { /* number of the job | end of the stretch | its next chunk: in one word, so that they agree */
        _Alignas(64) atomic_uint_fast64_t ticket;
    } stretches[MOST_THREADS];
} pool = {.caller = MUTEX, .guard = MUTEX, .wake = CONDITION, .more = CONDITION};

static inline void breathe(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int is_open(uint64_t ticket) {
    return (ticket & CHUNK_MASK) < (ticket >> CHUNK_BITS & CHUNK_MASK);
}

/* Takes a chunk for a thread, if there is one. From then on until it is finished the job cannot change. */
static int take(int thread, int64_t *chunk) {
    const int threads = atomic_load(&pool.threads);
    for (int i = 0; i < threads; i++) {
        atomic_uint_fast64_t *place = &pool.stretches[(thread + i) % threads].ticket;
        uint64_t ticket = atomic_load_explicit(place, memory_order_acquire);
        /* Asked after the ticket was read: if it can be had, these are still the threads of its job. */
        while (is_open(ticket) && thread < atomic_load(&pool.threads))
            if (atomic_compare_exchange_weak_explicit(place, &ticket, ticket + 1, memory_order_acq_rel,
                                                      memory_order_acquire)) {
                *chunk = ticket & CHUNK_MASK;
                return 1;
            }
    }
    return 0;
}

static int any_open(void) {
    for (int i = 0; i < atomic_load(&pool.threads); i++)
        if (is_open(atomic_load(&pool.stretches[i].ticket))) return 1;
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
            atomic_fetch_sub_explicit(&pool.left, 1, memory_order_release);
            worked = 1;
        }
        if (worked) {
            turn = 0;
            idle_since = now();
        } else if (turn % 64) {
            breathe();
        } else if (now() - idle_since < 1e-3) {
            give_way();
        } else {
            lock(&pool.guard);
            while (thread >= atomic_load(&pool.threads)) wait_for(&pool.more, &pool.guard);
            pool.sleepers[thread].thread = myself();
            pool.sleepers[thread].sleeps = 1;
            pool.sleepers[thread].off = -1;
            atomic_fetch_add(&pool.asleep, 1); /* before looking again: who makes a job now sees it, and wakes us */
            while (thread < atomic_load(&pool.threads) && !any_open()) {
                wait_for(&pool.wake, &pool.guard);
                if (pool.sleepers[thread].off >= 0) let_back(pool.sleepers[thread].off);
                pool.sleepers[thread].off = -1;
            }
            atomic_fetch_sub(&pool.asleep, 1);
            pool.sleepers[thread].sleeps = 0;
            unlock(&pool.guard);
            idle_since = now();
        }
    }
    return 0;
}

static void after_fork(void) { /* the child has none of the threads, and locks as they happened to be */
    pool.caller = pool.guard = (mutex)MUTEX;
    pool.wake = pool.more = (condition)CONDITION;
    pool.helpers = 0;
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.threads, 0);
    for (int i = 0; i < MOST_THREADS; i++) {
        atomic_store(&pool.stretches[i].ticket, 0);
        pool.sleepers[i].sleeps = 0;
    }
}

static void start_helpers(int wanted) {
    in_each_child(after_fork);
    while (pool.helpers < wanted && start(help, pool.helpers + 1)) pool.helpers++; /* fewer will do */
}

static void parallel(int64_t chunks, work *run, void *context, int alone) {
    if (alone || chunks == 1 || chunks > (int64_t)CHUNK_MASK) {
        for (int64_t chunk = 0; chunk < chunks; chunk++) run(context, chunk, 0);
        return;
    }
    const int threads = atomic_load(&pool.threads);
    pool.run = run;
    pool.context = context;
    pool.jobs++;
    atomic_store(&pool.left, chunks);
    for (int i = 0; i < threads; i++) {
        const uint64_t first = chunks * i / threads, end = chunks * (i + 1) / threads;
        atomic_store(&pool.stretches[i].ticket, pool.jobs << 2 * CHUNK_BITS | end << CHUNK_BITS | first);
    }
    if (atomic_load(&pool.asleep)) {
        lock(&pool.guard);
        for (int i = 1; i < threads; i++)
            if (pool.sleepers[i].sleeps && pool.sleepers[i].off < 0)
                pool.sleepers[i].off = keep_off(pool.sleepers[i].thread);
        wake_all(&pool.wake);
        unlock(&pool.guard);
    }
    int64_t chunk;
    while (take(0, &chunk)) {
        run(context, chunk, 0);
        atomic_fetch_sub_explicit(&pool.left, 1, memory_order_release);
    }
    for (unsigned turn = 1; atomic_load_explicit(&pool.left, memory_order_acquire); turn++)
        if (turn % 1024) breathe();
        else give_way();
}

/* --- operations --- */

typedef struct { /* what the chunks of one operation share */
    const operation *op;
    const call *c;
    float *in, *out;
    int64_t tokens, unit, chunks;
    int64_t padded; /* codes of a token, which may be bfloat16; 0: the inputs are floats */
    int tiled;      /* whether the codes are planes for tiles */
    int bytes;      /* or bytes (kernels.h) */
} task;

static const int dtype_size[] = {[FLOAT32] = 4, [BFLOAT16] = 2, [FLOAT16] = 2};

static int64_t at_least(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static float *scratch(const call *c, int thread) {
    return c->scratch + thread * c->scratch_width;
}

/* Behind the sums of a chunk: what a product of many tokens works in. */
static float *room(const call *c, int thread) {
    return scratch(c, thread) + MOST_TOKENS * (MOST_OUTPUTS + 64);
}

/* Where a chunk of a layer's outputs begins: all chunks are alike, but for whole units. */
static int64_t first_output(const task *t, int64_t chunk) {
    return chunk == t->chunks ? t->op->weight.rows : t->op->weight.rows * chunk / t->chunks / t->unit * t->unit;
}

static int16_t *codes(const call *c) {
    return (int16_t *)(c->codes + MOST_TOKENS); /* before them the tokens' scales */
}

/* The codes of 16 tokens' inputs. */
static void round_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const int64_t columns = t->op->weight.columns, padded = t->padded, first = 16 * chunk;
    const int64_t count = t->tokens - first < 16 ? t->tokens - first : 16;
    int16_t *rows = t->tiled ? (int16_t *)scratch(t->c, thread) : codes(t->c) + first * padded;
    for (int64_t m = first; m < first + count; m++) {
        const float *in = t->in + m * t->c->width;
        int16_t *to = rows + (m - first) * padded;
        if (t->op->weight.coarse) chosen->round_groups(in, columns, padded, t->bytes, to, t->c->codes + m);
        else chosen->round_inputs(in, columns, padded, t->op->weight.dtype, to, t->c->codes + m);
    }
    for (int64_t k = 0; t->tiled && k < padded; k += 64)
        for (int64_t m = 0; m < count; m++)
            split_codes(rows + m * padded + k, m, (uint8_t *)codes(t->c) + 2 * (first * padded + 16 * k));
}

/* The product's outputs from `begin` to before `end`. */
static void multiply(const task *t, int64_t begin, int64_t end, float *out, int64_t stride, int thread) {
    const matrix *w = &t->op->weight;
    const call *c = t->c;
    if (t->tiled && w->dtype == NF4)
        linear_split(w, begin, end, (const uint8_t *)codes(c), t->padded, c->codes, out, stride, t->tokens,
                     (uint8_t *)room(c, thread));
    else if (t->tiled)
        linear_tiles(w, begin, end, (const uint8_t *)codes(c), t->padded, c->codes, out, stride, t->tokens);
    else if (t->bytes)
        chosen->linear_bytes(w, begin, end, codes(c), t->padded, c->codes, out, stride, t->tokens, room(c, thread));
    else if (t->padded && dots && w->dtype == INT8)
        linear_dots(w, begin, end, codes(c), t->padded, c->codes, out, stride, t->tokens);
    else if (t->padded)
        chosen->linear_codes(w, begin, end, codes(c), t->padded, c->codes, out, stride, t->tokens, room(c, thread));
    else
        chosen->linear(w, begin, end, t->in, c->width, out, stride, t->tokens, room(c, thread));
}

static void linear_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const matrix *w = &t->op->weight;
    const int64_t begin = first_output(t, chunk), end = first_output(t, chunk + 1), n = end - begin;
    const float *bias = t->op->bias ? t->op->bias + begin : NULL;
    if (t->op->kind != ADD) {
        const int64_t stride = t->op->kind == LOGITS ? w->rows : t->c->width;
        multiply(t, begin, end, t->out + begin, stride, thread);
        if (bias || t->op->activation)
            for (int64_t m = 0; m < t->tokens; m++)
                chosen->finish(t->out + m * stride + begin, bias, n, t->op->activation);
        if (t->op->cap)
            for (int64_t m = 0; m < t->tokens; m++) chosen->cap(t->out + m * stride + begin, n, t->op->cap);
        return;
    }
    float *sums = scratch(t->c, thread); /* (tokens, n) */
    multiply(t, begin, end, sums, n, thread);
    for (int64_t m = 0; m < t->tokens; m++) {
        chosen->finish(sums + m * n, bias, n, t->op->activation);
        for (int64_t i = 0; i < n; i++) t->out[m * t->c->width + begin + i] += sums[m * n + i];
    }
}

/* Whether products are of bytes: else codes of 16 bits give the same bits. From how many tokens on it pays is measured. */
static int suits_bytes(const matrix *w, int64_t tokens) {
    return w->coarse && w->rows >= 32 && tokens >= (w->dtype == INT8 ? 12 : 9);
}

/* A layer's outputs, as many chunks for each thread; small ones, so that none waits long for the last. */
static void linear(const operation *op, const call *c, float *in, float *out, int64_t tokens, int alone) {
    const matrix *w = &op->weight;
    for (; tokens > MOST_TOKENS; tokens -= MOST_TOKENS) { /* of a source, which is read as a whole */
        linear(op, c, in, out, MOST_TOKENS, alone);
        in += MOST_TOKENS * c->width;
        out += MOST_TOKENS * c->width;
    }
    const int rounds = w->dtype == INT8 || w->dtype == NF4 || (w->dtype == BFLOAT16 && pairs);
    const int tiled = rounds && tiles && suits_tiles(w, tokens), bytes = vnni && !tiled && suits_bytes(w, tokens);
    const int64_t unit = w->transposed ? 64 : tokens >= (w->dtype == NF4 ? 8 : 12) || bytes ? 32 : 8; /* whole panels */
    int64_t most = at_least((1 << 17) / w->stride, unit); /* outputs of a chunk */
    most = w->transposed || most > MOST_OUTPUTS ? MOST_OUTPUTS : most;
    const int64_t share = (w->rows + c->threads - 1) / c->threads;
    const int64_t chunks = c->threads * ((share + most - 1) / most);
    task t = {.op = op, .c = c, .in = in, .out = out, .tokens = tokens, .unit = unit, .chunks = chunks};
    if (rounds) {
        t.padded = (w->columns + 127) / 128 * 128 + (w->dtype == BFLOAT16 ? APART : 0);
        t.tiled = tiled, t.bytes = bytes;
        parallel((tokens + 15) / 16, round_chunk, &t, alone);
    }
    parallel(chunks, linear_chunk, &t, alone);
}

static void store(void *to, int64_t at, const float *from, int64_t count, int dtype) {
    if (dtype == FLOAT32)
        memcpy((float *)to + at, from, count * sizeof(float));
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[at + i] = dtype == FLOAT16 ? float_to_half(from[i]) : float_to_bfloat16(from[i]);
}

static void fetch(const void *from, int64_t at, float *to, int64_t count, int dtype) {
    const matrix row = {.data = (const char *)from + at * dtype_size[dtype], .columns = count, .dtype = dtype};
    chosen->row(&row, 0, to);
}

/* QUERIES tokens together where they are of one text. */
static void attend_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t H = op->heads, G = op->groups, D = op->size, R = op->rotated, blocks = (c->tokens + QUERIES - 1) / QUERIES;
    const int64_t head = chunk / blocks, first = chunk % blocks * QUERIES; /* a head's keys stay in the cache */
    const int64_t size = c->sizes[op->layer], end = first + QUERIES < c->tokens ? first + QUERIES : c->tokens;
    const float *table = op->second.data;
    query queries[QUERIES];
    int64_t count = 0;
    for (int64_t m = first; m < end; m++) {
        const int64_t known = op->kind == CROSS_ATTEND || op->more ? c->sources[m] : c->positions[m] + 1;
        queries[count] = (query){
            .q = t->in + m * c->width + head * (D + op->gate), .out = t->out + m * c->width + head * D,
            .scores = scratch(c, thread) + count * (c->scratch_width / QUERIES), .position = c->positions[m],
            .first = op->window && op->window < known ? known - op->window : 0, .end = known,
            .bias = table ? table + head * (2 * R + 1) + R : NULL, .sink = op->bias ? op->bias + head : NULL};
        count++;
        if (m + 1 < end && c->rows[m + 1] == c->rows[m]) continue;
        const int64_t at = (c->rows[m] * G + head / (H / G)) * size * D * dtype_size[c->cache_dtype];
        const memory kept = {
            .keys = (const uint8_t *)c->keys[op->layer] + at, .values = (const uint8_t *)c->values[op->layer] + at,
            .size = size, .D = D, .dtype = c->cache_dtype, .scale = op->number, .cap = op->cap, .reach = R};
        chosen->attend(&kept, queries, count);
        for (int64_t i = 0; i < count && op->gate; i++)
            chosen->gate(queries[i].q + D, queries[i].out, queries[i].out, D, SIGMOID);
        count = 0;
    }
}

/* Turns the pairs (i, i + R/2), or (2i, 2i + 1), of each head of q and k of token m by its position, after the norms where
 * it has them: of each head, or of all heads of q and all of k at once. */
static void rotate(const operation *op, const call *c, float *in, int64_t m) {
    const int64_t H = op->heads, G = op->groups, D = op->size, R = op->rotated, half = R / 2;
    const int whole = op->more & WHOLE;
    for (int64_t head = 0; head < H + G; head++) {
        float *v = in + m * c->width + head * D + (head < H ? head : H) * op->gate;
        const float *norm = head < H ? op->weight.data : op->second.data;
        if (norm && !whole) chosen->rms_norm(v, norm, op->number, D, v);
        if (norm && whole && head == 0) chosen->rms_norm(v, norm, op->number, H * D, v);
        if (norm && whole && head == H) chosen->rms_norm(v, norm, op->number, G * D, v);
        const float *cos = op->bias + c->positions[m] * 2 * R + (head < H ? 0 : R), *sin = cos + half;
        if (op->more & INTERLEAVED)
            for (int64_t i = 0; i < half; i++) {
                const float first = v[2 * i], second = v[2 * i + 1];
                v[2 * i] = first * cos[i] - second * sin[i];
                v[2 * i + 1] = second * cos[i] + first * sin[i];
            }
        else
            for (int64_t i = 0; i < half; i++) {
                const float first = v[i], second = v[i + half];
                v[i] = first * cos[i] - second * sin[i];
                v[i + half] = second * cos[i] + first * sin[i];
            }
    }
}

/* Keeps the heads, (tokens, G * D), of token m as keys or values at its place. */
static void keep_heads(const operation *op, const call *c, void *to, const float *in, int64_t m) {
    const int64_t G = op->groups, D = op->size, size = c->sizes[op->layer];
    for (int64_t head = 0; head < G; head++)
        store(to, ((c->rows[m] * G + head) * size + c->positions[m] % size) * D, in + m * c->width + head * D, D,
              c->cache_dtype);
}

/* What an operation does with each token by itself; out: x, which norms read. */
static void token_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t last = 16 * chunk + 16 < c->tokens ? 16 * chunk + 16 : c->tokens, columns = op->weight.columns;
    for (int64_t m = 16 * chunk; m < last; m++) {
        float *in = t->in + m * c->width, *x = t->out + m * c->width;
        const float *from = op->more & KEPT ? c->kept + m * c->width : x;
        switch (op->kind) {
        case NORM:
            chosen->norm(from, op->weight.data, op->bias, op->number, columns, in);
            if (op->more & STREAM) memcpy(x, in, columns * sizeof(float));
            break;
        case RMS_NORM: chosen->rms_norm(from, op->weight.data, op->number, columns, in); break;
        case ROTATE: rotate(op, c, t->in, m); break;
        case GATE: chosen->gate(in, in + op->heads, in, op->heads, op->activation); break;
        default: /* ATTEND */
            keep_heads(op, c, c->keys[op->layer], t->in + op->heads * (op->size + op->gate), m);
            keep_heads(op, c, c->values[op->layer], t->in + op->heads * (op->size + op->gate) + op->groups * op->size, m);
        }
    }
}

static void each_token(task *t, int alone) {
    parallel((t->c->tokens + 15) / 16, token_chunk, t, alone);
}

/* in: q, k and v side by side, or q alone if the source's keys and values are there already. New ones are all stored
 * first: a later token sees the earlier ones. */
static void attend(const operation *op, const call *c, float *in, float *out, int alone) {
    task t = {.op = op, .c = c, .in = in, .out = out};
    if (op->kind == ATTEND) each_token(&t, alone);
    parallel((c->tokens + QUERIES - 1) / QUERIES * op->heads, attend_chunk, &t, alone);
}

/* Makes and keeps the source's keys and values for a layer of cross attention; `in` stays. */
static void remember(const operation *op, const call *c, float *in, float *out, int alone) {
    operation part = {.kind = LINEAR, .weight = op->weight};
    linear(&part, c, in, out, c->tokens, alone);
    for (int64_t m = 0; m < c->tokens; m++) keep_heads(op, c, c->keys[op->layer], out, m);
    part.weight = op->second;
    linear(&part, c, in, out, c->tokens, alone);
    for (int64_t m = 0; m < c->tokens; m++) keep_heads(op, c, c->values[op->layer], out, m);
}

/* An LSTM layer. Tokens of one row come one after another, as each needs the state that the one before it leaves; so
 * `rows` is cut where it does not ascend, and the tokens of a part take their step together. The products with the
 * inputs do not wait for a state. The state is (B, H); gates (tokens, 4H) are made for it. */
static void recur(const operation *op, const call *c, float *in, float *out, float *gates, int alone) {
    const int64_t H = op->second.columns, width = c->width;
    operation part = {.kind = LINEAR, .weight = op->weight, .bias = op->bias};
    linear(&part, c, in, gates, c->tokens, alone);
    part = (operation){.kind = ADD, .weight = op->second};
    for (int64_t first = 0, end; first < c->tokens; first = end) {
        for (end = first + 1; end < c->tokens && c->rows[end] > c->rows[end - 1];) end++;
        for (int64_t m = first; m < end; m++)
            fetch(c->keys[op->layer], c->rows[m] * H, out + m * width, H, c->cache_dtype);
        linear(&part, c, out + first * width, gates + first * width, end - first, alone);
        for (int64_t m = first; m < end; m++) {
            float *cell = c->scratch;
            fetch(c->values[op->layer], c->rows[m] * H, cell, H, c->cache_dtype);
            chosen->recur(gates + m * width, out + m * width, cell, H);
            store(c->keys[op->layer], c->rows[m] * H, out + m * width, H, c->cache_dtype);
            store(c->values[op->layer], c->rows[m] * H, cell, H, c->cache_dtype);
        }
    }
}

/* Adds the norm of a layer's outputs to x. made: room for them. */
static void add_normed(const operation *op, const call *c, float *in, float *x, float *made, int alone) {
    operation part = *op;
    part.kind = LINEAR;
    linear(&part, c, in, made, c->tokens, alone);
    for (int64_t m = 0; m < c->tokens; m++) {
        float *y = made + m * c->width;
        chosen->rms_norm(y, op->second.data, op->number, op->weight.rows, y);
        for (int64_t i = 0; i < op->weight.rows; i++) x[m * c->width + i] += y[i];
    }
}

/* --- experts ---
 *
 * Each token has a few of many layers. The choices of all tokens are put in the order of the experts, so that each
 * chosen expert's weights are read once for all tokens that it has.
 */

typedef struct {
    int64_t count, top, experts; /* choices in all, of a token, and how many different experts are chosen */
    int32_t expert[MOST_CHOICES], first[MOST_CHOICES + 1]; /* of each chosen expert: its number, its first choice */
    int32_t token[MOST_CHOICES]; /* of each choice, in the order of the experts */
    int32_t place[MOST_CHOICES]; /* of each token's i-th choice: where it is in that order */
    float share[MOST_CHOICES];   /* likewise: its part of the sum */
} choices;

/* The `top` largest of each token's scores, of equal ones the first, and their softmax. */
static void choose_experts(const float *scores, int64_t stride, int64_t tokens, int64_t experts, int64_t top,
                           choices *found) {
    int32_t chosen[MOST_CHOICES], counts = 0;
    found->top = top;
    found->count = tokens * top;
    for (int64_t m = 0; m < tokens; m++) {
        const float *row = scores + m * stride;
        float *share = found->share + m * top, total = 0;
        for (int64_t i = 0; i < top; i++) {
            int64_t best = -1;
            for (int64_t e = 0; e < experts; e++) {
                int taken = 0; /* whatever the scores are, no expert has a token twice: there is no room for that */
                for (int64_t j = 0; j < i; j++) taken |= chosen[m * top + j] == e;
                if (!taken && (best < 0 || row[e] > row[best] || isnan(row[e]))) best = e;
            }
            chosen[m * top + i] = best;
            share[i] = row[best];
        }
        /* The first is the largest. */
        for (int64_t i = top - 1; i >= 0; i--) total += share[i] = expf(share[i] - share[0]);
        for (int64_t i = 0; i < top; i++) share[i] /= total;
    }
    found->experts = 0;
    for (int64_t e = 0; e < experts; e++) {
        const int32_t before = counts;
        for (int64_t i = 0; i < found->count; i++)
            if (chosen[i] == e) {
                found->token[counts] = i / top;
                found->place[i] = counts++;
            }
        if (counts == before) continue;
        found->expert[found->experts] = e;
        found->first[found->experts++] = before;
    }
    found->first[found->experts] = counts;
}

/* Even numbers of each block of 32 first, then its odd ones: the order of MXFP4's weights (kernels.h). */
static void unzip(const float *from, float *to, int64_t count) {
    for (int64_t block = 0; block < count; block += 32)
        for (int64_t i = 0; i < 32; i++) to[block + i % 2 * 16 + i / 2] = from[block + i];
}

typedef struct { /* what the chunks of EXPERTS and COMBINE share */
    const operation *op;
    const call *c;
    const choices *choices;
    const float *in;
    float *out;
    int64_t parts, zipped; /* parts: chunks of each expert; zipped: the results are to be unzipped */
} expert_task;

/* A part of the outputs of one expert, for all choices of it. */
static void experts_chunk(void *context, int64_t chunk, int thread) {
    const expert_task *t = context;
    const int64_t which = chunk / t->parts, part = chunk % t->parts, expert = t->choices->expert[which];
    const int64_t first = t->choices->first[which], tokens = t->choices->first[which + 1] - first;
    matrix w = t->op->weight;
    const int64_t begin = w.rows * part / t->parts / 64 * 64; /* even, and whole blocks of what comes out */
    const int64_t end = part + 1 == t->parts ? w.rows : w.rows * (part + 1) / t->parts / 64 * 64, n = end - begin;
    if (!n) return;
    w.data = (const char *)w.data + expert * w.stride * (w.transposed ? w.columns : w.rows);
    if (w.dtype == MXFP4) w.scales = (const uint8_t *)w.scales + expert * w.rows * (w.columns / 32);
    float bias[MOST_OUTPUTS + 64], gated[(MOST_OUTPUTS + 64) / 2], *sums = scratch(t->c, thread);
    fetch(t->op->second.data, expert * w.rows + begin, bias, n, t->op->second.dtype);
    chosen->linear(&w, begin, end, t->in + first * w.columns, w.columns, sums, n, tokens, room(t->c, thread));
    for (int64_t m = 0; m < tokens; m++) {
        float *row = sums + m * n;
        if (t->op->kind == COMBINE) {
            chosen->finish(row, bias, n, NONE);
            memcpy(t->out + (first + m) * w.rows + begin, row, n * sizeof(float));
            continue;
        }
        float *to = t->out + ((first + m) * w.rows + begin) / 2;
        chosen->gate_in_turn(row, bias, n / 2, t->op->number, t->op->cap, t->zipped ? gated : to);
        if (t->zipped) unzip(gated, to, n / 2);
    }
}

/* in, out: (choices, columns) and (choices, outputs), without gaps. */
static void experts(const operation *op, const call *c, const choices *found, const float *in, float *out, int zipped,
                    int alone) {
    /* As many chunks for each thread, and none larger than its sums have room for. */
    const int64_t parts = (op->weight.rows + MOST_OUTPUTS - 1) / MOST_OUTPUTS;
    expert_task t = {.op = op, .c = c, .choices = found, .in = in, .out = out, .parts = parts, .zipped = zipped};
    parallel(found->experts * parts, experts_chunk, &t, alone);
}

/* One group of a gated delta rule layer: a head of q and of k, and the heads of v that share them, with their part of
 * the convolution. Nothing of it is any other group's. The tokens of a row come one after another, as each finds the
 * state that the one before it leaves. */
static void delta_chunk(void *context, int64_t group, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t H = op->heads, G = op->groups, K = op->size, V = op->second.columns, share = H / G;
    const int64_t taps = op->weight.rows, channels = op->weight.columns;
    const int64_t places[] = {group * K, (G + group) * K, 2 * G * K + group * share * V}, sizes[] = {K, K, share * V};
    for (int64_t m = 0; m < c->tokens; m++) {
        float *in = t->in + m * c->width; /* q, k and v of all heads, then z, beta's number and the decay's */
        float *window = (float *)c->keys[op->layer] + c->rows[m] * (taps - 1) * channels;
        for (int i = 0; i < 3; i++)
            chosen->convolve(window + places[i], (const float *)op->weight.data + places[i], taps, channels,
                             in + places[i], sizes[i], op->activation);
        float *q = in + places[0], *k = in + places[1];
        chosen->unit(q, 1 / sqrtf(K), K);
        chosen->unit(k, 1, K);
        for (int64_t head = group * share; head < (group + 1) * share; head++) {
            float *state = (float *)c->values[op->layer] + (c->rows[m] * H + head) * K * V;
            float *out = t->out + m * c->width + head * V;
            const float *v = in + 2 * G * K + head * V, *z = in + channels + head * V;
            const float *numbers = in + channels + H * V + head;
            const float speed = numbers[H] + op->bias[H + head];
            const float decay = expf(op->bias[head] * (speed > 20 ? speed : log1pf(expf(speed)))); /* of softplus */
            chosen->delta_rule(state, q, k, v, decay, 1 / (1 + expf(-numbers[0])), K, V, out);
            chosen->rms_norm(out, op->second.data, op->number, V, out);
            chosen->gate(z, out, out, V, SILU);
        }
    }
}

static void run(const operation *ops, int64_t count, const call *c, int alone) {
    const int64_t width = c->width;
    float *x = c->x, *in = c->h, *out = c->g, *swap;
    int64_t offset = 0;
    choices found;
    for (const operation *op = ops; op < ops + count; op++) {
        switch (op->kind) {
        case EMBED:
            for (int64_t m = 0; m < c->tokens; m++) {
                chosen->row(&op->weight, c->ids[m], x + m * width);
                if (op->number)
                    for (int64_t i = 0; i < op->weight.columns; i++) x[m * width + i] *= op->number;
                if (op->second.data) {
                    chosen->row(&op->second, c->positions[m], out);
                    for (int64_t i = 0; i < op->weight.columns; i++) x[m * width + i] += out[i];
                }
                memcpy(in + m * width, x + m * width, op->weight.columns * sizeof(float));
            }
            break;
        case PLACE:
            for (int64_t m = 0; m < c->tokens; m++) {
                chosen->row(&op->weight, c->positions[m], x + m * width);
                for (int64_t i = 0; i < op->weight.columns; i++) x[m * width + i] += in[m * width + i];
                memcpy(in + m * width, x + m * width, op->weight.columns * sizeof(float));
            }
            break;
        case KEEP: memcpy(c->kept, x, c->tokens * width * sizeof(float)); break;
        case COPY: memcpy(in, x, c->tokens * width * sizeof(float)); break;
        case NORM:
        case RMS_NORM:
        case ROTATE:
        case GATE: {
            task t = {.op = op, .c = c, .in = in, .out = x};
            each_token(&t, alone);
            break;
        }
        case LINEAR:
            linear(op, c, in, out + offset, c->tokens, alone);
            offset = op->more ? offset + op->weight.rows : 0;
            if (!op->more) swap = in, in = out, out = swap;
            break;
        case ADD:
            if (op->second.data) add_normed(op, c, in, x, out, alone);
            else linear(op, c, in, x, c->tokens, alone);
            break;
        case ATTEND:
        case CROSS_ATTEND:
            attend(op, c, in, out, alone);
            swap = in, in = out, out = swap;
            break;
        case ROUTE: /* and what EXPERTS reads: each choice's inputs */
            linear(op, c, in, out, c->tokens, alone);
            choose_experts(out, width, c->tokens, op->weight.rows, op->groups, &found);
            for (int64_t i = 0; i < found.count; i++) {
                const float *from = in + found.token[i] * width;
                float *to = out + i * op->weight.columns;
                if (op[1].weight.dtype == MXFP4) unzip(from, to, op->weight.columns);
                else memcpy(to, from, op->weight.columns * sizeof(float));
            }
            swap = in, in = out, out = swap;
            break;
        case EXPERTS:
            experts(op, c, &found, in, out, op[1].weight.dtype == MXFP4, alone);
            swap = in, in = out, out = swap;
            break;
        case COMBINE:
            experts(op, c, &found, in, out, 0, alone);
            for (int64_t m = 0; m < c->tokens; m++)
                for (int64_t j = 0; j < found.top; j++) {
                    const float *from = out + found.place[m * found.top + j] * op->weight.rows;
                    const float share = found.share[m * found.top + j];
                    for (int64_t i = 0; i < op->weight.rows; i++) x[m * width + i] += share * from[i];
                }
            break;
        case DELTA_RULE: {
            task t = {.op = op, .c = c, .in = in, .out = out};
            parallel(op->groups, delta_chunk, &t, alone);
            swap = in, in = out, out = swap;
            break;
        }
        case REMEMBER: remember(op, c, in, out, alone); break;
        case RECUR:
            recur(op, c, in, x, out, alone);
            swap = in, in = x, x = swap;
            break;
        case LOGITS:
            for (int64_t i = 0; i < c->wanted_count; i++)
                if (c->wanted[i] != i) memcpy(in + i * width, in + c->wanted[i] * width, width * sizeof(float));
            if (op->number != 1)
                for (int64_t i = 0; i < c->wanted_count; i++)
                    for (int64_t k = 0; k < op->weight.columns; k++) in[i * width + k] *= op->number;
            if (c->wanted_count) linear(op, c, in, c->logits, c->wanted_count, alone);
            break;
        }
    }
}

/* Runs the operations for the tokens of the call. A second thread of the program that comes meanwhile works alone. */
API void decode(const operation *ops, int64_t count, const call *c) {
    int alone = c->threads < 2 || !try_lock(&pool.caller);
    if (!alone) {
        const int threads = c->threads < MOST_THREADS ? c->threads : MOST_THREADS;
        if (pool.helpers < threads - 1) start_helpers(threads - 1);
        const int before = atomic_exchange(&pool.threads, pool.helpers + 1 < threads ? pool.helpers + 1 : threads);
        if (before != atomic_load(&pool.threads)) {
            lock(&pool.guard);
            wake_all(&pool.wake); /* whoever is too many goes to wait for `more` */
            wake_all(&pool.more);
            unlock(&pool.guard);
        }
    }
    run(ops, count, c, alone);
    if (!alone) unlock(&pool.caller);
}
