/* Products with weights in GGUF's blocks of 256.
 *
 * Activations are quantized to 15 bits with a scale for each 256. In each block the products of codes are added exactly:
 * a lane of 32 bits holds the sum of 32 products of 2^12 * (2^14 - 1). The sums of the blocks are floats. All kernels of
 * an instruction set add them in the same order: first the blocks, each lane for itself, and finally the lanes. */

enum {
    SPANS = LANES == 4 ? 2 : 1, /* parts of a block whose sums fit into 32 bits */
    K_ROWS = LANES == 16 || NEON ? 4 : 2, /* of a tile, so that its sums fill the registers */
    K_TOKENS = LANES == 16 || NEON ? 3 : 2,
};

/* Quantizes the inputs of a token. An input that is not finite makes the scale NaN, and thereby all outputs. */
static void quantize_blocks(const float *in, int64_t count, k_input *to) {
    for (; count > 0; count -= 256, in += 256, to++) {
        float not_finite;
        const float most = largest(in, 256, &not_finite);
        const vec factor = broadcast(most >= 1e-30f ? 16383 / most : 0);
        to->scale = not_finite != 0 ? NAN : most >= 1e-30f ? most / 16383 : 0;
        for (int i = 0; i < 256; i += LANES) {
            const ints code = round_to_int(*(const vec_at *)(in + i) * factor);
            *(half_shorts *)(to->codes + i) = __builtin_convertvector(code, half_shorts);
        }
        for (int i = 0; i < 16; i++) {
            to->sums[i] = 0;
            for (int j = 0; j < 16; j++) to->sums[i] += to->codes[16 * i + j];
        }
    }
}

INLINE const k_input *k_inputs(const product *p, int64_t token) {
    return (const k_input *)(p->codes + token * p->input_stride);
}

INLINE vec add_minima(vec total, const ints *minima, vec offset, const k_input *in) {
    const vec factor = offset * in->scale;
    UNROLL for (int i = 0; i < 16 / LANES; i++)
        total -= factor * to_float((bits)(minima[i] * *(const ints_at *)(in->sums + i * LANES)));
    return total;
}

/* One output of one token. */
INLINE void dot_k(const product *p, int64_t row, int64_t token, int dtype) {
    const matrix *w = p->weight;
    const uint8_t *block = (const uint8_t *)w->data + row * w->stride;
    const k_input *in = k_inputs(p, token);
    vec total = {0};
    for (int64_t k = 0; k < w->columns; k += 256, block += k_width(dtype), in++) {
        const k_header h = k_header_of(block, dtype);
        UNROLL for (int line = 0; line * 64 < k_width(dtype); line++) __builtin_prefetch(block + 64 * line + PREFETCH);
        UNROLL for (int span = 0; span < SPANS; span++) {
            ints sums = {0};
            UNROLL for (int part = span * PARTS / SPANS; part < (span + 1) * PARTS / SPANS; part++)
                sums = add_products(sums, k_codes(block, &h, part * 2 * LANES, dtype),
                                    *(const shorts_at *)(in->codes + part * 2 * LANES));
            total += h.scale * in->scale * to_float((bits)sums);
        }
        if (has_minima(dtype)) {
            ints minima[16 / LANES];
            UNROLL for (int i = 0; i < 16 / LANES; i++) minima[i] = minima_at(&h, i);
            total = add_minima(total, minima, h.offset, in);
        }
    }
    p->outputs[token * p->output_stride + row - p->begin] = reduce_add(total);
}

typedef struct { /* an unpacked block */
    shorts codes[PARTS];
    ints minima[16 / LANES];
    vec scale, offset;
} k_block;

/* Unpacks a row to `panel`. */
INLINE void pack_k(const matrix *w, int64_t row, k_block *panel, int dtype) {
    const uint8_t *block = (const uint8_t *)w->data + row * w->stride;
    for (int64_t k = 0; k < w->columns; k += 256, block += k_width(dtype), panel++) {
        const k_header h = k_header_of(block, dtype);
        UNROLL for (int line = 0; line * 64 < k_width(dtype); line++)
            __builtin_prefetch(block + 64 * line + K_ROWS * w->stride);
        UNROLL for (int part = 0; part < PARTS; part++) panel->codes[part] = k_codes(block, &h, part * 2 * LANES, dtype);
        UNROLL for (int i = 0; i < 16 / LANES; i++) panel->minima[i] = minima_at(&h, i);
        panel->scale = h.scale, panel->offset = h.offset;
    }
}

