/* Products with INT8 and NF4 weights and activations quantized to 8 bits (AVX-512 with VNNI).
 *
 * One instruction adds four products of bytes to each 32-bit lane, instead of two with 16-bit codes. One of the factors
 * must be unsigned: weight + 128, and the group's sum starts at -128 multiples the sum of its codes (`quantize_groups`). A
 * group's sum is then multiplied by the group's multiple, and for NF4 by the weights' scale. */

#define PANEL_GROUPS (DEEP / 32)

/* As `pack_int`, but with the weights of all rows for groups of four inputs; the scales of NF4 go to `scales` (groups,
 * PANEL_ROWS). */
INLINE void pack_bytes(const uint8_t *data, int64_t stride, int64_t columns, int64_t begin, int64_t end,
                             uint8_t *panel, int8_t *scales, int dtype) {
    const __m512i signs = _mm512_set1_epi8(-128), low = _mm512_set1_epi8(15);
    for (int64_t k = begin; k < end; k += 128)
        for (int first = 0; first < PANEL_ROWS; first += LANES) {
            ints words[2][LANES]; /* of 64 inputs */
            for (int r = 0; r < LANES; r++) {
                const uint8_t *row = data + (first + r) * stride;
                __m512i weights[2];
                if (dtype == NF4) {
                    const uint8_t *unit = row + k / 128 * NF4_UNIT;
                    const __m512i codes = _mm512_loadu_si512((const void *)(unit + 4));
                    const __m256i firsts = _mm512_cvtepi16_epi8(codes);
                    const __m256i lasts = _mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 8));
                    for (int i = 0; i < 4; i++) scales[((k - begin) / 32 + i) * PANEL_ROWS + first + r] = nf4_scale(unit[i]);
                    weights[0] = _mm512_inserti64x4(_mm512_castsi256_si512(firsts), _mm256_srli_epi16(firsts, 4), 1);
                    weights[1] = _mm512_inserti64x4(_mm512_castsi256_si512(lasts), _mm256_srli_epi16(lasts, 4), 1);
                    for (int i = 0; i < 2; i++) {
                        const __m512i levels = _mm512_inserti64x4(
                            _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)nf4[nf4_table(unit[2 * i])])),
                            _mm256_broadcastsi128_si256(
                                _mm_loadu_si128((const void *)nf4[nf4_table(unit[2 * i + 1])])), 1);
                        weights[i] = _mm512_shuffle_epi8(levels, _mm512_and_si512(weights[i], low));
                    }
                } else
                    for (int i = 0; i < 2; i++) { /* never reads beyond the row */
                        const int64_t remaining = columns - k - 64 * i;
                        const __mmask64 mask = remaining >= 64 ? ~0ull : remaining > 0 ? (1ull << remaining) - 1 : 0;
                        weights[i] = _mm512_maskz_loadu_epi8(mask, row + k + 64 * i);
                    }
                for (int i = 0; i < 2; i++) words[i][r] = (ints)_mm512_xor_si512(weights[i], signs);
            }
            for (int i = 0; i < 2; i++) {
                transpose(words[i]);
                uint8_t *to = panel + (k - begin + 64 * i) * PANEL_ROWS + 4 * first;
                for (int j = 0; j < LANES; j++) *(bits_at *)(to + 4 * j * PANEL_ROWS) = (bits)words[i][j];
            }
        }
}

/* Adds the products of a panel with `groups` groups of T tokens to `totals` (T, PANEL_ROWS), or initializes them. bytes,
 * multiples, starts: of the first group; stride: bytes of a token. */
