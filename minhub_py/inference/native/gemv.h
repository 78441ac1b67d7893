/* Products with few tokens, in float32. Decoding reads every weight once per token, so memory sets its speed. */

/* outputs[t][r] = sum over k of weight[r][k] * inputs[t][k], for R rows and T tokens, both constants for the compiler. */
INLINE void dot_rows(const matrix *w, int64_t row, const float *in, int64_t in_stride, float *out, int64_t out_stride,
                      int R, int T, int dtype) {
    const int size = dtype == FLOAT32 ? 4 : 2;
    const int64_t stride = w->stride, columns = w->columns;
    const uint8_t *data = (const uint8_t *)w->data + row * stride;
    const uint8_t *exponents = w->scales; /* of MXFP4 */
    if (dtype == MXFP4) exponents += row * (columns / 32);
    vec sums[4][5];
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) sums[r][t] = (vec){0};
    int64_t k = 0;
    if (dtype == MXFP4) {
        for (; k < columns; k += 32)
            for (int r = 0; r < R; r++) {
                const uint8_t *block = data + r * stride + k / 2;
                __builtin_prefetch(block + PREFETCH, 0, 2);
                const float scale = power_of_two(exponents[r * (columns / 32) + k / 32]);
                UNROLL for (int part = 0; part < 32; part += LANES) {
                    vec weight = load_mxfp4(block, part, scale);
                    for (int t = 0; t < T; t++) sums[r][t] += weight * *(const vec_at *)(in + t * in_stride + k + part);
                }
            }
    } else if (dtype >= Q8_0) {
        const int64_t width = stride * 32 / columns; /* bytes of 32 weights */
        for (; k < columns; k += 32)
            for (int r = 0; r < R; r++) {
                vec weights[32 / LANES];
                __builtin_prefetch(data + (k / 32 * R + r) * width + PREFETCH, 0, 2); /* in the order of memory */
                unpack_block(data + r * stride, k, dtype == ANY_BLOCK ? w->dtype : dtype, weights);
                UNROLL for (int part = 0; part < 32; part += LANES)
                    for (int t = 0; t < T; t++)
                        sums[r][t] += weights[part / LANES] * *(const vec_at *)(in + t * in_stride + k + part);
            }
    } else {
        for (; k + LANES <= columns; k += LANES)
            for (int r = 0; r < R; r++) {
                __builtin_prefetch(data + r * stride + k * size + PREFETCH, 0, 2);
                vec weight = load(data + r * stride, k, dtype);
                for (int t = 0; t < T; t++) sums[r][t] += weight * *(const vec_at *)(in + t * in_stride + k);
            }
        if (k < columns)
            for (int r = 0; r < R; r++) {
                vec weight = load_tail(data + r * stride, k, columns - k, dtype);
                for (int t = 0; t < T; t++)
                    sums[r][t] += weight * load_tail(in + t * in_stride, k, columns - k, FLOAT32);
            }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) out[t * out_stride + r] = reduce_add(sums[r][t]);
}

/* Weights stored (out, in): outputs p->begin to p->end. */
INLINE void gemv_rows(const product *p, int dtype) {
    const matrix *w = p->weight;
    const int64_t begin = p->begin, end = p->end, in_stride = p->input_stride, out_stride = p->output_stride;
    const int64_t tokens = p->tokens;
    const float *in = p->inputs;
    float *out = p->outputs;
    /* A single token takes rows one after another, as FOR_ROWS does; not with few bytes at a time, because each addition
     * waits for the previous one. */
    const int one_row = tokens == 1 && dtype <= FLOAT16 && LANES * (dtype == FLOAT32 ? 4 : 2) >= 32;
    for (int64_t first = 0; first < tokens; first += 16) { /* 16 inputs stay in the L1 cache */
        const int64_t last = min64(first + 16, tokens);
        int64_t n = begin;
        for (; !one_row && n + 4 <= end; n += 4) {
            int64_t t = first;
            float *to = out + n - begin;
            for (; t + 4 <= last && t + 5 != last; t += 4)
                dot_rows(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 4, dtype);
            switch (last - t) { /* the remaining tokens together: another pass over the weights costs more */
            case 5: dot_rows(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 5, dtype); break;
            case 3: dot_rows(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 3, dtype); break;
            case 2: dot_rows(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 2, dtype); break;
            case 1: dot_rows(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 1, dtype);
            }
        }
        for (; n < end; n++)
            for (int64_t t = first; t < last; t++)
                dot_rows(w, n, in + t * in_stride, in_stride, out + t * out_stride + n - begin, out_stride, 1, 1, dtype);
    }
}

