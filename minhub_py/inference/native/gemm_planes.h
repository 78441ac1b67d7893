/* Products of INT8 weights with many tokens and inputs of 16 bits as two planes (planes.h), by VNNI.
 *
 * A lane has the sum of one token: a word of four weights, from the model's memory, meets four inputs of each of 16 tokens.
 * So weights are neither unpacked nor transposed, no lanes are added, and 32 bits hold all sums. One of the factors must be
 * unsigned: the low plane is; of the high plane it is high + 128, and 128 times the sum of the weights is subtracted. */

/* The sums of R rows of weights times V groups of tokens, of both planes, at row `first` of `sums` (V, 2, 256). ahead: the
 * distance of weights to prefetch. */
INLINE void tile_planes(const int8_t *data, int64_t stride, int64_t columns, const uint8_t *codes, int64_t group,
                        int64_t ahead, int32_t (*sums)[2][256], int first, int R, int V) {
    const ints sign = (ints)_mm512_set1_epi8(-128);
    ints high[8][2], low[8][2];
    IN_REGISTERS for (int r = 0; r < R; r++)
        IN_REGISTERS for (int v = 0; v < V; v++) high[r][v] = low[r][v] = (ints){0};
    for (int64_t k = 0; k < columns; k += 64, codes += 2048) {
        for (int r = 0; r < R; r++) __builtin_prefetch(data + r * stride + k + ahead, 0, 2);
        for (int part = 0; part < 64; part += 4) {
            ints x[2][2];
            IN_REGISTERS for (int v = 0; v < V; v++) {
                x[v][0] = (ints)*(const bits_at *)(codes + v * group + 16 * part) ^ sign;
                x[v][1] = (ints)*(const bits_at *)(codes + v * group + 16 * part + 1024);
            }
            IN_REGISTERS for (int r = 0; r < R; r++) {
                int32_t word;
                memcpy(&word, data + r * stride + k + part, 4);
                const ints weights = (ints)_mm512_set1_epi32(word);
                IN_REGISTERS for (int v = 0; v < V; v++) {
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(high[r][v]) : "v"(x[v][0]), "v"(weights));
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(low[r][v]) : "v"(x[v][1]), "v"(weights));
                }
            }
        }
    }
    IN_REGISTERS for (int r = 0; r < R; r++)
        IN_REGISTERS for (int v = 0; v < V; v++) {
            *(ints *)(sums[v][0] + 16 * (first + r)) = high[r][v];
            *(ints *)(sums[v][1] + 16 * (first + r)) = low[r][v];
        }
}

/* 128 times the sum of a row's weights. */
INLINE int32_t row_excess(const int8_t *row, int64_t columns) {
    ints sum = {0};
    for (int64_t k = 0; k < columns; k += 64) {
        const ints weights = (ints)_mm512_loadu_si512((const void *)(row + k));
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(_mm512_set1_epi8(1)), "v"(weights));
    }
    return 128 * _mm512_reduce_add_epi32((__m512i)sum);
}

static void linear_planes(const product *p) {
    const matrix *w = p->weight;
    const float *row_scales = w->scales;
    const int64_t group = 2 * TILES * p->input_stride;
    _Alignas(64) int32_t sums[2][2][256];
    for (int64_t n = p->begin; n < p->end; n += TILES) {
        const int64_t from = min64(n, w->rows - TILES); /* never beyond the weights */
        const int8_t *data = (const int8_t *)w->data + from * w->stride;
        int32_t excess[TILES];
        for (int r = 0; r < TILES; r++) excess[r] = row_excess(data + r * w->stride, w->columns);
        for (int64_t t = 0; t < p->tokens; t += 2 * TILES) {
            const uint8_t *codes = (const uint8_t *)p->codes + 2 * t * p->input_stride;
            const int groups = p->tokens - t > TILES ? 2 : 1;
            const int64_t ahead = t ? 0 : TILES * w->stride;
            for (int64_t i = t; i < min64(t + 2 * TILES, p->tokens); i++) /* logits are written to memory */
                __builtin_prefetch(p->outputs + i * p->output_stride + n - p->begin, 1);
            if (groups == 2)
                for (int r = 0; r < TILES; r += 4)
                    tile_planes(data + r * w->stride, w->stride, w->columns, codes, group, ahead, sums, r, 4, 2);
            else
                for (int r = 0; r < TILES; r += 8)
                    tile_planes(data + r * w->stride, w->stride, w->columns, codes, group, ahead, sums, r, 8, 1);
            for (int v = 0; v < groups; v++) {
                for (int r = 0; r < TILES; r++) *(ints *)(sums[v][0] + 16 * r) -= excess[r];
                const int64_t first = t + v * TILES;
                store_sums(sums[v], 2, row_scales + from, p->input_scales + first, row_mask(from, n, p->end),
                           p->outputs + first * p->output_stride + from - p->begin, p->output_stride,
                           min64(p->tokens - first, TILES));
            }
        }
    }
}

/* At least seven eighths of the lanes are tokens. The sums of 2^15 products of 255 * 127 fit into 32 bits. */
static int suits_planes(const matrix *w, int64_t tokens) {
    return w->dtype == INT8 && !w->int8_inputs && w->rows >= TILES && w->columns % 64 == 0 && w->columns <= 1 << 15 &&
           (tokens + TILES - 1) / TILES * 14 <= tokens;
}
