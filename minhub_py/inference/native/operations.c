/* Runs a model's operations for some tokens: the C counterpart of the model's `forward`.
 *
 * Decoding reads every weight once per token, so memory sets its speed. native_runner.py passes the model as a list of
 * operations with pointers to PyTorch's weights. Arithmetic is float32, except for products with INT8 and NF4 weights
 * and blocks of 256
 * (integers), and with bfloat16 weights (except experts), keys and values where the processor multiplies bfloat16. */

#include "decoder.h"
#include "threads.h"

typedef struct { /* shared by the chunks of one operation */
    const operation *op;
    const linear_layer *layer; /* of a product */
    const call *c;
    float *in, *out;
    int64_t tokens, unit, chunks;
    int64_t padded;        /* codes of a token, including padding; 0: the inputs are floats */
    linear_kernel *kernel;
    int low_rank;          /* whether the product of an adapter is added */
} task;

static const int dtype_size[] = {[FLOAT32] = 4, [BFLOAT16] = 2, [FLOAT16] = 2};

/* The linear layer of an operation. */
static const linear_layer *layer_of(const operation *op) {
    switch (op->kind) {
    case ADD: return &op->add.linear;
    case LOGITS: return &op->logits.linear;
    case ROUTE: return &op->route.linear;
    case PROJECT: return &op->project.linear;
    default: return &op->linear;
    }
}

static float *scratch(const call *c, int thread) {
    return c->scratch + thread * c->scratch_width;
}

/* The workspace of a product, after the sums of a chunk. */
static float *workspace(const call *c, int thread) {
    return scratch(c, thread) + MAX_TOKENS * (MAX_OUTPUTS + 64);
}

/* The first output of a chunk: chunks have equal size, rounded to complete units. */
static int64_t first_output(const task *t, int64_t chunk) {
    const int64_t rows = t->layer->weight.rows;
    return chunk == t->chunks ? rows : rows * chunk / t->chunks / t->unit * t->unit;
}

static int16_t *codes(const call *c) {
    return (int16_t *)(c->codes + MAX_CHOICES); /* after the scales of the tokens */
}

/* The size of the codes of a token, in numbers of 16 bits. */
static int64_t padded_size(const matrix *w, int as_bytes) {
    if (w->dtype >= Q8_0 && w->int8_inputs) return w->int8_inputs * (w->columns / 32) * (int64_t)(sizeof(byte_group) / 2);
    if (w->dtype >= Q2_K) return w->columns / 256 * (int64_t)((as_bytes ? sizeof(k_bytes) : sizeof(k_input)) / 2);
    return (w->columns + 127) / 128 * 128 + (w->dtype == BFLOAT16 ? BF16_PADDING : 0);
}

static int reads_bytes(linear_kernel *kernel) {
    return kernel == kernels.linear_bytes || kernel == kernels.linear_k_bytes;
}

/* Quantizes the inputs of a token to 8 bits, and the remainders to 8 bits, as if they were a second token. */
static void quantize_twice(const matrix *w, const float *in, byte_group *to) {
    byte_group *second = to + w->columns / 32;
    float rest[128];
    for (int64_t k = 0; k < w->columns; k += 128, to += 4, second += 4) {
        const int64_t count = min64(w->columns - k, 128);
        kernels.quantize_in_groups(in + k, count, w->dtype, to);
        for (int64_t i = 0; i < count; i++) rest[i] = in[k + i] - to[i / 32].scale * to[i / 32].codes[i % 32];
        kernels.quantize_in_groups(rest, count, w->dtype, second);
    }
}

/* Converts the inputs of a token to codes. as_bytes: for a kernel that reads bytes. */
static void convert(const matrix *w, const float *in, int64_t padded, int as_bytes, int16_t *to, float *scale) {
    if (w->int8_inputs == 2) quantize_twice(w, in, (byte_group *)to);
    else if (w->dtype >= Q8_0 && w->int8_inputs) kernels.quantize_in_groups(in, w->columns, w->dtype, (byte_group *)to);
    else if (w->dtype >= Q2_K) kernels.quantize_blocks(in, w->columns, w->dtype, as_bytes, to);
    else if (w->dtype == BFLOAT16) kernels.to_bf16(in, w->columns, padded, to);
    else if (w->int8_inputs) kernels.quantize_groups(in, w->columns, padded, as_bytes, to, scale);
    else kernels.quantize_inputs(in, w->columns, padded, w->dtype, to, scale);
}

/* Converts the inputs of 16 tokens to codes. */
static void convert_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const int64_t padded = t->padded, first = 16 * chunk, count = min64(t->tokens - first, 16);
    const int tiled = t->kernel == kernels.linear_tiles;
    int16_t *rows = tiled ? (int16_t *)scratch(t->c, thread) : codes(t->c) + first * padded;
    for (int64_t m = first; m < first + count; m++)
        convert(&t->layer->weight, t->in + m * t->c->width, padded, reads_bytes(t->kernel), rows + (m - first) * padded,
                t->c->codes + m);
    for (int64_t k = 0; tiled && k < padded; k += 64)
        for (int64_t m = 0; m < count; m++)
            kernels.split_codes(rows + m * padded + k, m, (uint8_t *)codes(t->c) + 2 * (first * padded + 16 * k));
}

static void multiply(const task *t, int64_t begin, int64_t end, float *out, int64_t stride, int thread) {
    const call *c = t->c;
    const product p = {
        .weight = &t->layer->weight, .begin = begin, .end = end, .inputs = t->in, .codes = codes(c),
        .input_stride = t->padded ? t->padded : c->width, .input_scales = c->codes, .outputs = out,
        .output_stride = stride, .tokens = t->tokens, .workspace = workspace(c, thread)};
    t->kernel(&p);
}

/* Whether an adapter changes a token of the call. Layers with `adapted` compute all tokens; the head has no adapter then. */
static int is_adapted(const call *c, int64_t token) {
    return !c->adapted || c->adapted[token];
}

/* Whether a layer has an adapter, which changes at least one token. */
static int has_low_rank(const linear_layer *layer, const call *c, int64_t tokens) {
    if (!layer->low_a.data) return 0;
    for (int64_t m = 0; m < tokens; m++)
        if (is_adapted(c, m)) return 1;
    return 0;
}

/* Adds scale times the product of an adapter to outputs of a chunk. sums: a buffer (tokens, end - begin). */
static void add_low_rank(const task *t, int64_t begin, int64_t end, float *out, int64_t stride, float scale, float *sums,
                         int thread) {
    const int64_t n = end - begin;
    const product p = {.weight = &t->layer->low_b, .begin = begin, .end = end, .inputs = t->c->low,
                       .input_stride = t->c->width, .outputs = sums, .output_stride = n, .tokens = t->tokens,
                       .workspace = workspace(t->c, thread)};
    kernels.linear(&p);
    for (int64_t m = 0; m < t->tokens; m++)
        for (int64_t i = 0; i < n && is_adapted(t->c, m); i++) out[m * stride + i] += scale * sums[m * n + i];
}

