/* Products with weights in GGUF's blocks and activations quantized to 8 bits, with a scale for each 32.
 *
 * A lane has the sum of one row, so LANES rows are unpacked together: their dwords are transposed first (`columns_of`), and
 * headers and codes are unpacked for all rows at once. The products of 32 inputs (16 in formats with a scale for each 16) are
 * added exactly; the sums are floats, in the order of the inputs. The panel of some rows and 256 inputs stays in the L1
 * cache. One token and many use the same code, and the same order. */

enum { AHEAD = 2 }; /* few tokens: the distance of prefetched weights in blocks of rows; measured */

#if LANES == 8
/* sums + the products of `count` vectors of codes with four inputs each. most: the largest code, 128 if codes have a sign; so
 * sums of products fit into 16 bits. */
INLINE ints multiply_fours(ints sums, const bits *codes, const int8_t *in, int count, int most) {
    const int steps = most <= 15 ? 8 : most <= 31 ? 4 : most <= 63 ? 2 : 1;
    shorts products = {0};
    UNROLL for (int four = 0; four < count; four++) {
        int32_t word;
        memcpy(&word, in + 4 * four, 4);
        __m256i w = (__m256i)codes[four], x = _mm256_set1_epi32(word);
        if (most == 128) x = _mm256_sign_epi8(x, w), w = _mm256_abs_epi8(w);
        const shorts next = (shorts)_mm256_maddubs_epi16(w, x);
        products = four % steps ? products + next : next;
        if ((four + 1) % steps == 0 || four + 1 == count) sums = add_products(sums, products, (shorts){0} + 1);
    }
    return sums;
}
#else
INLINE ints multiply_fours(ints sums, const bits *codes, const int8_t *in, int count, int most) {
    UNROLL for (int four = 0; four < count; four++) {
        int32_t word;
        memcpy(&word, in + 4 * four, 4);
#if LANES == 16
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes[four]), "v"((ints)_mm512_set1_epi32(word)));
#elif NEON
        const int8x16_t w = (int8x16_t)codes[four], x = vreinterpretq_s8_s32(vdupq_n_s32(word));
        const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
        sums = (ints)vpadalq_s16((int32x4_t)sums, vpaddq_s16(low, high));
#else
        const bits x = (bits){0} + (uint32_t)word;
        sums = add_products(sums, (shorts)(codes[four] << 8) >> 8, (shorts)(x << 8) >> 8);
        sums = add_products(sums, (shorts)codes[four] >> 8, (shorts)x >> 8);
#endif
    }
    return sums;
}
#endif

/* Adds the products of a panel with the groups of T tokens to `totals` (T, PANEL_VECTORS). stride: groups of a token. */
INLINE void tile_blocks(const panel_group *panel, int64_t groups, const byte_group *in, int64_t stride, vec *totals, int T,
                        int halves, int offsets, int most) {
    vec sums[TILE][PANEL_VECTORS];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) sums[t][v] = totals[t * PANEL_VECTORS + v];
    for (int64_t g = 0; g < groups; g++)
        UNROLL for (int half = 0; half < halves; half++) {
            const panel_group *weights[PANEL_VECTORS];
            ints products[TILE][PANEL_VECTORS];
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) weights[v] = panel + v * (PANEL_INPUTS / 32) + g;
            UNROLL for (int t = 0; t < T; t++)
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                    products[t][v] = (ints){0} + in[t * stride + g].starts[half];
            const int steps = LANES == 8 ? 8 / halves : 1;
            UNROLL for (int four = half * 4; four < half * 4 + 8 / halves; four += steps)
                UNROLL for (int t = 0; t < T; t++)
                    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                        products[t][v] = multiply_fours(products[t][v], weights[v]->codes + four,
                                                        in[t * stride + g].codes + 4 * four, steps, most);
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
                UNROLL for (int t = 0; t < T; t++) {
                    const byte_group *x = in + t * stride + g;
                    sums[t][v] += broadcast(x->scale) * (to_float((bits)products[t][v]) * weights[v]->scales[half]);
                    if (offsets) sums[t][v] += broadcast(x->sums[half]) * weights[v]->offsets[half];
                }
        }
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) totals[t * PANEL_VECTORS + v] = sums[t][v];
}

/* The same for any number of tokens, in tiles of about equal size. */
INLINE void tiles_blocks(const panel_group *panel, int64_t groups, const byte_group *in, int64_t stride, vec *totals,
                         int64_t tokens, int halves, int offsets, int most) {
    const int64_t tiles = (tokens + TILE - 1) / TILE, size = (tokens + tiles - 1) / tiles;
    for (int64_t t = 0; t < tokens; t += size)
#define DO_TILE(T) tile_blocks(panel, groups, in + t * stride, stride, totals + t * PANEL_VECTORS, T, halves, offsets, most)
        FOR_TILE(min64(tokens - t, size), DO_TILE)
#undef DO_TILE
}

