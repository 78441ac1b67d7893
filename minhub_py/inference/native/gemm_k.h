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

/* Quantizes 256 inputs. codes: in the order of vectors of bytes. Returns the scale, which is NaN for an input that is not
 * finite, so that all outputs are NaN. */
INLINE float quantize_block(const float *in, int dtype, int16_t *codes, int32_t *sums) {
    float not_finite;
    const float most = largest(in, 256, &not_finite);
    const vec factor = broadcast(most >= 1e-30f ? 16383 / most : 0);
    for (int position = 0; position < 16; position++)
        for (int i = 0; i < 16; i += LANES) {
            const ints code = round_to_int(*(const vec_at *)(in + 16 * unit_at(position, dtype) + i) * factor);
            *(half_shorts *)(codes + 16 * position + i) = __builtin_convertvector(code, half_shorts);
        }
    for (int position = 0; position < 16; position++) { /* a separate loop, which compilers vectorize */
        sums[position] = 0;
        for (int i = 0; i < 16; i++) sums[position] += codes[16 * position + i];
    }
    return not_finite != 0 ? NAN : most >= 1e-30f ? most / 16383 : 0;
}

/* The even codes of each vector of bytes, then the odd ones. */
INLINE void quantize_shorts(const float *in, int64_t count, int dtype, k_input *to) {
    _Alignas(64) int16_t codes[256];
    for (; count > 0; count -= 256, in += 256, to++) {
        to->scale = quantize_block(in, dtype, codes, to->sums);
        for (int i = 0; i < 256; i += 2 * LANES) {
            const ints two = *(const ints *)(codes + i);
            int16_t *even = to->codes + i / (4 * LANES) * 4 * LANES + i % (4 * LANES) / 2;
            *(half_shorts *)even = __builtin_convertvector(two, half_shorts);
            *(half_shorts *)(even + 2 * LANES) = __builtin_convertvector(two >> 16, half_shorts);
        }
    }
}

INLINE const k_input *k_inputs(const product *p, int64_t token) {
    return (const k_input *)(p->codes + token * p->input_stride);
}

/* Keeps the compiler from broadcasting a number in registers: from memory it takes no vector instruction. */
#if LANES == 16
#define FROM_MEMORY(number) __asm__("" : "+m"(number))
#else
#define FROM_MEMORY(number)
#endif

/* Subtracts the part of the minima. sums, scale: of the inputs. */
INLINE vec add_minima(vec total, const ints *minima, float offset, const int32_t *sums, float scale) {
    float product = offset * scale;
    FROM_MEMORY(product);
    const vec factor = broadcast(product);
    UNROLL for (int i = 0; i < 16 / LANES; i++)
        total -= factor * to_float((bits)(minima[i] * *(const ints_at *)(sums + i * LANES)));
    return total;
}

INLINE void prefetch_block(const uint8_t *block, int64_t distance, int dtype) {
    UNROLL for (int line = 0; line * 64 < k_width(dtype); line++) __builtin_prefetch(block + 64 * line + distance, 0, 2);
}

/* The sums of a span of a block for one token. */
INLINE ints sum_span(const uint8_t *block, const k_header *h, const int16_t *codes, int span, int dtype) {
    ints sums = {0};
    UNROLL for (int i = span * VECTORS / SPANS; i < (span + 1) * VECTORS / SPANS; i++) {
        const bits stored = stored_codes(block, i, dtype);
        const shorts scales = scales_at(h->scales, i);
        UNROLL for (int odd = 0; odd < 2; odd++)
            sums = add_products(sums, k_codes(stored, scales, odd, dtype),
                                *(const shorts_at *)(codes + 4 * LANES * i + 2 * LANES * odd));
    }
    return sums;
}

/* Adds a block for one token to `total`, whose sums of products were computed. */
INLINE vec add_block(vec total, const ints *sums, const k_header *h, const int32_t *input_sums, float scale, int dtype) {
    float product = h->scale * scale;
    FROM_MEMORY(product);
    UNROLL for (int span = 0; span < SPANS; span++) total += broadcast(product) * to_float((bits)sums[span]);
    if (!has_minima(dtype)) return total;
    ints minima[16 / LANES];
    UNROLL for (int i = 0; i < 16 / LANES; i++) minima[i] = minima_at(h, i);
    return add_minima(total, minima, h->offset, input_sums, scale);
}