static void linear_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const matrix *w = &t->layer->weight;
    const int64_t begin = first_output(t, chunk), end = first_output(t, chunk + 1), n = end - begin;
    const float *bias = t->layer->bias ? t->layer->bias + begin : NULL;
    if (t->op->kind != ADD) {
        const int64_t stride = t->op->kind == LOGITS ? w->rows : t->c->width;
        multiply(t, begin, end, t->out + begin, stride, thread);
        if (t->low_rank) add_low_rank(t, begin, end, t->out + begin, stride, 1, scratch(t->c, thread), thread);
        if (bias || t->op->activation)
            for (int64_t m = 0; m < t->tokens; m++)
                kernels.add_bias_activate(t->out + m * stride + begin, bias, n, t->op->activation);
        if (t->op->kind == LOGITS && t->op->logits.cap)
            for (int64_t m = 0; m < t->tokens; m++)
                kernels.soft_cap(t->out + m * stride + begin, n, t->op->logits.cap);
        return;
    }
    float *sums = scratch(t->c, thread); /* (tokens, n) */
    const float scale = t->op->add.scale ? t->op->add.scale : 1;
    multiply(t, begin, end, sums, n, thread);
    for (int64_t m = 0; m < t->tokens; m++) {
        kernels.add_bias_activate(sums + m * n, bias, n, t->op->activation);
        for (int64_t i = 0; i < n; i++) t->out[m * t->c->width + begin + i] += scale * sums[m * n + i];
    }
    if (t->low_rank) add_low_rank(t, begin, end, t->out + begin, t->c->width, scale, sums, thread);
}

/* The kernel for GGUF's blocks. tokens: of the call, also for experts, because the buffer of codes has space for a few
 * k_bytes, which are larger than k_input. */
static linear_kernel *select_blocks(const matrix *w, int64_t tokens) {
    if (w->int8_inputs) return kernels.linear_blocks;
    if (w->dtype < Q2_K) return kernels.linear;
    return kernels.linear_k_bytes && tokens == 1 && w->dtype != IQ4_XS ? kernels.linear_k_bytes : kernels.linear_k;
}

/* The kernel for a product. The thresholds are measured; integer kernels have bitwise the same results. */
static linear_kernel *select_kernel(const matrix *w, int64_t tokens) {
    const int int8 = w->dtype == INT8;
    if (w->dtype == BFLOAT16 && kernels.linear_bf16) return kernels.linear_bf16;
    if (w->dtype >= Q8_0) return select_blocks(w, tokens);
    if (!int8 && w->dtype != NF4) return kernels.linear;
    /* Tiles need 16 rows, and their 32 bits hold the sums of 2^15 products of 255 * 255. */
    if (kernels.linear_tiles && w->rows >= 16 && w->columns <= 1 << 15 &&
        (int8 ? tokens > 2 && w->columns % 64 == 0 : tokens > 6))
        return kernels.linear_tiles;
    if (kernels.linear_bytes && w->int8_inputs && w->rows >= 32 && tokens >= (int8 ? 12 : 9)) return kernels.linear_bytes;
    return int8 ? kernels.linear_int8 : kernels.linear_nf4;
}

/* Runs a job that converts activations, whose time is measured separately. */
static void convert_inputs(int64_t chunks, work *run, void *context, const call *c, int alone) {
    const double began = c->times ? clock_seconds() : 0;
    parallel(chunks, run, context, alone);
    if (c->times) c->times[0] += clock_seconds() - began;
}

/* Whether the codes of the previous operation's inputs are those of this one. */
static int converted(const operation *op, int64_t tokens, linear_kernel *kernel) {
    if (op->kind != LINEAR || !(op->flags & SAME_INPUTS)) return 0;
    const matrix *w = &op->linear.weight, *before = &op[-1].linear.weight;
    return w->dtype == before->dtype && w->int8_inputs == before->int8_inputs && select_kernel(before, tokens) == kernel;
}

/* A linear layer. Each thread has the same number of chunks, which are small, so that no thread waits long for the last. */
static void linear(const operation *op, const call *c, float *in, float *out, int64_t tokens, int alone) {
    const linear_layer *layer = layer_of(op);
    const matrix *w = &layer->weight;
    const int64_t block = w->by_columns ? TEXT_TOKENS : MAX_TOKENS;
    operation part = *op;
    if (tokens > block) part.flags &= ~SAME_INPUTS, op = &part;
    for (; tokens > block; tokens -= block) { /* of an encoder's prompt, which is not divided into chunks */
        linear(op, c, in, out, block, alone);
        in += block * c->width;
        out += block * c->width;
    }
    const int low_rank = has_low_rank(layer, c, tokens);
    if (low_rank) {
        const operation part = {.kind = LINEAR, .linear = {.weight = layer->low_a}};
        linear(&part, c, in, c->low, tokens, alone);
    }
    linear_kernel *kernel = select_kernel(w, tokens);
    const int complete_panels = tokens >= (w->dtype == NF4 ? 8 : 12) || kernel == kernels.linear_bytes || kernel == kernels.linear_blocks;
    const int64_t unit = w->transposed || w->by_columns ? 64 : complete_panels ? 32 : 8;
    int64_t most = max64((1 << 17) / w->stride, unit); /* outputs of a chunk */
    most = w->transposed ? MAX_OUTPUTS : w->by_columns ? 64 : min64(most, MAX_OUTPUTS);
    const int64_t per_thread = (w->rows + c->threads - 1) / c->threads;
    const int64_t chunks = c->threads * ((per_thread + most - 1) / most);
    task t = {.op = op, .layer = layer, .c = c, .in = in, .out = out, .tokens = tokens, .unit = unit, .chunks = chunks,
              .kernel = kernel, .low_rank = low_rank};
    if (kernel != kernels.linear) {
        t.padded = padded_size(w, reads_bytes(t.kernel));
        if (!converted(op, tokens, kernel)) convert_inputs((tokens + 15) / 16, convert_chunk, &t, c, alone);
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
    kernels.unpack_row(&row, 0, to);
}

/* The query heads of a KV head that one chunk computes: with single tokens, as many as leave a chunk for each thread. Several
 * tokens of a sequence share the keys of one head instead. */
static int64_t heads_together(const operation *op, const call *c) {
    const int64_t H = op->attend.heads, shared = H / op->attend.kv_heads;
    int64_t heads = op->attend.slopes || (c->tokens > 1 && c->rows[1] == c->rows[0]) ? 1 : min64(shared, QUERIES);
    while (shared % heads || (heads > 1 && H / heads * c->tokens < c->threads)) heads--;
    return heads;
}

static int64_t attend_blocks(const call *c, int64_t heads) { /* of QUERIES queries */
    return (c->tokens + QUERIES / heads - 1) / (QUERIES / heads);
}

/* Up to QUERIES queries of one sequence and KV head together; for cross attention, also of beams that share an encoder cache. */
static void attend_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t H = op->attend.heads, G = op->attend.kv_heads, D = op->attend.head_size, R = op->attend.reach;
    const int64_t heads = heads_together(op, c), blocks = attend_blocks(c, heads), together = QUERIES / heads;
    const int64_t head = chunk / blocks * heads, first = chunk % blocks * together; /* a head's keys stay in the L1 cache */
    const int64_t size = c->sizes[op->layer], end = min64(first + together, c->tokens);
    const int64_t *rows = op->kind == CROSS_ATTEND && c->encoder_rows ? c->encoder_rows : c->rows;
    query queries[QUERIES];
    int64_t count = 0;
    for (int64_t m = first; m < end; m++) {
        const int64_t length = op->kind == CROSS_ATTEND ? c->encoder_lengths[m] : c->positions[m] + 1;
        const int64_t window = op->attend.window, start = op->flags & CHUNKED ? (length - 1) / window * window
            : window && window < length ? length - window : 0;
        for (int64_t h = head; h < head + heads; h++, count++)
            queries[count] = (query){
                .q = t->in + m * c->width + h * (D + op->attend.gate), .out = t->out + m * c->width + h * D,
                .scores = scratch(c, thread) + count * (c->scratch_width / QUERIES), .position = c->positions[m],
                .first = start, .end = length,
                .bias = op->attend.bias ? op->attend.bias + h * (2 * R + 1) + R : NULL,
                .sink = op->attend.sinks ? op->attend.sinks + h : NULL};
        if (m + 1 < end && rows[m + 1] == rows[m]) continue;
        const int64_t *shared = c->sources && op->kind == ATTEND ? c->sources + rows[m] * c->source_count : NULL;
        const int64_t at = ((shared ? 0 : rows[m]) * G + head / (H / G)) * size * D * dtype_size[c->cache_dtype];
        const kv_head kv = {
            .keys = (const uint8_t *)c->keys[op->layer] + at, .values = (const uint8_t *)c->values[op->layer] + at,
            .rows = shared, .row_bytes = G * size * D * dtype_size[c->cache_dtype], .size = size, .D = D, .dtype = c->cache_dtype, .scale = op->attend.scale, .cap = op->attend.cap, .reach = R,
            .slope = op->attend.slopes ? op->attend.slopes[head] : 0, .rounded = op->flags & ROUNDED_SLOPES};
        const int bf16 = kernels.attend_bf16 && c->cache_dtype == BFLOAT16 && D <= MAX_BF16_HEAD;
        (bf16 ? kernels.attend_bf16 : kernels.attend)(&kv, queries, count);
        for (int64_t i = 0; i < count && op->attend.gate; i++)
            kernels.gate(queries[i].q + D, queries[i].out, queries[i].out, D, SIGMOID);
        count = 0;
    }
}