/* K_ROWS outputs of T tokens. */
INLINE void tile_k(const product *p, const k_block *panel, int64_t row, int64_t token, int T) {
    const int64_t blocks = p->weight->columns / 256;
    const k_input *in[K_TOKENS];
    IN_REGISTERS for (int t = 0; t < T; t++) in[t] = k_inputs(p, token + t);
    vec totals[K_TOKENS][K_ROWS];
    IN_REGISTERS for (int t = 0; t < T; t++)
        IN_REGISTERS for (int r = 0; r < K_ROWS; r++) totals[t][r] = (vec){0};
    for (int64_t b = 0; b < blocks; b++, panel++) {
        UNROLL for (int span = 0; span < SPANS; span++) {
            ints sums[K_TOKENS][K_ROWS];
            IN_REGISTERS for (int t = 0; t < T; t++)
                IN_REGISTERS for (int r = 0; r < K_ROWS; r++) sums[t][r] = (ints){0};
            UNROLL for (int part = span * PARTS / SPANS; part < (span + 1) * PARTS / SPANS; part++) {
                shorts x[K_TOKENS];
                IN_REGISTERS for (int t = 0; t < T; t++) x[t] = *(const shorts_at *)(in[t][b].codes + part * 2 * LANES);
                IN_REGISTERS for (int r = 0; r < K_ROWS; r++)
                    IN_REGISTERS for (int t = 0; t < T; t++)
                        sums[t][r] = add_products(sums[t][r], panel[r * blocks].codes[part], x[t]);
            }
            IN_REGISTERS for (int r = 0; r < K_ROWS; r++)
                IN_REGISTERS for (int t = 0; t < T; t++)
                    totals[t][r] += panel[r * blocks].scale * in[t][b].scale * to_float((bits)sums[t][r]);
        }
        if (has_minima(p->weight->dtype))
            IN_REGISTERS for (int t = 0; t < T; t++)
                IN_REGISTERS for (int r = 0; r < K_ROWS; r++) {
                    const k_block *block = panel + r * blocks;
                    totals[t][r] = add_minima(totals[t][r], block->minima, block->offset, &in[t][b]);
                }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < K_ROWS; r++)
            p->outputs[(token + t) * p->output_stride + row + r - p->begin] =
                reduce_add(totals[t][r]);
}

static void tiles_k(const product *p, const k_block *panel, int64_t row) {
    for (int64_t t = 0; t < p->tokens; t += K_TOKENS)
        switch (p->tokens - t) {
        case 1: tile_k(p, panel, row, t, 1); break;
        case 2: tile_k(p, panel, row, t, 2); break;
        default: tile_k(p, panel, row, t, K_TOKENS);
        }
}

/* workspace: for the panel, K_ROWS unpacked rows. */
INLINE void gemm_k(const product *p, int dtype) {
    k_block *panel = (k_block *)(((uintptr_t)p->workspace + 63) / 64 * 64);
    const int64_t blocks = p->weight->columns / 256, tokens = p->tokens;
    int64_t n = p->begin;
    for (; tokens > 1 && n + K_ROWS <= p->end; n += K_ROWS) {
        for (int r = 0; r < K_ROWS; r++) pack_k(p->weight, n + r, panel + r * blocks, dtype);
        tiles_k(p, panel, n);
    }
    for (; n < p->end; n++)
        for (int64_t t = 0; t < tokens; t++) dot_k(p, n, t, dtype);
}

static void linear_k(const product *p) {
    switch (p->weight->dtype) {
    case Q2_K: gemm_k(p, Q2_K); break;
    case Q3_K: gemm_k(p, Q3_K); break;
    case Q4_K: gemm_k(p, Q4_K); break;
    case Q5_K: gemm_k(p, Q5_K); break;
    case Q6_K: gemm_k(p, Q6_K); break;
    default: gemm_k(p, IQ4_XS);
    }
}