/* The same for V vectors of outputs of weights stored (in, out), in float32 or 16 bits. */
INLINE void dot_columns(const matrix *w, int64_t column, const float *in, int64_t in_stride, float *out,
                          int64_t out_stride, int V, int T, int dtype) {
    vec sums[256 / LANES][5];
    for (int v = 0; v < V; v++)
        for (int t = 0; t < T; t++) sums[v][t] = (vec){0};
    const uint8_t *data = (const uint8_t *)w->data;
    for (int64_t k = 0; k < w->columns; k++) {
        for (int v = 0; v < V; v++) {
            vec weight = load(data + k * w->stride, column + v * LANES, dtype);
            for (int t = 0; t < T; t++) sums[v][t] += weight * in[t * in_stride + k];
        }
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < V; v++) *(vec_at *)(out + t * out_stride + v * LANES) = sums[v][t];
}

/* Weights stored (in, out). wide: take a single token's outputs up to
 * 256 at a time, because memory is faster the more of each stored row is read at a time. */
INLINE void gemv_columns(const product *p, int dtype, int wide) {
    const matrix *w = p->weight;
    const int64_t begin = p->begin, end = p->end, in_stride = p->input_stride, out_stride = p->output_stride;
    const int64_t tokens = p->tokens;
    const float *in = p->inputs;
    float *out = p->outputs;
    int64_t n = begin;
    while (wide && tokens == 1 && n + 128 <= end) {
        const int64_t width = end - n >= 256 ? 256 : end - n >= 192 ? 192 : 128;
        if (width == 256) dot_columns(w, n, in, in_stride, out + n - begin, out_stride, 256 / LANES, 1, dtype);
        else if (width == 192) dot_columns(w, n, in, in_stride, out + n - begin, out_stride, 192 / LANES, 1, dtype);
        else dot_columns(w, n, in, in_stride, out + n - begin, out_stride, 128 / LANES, 1, dtype);
        n += width;
    }
    for (; n + 4 * LANES <= end; n += 4 * LANES) {
        int64_t t = 0;
        float *to = out + n - begin;
        for (; t + 4 <= tokens && t + 5 != tokens; t += 4)
            dot_columns(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 4, dtype);
        switch (tokens - t) { /* as above */
        case 5: dot_columns(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 5, dtype); break;
        case 3: dot_columns(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 3, dtype); break;
        case 2: dot_columns(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 2, dtype); break;
        case 1: dot_columns(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 1, dtype);
        }
    }
    for (; n + LANES <= end; n += LANES)
        for (int64_t t = 0; t < tokens; t++)
            dot_columns(w, n, in + t * in_stride, in_stride, out + t * out_stride + n - begin, out_stride, 1, 1, dtype);
    for (; n < end; n++)
        for (int64_t t = 0; t < tokens; t++) {
            const uint8_t *data = (const uint8_t *)w->data;
            float sum = 0;
            for (int64_t k = 0; k < w->columns; k++)
                sum = fmaf(load_tail(data + k * w->stride, n, 1, dtype)[0], in[t * in_stride + k], sum);
            out[t * out_stride + n - begin] = sum;
        }
}

/* Weights in GGUF's blocks of 32. A single token, where speed matters most, has code for each format. */
static void gemv_blocks(const product *p) {
    product rest = *p;
#if LANES > 4 || NEON
    for (; p->tokens == 1 && rest.begin + 4 <= p->end; rest.begin += 4, rest.outputs += 4) {
        const matrix *w = p->weight;
        const int64_t n = rest.begin;
        const float *in = p->inputs;
        float *to = rest.outputs;
        switch (w->dtype) {
        case Q8_0: dot_rows(w, n, in, 0, to, 0, 4, 1, Q8_0); break;
        case Q4_0: dot_rows(w, n, in, 0, to, 0, 4, 1, Q4_0); break;
        case Q4_1: dot_rows(w, n, in, 0, to, 0, 4, 1, Q4_1); break;
        case Q5_0: dot_rows(w, n, in, 0, to, 0, 4, 1, Q5_0); break;
        case Q5_1: dot_rows(w, n, in, 0, to, 0, 4, 1, Q5_1); break;
        case IQ4_NL: dot_rows(w, n, in, 0, to, 0, 4, 1, IQ4_NL); break;
        default: dot_rows(w, n, in, 0, to, 0, 4, 1, MXFP4_BLOCK);
        }
    }
#endif
    gemv_rows(&rest, ANY_BLOCK);
}

/* Each format has its own code, except 16-bit weights stored (in, out): only the experts of dequantized GPT-OSS. */
static void gemv(const product *p) {
    const int dtype = p->weight->dtype;
    if (p->weight->transposed) {
        if (dtype == FLOAT32) gemv_columns(p, FLOAT32, LANES > 4);
        else gemv_columns(p, dtype, 0);
        return;
    }
    switch (dtype) {
    case FLOAT32: gemv_rows(p, FLOAT32); break;
    case BFLOAT16: gemv_rows(p, BFLOAT16); break;
    case FLOAT16: gemv_rows(p, FLOAT16); break;
    case MXFP4: gemv_rows(p, MXFP4); break;
    default: gemv_blocks(p);
    }
}
