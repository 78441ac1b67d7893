/* Products with many tokens, in float32.
 *
 * The weights of some outputs are unpacked once, to floats in the order of their use: a panel, which stays in the L2 cache
 * while it meets all tokens. A tile of 4 rows (or 4 vectors of outputs) and a few tokens keeps its sums in registers. The
 * sums add the inputs in the order of `dot_rows` and `dot_columns`. A panel may have only part of the inputs; then sums
 * wait in memory, which changes no bit. */

#if LANES > 4
#include "transpose.h"
#endif

#define SHALLOW 128 /* inputs of a panel of weights stored (in, out): wide panels, so memory is read in long stretches */

/* Whether panels are faster; measured (docs/benchmarks/experiments.md). */
INLINE int uses_panels(const matrix *w, int64_t tokens) {
    if (w->transposed) return tokens >= 6 && w->dtype == FLOAT32;
    if (w->dtype >= Q8_0) return tokens >= 6;
    return tokens >= (LANES == 16 ? 24 : 12);
}

/* LANES weights of a row from index k. */
INLINE vec load_weights(const matrix *w, int64_t row, int64_t k, int dtype) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->stride;
    if (dtype == MXFP4) {
        const uint8_t exponent = ((const uint8_t *)w->scales)[row * (w->columns / 32) + k / 32];
        return load_mxfp4(data + k / 32 * 16, k % 32, power_of_two(exponent));
    }
    return load_up_to(data, k, w->columns - k, dtype);
}

/* The panel of `rows` outputs, 4 at a time: LANES weights of the first, of the second, ... */
INLINE void pack_rows(const matrix *w, int64_t row, int64_t rows, int64_t k, int64_t end, float *panel, int dtype) {
    const int step = dtype >= Q8_0 ? 32 : LANES;
    const int prefetches = dtype == BFLOAT16 || dtype == FLOAT16; /* float32: the tiles prefetch */
    for (int64_t first = row; first < row + rows; first += 4)
        for (int64_t i = k; i < end; i += step, panel += 4 * step)
            for (int r = 0; r < 4; r++) {
                const uint8_t *data = (const uint8_t *)w->data + (first + r) * w->stride;
                vec weights[32 / LANES];
                if (prefetches) __builtin_prefetch(data + rows * w->stride + i * 2, 0, 2);
                if (dtype >= Q8_0) unpack_block(data, i, w->dtype, weights);
                else weights[0] = load_weights(w, first + r, i, dtype);
                for (int v = 0; v < step / LANES; v++) *(vec_at *)(panel + (4 * v + r) * LANES) = weights[v];
            }
}

/* The panel of `width` outputs of float32 weights stored (in, out): for 4 * LANES outputs at a time, the weights of each input. */
INLINE void pack_columns(const matrix *w, int64_t column, int64_t width, int64_t k, int64_t end, float *panel) {
    const int64_t stride = w->stride;
    const uint8_t *row = (const uint8_t *)w->data + k * stride;
    for (int64_t i = 0; i < end - k; i++, row += stride)
        for (int64_t n = 0; n < width; n += 4 * LANES)
            UNROLL for (int v = 0; v < 4; v++)
                *(vec_at *)(panel + n * (end - k) + (4 * i + v) * LANES) =
                    load(row, column + n + v * LANES, FLOAT32);
}

/* Continues the sums of 4 outputs for T tokens with `count` inputs. They start at zero (`begins`); at the end (`ends`) the
 * lanes of each are added, otherwise they return to `sums`. ahead: memory to prefetch, or NULL. */
INLINE void tile_rows(const float *panel, const float *in, int64_t in_stride, int64_t count, float *sums, int begins,
                            int ends, float *out, int64_t out_stride, const uint8_t *ahead, int T) {
    vec s[4][TILE];
    for (int r = 0; r < 4; r++)
        for (int t = 0; t < T; t++) s[r][t] = initial_sum(sums + (t * 4 + r) * LANES, begins);
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES, panel += 4 * LANES) {
        vec x[TILE];
        if (ahead) __builtin_prefetch(ahead + k * 4, 0, 2);
        for (int t = 0; t < T; t++) x[t] = *(const vec_at *)(in + t * in_stride + k);
        for (int r = 0; r < 4; r++) {
            const vec weight = *(const vec_at *)(panel + r * LANES);
            for (int t = 0; t < T; t++) s[r][t] += weight * x[t];
        }
    }
    if (k < count)
        for (int r = 0; r < 4; r++)
            for (int t = 0; t < T; t++)
                s[r][t] += *(const vec_at *)(panel + r * LANES) * load_tail(in + t * in_stride, k, count - k, FLOAT32);
    for (int t = 0; t < T; t++)
        if (ends) reduce_add4(s[0][t], s[1][t], s[2][t], s[3][t], out + t * out_stride);
        else
            for (int r = 0; r < 4; r++) *(vec_at *)(sums + (t * 4 + r) * LANES) = s[r][t];
}