/* The blocks of TEXT_QUERIES queries of a text that start within as many tokens, for one head. */
static void attend_text_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t H = op->attend.heads, G = op->attend.kv_heads, D = op->attend.head_size, R = op->attend.reach;
    const int64_t blocks = (c->tokens + TEXT_QUERIES - 1) / TEXT_QUERIES, queries = D + op->attend.gate;
    const int64_t head = chunk / blocks, kv_head = head / (H / G), first = chunk % blocks * TEXT_QUERIES;
    for (int64_t m = first; m < min64(first + TEXT_QUERIES, c->tokens); m++) {
        const int64_t position = c->positions[m], start = m - position, length = c->encoder_lengths[m];
        if (position % TEXT_QUERIES) continue;
        const float *in = t->in + start * c->width, *k = in + H * queries + kv_head * D;
        /* of row 0, which may be before the buffer */
        const float *distances = op->attend.rows ? c->distances - c->first_distance * c->width + head * D : NULL;
        const text_head text = {
            .q = in + head * queries, .k = k, .v = k + G * D, .stride = c->width, .D = D, .first = position,
            .queries = min64(length - position, TEXT_QUERIES), .tokens = length, .window = op->attend.window,
            .scale = op->attend.scale, .cap = op->attend.cap, .reach = R,
            .slope = op->attend.slopes ? op->attend.slopes[head] : 0,
            .bias = op->attend.bias ? op->attend.bias + head * (2 * R + 1) + R : NULL,
            .sink = op->attend.sinks ? op->attend.sinks + head : NULL, .out = t->out + start * c->width + head * D,
            .distance_keys = op->flags & CONTENT_KEYS ? distances + c->distance_count * c->width : NULL,
            .distance_queries = op->flags & CONTENT_QUERIES ? distances + 2 * c->distance_count * c->width : NULL,
            .rows = op->attend.rows, .out_stride = c->width, .workspace = scratch(c, thread)};
        kernels.attend_text(&text);
        for (int64_t i = position; i < position + text.queries && op->attend.gate; i++)
            kernels.gate(text.q + i * c->width + D, text.out + i * c->width, text.out + i * c->width, D, SIGMOID);
    }
}

/* The norm of a query or key head v, if there is one: of each head, or of all query heads and of all key heads jointly. */
static void norm_head(const operation *op, int64_t head, float *v) {
    const int64_t H = op->rotate.heads, G = op->rotate.kv_heads, D = op->rotate.head_size;
    const float *norm = head < H ? op->rotate.q_norm : op->rotate.k_norm, epsilon = op->rotate.epsilon;
    const int64_t first = head < H ? 0 : H, heads = head < H ? H : G;
    if (!norm) return;
    if (op->flags & JOINT_NORM) {
        if (head != first) return;
        if (op->flags & LAYER_NORM) kernels.norm(v, norm, norm + heads * D, epsilon, heads * D, v);
        else kernels.rms_norm(v, norm, epsilon, heads * D, v);
    } else if (op->flags & LAYER_NORM) kernels.norm(v, norm + (head - first) * D, norm + heads * D, epsilon, D, v);
    else kernels.rms_norm(v, norm, epsilon, D, v);
}

/* Rotates the pairs (i, i + R/2), or (2i, 2i + 1), of each query and key head of token m by its position, before or after
 * the norms. */
static void rotate(const operation *op, const call *c, float *in, int64_t m) {
    const int64_t H = op->rotate.heads, G = op->rotate.kv_heads, D = op->rotate.head_size, R = op->rotate.rotated, half = R / 2;
    for (int64_t head = 0; head < H + G; head++) {
        float *v = in + m * c->width + head * D + (head < H ? head : H) * op->rotate.gate;
        if (!(op->flags & NORM_LAST)) norm_head(op, head, v);
        const float *cos = op->rotate.angles + c->positions[m] * 2 * R + (head < H ? 0 : R), *sin = cos + half;
        if (op->flags & INTERLEAVED)
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
        if (op->flags & NORM_LAST) norm_head(op, head, v);
    }
}

/* The inputs of all layers for token m: the norm of each layer's part of a projection, and the token's row, if any. */
static void layer_inputs(const operation *op, const call *c, float *projected, int64_t m) {
    const int64_t size = op->layer_inputs.size, count = op->layer_inputs.count;
    float *inputs = c->inputs + m * c->width;
    for (int64_t i = 0; i < count; i++) projected[i] *= op->layer_inputs.scale;
    for (int64_t first = 0; first < count; first += size)
        kernels.rms_norm(projected + first, op->layer_inputs.norm, op->layer_inputs.epsilon, size, projected + first);
    if (!op->layer_inputs.tokens.data) {
        memcpy(inputs, projected, count * sizeof(float));
        return;
    }
    kernels.unpack_row(&op->layer_inputs.tokens, c->ids[m], inputs);
    for (int64_t i = 0; i < count; i++)
        inputs[i] = (projected[i] + inputs[i] * op->layer_inputs.row_scale) * op->layer_inputs.factor;
}