/* One output of one token. */
INLINE void dot_k(const product *p, int64_t row, int64_t token, int dtype) {
    const matrix *w = p->weight;
    const uint8_t *block = (const uint8_t *)w->data + row * w->stride;
    const k_input *in = k_inputs(p, token);
    vec total = {0};
    for (int64_t k = 0; k < w->columns; k += 256, block += k_width(dtype), in++) {
        const k_header h = k_header_of(block, dtype);
        prefetch_block(block, PREFETCH, dtype);
        ints sums[SPANS];
        UNROLL for (int span = 0; span < SPANS; span++) sums[span] = sum_span(block, &h, in->codes, span, dtype);
        total = add_block(total, sums, &h, in->sums, in->scale, dtype);
    }
    p->outputs[token * p->output_stride + row - p->begin] = reduce_add(total);
}

typedef struct { /* an unpacked block */
    shorts codes[2 * VECTORS];
    ints minima[16 / LANES];
    float scale, offset;
} k_block;

/* Unpacks a row to `panel`. */
INLINE void pack_k(const matrix *w, int64_t row, k_block *panel, int dtype) {
    const uint8_t *block = (const uint8_t *)w->data + row * w->stride;
    for (int64_t k = 0; k < w->columns; k += 256, block += k_width(dtype), panel++) {
        const k_header h = k_header_of(block, dtype);
        prefetch_block(block, K_ROWS * w->stride, dtype);
        UNROLL for (int i = 0; i < VECTORS; i++) {
            const bits stored = stored_codes(block, i, dtype);
            const shorts scales = scales_at(h.scales, i);
            UNROLL for (int odd = 0; odd < 2; odd++) panel->codes[2 * i + odd] = k_codes(stored, scales, odd, dtype);
        }
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
            UNROLL for (int part = span * 2 * VECTORS / SPANS; part < (span + 1) * 2 * VECTORS / SPANS; part++) {
                shorts x[K_TOKENS];
                IN_REGISTERS for (int t = 0; t < T; t++) x[t] = *(const shorts_at *)(in[t][b].codes + part * 2 * LANES);
                IN_REGISTERS for (int r = 0; r < K_ROWS; r++)
                    IN_REGISTERS for (int t = 0; t < T; t++)
                        sums[t][r] = add_products(sums[t][r], panel[r * blocks].codes[part], x[t]);
            }
            IN_REGISTERS for (int r = 0; r < K_ROWS; r++)
                IN_REGISTERS for (int t = 0; t < T; t++)
                    totals[t][r] += broadcast(panel[r * blocks].scale * in[t][b].scale) * to_float((bits)sums[t][r]);
        }
        if (has_minima(p->weight->dtype))
            IN_REGISTERS for (int t = 0; t < T; t++)
                IN_REGISTERS for (int r = 0; r < K_ROWS; r++) {
                    const k_block *block = panel + r * blocks;
                    totals[t][r] = add_minima(totals[t][r], block->minima, block->offset, in[t][b].sums,
                                              in[t][b].scale);
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

#if LANES >= 8
enum { K_BYTE_ROWS = LANES == 16 ? 2 : 1 }; /* whose products share the loaded activations */
#if LANES == 16
/* sums + four neighboring products of bytes without and with a sign in each lane. */
INLINE ints add_fours(ints sums, bits codes, ints with) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(with));
    return sums;
}
#endif

typedef int8_t narrow_bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));

/* A single token in bytes: weights times the low and times the high parts of activations. The sums of each lane are the same
 * as with 16 bits. less: the excess of the stored codes. */
