/* Data structures and the kernel table that all parts of the decoder share. library.py mirrors the structures, and
 * tests/inference/test_structures.py compares them. */

#ifndef DECODER_H
#define DECODER_H

#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#define NEON 1 /* every ARM processor with 64 bits has it */
#else
#define NEON 0
#endif

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

/* UNROLL: unrolls a loop completely. IN_REGISTERS: marks a loop over an array of accumulators. clang keeps the array in
 * memory unless every loop over it is unrolled early; GCC unrolls such loops itself, and better without the pragma. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define IN_REGISTERS UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#define IN_REGISTERS
#endif

/* Weight formats. Q8_0 and later are GGUF's block formats, of 32 weights and from Q2_K on of 256. MXFP4_BLOCK: MXFP4 in
 * GGUF's order. ANY_BLOCK is for the compiler: a format with 32 weights that is known only at run time. */
enum { FLOAT32, BFLOAT16, FLOAT16, INT8, NF4, MXFP4, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4_BLOCK, ANY_BLOCK,
       Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS };
enum { NONE, GELU, GELU_TANH, RELU, SILU, TANH, SIGMOID, SQUARED_RELU };
enum { EMBED, NORM, LINEAR, ADD, ATTEND, LSTM, LOGITS, RMS_NORM, ROTATE, GATE, SAVE, COPY, ROUTE, EXPERTS, COMBINE,
       POSITIONS, DELTA_RULE, CROSS_ATTEND, ENCODER_CACHE, TYPES, STORE, HIDDEN_STATES, SHORT_CONVOLUTION,
       NORM_VALUES, LAYER_INPUTS, GATE_INPUT, SCALE, JOIN, PREDICTION_INPUTS, DISTANCES, DISTANCE_LINEAR,
       NEIGHBORS, CLIP, XIELU, CAUSAL_CONVOLUTION, PROJECT, NORM_PART, SELECTIVE_SCAN, SCALE_PARTS, TOKEN_SHIFT,
       WKV };

#define NF4_UNIT 68      /* bytes of 128 NF4 weights */
#define MAX_TOKENS 128   /* per product */
#define BF16_PADDING 64  /* bfloat16 inputs between tokens: 4 KB apart, all tokens would share a few sets of the L1 cache */
#define TEXT_TOKENS 256  /* the same with weights `by_columns`, whose chunks have at most 128 outputs */
#define MAX_OUTPUTS 256  /* per chunk; the space for its sums is a unit of 64 outputs larger, times the tokens */
#define MAX_CHOICES 2048 /* selected experts of all tokens of a call */
#define MAX_EXPERTS 1024 /* of a layer */
#define QUERIES 6        /* tokens that attend together */
#define TEXT_QUERIES 96  /* the same without a KV cache; a multiple of every TILE */
#define SCAN_CHANNELS 64 /* channels of a selective scan that are computed together */
#define MAX_BF16_HEAD 256 /* largest head size of bfloat16 attention */
#define PANEL (1 << 15)  /* floats per unpacked panel of weights */
#define PREFETCH 8192    /* distance of prefetched weights in bytes; measured (docs/benchmarks/experiments.md) */
#define PREFETCH_KV 4096 /* the same for keys and values */

typedef struct {
    const void *data;     /* (rows, columns): outputs and inputs of a linear layer; transposed: stored (columns, rows) */
    const void *scales;   /* INT8, NF4: floats (rows,); MXFP4: exponents as bytes (rows, columns / 32) */
    int64_t rows, columns;
    int64_t stride;       /* bytes between stored rows */
    int32_t dtype, transposed;
    int32_t int8_inputs;  /* INT8, NF4, blocks: quantize activations to 8 bits instead of 15 or 16, or none; 2: to
                           8 bits and their remainders to 8 bits (blocks of 32) */
    int32_t by_columns;   /* FLOAT32, not transposed: for many tokens; every number of them has the same sums */
} matrix;