/* Stores the G heads of D numbers of token m as keys or values of a layer in the slot of its position. */
static void cache_heads(const call *c, int layer, int64_t G, int64_t D, void *to, const float *in, int64_t m) {
    const int64_t size = c->sizes[layer];
    for (int64_t head = 0; head < G; head++)
        store(to, ((c->rows[m] * G + head) * size + c->positions[m] % size) * D, in + m * c->width + head * D, D,
              c->cache_dtype);
}

/* The saved residual stream at token m and the positions around it, side by side; zeros outside its text. */
static void neighbors(const operation *op, const call *c, float *out, int64_t m) {
    const int64_t count = op->neighbors.count, size = op->neighbors.size;
    float *to = out + m * c->width;
    for (int64_t i = 0; i < count; i++, to += size) {
        const int64_t distance = i - count / 2, position = c->positions[m] + distance;
        if (position < 0 || position >= c->encoder_lengths[m]) memset(to, 0, size * sizeof(float));
        else memcpy(to, c->saved + (m + distance) * c->width, size * sizeof(float));
    }
}

/* Operations on each token. out: the residual stream x, which norms read. */
static void token_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t last = 16 * chunk + 16 < c->tokens ? 16 * chunk + 16 : c->tokens;
    for (int64_t m = 16 * chunk; m < last; m++) {
        float *in = t->in + m * c->width, *x = t->out + m * c->width;
        const float *from = op->flags & FROM_SAVED ? c->saved + m * c->width : x;
        switch (op->kind) {
        case NORM:
            kernels.norm(from, op->norm.weight, op->norm.bias, op->norm.epsilon, op->norm.size, in);
            if (op->flags & TO_STREAM) memcpy(x, in, op->norm.size * sizeof(float));
            break;
        case RMS_NORM:
            kernels.rms_norm(from, op->norm.weight, op->norm.epsilon, op->norm.size, in);
            if (op->flags & TO_STREAM) memcpy(x, in, op->norm.size * sizeof(float));
            break;
        case JOIN:
            if (op->norm.bias) kernels.norm(x, op->norm.weight, op->norm.bias, op->norm.epsilon, op->norm.size, in);
            else kernels.rms_norm(x, op->norm.weight, op->norm.epsilon, op->norm.size, in);
            for (int64_t i = 0; i < op->norm.size; i++) x[i] = c->saved[m * c->width + i] + in[i];
            break;
        case ROTATE: rotate(op, c, t->in, m); break;
        case NORM_VALUES: {
            const int64_t G = op->norm_values.kv_heads, D = op->norm_values.head_size;
            float *v = in + (op->norm_values.heads + G) * D;
            for (int64_t head = 0; head < G; head++)
                kernels.rms_norm(v + head * D, op->norm_values.ones, op->norm_values.epsilon, D, v + head * D);
            break;
        }
        case NORM_PART: {
            const int64_t size = op->norm_part.size / op->norm_part.groups;
            for (int64_t i = 0; i < op->norm_part.size; i += size) {
                float *part = in + op->norm_part.first + i;
                kernels.rms_norm(part, op->norm_part.weight + i, op->norm_part.epsilon, size, part);
            }
            break;
        }
        case LAYER_INPUTS: layer_inputs(op, c, in, m); break;
        case PREDICTION_INPUTS: {
            const int64_t size = op->prediction_inputs.tokens.columns;
            const float epsilon = op->prediction_inputs.epsilon;
            kernels.unpack_row(&op->prediction_inputs.tokens, c->ids[m], in);
            kernels.rms_norm(in, op->prediction_inputs.token_norm, epsilon, size, in);
            kernels.rms_norm(c->hidden + m * size, op->prediction_inputs.hidden_norm, epsilon, size, in + size);
            break;
        }
        case GATE_INPUT: {
            const int64_t size = op->gate_input.size;
            kernels.gate(in, c->inputs + m * c->width + op->layer * size, in, size, op->activation);
            break;
        }
        case SCALE:
            for (int64_t i = 0; i < op->scale.size; i++) x[i] *= *op->scale.factor;
            break;
        case SCALE_PARTS:
            for (int64_t i = 0; i < op->scale_parts.size; i++) in[i] *= op->scale_parts.factors[i];
            break;
        case CLIP:
            for (int64_t i = 0; i < op->clip.size; i++) { /* keeps NaN */
                const float limit = op->clip.limit;
                in[i] = in[i] > limit ? limit : in[i] < -limit ? -limit : in[i];
            }
            break;
        case XIELU: kernels.xielu(in, op->xielu.weights, op->xielu.size); break;
        case GATE: {
            const int64_t width = op->gate.width;
            const float factor = op->gate.sigmoid ? 1 / (1 + expf(-in[2 * width])) : 1;
            kernels.gate(in, in + width, in, width, op->activation);
            for (int64_t i = 0; op->gate.sigmoid && i < width; i++) in[i] *= factor;
            break;
        }
        default: { /* ATTEND */
            const int64_t G = op->attend.kv_heads, D = op->attend.head_size;
            const float *keys = t->in + op->attend.heads * (D + op->attend.gate);
            cache_heads(c, op->layer, G, D, c->keys[op->layer], keys, m);
            cache_heads(c, op->layer, G, D, c->values[op->layer], keys + G * D, m);
        }
        }
    }
}

static void each_token(task *t, int alone) {
    parallel((t->c->tokens + 15) / 16, token_chunk, t, alone);
}

/* in: q, k and v side by side, or only q for cross attention. All new keys and values are cached first, because a later
 * token attends to the earlier ones. */
static void attend(const operation *op, const call *c, float *in, float *out, int alone) {
    task t = {.op = op, .c = c, .in = in, .out = out};
    if (op->kind == ATTEND && op->flags & BIDIRECTIONAL) {
        parallel((c->tokens + TEXT_QUERIES - 1) / TEXT_QUERIES * op->attend.heads, attend_text_chunk, &t, alone);
        return;
    }
    if (op->kind == ATTEND && !(op->flags & NO_KEYS)) each_token(&t, alone);
    const int64_t heads = heads_together(op, c);
    parallel(attend_blocks(c, heads) * (op->attend.heads / heads), attend_chunk, &t, alone);
}

/* Fills the encoder cache of a layer of cross attention with its keys and values; does not change `in`. */
static void fill_encoder_cache(const operation *op, const call *c, float *in, float *out, int alone) {
    const matrix *weights[] = {&op->encoder_cache.keys, &op->encoder_cache.values};
    const float *biases[] = {op->encoder_cache.key_bias, op->encoder_cache.value_bias};
    void *to[] = {c->keys[op->layer], c->values[op->layer]};
    for (int i = 0; i < 2; i++) {
        const operation part = {.kind = LINEAR, .linear = {.weight = *weights[i], .bias = biases[i]}};
        linear(&part, c, in, out, c->tokens, alone);
        for (int64_t m = 0; m < c->tokens; m++)
            cache_heads(c, op->layer, op->encoder_cache.kv_heads, op->encoder_cache.head_size, to[i], out, m);
    }
}

/* An LSTM layer. The tokens of a sequence run one after another, because each needs the previous state; so `rows` is divided
 * where it does not ascend, and the tokens of a part take their step together. The products with the inputs do not wait
 * for a state. The state is (B, size, H); gates (tokens, 4H) is a buffer. */
