/* Attention with bfloat16 keys and values on processors that multiply bfloat16 (AVX-512 with BF16).
 *
 * Queries and weights are rounded to bfloat16, too. A lane has the score of one key: 16 keys are transposed for all
 * queries. Outputs take two positions at a time, an even one and the next, in the order of numbers that unpacking
 * produces; beyond the ends of a query they count as zero. */

INLINE shorts broadcast_pair(const int16_t *from) {
    int32_t pair;
    memcpy(&pair, from, 4);
    return (shorts)_mm512_set1_epi32(pair);
}

/* The numbers of a head of size D among the 32 from index d, as a mask. */
INLINE __mmask32 mask_of(int64_t d, int64_t D) {
    return D - d >= 32 ? ~0u : D > d ? (1u << (D - d)) - 1 : 0;
}

INLINE void scores_bf16(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T) {
    const int16_t *rounded = queries->rounded;
    int64_t slot = begin % kv->size;
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t count = end - i < LANES ? end - i : LANES;
        const uint8_t *keys[LANES];
        vec sums[TILE][2];
        for (int64_t j = 0; j < LANES; j++) { /* beyond the end, a key is repeated and not stored */
            keys[j] = cell(kv, kv->keys, min64(i + j, end - 1), slot, 2);
            if (j < count) slot = slot + 1 < kv->size ? slot + 1 : 0;
        }
        UNROLL for (int t = 0; t < T; t++) sums[t][0] = sums[t][1] = (vec){0};
        for (int64_t d = 0; d < kv->D; d += 32) {
            const __mmask32 mask = mask_of(d, kv->D);
            ints columns[LANES];
            UNROLL for (int j = 0; j < LANES; j++) {
                columns[j] = (ints)_mm512_maskz_loadu_epi16(mask, keys[j] + 2 * d);
                __builtin_prefetch(keys[j] + 2 * d + PREFETCH_KV, 0, 2);
            }
            transpose(columns);
            UNROLL for (int j = 0; j < LANES; j++)
                UNROLL for (int t = 0; t < T; t++)
                    sums[t][j % 2] = dot_bf16(sums[t][j % 2], (shorts)columns[j],
                                                     broadcast_pair(rounded + t * MAX_BF16_HEAD + d + 2 * j));
        }
        UNROLL for (int t = 0; t < T; t++)
            _mm512_mask_storeu_ps(queries[t].scores + i - queries[t].first, (1u << count) - 1,
                                  (__m512)((sums[t][0] + sums[t][1]) * kv->scale));
    }
}

/* V times 32 numbers from index d. */
INLINE void outputs_bf16(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int64_t d, int T,
                                   int V) {
    const int64_t bytes = 2 * kv->D;
    const uint8_t *values = kv->values + 2 * d, *last = values + (kv->size - 1) * bytes;
    const uint8_t *at = values + begin % kv->size * bytes;
    const __mmask32 masks[2] = {mask_of(d, kv->D), mask_of(d + 32, kv->D)};
    const int16_t *weights[TILE];
    vec sums[TILE][4];
    UNROLL for (int t = 0; t < T; t++) {
        weights[t] = (const int16_t *)queries[t].scores - (queries[t].first & ~1ll);
        UNROLL for (int v = 0; v < 2 * V; v++) sums[t][v] = *(const vec_at *)(queries->sums + t * MAX_BF16_HEAD + d + v * LANES);
    }
    for (int64_t i = begin & ~1ll; i < end; i += 2) {
        __m512i pair[2][2];
        UNROLL for (int which = 0; which < 2; which++) { /* a query that begins or ends within a pair takes it alone */
            if (T == 1 && (i + which < begin || i + which >= end)) {
                pair[which][0] = pair[which][1] = _mm512_setzero_si512();
                continue;
            }
            const uint8_t *from = kv->rows ? at + kv->rows[i + which] * kv->row_bytes : at;
            UNROLL for (int v = 0; v < V; v++) {
                pair[which][v] = _mm512_maskz_loadu_epi16(masks[v], from + 64 * v);
                __builtin_prefetch(from + 64 * v + PREFETCH_KV, 0, 2);
            }
            at = at == last ? values : at + bytes;
        }
        UNROLL for (int v = 0; v < V; v++) {
            const shorts low = (shorts)_mm512_unpacklo_epi16(pair[0][v], pair[1][v]);
            const shorts high = (shorts)_mm512_unpackhi_epi16(pair[0][v], pair[1][v]);
            UNROLL for (int t = 0; t < T; t++) {
                const shorts weight = broadcast_pair(weights[t] + i);
                sums[t][2 * v] = dot_bf16(sums[t][2 * v], low, weight);
                sums[t][2 * v + 1] = dot_bf16(sums[t][2 * v + 1], high, weight);
            }
        }
    }
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int v = 0; v < 2 * V; v++) *(vec_at *)(queries->sums + t * MAX_BF16_HEAD + d + v * LANES) = sums[t][v];
}