/* A linear layer: outputs = weight . inputs + low_b . low_a . inputs + bias. */
typedef struct {
    matrix weight;
    matrix low_a, low_b;   /* the factors of an adapter, float32 (rank, inputs) and (outputs, rank); data NULL: none */
    const float *bias;     /* or NULL */
} linear_layer;

typedef struct {
    int32_t kind, activation;
    int32_t layer;         /* of the cache, unused with BIDIRECTIONAL; GATE_INPUT: of the model; ROTATE: of its table, for
                              program.py */
    int32_t flags;
    union {                /* parameters by kind; sizes count numbers, and pointers to factors and norms are to float32 */
        struct { matrix tokens, positions; float scale; } embed; /* positions.data NULL, scale 0: none */
        struct { matrix table; } rows;     /* POSITIONS, TYPES: whose rows are added */
        struct {                           /* NORM, RMS_NORM, JOIN */
            const float *weight, *bias;
            int64_t size;
            float epsilon;
        } norm;
        linear_layer linear;               /* LINEAR, DISTANCE_LINEAR; layer_of finds those of the next three */
        struct {                           /* ADD */
            linear_layer linear;
            const float *norm;             /* RMS norm of the outputs, or NULL */
            float epsilon, scale;          /* of the norm; factor of the outputs, 0: none */
            int64_t input, gate;           /* first number of the inputs in a token; of the gate's logits, 0: none */
        } add;
        struct { linear_layer linear; float scale, cap; } logits; /* of the input; soft cap of the result, 0: none */
        struct {                           /* ROUTE; top: experts per token */
            linear_layer linear;           /* the router */
            int32_t top, normalize, sigmoid;
            float factor, epsilon, added;  /* added: to the sum of sigmoids that divides the weights */
            const float *choice_bias;      /* added to the scores for the choice of experts, or NULL */
            const float *norm;             /* RMS norm of the residual stream, which the router reads instead; or NULL. It
                                              replaces the residual stream: COMBINE must have REPLACES */
            const float *factors;          /* of the weight of each expert, or NULL */
        } route;
        struct {                           /* EXPERTS, COMBINE */
            matrix weight, biases;         /* of each expert, without its pointers; (experts, outputs), data NULL: none */
            const void *const *data, *const *scales; /* of each expert's weight; of two matrices, the gates first */
            int32_t experts, matrices;     /* matrices: 2, if gate and up are separate; otherwise 1 */
            float alpha, limit;            /* of the gate of one matrix with gate and up in alternate columns */
        } experts;
        struct {                           /* ROTATE */
            const float *angles;           /* by position: cos and sin for queries, then for keys */
            const float *q_norm, *k_norm;  /* of the heads, or NULL; with LAYER_NORM by head, followed by a
                                              bias: D zeros, with JOINT_NORM of all heads */
            int32_t heads, kv_heads, head_size, gate, rotated; /* gate, rotated: sizes */
            float epsilon;
        } rotate;
        struct { const float *ones; int32_t heads, kv_heads, head_size; float epsilon; } norm_values;
        struct {                           /* ATTEND, CROSS_ATTEND */
            const float *sinks;            /* of each head, or NULL */
            const float *bias;             /* by head and distance, from -reach to reach; or NULL */
            const float *slopes;           /* ALiBi: of each head, subtracted times the distance; or NULL */
            const int32_t *rows;           /* CONTENT_KEYS, CONTENT_QUERIES: of DISTANCES, by the query's position minus the
                                              key's; points to distance 0 */
            int64_t window;                /* attended positions, including the own one; 0: all */
            int32_t heads, kv_heads, head_size;
            int32_t gate;                  /* size of the gate after each query head */
            int32_t reach;                 /* largest distance in the bias */
            float scale, cap;              /* of the scores; cap 0: none */
        } attend;
        struct { matrix keys, values; const float *key_bias, *value_bias; int32_t kv_heads, head_size; } encoder_cache; /* projections to keys and values */
        struct { int32_t width, sigmoid; } gate; /* of the output; whether a factor's logit follows */
        struct { matrix weight_ih, weight_hh; const float *bias; } lstm;
        struct {                           /* DELTA_RULE */
            const float *convolution;      /* (taps, channels) */
            const float *norm;             /* of each head's output */
            const float *decay;            /* factors of the heads, then their softplus biases */
            int32_t taps, channels, heads, key_heads, key_size, value_size;
            float epsilon;
        } delta_rule;
        struct { const float *convolution, *bias; int32_t taps, channels; } short_convolution; /* bias: or NULL */
        struct {                           /* LAYER_INPUTS */
            matrix tokens;                 /* rows to look up, with the inputs of all layers; data NULL: none */
            int64_t count;                 /* numbers of all layers */
            const float *norm;             /* of a layer's part */
            int32_t size;                  /* of that part */
            float scale, row_scale, factor, epsilon; /* of the projection, of the row, of their sum; of the norm */
        } layer_inputs;
        struct { int32_t size; } gate_input; /* of a layer's part */
        struct { const float *factor; int64_t size; } scale;
        struct { matrix tokens; const float *token_norm, *hidden_norm; float epsilon; } prediction_inputs;
        struct { int64_t size; } hidden_states;
        struct {                           /* DISTANCES */
            matrix table;                  /* embeddings of distances */
            const float *weight, *bias;    /* of the norm of a row; or NULL */
            float epsilon;
        } distances;
        struct { int64_t count, size; } neighbors; /* positions side by side, numbers of each */
        struct { int64_t size; float limit; } clip; /* numbers of a token; the largest absolute value */
        struct { const float *weights; int64_t size; } xielu; /* weights: as in pointwise.h; numbers of a token */
        struct {                           /* CAUSAL_CONVOLUTION */
            const float *convolution, *bias; /* (taps, channels); (channels,) or NULL */
            int32_t taps, channels, first; /* first: number of a token that passes through the convolution */
        } causal_convolution;
        struct { linear_layer linear; int64_t input, output; } project; /* first number of its input and output in a token */
        struct {                           /* NORM_PART: RMS norms of `groups` equal parts of `size` numbers from `first` on */
            const float *weight;
            int32_t first, size, groups;
            float epsilon;
        } norm_part;
        struct {                           /* SELECTIVE_SCAN */
            const float *decay, *skip, *bias; /* A, D; bias of the steps (heads,), or NULL */
            int32_t by_channel;            /* A (states, channels), and D and steps by channel; otherwise all by head */
            int32_t channels, heads, states, groups;
            int32_t x, z, b, c, dt;        /* where the inputs begin in a token */
        } selective_scan;
        struct { const float *factors; int64_t size; } scale_parts; /* of each number of a token */
        struct { const float *mixes; int32_t count, channels; } token_shift; /* (count, channels) */
        struct {                           /* WKV */
            const float *decay, *bonus;    /* (channels,) */
            int32_t channels;
            int32_t k, v, r;               /* where the inputs begin in a token */
        } wkv;
    };
} operation;

