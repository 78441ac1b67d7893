/* Attention of one head: out (D,) = softmax(q . keys * scale) . values, for queries of one sequence.
 *
 * Some queries, of tokens or of heads, take the positions that they have in common together. Slots follow one another around the ring, so no
 * position needs a division. */

enum { SCORES, OUTPUTS };
enum { FEW_QUERIES = TILE == 3 ? 2 : 3 }; /* heads of one token, which have the same positions; fewer than TILE */

/* The key or value of a position in its slot. from: keys or values. */
INLINE const uint8_t *cell(const kv_head *kv, const uint8_t *from, int64_t position, int64_t slot, int width) {
    return from + slot * kv->D * width + (kv->rows ? kv->rows[position] * kv->row_bytes : 0);
}

/* Scores of T queries for the positions from `begin` to `end`. */
INLINE void scores(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int dtype) {
    const int width = dtype == FLOAT32 ? 4 : 2;
    const int64_t D = kv->D, complete = D / LANES * LANES;
    const float scale = kv->scale;
    int64_t slot = begin % kv->size; 
    for (int64_t i = begin; i < end;) {
        const int64_t count = end - i < 4 ? end - i : 4;
        const uint8_t *keys[4];
        for (int64_t j = 0; j < 4; j++) { /* beyond the end, a key is repeated and not stored */
            keys[j] = cell(kv, kv->keys, min64(i + j, end - 1), slot, width);
            if (j < count) slot = slot + 1 < kv->size ? slot + 1 : 0;
        }
        vec sums[TILE][4];
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int j = 0; j < 4; j++) sums[t][j] = (vec){0};
        for (int64_t d = 0; d < complete; d += LANES) {
            vec key[4];
            IN_REGISTERS for (int j = 0; j < 4; j++) {
                key[j] = load(keys[j], d, dtype);
                __builtin_prefetch(keys[j] + d * width + PREFETCH_KV, 0, 2);
            }
            IN_REGISTERS for (int t = 0; t < T; t++) {
                const vec x = *(const vec_at *)(queries[t].q + d);
                IN_REGISTERS for (int j = 0; j < 4; j++) sums[t][j] += key[j] * x;
            }
        }
        if (complete < D)
            IN_REGISTERS for (int j = 0; j < 4; j++) {
                const vec key = load_tail(keys[j], complete, D - complete, dtype);
                IN_REGISTERS for (int t = 0; t < T; t++)
                    sums[t][j] += key * load_tail(queries[t].q, complete, D - complete, FLOAT32);
            }
        UNROLL for (int t = 0; t < T; t++) { /* keeps the sums in registers */
            float four[4];
            reduce_add4(sums[t][0], sums[t][1], sums[t][2], sums[t][3], four);
            float *to = queries[t].scores + i - queries[t].first;
            if (count == 4) *(four_at *)to = *(const four_at *)four * scale;
            else
                for (int64_t j = 0; j < count; j++) to[j] = four[j] * scale;
        }
        i += count;
    }
}

/* Adds the values of these positions, weighted, to the outputs of T queries. */
INLINE void outputs(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int dtype) {
    const int width = dtype == FLOAT32 ? 4 : 2;
    const int64_t D = kv->D, start = begin % kv->size;
    int64_t d = 0;
    for (; d + 4 * LANES <= D; d += 4 * LANES) {
        vec sums[TILE][4];
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int v = 0; v < 4; v++) sums[t][v] = *(const vec_at *)(queries[t].out + d + v * LANES);
        for (int64_t i = begin, slot = start; i < end; i++, slot = slot + 1 < kv->size ? slot + 1 : 0) {
            const uint8_t *from = cell(kv, kv->values, i, slot, width) + d * width;
            vec weights[TILE];
            IN_REGISTERS for (int t = 0; t < T; t++) weights[t] = broadcast(queries[t].scores[i - queries[t].first]);
            IN_REGISTERS for (int v = 0; v < 4; v++) {
                const vec value = load(from, v * LANES, dtype);
                __builtin_prefetch(from + v * LANES * width + PREFETCH_KV, 0, 2);
                IN_REGISTERS for (int t = 0; t < T; t++) sums[t][v] += value * weights[t];
            }
        }
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int v = 0; v < 4; v++) *(vec_at *)(queries[t].out + d + v * LANES) = sums[t][v];
    }
    for (; d < D; d += LANES) {
        const int64_t n = D - d < LANES ? D - d : LANES;
        vec sums[TILE];
        IN_REGISTERS for (int t = 0; t < T; t++) sums[t] = load_up_to(queries[t].out, d, n, FLOAT32);
        for (int64_t i = begin, slot = start; i < end; i++, slot = slot + 1 < kv->size ? slot + 1 : 0) {
            const vec value = load_up_to(cell(kv, kv->values, i, slot, width), d, n, dtype);
            IN_REGISTERS for (int t = 0; t < T; t++) sums[t] += value * queries[t].scores[i - queries[t].first];
        }
        IN_REGISTERS for (int t = 0; t < T; t++) store_up_to(queries[t].out + d, sums[t], n);
    }
}