/* Continues the sums of W * LANES outputs for T tokens, in `out`, with `count` inputs. ahead: memory to prefetch, rows of
 * 16 cache lines at a distance of `stride`, or NULL. */
INLINE void tile_columns(const float *panel, const float *in, int64_t in_stride, int64_t count, int begins,
                               float *out, int64_t out_stride, const uint8_t *ahead, int64_t stride, int W, int T) {
    vec s[4][TILE];
    for (int v = 0; v < W; v++)
        for (int t = 0; t < T; t++) s[v][t] = initial_sum(out + t * out_stride + v * LANES, begins);
    for (int64_t k = 0; k < count; k++, panel += W * LANES) {
        vec x[TILE];
        if (ahead) __builtin_prefetch(ahead + k / 16 * stride + k % 16 * 64, 0, 2);
        for (int t = 0; t < T; t++) x[t] = broadcast(in[t * in_stride + k]);
        for (int v = 0; v < W; v++) {
            const vec weight = *(const vec_at *)(panel + v * LANES);
            for (int t = 0; t < T; t++) s[v][t] += weight * x[t];
        }
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < W; v++) *(vec_at *)(out + t * out_stride + v * LANES) = s[v][t];
}

static void tiles_of_rows(const float *panel, int64_t rows, const float *in, int64_t in_stride, int64_t count,
                                float *sums, int begins, int ends, float *out, int64_t out_stride, int64_t tokens,
                                const uint8_t *next, int64_t stride) {
    const int64_t padded = (count + LANES - 1) / LANES * LANES;
    int64_t row = 0; /* of the next panel; each tile prefetches one */
    for (int64_t t = 0; t < tokens; t += TILE)
        for (int64_t r = 0; r < rows; r += 4, row++) {
            const uint8_t *ahead = next && row < rows ? next + row * stride : NULL;
#define DO(T)                                                                                                           \
    tile_rows(panel + r * padded, in + t * in_stride, in_stride, count, sums + (r * tokens + t * 4) * LANES,       \
                    begins, ends, out + t * out_stride + r, out_stride, ahead, T)
            FOR_TILE(tokens - t < TILE ? tokens - t : TILE, DO)
#undef DO
        }
}

static void tiles_of_columns(const float *panel, int64_t width, const float *in, int64_t in_stride, int64_t count,
                                   int begins, float *out, int64_t out_stride, int64_t tokens, const uint8_t *next,
                                   int64_t stride) {
    int64_t row = 0; /* of the next panel; each tile prefetches some in turn, as each is in another page */
    for (int64_t t = 0; t < tokens; t += TILE)
        for (int64_t n = 0; n < width; n += 4 * LANES, row += count / 16) {
            const uint8_t *ahead = next && row < count ? next + row * stride : NULL;
#define DO(T)                                                                                                           \
    tile_columns(panel + n * count, in + t * in_stride, in_stride, count, begins, out + t * out_stride + n,       \
                       out_stride, ahead, stride, 4, T)
            FOR_TILE(tokens - t < TILE ? tokens - t : TILE, DO)
#undef DO
        }
}

/* Packs LANES rows of D numbers, multiplied by `scale`, as columns of a panel of `width` vectors; rows after `count` are
 * zeros. */
INLINE void pack_transposed(const float *rows, int64_t stride, int64_t count, int64_t D, float scale, float *panel,
                            int64_t width) {
    int64_t d = 0;
#if LANES > 4
    for (; d + LANES <= D; d += LANES) {
        ints m[LANES];
        UNROLL for (int i = 0; i < LANES; i++)
            m[i] = i < count ? (ints)(*(const vec_at *)(rows + i * stride + d) * scale) : (ints){0};
        transpose(m);
        UNROLL for (int i = 0; i < LANES; i++) *(vec_at *)(panel + (d + i) * width * LANES) = (vec)m[i];
    }
#endif
    for (; d < D; d++)
        for (int i = 0; i < LANES; i++) panel[d * width * LANES + i] = i < count ? rows[i * stride + d] * scale : 0;
}

/* Vectors of the panel that starts at number n of `count` numbers: the last panel may be narrower. */
INLINE int64_t panel_width(int64_t n, int64_t count) {
    const int64_t vectors = (count - n + LANES - 1) / LANES;
    return vectors < 4 ? vectors : 4;
}

/* T rows of inputs (T, count) times all panels: outputs (T, columns), with columns rounded up to LANES. */
INLINE void tile_panels(const float *panels, int64_t columns, const float *in, int64_t in_stride, int64_t count, int begins,
                        float *out, int64_t out_stride, int T) {
    for (int64_t n = 0; n < columns; n += 4 * LANES) {
        const float *panel = panels + n * count;
        float *to = out + n;
        switch (panel_width(n, columns)) {
        case 1: tile_columns(panel, in, in_stride, count, begins, to, out_stride, NULL, 0, 1, T); break;
        case 2: tile_columns(panel, in, in_stride, count, begins, to, out_stride, NULL, 0, 2, T); break;
        case 3: tile_columns(panel, in, in_stride, count, begins, to, out_stride, NULL, 0, 3, T); break;
        default: tile_columns(panel, in, in_stride, count, begins, to, out_stride, NULL, 0, 4, T);
        }
    }
}