/* operation.flags */
enum {
    MORE_LINEAR = 1, SAME_INPUTS = 2, /* LINEAR: the next LINEAR appends its output to this one; the previous did */
    FROM_SAVED = 1, TO_STREAM = 2,    /* NORM, RMS_NORM: reads what SAVE stored; replaces the residual stream, too */
    WEIGHTS_INPUTS = 1,               /* ROUTE: the weights multiply the inputs of the experts, not their outputs */
    REPLACES = 1,                     /* COMBINE: the sum replaces the residual stream */
    UNGATED = 1,                      /* EXPERTS: one matrix, whose outputs pass the activation */
    JOINT_NORM = 1, INTERLEAVED = 2,  /* ROTATE: one norm over all heads; rotates neighbors instead of halves */
    NORM_LAST = 4, LAYER_NORM = 8,    /* ROTATE: norms after the rotation; layer norms, with a weight for each head */
    ROUNDED_SLOPES = 2,               /* ATTEND, with a cache: see `kv_head` */
    NO_KEYS = 4,                      /* ATTEND: only q, to the keys and values that an earlier operation cached in `layer` */
    CONTENT_KEYS = 8, CONTENT_QUERIES = 16, /* ATTEND, BIDIRECTIONAL: adds the products of queries with the keys of distances,
                                         and of keys with the queries of distances */
    CHUNKED = 32,                     /* ATTEND, with a cache: to the positions of the same chunk of `window` positions */
    TO_QUERIES = 1,                   /* DISTANCE_LINEAR: the result are the queries of distances, not their keys */
    BIDIRECTIONAL = 1,                /* ATTEND: to all positions, or to `window` positions on both sides; without a cache */
};