INLINE void attend_pairs(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int stage) {
    int64_t d = 0;
    if (stage == SCORES) {
        scores_bf16(kv, queries, begin, end, T);
        return;
    }
    for (; d + 32 < kv->D; d += 64) outputs_bf16(kv, queries, begin, end, d, T, 2);
    if (d < kv->D) outputs_bf16(kv, queries, begin, end, d, T, 1);
}

/* Rounds a query's weights to bfloat16 in place of its scores, from the even position at or before its first one. */
static void round_weights_bf16(const query *q) {
    const int64_t count = q->end - q->first, odd = q->first & 1;
    int16_t *to = (int16_t *)q->scores;
    for (int64_t i = 0; i < count; i += LANES) { /* writes only behind the position that it reads */
        half_shorts rounded;
        const vec weights = load_up_to(q->scores, i, count - i, FLOAT32);
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(weights));
        *(half_shorts *)(to + odd + i) = rounded;
    }
    if (odd) to[0] = 0;
    to[odd + count] = 0;
}

/* The outputs from their sums, in the usual order. */
static void finish_bf16(const query *q, int64_t D, float total) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t d = 0; d < D; d += LANES) {
        const __m512 first = _mm512_loadu_ps(q->sums + d / 32 * 32), second = _mm512_loadu_ps(q->sums + d / 32 * 32 + LANES);
        const vec result = (vec)_mm512_permutex2var_ps(first, d % 32 ? high : low, second);
        store_up_to(q->out + d, result / total, D - d);
    }
}

static void attend_range_bf16(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int stage) {
    if (T == 1) attend_pairs(kv, queries, begin, end, 1, stage);
    else attend_pairs(kv, queries, begin, end, TILE, stage);
}

/* For heads of at most MAX_BF16_HEAD numbers. */
static void attend_bf16(const kv_head *kv, query *queries, int64_t count) {
    const int64_t padded = (kv->D + 31) / 32 * 32;
    _Alignas(64) int16_t rounded[TILE][MAX_BF16_HEAD];
    _Alignas(64) float sums[TILE][MAX_BF16_HEAD];
    for (; count > 0; queries += TILE, count -= TILE) {
        const int64_t part = min64(count, TILE);
        float totals[TILE];
        for (int64_t t = 0; t < part; t++) {
            to_bf16(queries[t].q, kv->D, padded, rounded[t]);
            memset(sums[t], 0, padded * sizeof(float));
            queries[t].rounded = rounded[t], queries[t].sums = sums[t];
        }
        attend_stage(kv, queries, part, part == TILE, SCORES, attend_range_bf16);
        for (int64_t t = 0; t < part; t++) {
            totals[t] = softmax(kv, queries + t);
            round_weights_bf16(queries + t);
        }
        attend_stage(kv, queries, part, part == TILE, OUTPUTS, attend_range_bf16);
        for (int64_t t = 0; t < part; t++) finish_bf16(queries + t, kv->D, totals[t]);
    }
}