/* Formats whose products are computed by the same code, except that AVX2 adds as many products in 16 bits as codes permit. */
#define TILES(name, halves, offsets, most)                                                                              \
    static __attribute__((noinline)) void name(const panel_group *panel, int64_t groups, const byte_group *in,          \
                                               int64_t stride, vec *totals, int64_t tokens) {                           \
        tiles_blocks(panel, groups, in, stride, totals, tokens, halves, offsets, most);                                 \
    }
TILES(tiles_4, 1, 0, 15)
TILES(tiles_4_offset, 1, 1, 15)
TILES(tiles_16, 2, 0, 63)
TILES(tiles_16_offset, 2, 1, 3)
#if LANES == 8
TILES(tiles_5, 1, 0, 31)
TILES(tiles_5_offset, 1, 1, 31)
TILES(tiles_8, 1, 0, 128)
#else
#define tiles_5 tiles_4
#define tiles_5_offset tiles_4_offset
#define tiles_8 tiles_4
#endif
#undef TILES

/* The products of BLOCK_ROWS rows with T tokens, as `tile_blocks` computes them, for formats with blocks of 32: weights stay
 * in registers. The rows after the next ones are prefetched evenly, because a core waits for few lines at a time. */
INLINE void few_tokens(const uint8_t *rows, int64_t stride, int64_t width, int64_t groups, const byte_group *in, vec *totals,
                       int T, int dtype) {
    const int most = excess_of(dtype) == 128 ? 128 : dtype == Q4_0 || dtype == Q4_1 ? 15 : 31;
    const int64_t lines = (BLOCK_ROWS * width + 63) / 64;
    const uint8_t *ahead = rows + AHEAD * BLOCK_ROWS * stride;
    vec sums[2][PANEL_VECTORS];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) sums[t][v] = (vec){0};
    for (int64_t g = 0; g < groups; g++, rows += width, in++) {
        for (int64_t line = 0; line < lines; line++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
            panel_group weights;
            unpack_group(rows + v * LANES * stride, stride, &weights, dtype);
            UNROLL for (int t = 0; t < T; t++) {
                const byte_group *x = in + t * groups;
                const ints products = multiply_fours((ints){0} + x->starts[0], weights.codes, x->codes, 8, most);
                sums[t][v] += broadcast(x->scale) * (to_float((bits)products) * weights.scales[0]);
                if (has_offsets(dtype)) sums[t][v] += broadcast(x->sums[0]) * weights.offsets[0];
            }
        }
    }
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) totals[t * PANEL_VECTORS + v] = sums[t][v];
}

#if LANES >= 8
/* Bytes shifted to the right by `count`, a constant for the compiler; bits of `mask` remain. */
INLINE __m256i shift_bytes(__m256i bytes, int count, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(bytes, count), _mm256_set1_epi8(mask));
}

/* `value` where bit g of a byte is set. */
INLINE __m256i where_set(const uint8_t *from, int g, int value) {
    const __m256i bit = _mm256_set1_epi8(1 << g), bytes = _mm256_and_si256(_mm256_loadu_si256((const void *)from), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, bit), _mm256_set1_epi8(value));
}

/* The 32 codes of group g of a block of 256, as `panel_group` has them. */
INLINE __m256i row_codes(const uint8_t *block, int g, int dtype) {
    const uint8_t *from = dtype == Q2_K ? block + 16 + g / 4 * 32 : dtype == Q3_K ? block + 32 + g / 4 * 32
                          : dtype == Q6_K ? block + g / 4 * 64 + g % 2 * 32 : block + k_width(dtype) - 128 + g / 2 * 32;
    const __m256i stored = _mm256_loadu_si256((const void *)from);
    switch (dtype) {
    case Q2_K: return shift_bytes(stored, g % 4 * 2, 3);
    case Q3_K: return _mm256_or_si256(shift_bytes(stored, g % 4 * 2, 3), where_set(block, g, 4));
    case Q4_K: return shift_bytes(stored, g % 2 * 4, 15);
    case Q5_K: return _mm256_or_si256(shift_bytes(stored, g % 2 * 4, 15), where_set(block + 16, g, 16));
    default: {
        const __m256i high = _mm256_loadu_si256((const void *)(block + 128 + g / 4 * 32));
        return _mm256_or_si256(shift_bytes(stored, g % 4 / 2 * 4, 15), _mm256_slli_epi16(shift_bytes(high, g % 4 * 2, 3), 4));
    }
    }
}