typedef struct {
    int64_t tokens;
    const int64_t *ids, *rows, *positions; /* of each token: its ID, its row of the cache, its position in that row */
    const int64_t *encoder_lengths; /* of each token: positions in the encoder cache of its row (encoder-decoder), or of
                                     its text (encoder), whose tokens follow each other */
    const int64_t *types; /* of each token: its row of TYPES; NULL: row 0 */
    const int64_t *adapted; /* of each token: whether the products with low_a and low_b are added; NULL: to all */
    void *const *keys;    /* by layer: (B, G, size, D); LSTM: h (B, size, H); DELTA_RULE, SHORT_CONVOLUTION,
                             CAUSAL_CONVOLUTION, TOKEN_SHIFT (taps 2): previous inputs, float32 (B, size, taps - 1, channels) */
    void *const *values;  /* by layer: the same; LSTM: c (B, size, H); DELTA_RULE: state (B, size, H, K, V), float32;
                             SELECTIVE_SCAN: state (B, size, heads, states, channels of a head), float32; WKV: state
                             (B, size, 3, channels), float32 */
    const int64_t *sizes; /* by layer: slots of the cache; position p is in slot p % size, the state after n positions in
                             slot n % size */
    const int64_t *sources; /* (B, source_count): the row of the cache whose slot has the keys and values of a position, where
                             beams share them; NULL: each row has its own */
    int64_t source_count;   /* at least the number of positions */
    const int64_t *encoder_rows; /* of each token: the row of the encoder cache; NULL: its row */
    int32_t cache_dtype, threads;
    const int64_t *outputs; /* indices of the tokens whose logits are requested */
    int64_t output_count;
    float *logits;        /* (output_count, V), or (output_count, C) of HIDDEN_STATES */
    float *hidden;        /* (tokens, C): gets the inputs of LOGITS, of all tokens, or NULL; PREDICTION_INPUTS reads it first */
    float *x, *h, *g, *saved, *inputs; /* buffers (tokens, width); inputs: of LAYER_INPUTS */
    float *distances;     /* buffer (3, distance_count, width): embeddings of distances, their keys, their queries */
    int64_t first_distance, distance_count; /* the rows of DISTANCES that the texts need */
    float *low;           /* buffer (MAX_TOKENS, width) for the product with low_a */
    float *codes;         /* buffer of MAX_CHOICES floats, followed by MAX_TOKENS * (width * 7 / 4 + BF16_PADDING) 16-bit numbers */
    int64_t width;        /* a multiple of 128, at least the width of the widest operation */
    float *scratch;       /* (threads, scratch_width) */
    int64_t scratch_width;
    double *times;        /* seconds are added: of the conversion of activations, then of each operation without it; NULL: not
                             measured */
} call;

/* A product: outputs[t][n - begin] = weight[n] . inputs[t] for begin <= n < end and t < tokens. */
typedef struct {
    const matrix *weight;
    int64_t begin, end;
    const float *inputs;        /* (tokens, input_stride), or: */
    const int16_t *codes;       /* (tokens, input_stride): quantized activations (also k_input and k_bytes), or bfloat16 */
    int64_t input_stride;
    const float *input_scales;  /* of each token's codes */
    float *outputs;
    int64_t output_stride;
    int64_t tokens;
    float *workspace;           /* PANEL floats, and LANES floats for each token and output of a panel */
} product;