/* The same for up to TILE rows, each number its own code. begins: the outputs do not contain sums to continue. */
static void multiply_panels(const float *panels, int64_t columns, const float *in, int64_t in_stride, int64_t count,
                            int begins, float *out, int64_t out_stride, int64_t rows) {
#define DO(T) tile_panels(panels, columns, in, in_stride, count, begins, out, out_stride, T)
    FOR_TILE(rows, DO)
#undef DO
}

/* All outputs of weights stored (out, in), with the sums of weights stored (in, out): each lane is another output, so that
 * no lanes are added at the end. The panels are transposed. */
static void gemm_by_columns(const product *p) {
    enum { DEPTH = 512, WIDTH = PANEL / DEPTH }; /* of the panels: WIDTH outputs */
    const matrix *w = p->weight;
    const int64_t stride = w->stride / 4, outputs = p->end - p->begin;
    float *panel = p->workspace, *sums = panel + PANEL;
    for (int64_t n = 0; n < outputs; n += WIDTH) {
        const int64_t width = min64(outputs - n, WIDTH), padded = (width + LANES - 1) / LANES * LANES;
        const int complete = width == padded; /* otherwise the last vector would exceed the outputs */
        float *out = complete ? p->outputs + n : sums;
        const int64_t out_stride = complete ? p->output_stride : padded;
        for (int64_t k = 0; k < w->columns; k += DEPTH) {
            const int64_t depth = min64(w->columns - k, DEPTH);
            const float *rows = (const float *)w->data + (p->begin + n) * stride + k;
            for (int64_t r = 0; r < width; r += LANES) {
                const int64_t start = r / (4 * LANES) * 4 * LANES;
                pack_transposed(rows + r * stride, stride, width - r, depth, 1, panel + start * depth + (r - start),
                                panel_width(start, width));
            }
            for (int64_t t = 0; t < p->tokens; t += TILE)
                multiply_panels(panel, width, p->inputs + t * p->input_stride + k, p->input_stride, depth, k == 0,
                                out + t * out_stride, out_stride, min64(p->tokens - t, TILE));
        }
        for (int64_t t = 0; t < p->tokens && !complete; t++)
            memcpy(p->outputs + t * p->output_stride + n, sums + t * padded, width * sizeof(float));
    }
}

/* As many outputs as make complete tiles. Returns their number. */
INLINE int64_t gemm_f32(const product *p, int dtype) {
    const matrix *w = p->weight;
    const int64_t begin = p->begin, tokens = p->tokens;
    float *panel = p->workspace;
    const int transposed = dtype == FLOAT32 && w->transposed;
    const int64_t unit = transposed ? 4 * LANES : 4, depth = transposed ? SHALLOW : DEEP, most = PANEL / depth;
    const int64_t count = (p->end - begin) / unit * unit;
    for (int64_t n = 0; n < count; n += most) {
        const int64_t width = min64(count - n, most);
        float *out = p->outputs + n;
        for (int64_t k = 0; k < w->columns; k += depth) {
            const int64_t last = min64(k + depth, w->columns);
            const float *in = p->inputs + k;
            /* The next panel: further inputs of the same outputs, or the first inputs of the next outputs. */
            const int64_t row = begin + n + (last < w->columns ? 0 : most), input = last < w->columns ? last : 0;
            const int64_t at = transposed ? input * w->stride + row * 4 : row * w->stride + input * 4;
            const uint8_t *next = dtype == FLOAT32 ? (const uint8_t *)w->data + at : NULL;
            if (transposed) {
                pack_columns(w, begin + n, width, k, last, panel);
                tiles_of_columns(panel, width, in, p->input_stride, last - k, k == 0, out, p->output_stride, tokens, next,
                                 w->stride);
            } else {
                pack_rows(w, begin + n, width, k, last, panel, dtype);
                tiles_of_rows(panel, width, in, p->input_stride, last - k, panel + PANEL, k == 0, last == w->columns, out,
                              p->output_stride, tokens, next, w->stride);
            }
        }
    }
    return count;
}

/* A product with float inputs and weights in any format except INT8, NF4 and blocks of 256. */
static void linear(const product *p) {
    int64_t done = 0;
    if (p->weight->by_columns) {
        gemm_by_columns(p);
        return;
    }
    if (uses_panels(p->weight, p->tokens))
        switch (p->weight->dtype) { /* separate code for each */
        case FLOAT32: done = gemm_f32(p, FLOAT32); break;
        case BFLOAT16: done = gemm_f32(p, BFLOAT16); break;
        case FLOAT16: done = gemm_f32(p, FLOAT16); break;
        case MXFP4: done = gemm_f32(p, MXFP4); break;
        default: done = gemm_f32(p, ANY_BLOCK);
        }
    product rest = *p;
    rest.begin += done, rest.outputs += done;
    if (rest.begin < rest.end) gemv(&rest);
}

PEAK(peak_floats, vec, LANES, sum * x + x)