INLINE __m256i add_lanes(__m256i a, __m256i b, int in_shorts) {
    return in_shorts ? _mm256_add_epi16(a, b) : _mm256_add_epi32(a, b);
}

INLINE __m256i add_pairs(__m256i shorts) {
    return _mm256_madd_epi16(shorts, _mm256_set1_epi16(1));
}

/* The products of a group of LANES rows with one token: of the first and of the last 16 inputs. AVX2 adds in 16 bits as long as
 * sums fit: of four products of codes up to 63, of eight up to 31. */
INLINE void dot_groups(const uint8_t *rows, int64_t stride, int g, const byte_group *in, ints *first, ints *last, int dtype) {
    const __m256i x = _mm256_loadu_si256((const void *)in->codes);
    __m256i sums[LANES / 4];
    UNROLL for (int four = 0; four < LANES / 4; four++) {
        __m256i dots[4];
        UNROLL for (int r = 0; r < 4; r++) {
            const __m256i codes = row_codes(rows + (4 * four + r) * stride, g, dtype);
#if LANES == 16
            dots[r] = _mm256_setzero_si256();
            __asm__("vpdpbusd %2, %1, %0" : "+v"(dots[r]) : "v"(codes), "v"(x));
#else
            dots[r] = _mm256_maddubs_epi16(codes, x);
#endif
        }
        __m256i a = add_lanes(_mm256_unpacklo_epi32(dots[0], dots[1]), _mm256_unpackhi_epi32(dots[0], dots[1]), LANES == 8);
        __m256i b = add_lanes(_mm256_unpacklo_epi32(dots[2], dots[3]), _mm256_unpackhi_epi32(dots[2], dots[3]), LANES == 8);
        if (LANES == 8 && dtype == Q6_K) a = add_pairs(a), b = add_pairs(b);
        sums[four] = add_lanes(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), LANES == 8 && dtype != Q6_K);
        if (LANES == 8 && dtype != Q6_K) sums[four] = add_pairs(sums[four]);
    }
#if LANES == 16
    const __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(sums[0]), sums[1], 1);
    const __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(sums[2]), sums[3], 1);
    *first = (ints)_mm512_shuffle_i64x2(a, b, 0x88), *last = (ints)_mm512_shuffle_i64x2(a, b, 0xdd);
#else
    *first = (ints)_mm256_permute2x128_si256(sums[0], sums[1], 0x20);
    *last = (ints)_mm256_permute2x128_si256(sums[0], sums[1], 0x31);
#endif
}

/* The same for one token and blocks of 256. A vector has 32 inputs of a row, and its lanes are added, so that no codes are
 * transposed or stored. */
INLINE void one_token(const uint8_t *rows, int64_t stride, int64_t groups, const byte_group *in, vec *totals, int dtype) {
    const int64_t width = k_width(dtype);
    const uint8_t *ahead = rows + AHEAD * BLOCK_ROWS * stride, *until = ahead;
    vec sum = {0};
    for (int64_t block = 0; block < groups; block += 8, rows += width) {
        panel_group scales[8];
        unpack_block_scales(rows, stride, scales, dtype);
        for (int four = 0; four < 8; four += 4)
            UNROLL for (int g = four; g < four + 4; g++, in++) { /* unrolled: codes are shifted by constants */
                ints first, last;
                for (until += LANES * width / 8; ahead < until; ahead += 64) __builtin_prefetch(ahead, 0, 2);
                dot_groups(rows, stride, g, in, &first, &last, dtype);
                UNROLL for (int half = 0; half < halves_of(dtype); half++) {
                    const ints products = (halves_of(dtype) == 1 ? first + last : half ? last : first) + in->starts[half];
                    sum += broadcast(in->scale) * (to_float((bits)products) * scales[g].scales[half]);
                    if (has_offsets(dtype)) sum += broadcast(in->sums[half]) * scales[g].offsets[half];
                }
            }
    }
    *totals = sum;
}
#endif

/* Whether the products of some tokens need no panel. */
INLINE int few_products(const uint8_t *rows, int64_t stride, int64_t width, int64_t groups, const byte_group *in, vec *totals,
                        int64_t tokens, int dtype) {
#if LANES >= 8
    if (tokens > (dtype < Q2_K ? 2 : 1) || dtype == IQ4_XS) return 0;
    for (int v = 0; dtype >= Q2_K && v < PANEL_VECTORS; v++)
        one_token(rows + v * LANES * stride, stride, groups, in, totals + v, dtype);
    if (dtype < Q2_K && tokens == 1) few_tokens(rows, stride, width, groups, in, totals, 1, dtype);
    else if (dtype < Q2_K) few_tokens(rows, stride, width, groups, in, totals, 2, dtype);
    return 1;
#else
    return 0;
#endif
}