typedef struct { /* 256 quantized activations for weights in blocks of 256: input = scale * code; orders: k_quants.h */
    int16_t codes[256];
    int32_t sums[16]; /* of 16 codes each */
    float scale, padding[15];
} k_input;

typedef struct { /* the same for a single token: code = 128 * high + low */
    uint8_t low[256];
    int8_t high[256];
    union {
        int16_t pairs[128]; /* AVX2: sums of two codes each */
        int32_t starts[64]; /* VNNI: of the sums of four products each, for formats with an excess */
    };
    int32_t sums[16];
    float scale, padding[15];
} k_bytes;

typedef struct { /* 32 quantized activations for weights in blocks: input = scale * code */
    int8_t codes[32];
    float scale;
    int32_t starts[2]; /* of the sums of products of 16 codes each, or one of 32: minus the excess of the weights' codes times the
                          sum of the codes */
    float sums[2];     /* scale times that sum */
} byte_group;

typedef struct { /* the cached keys and values of one sequence and KV head */
    const uint8_t *keys, *values; /* (size, D); position p is in slot p % size */
    const int64_t *rows;          /* the row of each position, if beams share positions; keys and values are of row 0 then */
    int64_t row_bytes;            /* from row to row */
    int64_t size, D;
    int32_t dtype;
    float scale, cap; /* of the scores; cap 0: none */
    int64_t reach;    /* largest distance in a query's bias */
    float slope;      /* subtracted from the scores, times the distance of key and query; 0: none */
    int rounded;      /* the slope is added times the key's position and `scale`, the product rounded to bfloat16 */
} kv_head;

typedef struct { /* one token's query of one head */
    const float *q;
    float *out, *scores; /* (D,); space for the scores of all positions, and LANES more */
    int64_t position, first, end; /* its position; attends to first <= position < end */
    const float *bias;      /* bias[d] is added to the score of the key at distance d, -reach <= d <= reach; or NULL */
    const float *sink;      /* an additional score without a value, or NULL */
    const int16_t *rounded; /* bfloat16 attention: q, padded with zeros to a multiple of 32; otherwise NULL */
    float *sums;            /* bfloat16 attention: unfinished outputs, with the same padding */
} query;

typedef struct { /* a block of queries of one head; all its tokens are in the call */
    const float *q, *k, *v; /* of the text's first token; `stride` numbers from token to token */
    int64_t stride, D;
    int64_t first, queries, tokens; /* the first query and their number; tokens of the text */
    int64_t window;         /* attended positions on both sides, including the own one; 0: all */
    float scale, cap;       /* of the scores; cap 0: none */
    float slope;            /* as in `kv_head` */
    const float *bias;      /* as in `query` */
    const float *sink;
    int64_t reach;
    const float *distance_keys, *distance_queries; /* of row 0 of DISTANCES, `stride` numbers from row to row; or NULL */
    const int32_t *rows;    /* of DISTANCES; as in `operation` */
    float *out;             /* of the text's first token */
    int64_t out_stride;
    float *workspace;       /* TEXT_WORKSPACE(tokens, D) numbers */
} text_head;

/* Keys, values and the scores of QUERIES tokens with their outputs, rounded up to vectors of 16. */
#define TEXT_WORKSPACE(tokens, D) (((tokens) + 16) * (2 * ((D) + 16) + QUERIES) + QUERIES * ((D) + 32))
/* The same for distances: their keys, the scores of QUERIES tokens and of TEXT_QUERIES tokens, and some rows. */
#define DISTANCE_WORKSPACE(tokens, D) \
    (((tokens) + TEXT_QUERIES + 64) * (D) + QUERIES * ((tokens) + TEXT_QUERIES + 192) + TEXT_QUERIES * (tokens) + 16 * (D))