static void lstm(const operation *op, const call *c, float *in, float *out, float *gates, int alone) {
    const int64_t H = op->lstm.weight_hh.columns, width = c->width, size = c->sizes[op->layer];
    operation part = {.kind = LINEAR, .linear = {.weight = op->lstm.weight_ih, .bias = op->lstm.bias}};
    linear(&part, c, in, gates, c->tokens, alone);
    part = (operation){.kind = ADD, .add = {.linear = {.weight = op->lstm.weight_hh}}};
    for (int64_t first = 0, end; first < c->tokens; first = end) {
        for (end = first + 1; end < c->tokens && c->rows[end] > c->rows[end - 1];) end++;
        for (int64_t m = first; m < end; m++)
            fetch(c->keys[op->layer], (c->rows[m] * size + c->positions[m] % size) * H, out + m * width, H, c->cache_dtype);
        linear(&part, c, out + first * width, gates + first * width, end - first, alone);
        for (int64_t m = first; m < end; m++) {
            float *cell = c->scratch;
            const int64_t row = c->rows[m] * size, after = row + (c->positions[m] + 1) % size;
            fetch(c->values[op->layer], (row + c->positions[m] % size) * H, cell, H, c->cache_dtype);
            kernels.lstm_cell(gates + m * width, out + m * width, cell, H);
            store(c->keys[op->layer], after * H, out + m * width, H, c->cache_dtype);
            store(c->values[op->layer], after * H, cell, H, c->cache_dtype);
        }
    }
}

/* Adds the norm of a layer's outputs to x. outputs: a buffer for them. */
static void add_changed(const operation *op, const call *c, float *in, float *x, float *outputs, int alone) {
    const operation part = {.kind = LINEAR, .activation = op->activation, .linear = op->add.linear};
    const int64_t rows = part.linear.weight.rows;
    linear(&part, c, in + op->add.input, outputs, c->tokens, alone);
    for (int64_t m = 0; m < c->tokens; m++) {
        float *y = outputs + m * c->width;
        if (op->add.norm) kernels.rms_norm(y, op->add.norm, op->add.epsilon, rows, y);
        if (op->add.gate) kernels.gate(in + m * c->width + op->add.gate, y, y, rows, SIGMOID);
        const float scale = op->add.scale ? op->add.scale : 1;
        for (int64_t i = 0; i < rows; i++) x[m * c->width + i] += scale * y[i];
    }
}

/* --- mixture of experts ---
 *
 * The router selects a few experts for each token. The choices of all tokens are sorted by expert, so that each selected
 * expert's weights are read once for all of its tokens.
 */

typedef struct {
    int64_t count, top, experts; /* choices in total, choices per token, and selected experts */
    int32_t expert[MAX_CHOICES], first[MAX_CHOICES + 1]; /* of each selected expert: its index, its first choice */
    int32_t token[MAX_CHOICES];  /* of each choice, in the order of the experts */
    int32_t order[MAX_CHOICES];  /* of each token's i-th choice: its index in that order */
    float weight[MAX_CHOICES];   /* of each token's i-th choice: its weight in the sum */
} choices;

/* The weights of a token's selected experts, in place of their scores. row: the scores of all experts. */
static void weigh(const operation *op, const float *row, const int32_t *selected, float *weight) {
    const int64_t top = op->route.top;
    float total = 0, largest = row[selected[0]];
    for (int64_t i = 0; i < top; i++) weight[i] = row[selected[i]];
    if (op->route.sigmoid) {
        for (int64_t i = 0; i < top; i++) total += weight[i];
        total = op->route.normalize ? total + op->route.added : 1;
    } else {
        for (int64_t i = 1; i < top; i++) largest = weight[i] > largest ? weight[i] : largest;
        for (int64_t i = top - 1; i >= 0; i--) total += weight[i] = expf(weight[i] - largest);
        if (!op->route.normalize) { /* all experts */
            total = 0;
            for (int64_t e = 0; e < op->route.linear.weight.rows; e++) total += expf(row[e] - largest);
        }
    }
    for (int64_t i = 0; i < top; i++) weight[i] = weight[i] / total * op->route.factor;
    for (int64_t i = 0; op->route.factors && i < top; i++) weight[i] *= op->route.factors[selected[i]];
}

/* Selects the `top` experts with the largest scores for each token, the first of equal ones, and sorts by expert. */
static void select_experts(const operation *op, float *scores, int64_t stride, int64_t tokens, choices *result) {
    const int64_t experts = op->route.linear.weight.rows, top = op->route.top;
    const float *bias = op->route.choice_bias;
    int32_t selected[MAX_CHOICES], next[MAX_EXPERTS + 1] = {0};
    result->top = top;
    result->count = tokens * top;
    for (int64_t m = 0; m < tokens; m++) {
        float *row = scores + m * stride;
        uint8_t taken[MAX_EXPERTS] = {0}; /* also for NaN scores: the buffers have space for distinct experts only */
        for (int64_t e = 0; op->route.sigmoid && e < experts; e++) row[e] = 1 / (1 + expf(-row[e]));
        for (int64_t i = 0; i < top; i++) {
            int64_t best = -1;
            float most = 0;
            for (int64_t e = 0; e < experts; e++) {
                const float score = bias ? row[e] + bias[e] : row[e];
                if (!taken[e] && (best < 0 || score > most || isnan(score))) best = e, most = score;
            }
            taken[best] = 1;
            selected[m * top + i] = best;
            next[best + 1]++;
        }
        weigh(op, row, selected + m * top, result->weight + m * top);
    }
    result->experts = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (next[e + 1]) {
            result->expert[result->experts] = e;
            result->first[result->experts++] = next[e];
        }
        next[e + 1] += next[e];
    }
    result->first[result->experts] = result->count;
    for (int64_t i = 0; i < result->count; i++) {
        result->order[i] = next[selected[i]]++;
        result->token[result->order[i]] = i / top;
    }
}

/* Even numbers of each block of 32 first, then odd ones: the order of MXFP4 weights (blocks.h). */
static void unzip(const float *from, float *to, int64_t count) {
    for (int64_t block = 0; block < count; block += 32)
        for (int64_t i = 0; i < 32; i++) to[block + i % 2 * 16 + i / 2] = from[block + i];
}

typedef struct { /* shared by the chunks of EXPERTS and COMBINE */
    const operation *op;
    const call *c;
    const choices *choices;
    const float *in;
    float *out;
    int64_t parts, unzips; /* chunks of each expert; whether results are reordered for MXFP4 */
    int64_t padded;        /* codes of a choice, including padding; 0: the inputs are floats */
    linear_kernel *kernel;
} expert_task;

/* Converts the inputs of 16 choices to codes. */
static void convert_choices(void *context, int64_t chunk, int thread) {
    const expert_task *t = context;
    const matrix *w = &t->op->experts.weight;
    for (int64_t i = 16 * chunk; i < min64(16 * chunk + 16, t->choices->count); i++)
        convert(w, t->in + i * w->columns, t->padded, reads_bytes(t->kernel), codes(t->c) + i * t->padded, t->c->codes + i);
}