INLINE void quantize_bytes(const float *in, int64_t count, int dtype, int less, k_bytes *to) {
    _Alignas(64) int16_t codes[256];
    for (; count > 0; count -= 256, in += 256, to++) {
        to->scale = quantize_block(in, dtype, codes, to->sums);
        for (int i = 0; i < 256; i += 2 * LANES) {
            const shorts two = *(const shorts *)(codes + i);
            *(narrow_bytes *)(to->low + i) = __builtin_convertvector(two & 127, narrow_bytes);
            *(narrow_bytes *)(to->high + i) = __builtin_convertvector(two >> 7, narrow_bytes);
#if LANES == 8
            const ints pairs = add_products((ints){0}, two, (shorts){0} + 1);
            *(half_shorts *)(to->pairs + i / 2) = __builtin_convertvector(pairs, half_shorts);
#endif
        }
#if LANES == 16
        for (int i = 0; i < 256; i += 64) { /* as `sum_bytes` explains */
            const bits ones = (bits){0} + 0x01010101;
            const bits high = (bits)add_fours((ints){0}, ones, *(const ints_at *)(to->high + i));
            const bits low = (bits)add_fours((ints){0}, ones, *(const ints_at *)(to->low + i));
            *(bits_at *)(to->starts + i / 4) = ((-less * high - 128) << 16) + 128 * 128 - less * low;
        }
#endif
    }
}

#if LANES == 16
/* The products of R blocks with 256 inputs. A sum of eight products of Q4_K and Q5_K, or of four of others, fits into 16 bits:
 * 8 * 31 * 128, 4 * 63 * 128. The lower half of each lane is the sum with the low parts, the upper half with the high parts, and
 * one instruction multiplies both by the scales. `starts` subtracts the excess, but would make the lower half negative; it
 * therefore moves 128 * 128 there, which is 128 in the upper half. */
INLINE void sum_bytes(const uint8_t *const *blocks, const k_header *h, const k_bytes *in, ints *sums, int R, int dtype) {
    const int count = in_pairs(dtype) ? 2 : 1;
    ints scales[K_BYTE_ROWS];
    UNROLL for (int r = 0; r < R; r++) scales[r] = scales_of_bytes(h[r].scales), sums[r] = (ints){0};
    UNROLL for (int i = 0; i < VECTORS; i += count) {
        bits stored[K_BYTE_ROWS][2];
        ints both[K_BYTE_ROWS];
        UNROLL for (int r = 0; r < R; r++) both[r] = (ints){0};
        UNROLL for (int j = 0; j < count; j++) {
            const ints x = *(const ints_at *)(in->high + 64 * (i + j));
            UNROLL for (int r = 0; r < R; r++) {
                stored[r][j] = stored_codes(blocks[r], i + j, dtype);
                both[r] = add_fours(both[r], stored[r][j], x);
            }
        }
        UNROLL for (int r = 0; r < R; r++) both[r] = (ints)((bits)both[r] << 16);
        if (excess(dtype)) {
            const ints x = *(const ints_at *)(in->starts + 16 * i);
            UNROLL for (int r = 0; r < R; r++) both[r] += x;
        }
        UNROLL for (int j = 0; j < count; j++) {
            const ints x = *(const ints_at *)(in->low + 64 * (i + j));
            UNROLL for (int r = 0; r < R; r++) both[r] = add_fours(both[r], stored[r][j], x);
        }
        const __m512i unit = (__m512i)(lane_numbers / 4 + 4 * i);
        UNROLL for (int r = 0; r < R; r++)
            sums[r] = add_products(sums[r], (shorts)both[r], (shorts)_mm512_permutexvar_epi32(unit, (__m512i)scales[r]));
    }
}
#else
/* The sums of two neighboring products of bytes without and with a sign, of one or two vectors: at most 4 * 31 * 128. */
INLINE shorts multiply_bytes(const bits *codes, const void *with, int count) {
    shorts sums = (shorts)_mm256_maddubs_epi16((__m256i)codes[0], _mm256_loadu_si256(with));
    if (count == 2) sums += (shorts)_mm256_maddubs_epi16((__m256i)codes[1], _mm256_loadu_si256((const __m256i *)with + 2));
    return sums;
}