typedef struct { /* the selective scan of a token for some channels */
    const float *state; float *next; /* (states, stride): before and after the token; may be the same */
    const float *x, *z, *b, *c;      /* by channel, by channel, by number of the state, the same */
    const float *dt, *bias, *decay, *skip; /* by_channel: of each channel, and decay (states, stride); otherwise one number;
                                        bias: or NULL */
    int64_t states, stride;
    int by_channel;
    float *out;
} scan;

typedef struct { /* the weighted average of a token for some channels */
    const float *state; float *next; /* (3, stride): before and after the token; may be the same */
    const float *k, *v, *r, *decay, *bonus;
    int64_t stride;
    float *out;
} average;

typedef void linear_kernel(const product *p);

/* Adds products at the processor's highest rate, without memory: the reference of profiles. sums: zeros, PEAK_SUMS + 1
 * vectors. Returns the number of products. */
typedef int64_t peak_kernel(int64_t rounds, void *sums);
#define PEAK_SUMS 12
enum { FLOATS, BFLOATS, SHORTS, BYTES, PEAKS }; /* the factors of these products */

/* The kernels in use. `choose` fills the table level by level: each level replaces the kernels that it accelerates. */
typedef struct {
    linear_kernel *linear;       /* float inputs, any format except INT8, NF4 and blocks of 256 */
    linear_kernel *linear_int8, *linear_nf4; /* quantized activations with 16 bits (15 for NF4) */
    linear_kernel *linear_k;     /* blocks of 256: quantized activations with 15 bits */
    linear_kernel *linear_k_bytes; /* the same for a single token, except IQ4_XS; or NULL */
    linear_kernel *linear_blocks; /* GGUF's blocks: quantized activations with 8 bits */
    linear_kernel *linear_bytes; /* quantized activations with 8 bits, from 32 outputs on; or NULL */
    linear_kernel *linear_bf16;  /* bfloat16 inputs and weights; or NULL: bfloat16 weights take float inputs */
    linear_kernel *linear_tiles; /* INT8, NF4 with activations split into planes (AMX); or NULL */
    void (*quantize_inputs)(const float *, int64_t, int64_t, int, int16_t *, float *);
    void (*quantize_groups)(const float *, int64_t, int64_t, int, int16_t *, float *);
    void (*quantize_blocks)(const float *, int64_t, int, int, int16_t *);
    void (*quantize_in_groups)(const float *, int64_t, int, byte_group *);
    void (*to_bf16)(const float *, int64_t, int64_t, int16_t *);
    void (*split_codes)(const int16_t *, int64_t, uint8_t *);
    void (*add_bias_activate)(float *, const float *, int64_t, int);
    void (*unpack_row)(const matrix *, int64_t, float *);
    void (*attend)(const kv_head *, query *, int64_t);
    void (*attend_text)(const text_head *);
    void (*attend_bf16)(const kv_head *, query *, int64_t); /* or NULL */
    void (*lstm_cell)(float *, float *, float *, int64_t);
    void (*norm)(const float *, const float *, const float *, float, int64_t, float *);
    void (*rms_norm)(const float *, const float *, float, int64_t, float *);
    void (*gate)(const float *, const float *, float *, int64_t, int);
    void (*soft_cap)(float *, int64_t, float);
    void (*xielu)(float *, const float *, int64_t);
    void (*gate_interleaved)(const float *, const float *, int64_t, float, float, float *);
    void (*convolve)(const float *, float *, const float *, int64_t, int64_t, float *, int64_t, int);
    void (*normalize_length)(float *, float, int64_t);
    void (*delta_rule)(const float *, float *, const float *, const float *, const float *, float, float, int64_t, int64_t,
                       float *);
    peak_kernel *peaks[PEAKS];   /* BFLOATS: or NULL */
    void (*selective_scan)(const scan *, int64_t);
    void (*wkv)(const average *, int64_t);
} kernel_table;

