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

/* The keys or queries of the distance of a query to a key. */
INLINE const float *of_distance(const text_head *h, const float *table, int64_t distance) {
    return table + h->rows[distance] * h->stride;
}

/* The first number of a panel that contains number n, and the end of the panels that contain `end` of `count` numbers. */
INLINE int64_t panel_start(int64_t n) { return n / (4 * LANES) * 4 * LANES; }
INLINE int64_t panel_end(int64_t end, int64_t count) { return min64(panel_start(end + 4 * LANES - 1), count); }

/* Panels of the scaled keys of `count` distances, from the longest distance to a key before a query on. copies: LANES rows. */
static void pack_distances(const text_head *h, int64_t longest, int64_t count, float *copies, float *panels) {
    const int64_t D = h->D;
    for (int64_t n = 0; n < count; n += LANES) {
        const int64_t start = panel_start(n), rows = min64(LANES, count - n);
        for (int64_t i = 0; i < rows; i++)
            memcpy(copies + i * D, of_distance(h, h->distance_keys, longest - n - i), D * sizeof(float));
        pack_transposed(copies, D, rows, D, h->scale, panels + start * D + (n - start), panel_width(start, count));
    }
}

/* The products of keys with the queries of distances, (queries, count): each distance meets the keys that have it to a query
 * of the block. keys: panels. copies, products: buffers. */
static void multiply_distances(const text_head *h, const float *keys, int64_t count, float *copies, float *products,
                               float *scores) {
    const int64_t D = h->D, last = h->first + h->queries - 1, stride = h->queries + 2 * 4 * LANES + TILE;
    for (int64_t distance = h->first - count + 1; distance <= last; distance += TILE) {
        const int64_t rows = min64(TILE, last - distance + 1);
        const int64_t start = panel_start(max64(h->first - distance - rows + 1, 0));
        const int64_t columns = panel_end(min64(last - distance + 1, count), count) - start;
        for (int64_t r = 0; r < rows; r++)
            memcpy(copies + r * D, of_distance(h, h->distance_queries, distance + r), D * sizeof(float));
        multiply_panels(keys + start * D, columns, copies, D, D, 1, products, stride, rows);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t end = min64(last - distance - r + 1, count);
            for (int64_t i = max64(h->first - distance - r, 0); i < end; i++)
                scores[(i + distance + r - h->first) * count + i] = products[r * stride + i - start];
        }
    }
}

/* Adds to the scores (rows, stride) of queries, from query t of the block on, those of distances. keys: panels of the keys of
 * distances, or NULL.    added: (queries, count), or NULL.    shifted: a buffer. */
static void add_distances(const text_head *h, int64_t t, int64_t rows, int64_t count, const float *keys, float *shifted,
                          const float *added, float *scores, int64_t stride) {
    const int64_t D = h->D, total = count + h->queries - 1, width = count + TILE + 2 * 4 * LANES;
    const int64_t start = panel_start(h->queries - t - rows), end = panel_end(total - t, total);
    if (keys)
        multiply_panels(keys + start * D, end - start, h->q + (h->first + t) * h->stride, h->stride, D, 1, shifted, width, rows);
    for (int64_t r = 0; r < rows; r++) {
        const float *from = shifted + r * width + h->queries - 1 - t - r - start, *more = added + (t + r) * count;
        for (int64_t i = 0; keys && i < count; i++) scores[r * stride + i] += from[i];
        for (int64_t i = 0; added && i < count; i++) scores[r * stride + i] += more[i];
    }
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
    /* With distances there is no window. */
    float *distance_keys = outputs + TILE * values_width, *shifted = distance_keys + (count + TEXT_QUERIES + 64) * D;
    float *added = shifted + TILE * (count + TEXT_QUERIES + 192), *copies = added + TEXT_QUERIES * count;
    if (h->distance_keys)
        pack_distances(h, h->first + h->queries - 1, count + h->queries - 1, copies, distance_keys);
    if (h->distance_queries) multiply_distances(h, keys, count, copies, shifted, added);
    const kv_head kv = {.cap = h->cap, .reach = h->reach, .slope = h->slope};
    for (int64_t t = 0; t < h->queries; t += TILE) {
        const int64_t rows = min64(TILE, h->queries - t);
        float totals[TILE];
        multiply_panels(keys, count, h->q + (h->first + t) * h->stride, h->stride, D, 1, scores, stride, rows);
        if (h->rows)
            add_distances(h, t, rows, count, h->distance_keys ? distance_keys : NULL, shifted,
                          h->distance_queries ? added : NULL, scores, stride);
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
