/* Products with bfloat16 weights on processors that multiply bfloat16 (AVX-512 with BF16).
 *
 * One instruction adds two products of bfloat16 to each float32 lane. So the inputs are rounded to bfloat16, too, as
 * PyTorch does. */

/* The `count` inputs of a token as bfloat16, then zeros up to `padded`. */
INLINE void to_bf16(const float *in, int64_t count, int64_t padded, int16_t *codes) {
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec x = i < count ? load_up_to(in, i, count - i, FLOAT32) : (vec){0};
        half_shorts rounded;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(x));
        *(half_shorts *)(codes + i) = rounded;
    }
}

INLINE vec dot_bf16(vec sums, shorts a, shorts b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}

/* Continues the sums of `rows_bf16` with 32 inputs; `mask` selects the inputs that the weights have. */
INLINE void step_bf16(const uint8_t *data, int64_t stride, __mmask32 mask, int64_t ahead, const int16_t *codes,
                             int64_t padded, vec sums[4][TILE], int R, int T) {
    const int16_t *later = T > 3 ? codes + 3 * padded : codes;
    /* Hides the pointers' origin: otherwise compilers keep one pointer per token, most of them in memory. */
    __asm__("" : "+r"(codes), "+r"(later));
    shorts x[TILE];
    UNROLL for (int t = 0; t < T; t++)
        x[t] = *(const shorts_at *)(t < 3 ? codes + t * padded : later + (t - 3) * padded);
    UNROLL for (int r = 0; r < R; r++) {
        const shorts weights = (shorts)_mm512_maskz_loadu_epi16(mask, data + r * stride);
        __builtin_prefetch(data + r * stride + ahead, 0, 2);
        UNROLL for (int t = 0; t < T; t++) sums[r][t] = dot_bf16(sums[r][t], weights, x[t]);
    }
}

#define GROUP_TOKENS (2 * TILE) /* tokens of long rows together */

#define GROUP_TOKENS (2 * TILE) /* tokens that take a part of long rows together */

/* As `dot_rows`, with the inputs from `begin` to `end`: complete vectors, except the last one. The sums start at zero, or
 * continue those in `partial`, where they return if further inputs follow. */
INLINE void rows_bf16(const matrix *w, int64_t row, const int16_t *codes, int64_t padded, int64_t begin, int64_t end,
                            int64_t ahead, float *partial, float *out, int64_t out_stride, int R, int T) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->stride;
    const int64_t stride = w->stride, complete = begin + (end - begin) / (2 * LANES) * (2 * LANES);
    vec sums[4][TILE];
    IN_REGISTERS for (int r = 0; r < R; r++)
        IN_REGISTERS for (int t = 0; t < T; t++) sums[r][t] = initial_sum(partial + (r * GROUP_TOKENS + t) * LANES, begin == 0);
    for (int64_t k = begin; k < complete; k += 2 * LANES)
        step_bf16(data + 2 * k, stride, ~0u, ahead, codes + k, padded, sums, R, T);
    if (complete < end) { /* never reads beyond the row */
        const __mmask32 mask = (1u << (end - complete)) - 1;
        step_bf16(data + 2 * complete, stride, mask, ahead, codes + complete, padded, sums, R, T);
    }
    IN_REGISTERS for (int t = 0; t < T; t++)
        if (end < w->columns)
            IN_REGISTERS for (int r = 0; r < R; r++) *(vec_at *)(partial + (r * GROUP_TOKENS + t) * LANES) = sums[r][t];
        else if (R == 4) reduce_add4(sums[0][t], sums[1][t], sums[2][t], sums[3][t], out + t * out_stride);
        else out[t * out_stride] = reduce_add(sums[0][t]);
}

/* workspace: GROUP_TOKENS * LANES floats for each output. */
static void linear_bf16(const product *p) {
    const matrix *w = p->weight;
    const int64_t begin = p->begin, end = p->end, tokens = p->tokens, padded = p->input_stride, columns = w->columns;
    const int64_t out_stride = p->output_stride;
    const int16_t *codes = p->codes;
    float *out = p->outputs, *partial = p->workspace;
    /* The inputs of a group of tokens and 4 rows stay in the L1 cache: 40 KB. Long rows are divided. */
    const int64_t depth = tokens > TILE && columns > 2 * DEEP ? DEEP : columns;
    const int64_t fit = 20480 / columns - 4;
    const int64_t group = depth < columns ? GROUP_TOKENS : fit > TILE ? fit / TILE * TILE : TILE;
    const int64_t ahead = depth < columns ? 4 * w->stride : PREFETCH; /* of divided rows: the next rows */
    for (int64_t start = 0; start < tokens; start += group) {
        const int64_t count = min64(tokens - start, group);
        for (int64_t k = 0; k < columns; k += depth) {
            const int64_t stop = min64(k + depth, columns);
#define DO_ROWS(R, T)                                                                                                   \
    rows_bf16(w, n, codes + (start + t) * padded, padded, k, stop, ahead,                                               \
              partial + ((n - begin) * GROUP_TOKENS + t) * LANES, out + (start + t) * out_stride + n - begin,           \
              out_stride, R, T)
            FOR_ROWS(begin, end, count, count, TILE, tokens <= 2)
#undef DO_ROWS
        }
    }
}

PEAK(peak_bfloats, vec, 2 * LANES, dot_bf16(sum, (shorts)sum, (shorts)x))