INLINE void tile_bytes(const uint8_t *panel, const int8_t *scales, int64_t groups, const int8_t *bytes,
                             const int32_t *multiples, const int32_t *starts, int64_t stride, double *totals, int begins,
                             const uint8_t *ahead, int64_t lines, int T, int dtype) {
    /* 2^31 exceeds 32 * 32 * 127 * 31 * 127, and 8 * 32 * 127 * 31 * 31 * 64 + 2^16. */
    const int64_t bound = dtype == NF4 ? 8 : PANEL_GROUPS;
    ints sums[TILE][2], upper[TILE][2];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int half = 0; half < 2; half++) sums[t][half] = upper[t][half] = (ints){0};
    for (int64_t first = 0; first < groups; first += bound) {
        const int64_t end = groups - first < bound ? groups : first + bound;
        for (int64_t g = first; g < end; g++) {
            ints products[TILE][2];
            for (int64_t line = g * lines; line < (g + 1) * lines; line++) __builtin_prefetch(ahead + 64 * line, 0, 2);
            UNROLL for (int t = 0; t < T; t++) {
                const int32_t start = *(const int32_t *)((const uint8_t *)(starts + g) + t * stride);
                products[t][0] = products[t][1] = (ints)_mm512_set1_epi32(start);
            }
            UNROLL for (int four = 0; four < 8; four++) {
                const ints *weights = (const ints *)(panel + (g * 8 + four) * 4 * PANEL_ROWS);
                const ints low = weights[0], high = weights[1];
                UNROLL for (int t = 0; t < T; t++) {
                    int32_t word;
                    memcpy(&word, bytes + t * stride + g * 32 + four * 4, 4);
                    const ints x = (ints)_mm512_set1_epi32(word);
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(products[t][0]) : "v"(low), "v"(x));
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(products[t][1]) : "v"(high), "v"(x));
                }
            }
            UNROLL for (int half = 0; half < 2; half++) {
                const ints scale = (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(scales + g * PANEL_ROWS + half * LANES)));
                UNROLL for (int t = 0; t < T; t++) {
                    const int32_t factor = *(const int32_t *)((const uint8_t *)(multiples + g) + t * stride);
                    if (dtype == NF4) products[t][half] *= scale;
                    sums[t][half] += products[t][half] * (ints)_mm512_set1_epi32(factor);
                }
            }
        }
        if (dtype == INT8) continue;
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                upper[t][half] += sums[t][half] >> 16;
                sums[t][half] &= 0xffff;
            }
    }
    add_totals(sums, upper, totals, begins, T);
}

/* 32 outputs or more. */
INLINE void gemm_bytes(const product *p, int dtype) {
    const matrix *w = p->weight;
    const int64_t tokens = p->tokens, padded = p->input_stride;
    uint8_t *panel = (uint8_t *)(((uintptr_t)p->workspace + 63) / 64 * 64);
    int8_t *group_scales = (int8_t *)(panel + DEEP * PANEL_ROWS);
    double *totals = (double *)(group_scales + PANEL_GROUPS * PANEL_ROWS);
    /* Cache lines that a tile prefetches with each group, so that the tiles prefetch all of the next rows. */
    const int64_t steps = (tokens + TILE - 1) / TILE * (padded / 32);
    const int64_t lines_per_step = (PANEL_ROWS * w->stride / 64 + steps - 1) / steps;
    for (int64_t n = p->begin; n < p->end; n += PANEL_ROWS) {
        /* Moved back into the weights if the panel would end beyond them. */
        const int64_t from = min64(n, w->rows - PANEL_ROWS);
        const uint8_t *data = (const uint8_t *)w->data + from * w->stride;
        const uint8_t *ahead = data + PANEL_ROWS * w->stride, *end_ahead = ahead + PANEL_ROWS * w->stride;
        for (int64_t k = 0; k < padded; k += DEEP) {
            const int64_t last = min64(k + DEEP, padded);
            pack_bytes(data, w->stride, w->columns, k, last, panel, group_scales, dtype);
#define DO(T)                                                                                                           \
    {                                                                                                                   \
        const int8_t *bytes = (const int8_t *)(p->codes + t * padded);                                                  \
        const int32_t *multiples = (const int32_t *)(bytes + padded) + k / 32;                                          \
        tile_bytes(panel, group_scales, (last - k) / 32, bytes + k, multiples, multiples + padded / 32, 2 * padded,     \
                   totals + t * PANEL_ROWS, k == 0, ahead, lines, T, dtype);                                            \
    }
            /* Tiles of about equal size: a tile of few tokens takes almost as long as a full one. */
            for (int64_t t = 0, left = (tokens + TILE - 1) / TILE, count; left > 0; t += count, left--) {
                const int64_t lines = ahead < end_ahead ? lines_per_step : 0;
                count = (tokens - t + left - 1) / left;
                FOR_TILE(count, DO)
                ahead += (last - k) / 32 * lines * 64;
            }
#undef DO
        }
        const int64_t stop = min64(n + PANEL_ROWS, p->end);
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t r = n; r < stop; r++)
                p->outputs[t * p->output_stride + r - p->begin] =
                    totals[t * PANEL_ROWS + r - from] * ((double)p->input_scales[t] * ((const float *)w->scales)[r]);
    }
}

static void linear_bytes(const product *p) {
    if (p->weight->dtype == INT8) gemm_bytes(p, INT8);
    else gemm_bytes(p, NF4);
}