INLINE void sum_bytes(const uint8_t *const *blocks, const k_header *h, const k_bytes *in, ints *sums, int R, int dtype) {
    const int count = in_pairs(dtype) ? 2 : 1;
    UNROLL for (int r = 0; r < R; r++) {
        ints high = {0}, low = {0}, pairs = {0};
        UNROLL for (int i = 0; i < VECTORS; i++) {
            if (i / 2 % count) continue; /* vectors i and i + 2 have the same scales */
            const bits stored[] = {stored_codes(blocks[r], i, dtype),
                                   count == 2 ? stored_codes(blocks[r], i + 2, dtype) : (bits){0}};
            const shorts scales = scales_at(h[r].scales, i);
            high = add_products(high, multiply_bytes(stored, in->high + 32 * i, count), scales);
            low = add_products(low, multiply_bytes(stored, in->low + 32 * i, count), scales);
            if (excess(dtype)) pairs = add_products(pairs, *(const shorts_at *)(in->pairs + 16 * i), scales);
        }
        sums[r] = (ints)((bits)high * 128 + (bits)low - (bits)pairs * excess(dtype));
    }
}
#endif

/* R outputs of a single token. */
INLINE void dot_bytes(const product *p, int64_t row, int R, int dtype) {
    const matrix *w = p->weight;
    const uint8_t *blocks[K_BYTE_ROWS];
    vec totals[K_BYTE_ROWS];
    UNROLL for (int r = 0; r < R; r++) {
        blocks[r] = (const uint8_t *)w->data + (row + r) * w->stride;
        totals[r] = (vec){0};
    }
    const k_bytes *in = (const k_bytes *)p->codes;
    const uint8_t *ahead = blocks[0] + PREFETCH; /* in the order of memory, which is fastest */
    for (int64_t k = 0; k < w->columns; k += 256, in++) {
        k_header h[K_BYTE_ROWS];
        ints sums[K_BYTE_ROWS];
        UNROLL for (int r = 0; r < R; r++) h[r] = k_header_of(blocks[r], dtype);
        UNROLL for (int line = 0; line * 64 < R * k_width(dtype); line++) __builtin_prefetch(ahead + 64 * line, 0, 2);
        ahead += R * k_width(dtype);
        sum_bytes(blocks, h, in, sums, R, dtype);
        UNROLL for (int r = 0; r < R; r++) {
            totals[r] = add_block(totals[r], &sums[r], &h[r], in->sums, in->scale, dtype);
            blocks[r] += k_width(dtype);
        }
    }
    UNROLL for (int r = 0; r < R; r++) p->outputs[row + r - p->begin] = reduce_add(totals[r]);
}

INLINE void gemv_k(const product *p, int dtype) {
    int64_t n = p->begin;
    for (; n + K_BYTE_ROWS <= p->end; n += K_BYTE_ROWS) dot_bytes(p, n, K_BYTE_ROWS, dtype);
    for (; n < p->end; n++) dot_bytes(p, n, 1, dtype);
}

static void linear_k_bytes(const product *p) {
    switch (p->weight->dtype) {
    case Q2_K: gemv_k(p, Q2_K); break;
    case Q3_K: gemv_k(p, Q3_K); break;
    case Q4_K: gemv_k(p, Q4_K); break;
    case Q5_K: gemv_k(p, Q5_K); break;
    default: gemv_k(p, Q6_K);
    }
}
#endif

INLINE void quantize_in_order(const float *in, int64_t count, int dtype, int less, int as_bytes, int16_t *to) {
#if LANES >= 8
    if (as_bytes) {
        quantize_bytes(in, count, dtype, less, (k_bytes *)to);
        return;
    }
#endif
    quantize_shorts(in, count, dtype, (k_input *)to);
}

/* Quantizes the inputs of a token for weights of this format, to k_bytes or k_input. */
static void quantize_blocks(const float *in, int64_t count, int dtype, int as_bytes, int16_t *to) {
    if (in_pairs(dtype)) quantize_in_order(in, count, Q4_K, 0, as_bytes, to);
    else if (dtype == IQ4_XS) quantize_in_order(in, count, IQ4_XS, 0, as_bytes, to);
    else quantize_in_order(in, count, Q6_K, excess(dtype), as_bytes, to);
}