extern kernel_table kernels;

/* Each level sets the entries that it implements. */
void use_plain(kernel_table *table);
void use_blocks_plain(kernel_table *table);
void use_blocks_avx2(kernel_table *table);
void use_blocks_vnni(kernel_table *table);
void use_avx2(kernel_table *table);
void use_avx512(kernel_table *table);
void use_vnni(kernel_table *table);
int use_bf16(kernel_table *table);    /* 0: the compiler does not know the instructions */
int use_amx(kernel_table *table);     /* 0: the processor or the system does not permit tiles */
int use_dotprod(kernel_table *table); /* 0: the processor lacks the instruction */

/* The levels of the NF4 format; quantize.py states their derivation. */
static const int8_t nf4[2][16] = {
    {0, 3, 6, 9, 12, 15, 19, 25, 31, -31, -23, -17, -13, -9, -6, -3},
    {0, 3, 6, 9, 12, 15, 20, 26, -31, -24, -19, -15, -11, -8, -5, -2},
};
/* For each byte of `nf4_unit.scales`: the levels; and for AVX2 the levels with the scale's sign, and the magnitude of the
 * scale in the lower or upper byte of two words, for a product with pairs of bytes. */
extern int16_t nf4_scaled[256][16];
typedef struct {
    _Alignas(32) int8_t levels[16];
    int32_t scales[2];
} nf4_factor;
extern nf4_factor nf4_factors[256];

/* The table of a byte, and its scale. */
static inline int nf4_table(uint8_t byte) { return byte >> 7; }
static inline int nf4_scale(uint8_t byte) { return (int8_t)(byte << 1) >> 1; }

/* Sign and magnitude, as in OCP's Microscaling Formats specification (2023). */
static const float mxfp4[16] = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
};

/* The levels of IQ4_NL and IQ4_XS. */
static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static inline float power_of_two(uint8_t exponent) { /* 2 to the power of exponent - 127 */
    const uint32_t pattern = exponent ? (uint32_t)exponent << 23 : 1u << 22;
    float value;
    memcpy(&value, &pattern, 4);
    return value;
}

static inline float half_to_float(uint16_t half) {
    uint32_t shifted = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value, factor = 0x1p112f; /* rebases the exponent; also normalizes a subnormal */
    memcpy(&value, &shifted, 4);
    value = (half & 0x7c00) == 0x7c00 ? (half & 0x3ff ? NAN : INFINITY) : value * factor;
    uint32_t pattern;
    memcpy(&pattern, &value, 4);
    pattern |= sign;
    memcpy(&value, &pattern, 4);
    return value;
}

static inline uint16_t float_to_half(float value) {
    uint32_t pattern, sign;
    memcpy(&pattern, &value, 4);
    sign = pattern >> 16 & 0x8000;
    pattern &= 0x7fffffff;
    if (pattern > 0x7f800000) return sign | 0x7e00;  /* NaN */
    if (pattern >= 0x477ff000) return sign | 0x7c00; /* 65520 and above: infinity */
    if (pattern < 0x38800000) { /* subnormal: the last bit of the sum is the last bit of the half */
        value = fabsf(value) + 0.5f;
        memcpy(&pattern, &value, 4);
        return sign | (pattern - 0x3f000000);
    }
    return sign | ((pattern - 0x38000000 + 0xfff + (pattern >> 13 & 1)) >> 13); /* round half to even */
}

static inline uint16_t float_to_bfloat16(float value) {
    uint32_t pattern;
    memcpy(&pattern, &value, 4);
    if ((pattern & 0x7fffffff) > 0x7f800000) return 0x7fc0; /* NaN */
    return (pattern + 0x7fff + (pattern >> 16 & 1)) >> 16;  /* round half to even */
}

static inline float round_to_bfloat16(float value) {
    const uint32_t pattern = (uint32_t)float_to_bfloat16(value) << 16;
    memcpy(&value, &pattern, 4);
    return value;
}

#endif