INLINE void gemm_blocks(const product *p, int dtype) {
    const matrix *w = p->weight;
    const int64_t parts = w->int8_inputs, tokens = parts * p->tokens;
    const int64_t size = block_size(dtype), width = w->stride / (w->columns / size);
    const int64_t stride = w->rows < BLOCK_ROWS ? 0 : w->stride; /* 0: all lanes compute the same row of a small matrix */
    const int64_t step = stride ? BLOCK_ROWS : 1, in_stride = w->columns / 32;
    panel_group *panel = (panel_group *)(((uintptr_t)p->workspace + 63) / 64 * 64);
    vec *totals = (vec *)(panel + PANEL_VECTORS * PANEL_INPUTS / 32);
    const int64_t lines = BLOCK_ROWS * width * (PANEL_INPUTS / size) / 64;
    for (int64_t n = p->begin; n < p->end; n += step) {
        const int64_t first = stride ? min64(n, w->rows - BLOCK_ROWS) : n, end = min64(n + step, p->end);
        const uint8_t *rows = (const uint8_t *)w->data + first * w->stride, *ahead = rows + BLOCK_ROWS * stride;
        const int panels = !few_products(rows, stride, width, in_stride, (const byte_group *)p->codes, totals, tokens, dtype);
        if (panels) memset(totals, 0, tokens * PANEL_VECTORS * sizeof(vec));
        for (int64_t k = 0; panels && k < w->columns; k += PANEL_INPUTS, ahead += 64 * lines) {
            const int64_t inputs = min64(w->columns - k, PANEL_INPUTS);
            const byte_group *in = (const byte_group *)p->codes + k / 32;
            for (int64_t line = 0; line < lines; line++) __builtin_prefetch(ahead + 64 * line, 0, 2);
            for (int v = 0; v < PANEL_VECTORS; v++)
                for (int64_t i = 0; i < inputs; i += size)
                    unpack_rows_of(rows + v * LANES * stride + (k + i) / size * width, stride,
                                   panel + (v * PANEL_INPUTS + i) / 32, dtype);
            (halves_of(dtype) == 2 ? has_offsets(dtype) ? tiles_16_offset : tiles_16
             : excess_of(dtype) == 128 ? tiles_8
             : dtype == Q5_0 || dtype == MXFP4_BLOCK ? tiles_5
             : dtype == Q5_1 || dtype == Q5_K ? tiles_5_offset
             : has_offsets(dtype) ? tiles_4_offset : tiles_4)(panel, inputs / 32, in, in_stride, totals, tokens);
        }
        for (int64_t t = 0; t < p->tokens; t++) {
            vec *both = totals + parts * t * PANEL_VECTORS;
            for (int v = 0; parts == 2 && v < PANEL_VECTORS; v++) both[v] += both[PANEL_VECTORS + v];
            const float *sums = (const float *)both;
            memcpy(p->outputs + t * p->output_stride + n - p->begin, sums + n - first, (end - n) * sizeof(float));
        }
    }
}

/* A function for each format: the compiler needs less memory than for one with all of them. */
#define BLOCK_FORMATS(DO)                                                                                               \
    DO(Q8_0) DO(Q4_0) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(IQ4_NL) DO(MXFP4_BLOCK)                                             \
    DO(Q2_K) DO(Q3_K) DO(Q4_K) DO(Q5_K) DO(Q6_K) DO(IQ4_XS)
#define DEFINE(dtype) static __attribute__((noinline)) void gemm_##dtype(const product *p) { gemm_blocks(p, dtype); }
#define CASE(dtype) case dtype: gemm_##dtype(p); break;
BLOCK_FORMATS(DEFINE)

static void linear_blocks(const product *p) {
    switch (p->weight->dtype) { BLOCK_FORMATS(CASE) }
}
#undef CASE
#undef DEFINE
#undef BLOCK_FORMATS

/* Four products with a common sum. */
INLINE ints add_fours(ints sum, ints x) {
    const bits codes[4] = {(bits)sum, (bits)sum, (bits)sum, (bits)sum};
    return multiply_fours(sum, codes, (const int8_t *)&x, 4, 15);
}
PEAK(peak_bytes, ints, 16 * LANES, add_fours(sum, x))