/* A part of the outputs of one expert, for all of its choices. */
static void experts_chunk(void *context, int64_t chunk, int thread) {
    const expert_task *t = context;
    const operation *op = t->op;
    const int64_t which = chunk / t->parts, part = chunk % t->parts, expert = t->choices->expert[which];
    const int64_t first = t->choices->first[which], tokens = t->choices->first[which + 1] - first;
    matrix w = op->experts.weight;
    const int64_t begin = w.rows * part / t->parts / 64 * 64; /* even, and complete blocks of the result */
    const int64_t end = part + 1 == t->parts ? w.rows : w.rows * (part + 1) / t->parts / 64 * 64, n = end - begin;
    if (!n) return;
    float *sums = scratch(t->c, thread); /* (matrices, tokens, n) */
    for (int64_t i = 0; i < op->experts.matrices; i++) {
        w.data = op->experts.data[i * op->experts.experts + expert];
        w.scales = op->experts.scales ? op->experts.scales[i * op->experts.experts + expert] : NULL;
        const product p = {
            .weight = &w, .begin = begin, .end = end, .inputs = t->in + first * w.columns,
            .codes = codes(t->c) + first * t->padded, .input_stride = t->padded ? t->padded : w.columns,
            .input_scales = t->c->codes + first, .outputs = sums + i * tokens * n, .output_stride = n, .tokens = tokens,
            .workspace = workspace(t->c, thread)};
        t->kernel(&p);
    }
    float bias[MAX_OUTPUTS + 64] = {0}, gated[(MAX_OUTPUTS + 64) / 2];
    if (op->experts.biases.data) fetch(op->experts.biases.data, expert * w.rows + begin, bias, n, op->experts.biases.dtype);
    for (int64_t m = 0; m < tokens; m++) {
        float *row = sums + m * n;
        if (op->kind == COMBINE || op->flags & UNGATED) {
            kernels.add_bias_activate(row, op->experts.biases.data ? bias : NULL, n, op->activation);
            memcpy(t->out + (first + m) * w.rows + begin, row, n * sizeof(float));
            continue;
        }
        if (op->experts.matrices == 2) {
            kernels.gate(row, row + tokens * n, t->out + (first + m) * w.rows + begin, n, op->activation);
            continue;
        }
        float *to = t->out + ((first + m) * w.rows + begin) / 2;
        kernels.gate_interleaved(row, bias, n / 2, op->experts.alpha, op->experts.limit, t->unzips ? gated : to);
        if (t->unzips) unzip(gated, to, n / 2);
    }
}

/* in, out: (choices, columns) and (choices, outputs), contiguous. */
static void experts(const operation *op, const call *c, const choices *selected, const float *in, float *out, int unzips,
                    int alone) {
    const matrix *w = &op->experts.weight;
    /* No chunk is larger than the space for its sums. */
    const int64_t most = op->experts.matrices == 2 ? 96 : MAX_OUTPUTS, parts = (w->rows + most - 1) / most;
    expert_task t = {.op = op, .c = c, .choices = selected, .in = in, .out = out, .parts = parts, .unzips = unzips};
    t.kernel = w->dtype >= Q8_0 ? select_blocks(w, c->tokens) : w->dtype == INT8 ? kernels.linear_int8
             : w->dtype == NF4 ? kernels.linear_nf4 : kernels.linear;
    if (t.kernel != kernels.linear) {
        t.padded = padded_size(w, reads_bytes(t.kernel));
        convert_inputs((selected->count + 15) / 16, convert_choices, &t, c, alone);
    }
    parallel(selected->experts * parts, experts_chunk, &t, alone);
}

/* Adds the weighted outputs of its experts to x, for 16 tokens. */
static void combine_chunk(void *context, int64_t chunk, int thread) {
    const expert_task *t = context;
    const int64_t rows = t->op->experts.weight.rows, top = t->choices->top;
    for (int64_t m = 16 * chunk; m < min64(16 * chunk + 16, t->c->tokens); m++)
        for (int64_t j = m * top; j < (m + 1) * top; j++) {
            const float *from = t->in + t->choices->order[j] * rows, weight = t->choices->weight[j];
            for (int64_t i = 0; i < rows; i++) t->out[m * t->c->width + i] += weight * from[i];
        }
}

typedef struct { /* slots of a row's state, before and after a token */
    int64_t before, after;
} slots;

/* The slots of token m, given those of token m - 1. Only the last `size` states of a row are stored: draft tokens can be
 * rejected. The tokens before them update one slot in place, which stays in the processor's cache. */
static slots slots_of(const call *c, int64_t size, int64_t m, slots previous) {
    const int64_t position = c->positions[m], later = m + size, row = c->rows[m];
    slots next = {.before = m && c->rows[m - 1] == row ? previous.after : position % size};
    const int in_place = later < c->tokens && c->rows[later] == row;
    next.after = in_place ? next.before : (position + 1) % size;
    return next;
}

/* One group of a gated delta rule layer: a head of queries and keys and the value heads that share it, with their part of
 * the convolution. Groups are independent. The tokens of a sequence run one after another, because each needs the previous
 * state. */
static void delta_chunk(void *context, int64_t group, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t H = op->delta_rule.heads, G = op->delta_rule.key_heads, K = op->delta_rule.key_size;
    const int64_t V = op->delta_rule.value_size, per_group = H / G;
    const int64_t taps = op->delta_rule.taps, channels = op->delta_rule.channels;
    const int64_t starts[] = {group * K, (G + group) * K, 2 * G * K + group * per_group * V}, sizes[] = {K, K, per_group * V};
    const int64_t size = c->sizes[op->layer], reach = (taps - 1) * channels;
    slots at = {0};
    for (int64_t m = 0; m < c->tokens; m++) {
        at = slots_of(c, size, m, at);
        const int64_t before = c->rows[m] * size + at.before, after = c->rows[m] * size + at.after;
        float *in = t->in + m * c->width; /* q, k and v of all heads, then z, beta and decay inputs */
        float *windows = c->keys[op->layer], *states = c->values[op->layer];
        for (int i = 0; i < 3; i++)
            kernels.convolve(windows + before * reach + starts[i], windows + after * reach + starts[i],
                             op->delta_rule.convolution + starts[i], taps, channels, in + starts[i], sizes[i],
                             op->activation);
        float *q = in + starts[0], *k = in + starts[1];
        kernels.normalize_length(q, 1 / sqrtf(K), K);
        kernels.normalize_length(k, 1, K);
        for (int64_t head = group * per_group; head < (group + 1) * per_group; head++) {
            float *out = t->out + m * c->width + head * V;
            const float *v = in + 2 * G * K + head * V, *z = in + channels + head * V;
            const float *numbers = in + channels + H * V + head;
            const float speed = numbers[H] + op->delta_rule.decay[H + head];
            const float decay = expf(op->delta_rule.decay[head] * (speed > 20 ? speed : log1pf(expf(speed)))); /* of softplus */
            kernels.delta_rule(states + (before * H + head) * K * V, states + (after * H + head) * K * V, q, k, v, decay,
                               1 / (1 + expf(-numbers[0])), K, V, out);
            kernels.rms_norm(out, op->delta_rule.norm, op->delta_rule.epsilon, V, out);
            kernels.gate(z, out, out, V, SILU);
        }
    }
}

