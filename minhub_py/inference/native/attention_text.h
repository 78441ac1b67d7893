/* Attention of a text without a KV cache: all keys and values are in the call.
 *
 * A block of queries meets keys and values that are packed for this block, once for all of its queries: keys as panels of
 * 4 * LANES positions, so that each lane of a score is another key, and values by position. `tile_columns` computes
 * both products. A score adds the dimensions in ascending order and an output the positions, and the lanes of `softmax`
 * count from the query's first position. So results do not depend on the block. */

/* Packs LANES keys as a panel of `width` vectors by dimension, multiplied by the scale; keys after `count` are zeros. */
INLINE void pack_keys(const float *keys, int64_t stride, int64_t count, int64_t D, float scale, float *panel, int64_t width) {
    int64_t d = 0;
#if LANES > 4
    for (; d + LANES <= D; d += LANES) {
        ints m[LANES];
        UNROLL for (int i = 0; i < LANES; i++)
            m[i] = i < count ? (ints)(*(const vec_at *)(keys + i * stride + d) * scale) : (ints){0};
        transpose(m);
        UNROLL for (int i = 0; i < LANES; i++) *(vec_at *)(panel + (d + i) * width * LANES) = (vec)m[i];
    }
#endif
    for (; d < D; d++)
        for (int i = 0; i < LANES; i++) panel[d * width * LANES + i] = i < count ? keys[i * stride + d] * scale : 0;
}

/* Vectors of the panel that starts at number n of `count` numbers: the last panel may be narrower. */
INLINE int64_t panel_width(int64_t n, int64_t count) {
    const int64_t vectors = (count - n + LANES - 1) / LANES;
    return vectors < 4 ? vectors : 4;
}

/* T rows of inputs (T, count) times all panels: outputs (T, columns), with columns rounded up to LANES. */
INLINE void tile_panels(const float *panels, int64_t columns, const float *in, int64_t in_stride, int64_t count, float *out,
                        int64_t out_stride, int T) {
    for (int64_t n = 0; n < columns; n += 4 * LANES) {
        const float *panel = panels + n * count;
        float *to = out + n;
        switch (panel_width(n, columns)) {
        case 1: tile_columns(panel, in, in_stride, count, 1, to, out_stride, NULL, 0, 1, T); break;
        case 2: tile_columns(panel, in, in_stride, count, 1, to, out_stride, NULL, 0, 2, T); break;
        case 3: tile_columns(panel, in, in_stride, count, 1, to, out_stride, NULL, 0, 3, T); break;
        default: tile_columns(panel, in, in_stride, count, 1, to, out_stride, NULL, 0, 4, T);
        }
    }
}

static void multiply_panels(const float *panels, int64_t columns, const float *in, int64_t in_stride, int64_t count,
                            float *out, int64_t out_stride, int64_t rows) {
#define DO(T) tile_panels(panels, columns, in, in_stride, count, out, out_stride, T)
    FOR_TILE(rows, DO)
#undef DO
}

/* The positions that the query at `position` attends to. */
static void attended(const text_head *h, int64_t position, int64_t *first, int64_t *end) {
    *first = h->window ? max64(position - h->window + 1, 0) : 0;
    *end = h->window ? min64(position + h->window, h->tokens) : h->tokens;
}

static void attend_text(const text_head *h) {
    const int64_t D = h->D, values_width = (D + LANES - 1) / LANES * LANES;
    int64_t begin, end, ignored;
    attended(h, h->first, &begin, &ignored);
    attended(h, h->first + h->queries - 1, &ignored, &end);
    const int64_t count = end - begin, padded = (count + LANES - 1) / LANES * LANES, stride = padded + LANES;
    float *keys = h->workspace, *values = keys + padded * D, *scores = values + count * values_width;
    float *outputs = scores + TILE * stride;
    for (int64_t n = 0; n < count; n += LANES) {
        const int64_t start = n / (4 * LANES) * 4 * LANES;
        pack_keys(h->k + (begin + n) * h->stride, h->stride, count - n, D, h->scale, keys + start * D + (n - start),
                  panel_width(start, count));
    }
    for (int64_t d = 0; d < D; d += 4 * LANES) { /* panels by position */
        const int64_t width = panel_width(d, D) * LANES, n = min64(D - d, width);
        for (int64_t i = 0; i < count; i++) {
            float *to = values + d * count + i * width;
            memcpy(to, h->v + (begin + i) * h->stride + d, n * sizeof(float));
            memset(to + n, 0, (width - n) * sizeof(float));
        }
    }
    const kv_head kv = {.cap = h->cap, .reach = h->reach};
    for (int64_t t = 0; t < h->queries; t += TILE) {
        const int64_t rows = min64(TILE, h->queries - t);
        float totals[TILE];
        multiply_panels(keys, count, h->q + (h->first + t) * h->stride, h->stride, D, scores, stride, rows);
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * stride;
            query q = {.position = h->first + t + r, .bias = h->bias, .sink = h->sink};
            attended(h, q.position, &q.first, &q.end);
            q.scores = row + q.first - begin;
            totals[r] = softmax(&kv, &q);
            for (int64_t i = 0; i < q.first - begin; i++) row[i] = 0;
            for (int64_t i = q.end - begin; i < count; i++) row[i] = 0;
        }
        multiply_panels(values, D, scores, stride, count, outputs, values_width, rows);
        for (int64_t r = 0; r < rows; r++) {
            float *out = h->out + (h->first + t + r) * h->out_stride;
            for (int64_t d = 0; d < D; d++) out[d] = outputs[r * values_width + d] / totals[r];
        }
    }
}
