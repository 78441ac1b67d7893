/* Attention of a text without a KV cache: all keys and values are in the call.
 *
 * A block of queries meets keys and values that are packed for this block, once for all of its queries: keys as panels of
 * 4 * LANES positions, so that each lane of a score is another key, and values by position. `tile_columns` computes
 * both products. A score adds the dimensions in ascending order and an output the positions, and the lanes of `softmax`
 * count from the query's first position. So results do not depend on the block. */

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
        pack_transposed(h->k + (begin + n) * h->stride, h->stride, count - n, D, h->scale, keys + start * D + (n - start),
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
        multiply_panels(keys, count, h->q + (h->first + t) * h->stride, h->stride, D, 1, scores, stride, rows);
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * stride;
            query q = {.position = h->first + t + r, .bias = h->bias, .sink = h->sink};
            attended(h, q.position, &q.first, &q.end);
            q.scores = row + q.first - begin;
            totals[r] = softmax(&kv, &q);
            for (int64_t i = 0; i < q.first - begin; i++) row[i] = 0;
            for (int64_t i = q.end - begin; i < count; i++) row[i] = 0;
        }
        multiply_panels(values, D, scores, stride, count, 1, outputs, values_width, rows);
        for (int64_t r = 0; r < rows; r++) {
            float *out = h->out + (h->first + t + r) * h->out_stride;
            for (int64_t d = 0; d < D; d++) out[d] = outputs[r * values_width + d] / totals[r];
        }
    }
}