/* 256 channels of a gated convolution over time, c * conv(b * x). The tokens of a sequence run one after another. */
static void short_convolution_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t taps = op->short_convolution.taps, channels = op->short_convolution.channels, first = 256 * chunk;
    const int64_t count = min64(channels - first, 256), size = c->sizes[op->layer], reach = (taps - 1) * channels;
    const float *bias = op->short_convolution.bias;
    float *windows = (float *)c->keys[op->layer] + first;
    slots at = {0};
    for (int64_t m = 0; m < c->tokens; m++) {
        at = slots_of(c, size, m, at);
        const float *b = t->in + m * c->width + first, *factor = b + channels, *x = factor + channels;
        float *out = t->out + m * c->width + first;
        for (int64_t i = 0; i < count; i++) out[i] = b[i] * x[i];
        kernels.convolve(windows + (c->rows[m] * size + at.before) * reach, windows + (c->rows[m] * size + at.after) * reach,
                         op->short_convolution.convolution + first, taps, channels, out, count, NONE);
        for (int64_t i = 0; i < count; i++) out[i] = factor[i] * (bias ? out[i] + bias[first + i] : out[i]);
    }
}

/* 256 channels of a convolution over time, in place. The tokens of a sequence run one after another. */
static void causal_convolution_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t taps = op->causal_convolution.taps, channels = op->causal_convolution.channels, first = 256 * chunk;
    const int64_t count = min64(channels - first, 256), size = c->sizes[op->layer], reach = (taps - 1) * channels;
    const float *bias = op->causal_convolution.bias ? op->causal_convolution.bias + first : NULL;
    float *windows = (float *)c->keys[op->layer] + first;
    slots at = {0};
    for (int64_t m = 0; m < c->tokens; m++) {
        at = slots_of(c, size, m, at);
        float *v = t->in + m * c->width + op->causal_convolution.first + first;
        kernels.convolve(windows + (c->rows[m] * size + at.before) * reach, windows + (c->rows[m] * size + at.after) * reach,
                         op->causal_convolution.convolution + first, taps, channels, v, count, NONE);
        kernels.add_bias_activate(v, bias, count, op->activation);
    }
}

/* The blocks of SCAN_CHANNELS channels of a head. */
static int64_t scan_blocks(const operation *op) {
    return (op->selective_scan.channels / op->selective_scan.heads + SCAN_CHANNELS - 1) / SCAN_CHANNELS;
}

/* A block of channels of a selective scan. The tokens of a sequence run one after another, because each needs the previous
 * state. */
static void scan_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t N = op->selective_scan.channels, H = op->selective_scan.heads, S = op->selective_scan.states, P = N / H;
    const int64_t blocks = scan_blocks(op), head = chunk / blocks, first = chunk % blocks * SCAN_CHANNELS;
    const int64_t group = head / (H / op->selective_scan.groups), at_channel = head * P + first, size = c->sizes[op->layer];
    const int64_t number = op->selective_scan.by_channel ? at_channel : head; /* of A, D and the steps */
    float *states = (float *)c->values[op->layer] + head * S * P + first;
    slots at = {0};
    for (int64_t m = 0; m < c->tokens; m++) {
        at = slots_of(c, size, m, at);
        const float *in = t->in + m * c->width;
        const scan token = {
            .state = states + (c->rows[m] * size + at.before) * S * N, .next = states + (c->rows[m] * size + at.after) * S * N,
            .x = in + op->selective_scan.x + at_channel, .z = in + op->selective_scan.z + at_channel,
            .b = in + op->selective_scan.b + group * S, .c = in + op->selective_scan.c + group * S,
            .dt = in + op->selective_scan.dt + number, .bias = op->selective_scan.bias ? op->selective_scan.bias + head : NULL,
            .decay = op->selective_scan.decay + number, .skip = op->selective_scan.skip + number, .states = S, .stride = P,
            .by_channel = op->selective_scan.by_channel, .out = t->out + m * c->width + at_channel};
        kernels.selective_scan(&token, min64(P - first, SCAN_CHANNELS));
    }
}

/* 256 channels of mixtures of each token and the previous one. The tokens of a sequence run one after another. */
static void token_shift_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t channels = op->token_shift.channels, first = 256 * chunk, count = min64(channels - first, 256);
    const int64_t size = c->sizes[op->layer];
    float *states = (float *)c->keys[op->layer] + first;
    slots at = {0};
    for (int64_t m = 0; m < c->tokens; m++) {
        at = slots_of(c, size, m, at);
        const float *before = states + (c->rows[m] * size + at.before) * channels, *in = t->in + m * c->width + first;
        for (int mix = 0; mix < op->token_shift.count; mix++) {
            const float *factors = op->token_shift.mixes + mix * channels + first;
            float *out = t->out + m * c->width + mix * channels + first;
            for (int64_t i = 0; i < count; i++) out[i] = before[i] + factors[i] * (in[i] - before[i]);
        }
        memcpy(states + (c->rows[m] * size + at.after) * channels, in, count * sizeof(float));
    }
}

/* 64 channels of a weighted average. The tokens of a sequence run one after another. */
static void wkv_chunk(void *context, int64_t chunk, int thread) {
    const task *t = context;
    const operation *op = t->op;
    const call *c = t->c;
    const int64_t N = op->wkv.channels, first = 64 * chunk, size = c->sizes[op->layer];
    float *states = (float *)c->values[op->layer] + first;
    slots at = {0};
    for (int64_t m = 0; m < c->tokens; m++) {
        at = slots_of(c, size, m, at);
        const float *in = t->in + m * c->width + first;
        const average token = {
            .state = states + (c->rows[m] * size + at.before) * 3 * N, .next = states + (c->rows[m] * size + at.after) * 3 * N,
            .k = in + op->wkv.k, .v = in + op->wkv.v, .r = in + op->wkv.r, .decay = op->wkv.decay + first,
            .bonus = op->wkv.bonus + first, .stride = N, .out = t->out + m * c->width + first};
        kernels.wkv(&token, min64(N - first, 64));
    }
}