/* Soft cap and bias of the scores, then each becomes e to the power of the score minus the largest. Returns their sum. */
static float softmax(const kv_head *kv, const query *q) {
    float *scores = q->scores;
    const int64_t count = q->end - q->first;
    float largest = -INFINITY;
    if (kv->cap) soft_cap_all(scores, count, kv->cap);
    if (q->bias)
        for (int64_t i = 0; i < count; i++) {
            const int64_t distance = q->first + i - q->position, reach = kv->reach;
            scores[i] += q->bias[distance < -reach ? -reach : distance > reach ? reach : distance];
        }
    if (kv->slope && kv->rounded)
        for (int64_t i = 0; i < count; i++)
            scores[i] += kv->scale * round_to_bfloat16(kv->slope * round_to_bfloat16(q->first + i));
    else if (kv->slope)
        for (int64_t i = 0; i < count; i++) scores[i] -= kv->slope * fabsf((float)(q->first + i - q->position));
    for (int64_t i = count; i % LANES; i++) scores[i] = -INFINITY;
    vec most = broadcast(-INFINITY);
    for (int64_t i = 0; i < count; i += LANES) {
        const vec score = *(const vec_at *)(scores + i);
        most = blend(most > score, most, score);
    }
    for (int lane = 0; lane < LANES; lane++) largest = largest > most[lane] ? largest : most[lane];
    if (q->sink && *q->sink > largest) largest = *q->sink;
    vec totals = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec weight = vexp(*(const vec_at *)(scores + i) - largest);
        *(vec_at *)(scores + i) = weight;
        totals += weight;
    }
    const float total = reduce_add(totals);
    return q->sink ? total + vexp(broadcast(*q->sink - largest))[0] : total;
}

INLINE void attend_typed(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int stage, int dtype) {
#define DO_STAGE(T)                                                                                                     \
    if (stage == SCORES) scores(kv, queries, begin, end, T, dtype);                                                     \
    else outputs(kv, queries, begin, end, T, dtype)
    switch (T) {
    case 1: DO_STAGE(1); break;
    case FEW_QUERIES: DO_STAGE(FEW_QUERIES); break;
    default: DO_STAGE(TILE);
    }
#undef DO_STAGE
}

typedef void attend_range(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int stage);

/* One stage of T queries for a range of positions. */
static void attend_floats(const kv_head *kv, const query *queries, int64_t begin, int64_t end, int T, int stage) {
    switch (kv->dtype) { /* separate code for each */
    case FLOAT32: attend_typed(kv, queries, begin, end, T, stage, FLOAT32); break;
    case BFLOAT16: attend_typed(kv, queries, begin, end, T, stage, BFLOAT16); break;
    default: attend_typed(kv, queries, begin, end, T, stage, FLOAT16);
    }
}

/* One stage for the positions of each query in ascending order; has_code: `count` queries take common positions
 * together. */
INLINE void attend_stage(const kv_head *kv, const query *queries, int64_t count, int has_code, int stage,
                         attend_range *attend_part) {
    int64_t begin = queries[0].first, end = queries[0].end;
    for (int64_t t = 1; t < count; t++) {
        begin = max64(begin, queries[t].first);
        end = min64(end, queries[t].end);
    }
    if (queries->rounded) begin += begin & 1, end -= end & 1; /* complete pairs */
    const int together = has_code && begin < end;
    for (int64_t t = 0; t < count; t++)
        attend_part(kv, queries + t, queries[t].first, together ? begin : queries[t].end, 1, stage);
    if (!together) return;
    attend_part(kv, queries, begin, end, count, stage);
    for (int64_t t = 0; t < count; t++) attend_part(kv, queries + t, end, queries[t].end, 1, stage);
}

static void attend(const kv_head *kv, query *queries, int64_t count) {
    for (int64_t part; count > 0; queries += part, count -= part) {
        part = count >= TILE ? TILE : count >= FEW_QUERIES ? FEW_QUERIES : 1; /* these numbers have code */
        float totals[TILE];
        attend_stage(kv, queries, part, part > 1, SCORES, attend_floats);
        for (int64_t t = 0; t < part; t++) {
            totals[t] = softmax(kv, queries + t);
            memset(queries[t].out, 0, kv->D * sizeof(float));
        }
        attend_stage(kv, queries, part, part > 1, OUTPUTS, attend_floats);
        for (int64_t t = 0; t < part; t++)
            for (int64_t d = 0; d < kv->D; d++) queries[t].out[d] /= totals[t];
    }
}