static void run(const operation *ops, int64_t count, const call *c, int alone) {
    const int64_t width = c->width;
    float *x = c->x, *in = c->h, *out = c->g, *swap;
    int64_t offset = 0;
    choices selected;
    for (const operation *op = ops; op < ops + count; op++) {
        const double began = c->times ? clock_seconds() - c->times[0] : 0;
        switch (op->kind) {
        case EMBED: {
            const int64_t size = op->embed.tokens.columns;
            for (int64_t m = 0; m < c->tokens; m++) {
                kernels.unpack_row(&op->embed.tokens, c->ids[m], x + m * width);
                if (op->embed.scale)
                    for (int64_t i = 0; i < size; i++) x[m * width + i] *= op->embed.scale;
                if (op->embed.positions.data) {
                    kernels.unpack_row(&op->embed.positions, c->positions[m], out);
                    for (int64_t i = 0; i < size; i++) x[m * width + i] += out[i];
                }
                memcpy(in + m * width, x + m * width, size * sizeof(float));
            }
            break;
        }
        case POSITIONS:
        case TYPES:
            for (int64_t m = 0; m < c->tokens; m++) {
                const int64_t row = op->kind == POSITIONS ? c->positions[m] : c->types ? c->types[m] : 0;
                const int64_t size = op->rows.table.columns;
                kernels.unpack_row(&op->rows.table, row, x + m * width);
                for (int64_t i = 0; i < size; i++) x[m * width + i] += in[m * width + i];
                memcpy(in + m * width, x + m * width, size * sizeof(float));
            }
            break;
        case DISTANCES:
            for (int64_t i = 0; i < c->distance_count; i++) {
                float *row = c->distances + i * width;
                kernels.unpack_row(&op->distances.table, c->first_distance + i, row);
                if (op->distances.weight)
                    kernels.norm(row, op->distances.weight, op->distances.bias, op->distances.epsilon,
                                 op->distances.table.columns, row);
            }
            break;
        case DISTANCE_LINEAR:
            linear(op, c, c->distances, c->distances + (op->flags & TO_QUERIES ? 2 : 1) * c->distance_count * width,
                   c->distance_count, alone);
            break;
        case NEIGHBORS:
            for (int64_t m = 0; m < c->tokens; m++) neighbors(op, c, in, m);
            break;
        case SAVE: memcpy(c->saved, x, c->tokens * width * sizeof(float)); break;
        case COPY: memcpy(in, x, c->tokens * width * sizeof(float)); break;
        case STORE: memcpy(x, in, c->tokens * width * sizeof(float)); break;
        case HIDDEN_STATES: {
            const int64_t size = op->hidden_states.size;
            for (int64_t i = 0; i < c->output_count; i++)
                memcpy(c->logits + i * size, in + c->outputs[i] * width, size * sizeof(float));
            break;
        }
        case NORM:
        case RMS_NORM:
        case ROTATE:
        case NORM_VALUES:
        case NORM_PART:
        case LAYER_INPUTS:
        case GATE_INPUT:
        case SCALE:
        case JOIN:
        case PREDICTION_INPUTS:
        case SCALE_PARTS:
        case CLIP:
        case XIELU:
        case GATE: {
            task t = {.op = op, .c = c, .in = in, .out = x};
            each_token(&t, alone);
            break;
        }
        case LINEAR:
            linear(op, c, in, out + offset, c->tokens, alone);
            offset = op->flags & MORE_LINEAR ? offset + op->linear.weight.rows : 0;
            if (!(op->flags & MORE_LINEAR)) swap = in, in = out, out = swap;
            break;
        case ADD:
            if (op->add.norm || op->add.gate) add_changed(op, c, in, x, out, alone);
            else linear(op, c, in + op->add.input, x, c->tokens, alone);
            break;
        case ATTEND:
        case CROSS_ATTEND:
            attend(op, c, in, out, alone);
            swap = in, in = out, out = swap;
            break;
        case ROUTE: { /* also writes the inputs of each choice, which EXPERTS reads */
            const int64_t size = op->route.linear.weight.columns;
            for (int64_t m = 0; op->route.norm && m < c->tokens; m++)
                kernels.rms_norm(x + m * width, op->route.norm, op->route.epsilon, size, x + m * width);
            linear(op, c, op->route.norm ? x : in, out, c->tokens, alone);
            select_experts(op, out, width, c->tokens, &selected);
            for (int64_t i = 0; i < selected.count; i++) {
                const float *from = in + selected.token[i] * width;
                float *to = out + i * size;
                if (op[1].experts.weight.dtype == MXFP4) unzip(from, to, size);
                else memcpy(to, from, size * sizeof(float));
            }
            for (int64_t j = 0; op->flags & WEIGHTS_INPUTS && j < selected.count; j++) {
                float *to = out + selected.order[j] * size;
                for (int64_t i = 0; i < size; i++) to[i] *= selected.weight[j];
                selected.weight[j] = 1;
            }
            swap = in, in = out, out = swap;
            break;
        }
        case EXPERTS:
            experts(op, c, &selected, in, out, op[1].experts.weight.dtype == MXFP4, alone);
            swap = in, in = out, out = swap;
            break;
        case COMBINE:
            experts(op, c, &selected, in, out, 0, alone);
            for (int64_t m = 0; op->flags & REPLACES && m < c->tokens; m++)
                memset(x + m * width, 0, op->experts.weight.rows * sizeof(float));
            parallel((c->tokens + 15) / 16, combine_chunk,
                     &(expert_task){.op = op, .c = c, .choices = &selected, .in = out, .out = x}, alone);
            break;
        case DELTA_RULE: {
            task t = {.op = op, .c = c, .in = in, .out = out};
            parallel(op->delta_rule.key_heads, delta_chunk, &t, alone);
            swap = in, in = out, out = swap;
            break;
        }
        case SHORT_CONVOLUTION: {
            task t = {.op = op, .c = c, .in = in, .out = out};
            parallel((op->short_convolution.channels + 255) / 256, short_convolution_chunk, &t, alone);
            swap = in, in = out, out = swap;
            break;
        }
        case CAUSAL_CONVOLUTION: {
            task t = {.op = op, .c = c, .in = in};
            parallel((op->causal_convolution.channels + 255) / 256, causal_convolution_chunk, &t, alone);
            break;
        }
        case PROJECT: linear(op, c, in + op->project.input, in + op->project.output, c->tokens, alone); break;
        case SELECTIVE_SCAN: {
            task t = {.op = op, .c = c, .in = in, .out = out};
            parallel(op->selective_scan.heads * scan_blocks(op), scan_chunk, &t, alone);
            swap = in, in = out, out = swap;
            break;
        }
        case TOKEN_SHIFT: {
            task t = {.op = op, .c = c, .in = in, .out = out};
            parallel((op->token_shift.channels + 255) / 256, token_shift_chunk, &t, alone);
            swap = in, in = out, out = swap;
            break;
        }
        case WKV: {
            task t = {.op = op, .c = c, .in = in, .out = out};
            parallel((op->wkv.channels + 63) / 64, wkv_chunk, &t, alone);
            swap = in, in = out, out = swap;
            break;
        }
        case ENCODER_CACHE: fill_encoder_cache(op, c, in, out, alone); break;
        case LSTM:
            lstm(op, c, in, x, out, alone);
            swap = in, in = x, x = swap;
            break;
        case LOGITS: {
            const int64_t size = op->logits.linear.weight.columns;
            for (int64_t m = 0; c->hidden && m < c->tokens; m++)
                memcpy(c->hidden + m * size, in + m * width, size * sizeof(float));
            for (int64_t i = 0; i < c->output_count; i++)
                if (c->outputs[i] != i) memcpy(in + i * width, in + c->outputs[i] * width, width * sizeof(float));
            if (op->logits.scale != 1)
                for (int64_t i = 0; i < c->output_count; i++)
                    for (int64_t k = 0; k < size; k++) in[i * width + k] *= op->logits.scale;
            if (c->output_count) linear(op, c, in, c->logits, c->output_count, alone);
            break;
        }
        }
        if (c->times) c->times[1 + op - ops] += clock_seconds() - c->times[0] - began;
    }
}

/* Runs the operations for the tokens of the call. If another thread of the program uses the pool, this one works alone. */
API void decode(const operation *ops, int64_t count, const call *c) {
    const int owns_threads = claim_threads(c->threads);
    run(ops, count, c, !owns_threads);
    if (owns_threads) release_threads();
}
