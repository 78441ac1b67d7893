/* Products with INT8 and NF4 weights, in integers.
 *
 * The inputs of a token are quantized to 16 bits with one scale per token: an error of 1/65534 of the largest input, where
 * weights have been rounded to 1/254 of theirs. For NF4 they have 15 bits, so that twice as many products fit into 32 bits
 * (MAX_PRODUCTS). All products and sums are exact integers, so the result is bitwise identical for any summation order:
 * one token, many tokens, and every instruction set. */

/* The largest magnitude. not_finite: 0, or NaN if an input is not finite. */
INLINE float largest(const float *in, int64_t count, float *not_finite) {
    vec largest = {0}, nans = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        const vec x = load_up_to(in, i, count - i, FLOAT32);
        largest = vmax(largest, vabs(x));
        nans += x * 0;
    }
    *not_finite = reduce_add(nans);
    return reduce_max(largest);
}

/* Quantizes a token's inputs for weights of `dtype`: input = scale * code, -limit <= code <= limit, then zeros up to
 * `padded`, a multiple of 128. An input that is not finite makes the scale NaN, and thereby all outputs. */
static void quantize_inputs(const float *in, int64_t count, int64_t padded, int dtype, int16_t *codes, float *scale) {
    const float limit = dtype == INT8 ? 32767 : 16383;
    float not_finite;
    const float most = largest(in, count, &not_finite);
    const vec factor = broadcast(most >= 1e-30f ? limit / most : 0);
    *scale = most >= 1e-30f ? most / limit : 0;
    if (not_finite != 0) *scale = NAN;
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec x = i < count ? load_up_to(in, i, count - i, FLOAT32) : (vec){0};
        *(half_shorts *)(codes + i) = __builtin_convertvector(round_to_int(x * factor), half_shorts);
    }
}

/* Stores numbers that fit into 8 bits. */
INLINE void store_bytes(int8_t *to, ints v) {
#if LANES == 16
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8((__m512i)v));
#else
    for (int lane = 0; lane < LANES; lane++) to[lane] = v[lane];
#endif
}

/* Quantizes a token's inputs to 8 bits, with a scale for each group of 32 inputs that is an integer multiple of the
 * token's: input = scale * multiple * code, -127 <= code <= 127, 1 <= multiple <= 31. multiple * code is a code of 16 bits
 * for `linear_int8` and `linear_nf4`. as_bytes: writes what `tile_bytes` reads instead: the codes as bytes, the multiples,
 * and the start value of each group's sum. */
static void quantize_groups(const float *in, int64_t count, int64_t padded, int as_bytes, int16_t *codes, float *scale) {
    int8_t *bytes = (int8_t *)codes;
    int32_t *multiples = (int32_t *)(bytes + padded), *starts = multiples + padded / 32;
    float not_finite;
    const float most = largest(in, count, &not_finite), inverse = most >= 1e-30f ? 31 / most : 0;
    *scale = not_finite != 0 ? NAN : inverse ? most / (31 * 127) : 0;
    for (int64_t i = 0; i < padded; i += 128) {
        vec x[4][32 / LANES], extremes[4];
        float multiple[4], sums[4], factors[4];
        UNROLL for (int g = 0; g < 4; g++) {
            extremes[g] = (vec){0};
            UNROLL for (int part = 0; part < 32 / LANES; part++) {
                const int64_t at = i + g * 32 + part * LANES;
                x[g][part] = at < count ? load_up_to(in, at, count - at, FLOAT32) : (vec){0};
                extremes[g] = vmax(extremes[g], vabs(x[g][part]));
            }
        }
        reduce_max4(extremes[0], extremes[1], extremes[2], extremes[3], multiple);
        UNROLL for (int g = 0; g < 4; g++) { /* the multiple: the fraction of 31, rounded up */
            const float fraction = multiple[g] * inverse;
            const float down = fraction < 31 ? (float)(int)fraction : 31; /* also for NaN */
            const float up = down < fraction && down < 31 ? down + 1 : down;
            multiple[g] = up > 0 ? up : 1;
            factors[g] = 127 * inverse / multiple[g];
        }
        UNROLL for (int g = 0; g < 4; g++) {
            const vec factor = broadcast(factors[g]);
            extremes[g] = (vec){0};
            UNROLL for (int part = 0; part < 32 / LANES; part++) {
                const int64_t at = i + g * 32 + part * LANES;
                const ints code = round_to_int(x[g][part] * factor);
                if (as_bytes) {
                    store_bytes(bytes + at, code);
                    extremes[g] += to_float((bits)code);
                } else {
                    const half_shorts few = __builtin_convertvector(code, half_shorts);
                    *(half_shorts *)(codes + at) = few * (int16_t)multiple[g];
                }
            }
        }
        if (!as_bytes) continue;
        reduce_add4(extremes[0], extremes[1], extremes[2], extremes[3], sums);
        UNROLL for (int g = 0; g < 4; g++) {
            multiples[i / 32 + g] = (int)multiple[g];
            starts[i / 32 + g] = not_finite != 0 ? 0 : -128 * (int)sums[g];
        }
    }
}

/* sums + a * b, two products per lane. The pairs are neighbors, except on ARM. */
INLINE ints add_products(ints sums, shorts a, shorts b) {
#if LANES == 16
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#elif LANES == 8
    sums = (ints)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16((__m256i)a, (__m256i)b));
    __asm__("" : "+x"(sums)); /* otherwise GCC adds the products as a tree, with most of them in memory */
    return sums;
#elif defined(__SSE2__)
    return (ints)_mm_add_epi32((__m128i)sums, _mm_madd_epi16((__m128i)a, (__m128i)b));
#elif NEON
    return (ints)vmlal_high_s16(vmlal_s16((int32x4_t)sums, vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b)),
                                (int16x8_t)a, (int16x8_t)b);
#else
    for (int lane = 0; lane < LANES; lane++) sums[lane] += a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1];
    return sums;
#endif
}

#if LANES == 16
/* Sums of two lanes each, in 64 bits. */
INLINE __m512i widen(ints v) {
    const __m512i first = _mm512_mul_epi32((__m512i)v, _mm512_set1_epi64(1));
    const __m512i second = _mm512_srai_epi64((__m512i)v, 32);
    return _mm512_add_epi64(first, second);
}
#elif LANES == 8
/* Sums of two lanes each, as doubles. */
INLINE __m256d widen(ints v) {
    return _mm256_cvtepi32_pd(_mm256_castsi256_si128((__m256i)v)) +
           _mm256_cvtepi32_pd(_mm256_extracti128_si256((__m256i)v, 1));
}
#endif

/* The sum of all lanes, which may exceed 32 bits. */
INLINE double reduce_add_wide(ints v) {
#if LANES == 16
    return _mm512_reduce_add_epi64(widen(v));
#elif LANES == 8
    const __m256d four = widen(v);
    const __m128d two = _mm256_castpd256_pd128(four) + _mm256_extractf128_pd(four, 1);
    return two[0] + two[1];
#else
    int64_t sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += v[lane];
    return sum;
#endif
}

/* Adds the sum of all lanes of 4 vectors to 4 totals, in half of the instructions. */
INLINE void reduce_add_wide4(const ints v[4], double *totals) {
#if LANES == 16
    const __m512i a = widen(v[0]), b = widen(v[1]), c = widen(v[2]), d = widen(v[3]);
    const __m512i first = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); /* a b a b ... */
    const __m512i second = _mm512_add_epi64(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
    const __m512i halves = _mm512_add_epi64(_mm512_shuffle_i64x2(first, second, 0x88),
                                            _mm512_shuffle_i64x2(first, second, 0xdd)); /* a b a b c d c d */
    const __m256i x = _mm512_castsi512_si256(halves), y = _mm512_extracti64x4_epi64(halves, 1);
    const __m256d sums = _mm256_cvtepi64_pd(
        _mm256_add_epi64(_mm256_permute2x128_si256(x, y, 0x20), _mm256_permute2x128_si256(x, y, 0x31)));
    _mm256_storeu_pd(totals, _mm256_loadu_pd(totals) + sums);
#elif LANES == 8
    const __m256d first = _mm256_hadd_pd(widen(v[0]), widen(v[1])); /* a b a b */
    const __m256d second = _mm256_hadd_pd(widen(v[2]), widen(v[3]));
    const __m256d sums = _mm256_permute2f128_pd(first, second, 0x20) + _mm256_permute2f128_pd(first, second, 0x31);
    _mm256_storeu_pd(totals, _mm256_loadu_pd(totals) + sums);
#else
    for (int i = 0; i < 4; i++) totals[i] += reduce_add_wide(v[i]);
#endif
}

/* Inputs of a lane after which its 32 bits could overflow: 2^31 exceeds 512 * 2^15 * 127 + 2^16, and
 * 64 * 2^14 * 31 * 64 + 2^16, where 2^16 is the remainder that `tile_int` keeps of earlier inputs. */
#define MAX_PRODUCTS(dtype) ((dtype) == INT8 ? 512 : 64)
#define UNPACKED_NF4 ANY_BLOCK /* for the compiler: NF4 weights that have been unpacked to 16 bits */

/* Continues the sums of `rows_int`, the first row's at index `first`, with one vector of weights per row. */
INLINE void step_int(const shorts *weights, const int16_t *codes, int64_t padded, ints sums[TILE][4], int first,
                             int R, int T) {
    const int16_t *later = T > 3 ? codes + 3 * padded : codes;
    /* Hides the pointers' origin: otherwise GCC keeps one pointer per token, most of them in memory. */
    if (T > 3) __asm__("" : "+r"(codes), "+r"(later));
    IN_REGISTERS for (int t = 0; t < T; t++) {
        const shorts x = *(const shorts_at *)(t < 3 ? codes + t * padded : later + (t - 3) * padded);
        IN_REGISTERS for (int r = 0; r < R; r++)
            sums[t][first + r] = add_products(sums[t][first + r], weights[r], x);
    }
}

/* out[t][r] = scale[t] * row_scale[r] * sum over k of weight[r][k] * code[t][k], for R rows and T tokens, both constants
 * for the compiler. data, stride: of the rows. */
INLINE void rows_int(const uint8_t *data, int64_t stride, const float *row_scales, int64_t columns,
                            const int16_t *codes, int64_t padded, const float *scales, float *out, int64_t out_stride,
                            int R, int T, int dtype) {
    const int vector = 2 * LANES, step = dtype == NF4 || R == 1 ? 128 : vector; /* inputs */
    const int width = dtype == NF4 ? NF4_UNIT : dtype == INT8 ? step : 2 * step;    /* bytes of a step */
    const int64_t total = dtype == INT8 ? columns : padded; /* NF4 rows are padded, too */
    const uint8_t *at = data;
    double totals[TILE][4] = {{0}};
    const int64_t bound = MAX_PRODUCTS(dtype) * LANES * (R == 1 ? 4 : 1);
    for (int64_t first = 0; first < total; first += bound) {
        const int64_t end = total - first < bound ? total : first + bound;
        ints sums[TILE][4]; /* of R rows; or 4 in turn of one row, because each addition waits for the previous one */
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int r = 0; r < 4; r++) sums[t][r] = (ints){0};
        int64_t k = first;
        for (; k + step <= end; k += step, at += width) {
            nf4_unit units[4];
            IN_REGISTERS for (int r = 0; r < R; r++) {
                for (int line = 0; line == 0 || line + 64 <= width; line += 64)
                    __builtin_prefetch(at + r * stride + line + PREFETCH, 0, 2);
                if (dtype == NF4) units[r] = load_nf4(at + r * stride);
#if LANES == 16 /* hides their origin: otherwise GCC loads them again for each part, 1.5 times as slow */
                if (dtype == NF4) __asm__("" : "+v"(units[r].words[0]), "+r"(units[r].scales));
#endif
            }
            UNROLL for (int part = 0; part < step; part += vector) {
                shorts weights[4];
                IN_REGISTERS for (int r = 0; r < R; r++)
                    if (dtype == NF4) weights[r] = unpack_nf4(&units[r], part);
                    else if (dtype == INT8) weights[r] = load_shorts((const int8_t *)at + r * stride + part);
                    else weights[r] = *(const shorts_at *)(at + r * stride + 2 * part);
                step_int(weights, codes + k + part, padded, sums, R == 1 ? part / vector % 4 : 0, R, T);
            }
        }
        /* INT8: less than a step remains. */
        UNROLL for (int part = 0; R == 1 && part < 128 - vector; part += vector, k += vector) {
            if (k + vector > end) break;
            const shorts weights = load_shorts((const int8_t *)data + k);
            step_int(&weights, codes + k, padded, sums, part / vector % 4, 1, T);
        }
        if (k < end) /* less than a vector */
            IN_REGISTERS for (int r = 0; r < R; r++) {
                int8_t last[2 * LANES] = {0};
                memcpy(last, data + r * stride + k, end - k); /* never reads beyond the row */
                const shorts weights = load_shorts(last);
                step_int(&weights, codes + k, padded, sums, R == 1 ? 3 : r, 1, T);
            }
        IN_REGISTERS for (int t = 0; t < T; t++)
            if (R == 4) reduce_add_wide4(sums[t], totals[t]);
            else if (end - first <= bound / 4) /* the four sums fit into 32 bits */
                totals[t][0] += reduce_add_wide(sums[t][0] + sums[t][1] + sums[t][2] + sums[t][3]);
            else
                IN_REGISTERS for (int i = 0; i < 4; i++) totals[t][0] += reduce_add_wide(sums[t][i]);
    }
    IN_REGISTERS for (int t = 0; t < T; t++)
        if (R == 4) {
            const four_doubles rows = __builtin_convertvector(*(const four_at *)row_scales, four_doubles);
            const four_doubles result = *(const four_doubles *)totals[t] * (rows * (double)scales[t]);
            *(four_at *)(out + t * out_stride) = __builtin_convertvector(result, four_at);
        } else
            out[t * out_stride] = totals[t][0] * ((double)scales[t] * row_scales[0]);
}

/* All outputs of `rows` rows for all tokens. */
INLINE void gemv_int(const uint8_t *data, int64_t stride, const float *row_scales, int64_t rows, int64_t columns,
                     const product *p, float *out, int dtype) {
    const int64_t padded = p->input_stride, out_stride = p->output_stride, tokens = p->tokens;
    const int16_t *codes = p->codes;
    const float *scales = p->input_scales;
#define DO_ROWS(R, T)                                                                                                   \
    rows_int(data + n * stride, stride, row_scales + n, columns, codes + t * padded, padded, scales + t,                \
             out + t * out_stride + n, out_stride, R, T, dtype)
    const int most = LANES == 8 && dtype == INT8 ? 2 : TILE; /* AVX2 has few registers */
    FOR_ROWS(0, rows, tokens, 4 * TILE, most, LANES >= 8 && tokens <= (dtype == INT8 ? 2 : 1))
#undef DO_ROWS
}

/* --- many tokens ---
 *
 * `rows_int` spreads the sum of a row over lanes, and adding those takes time when rows are short. For many tokens some
 * rows are unpacked once into a panel: for each pair of inputs, the weights of all its rows. So each lane has the sum of
 * one row. After as many inputs as fit into 32 bits, the upper 16 bits of each sum are moved to a second vector. */

/* The minimum number of tokens for panels, at least PANEL_TOKENS; measured with LANES >= 8. */
INLINE int64_t min_panel_tokens(int dtype) {
    if (dtype == INT8) return LANES == 16 ? 32 : 20;
    return LANES == 8 ? 8 : LANES == 16 ? 24 : 12;
}

#if LANES >= 8
#define PANEL_ROWS (2 * LANES)
#define PANEL_TOKENS (LANES == 16 ? 12 : 4) /* of a tile, so that its sums fill the registers */

#include "transpose.h"

/* The panel of PANEL_ROWS rows from `data`, of their inputs from `begin` to `end`, both multiples of 128. */
INLINE void pack_int(const uint8_t *data, int64_t stride, int64_t columns, int64_t begin, int64_t end,
                             int16_t *panel, int dtype) {
    for (int64_t k = begin; k < end; k += 128)
        for (int first = 0; first < PANEL_ROWS; first += LANES) {
            shorts words[LANES][64 / LANES]; /* of 128 inputs */
            for (int r = 0; r < LANES; r++) {
                const uint8_t *row = data + (first + r) * stride;
                if (dtype == NF4) {
                    const nf4_unit unit = load_nf4(row + k / 128 * NF4_UNIT);
                    UNROLL for (int i = 0; i < 64 / LANES; i++) words[r][i] = unpack_nf4(&unit, 2 * LANES * i);
                } else if (columns - k >= 128) {
                    UNROLL for (int i = 0; i < 64 / LANES; i++)
                        words[r][i] = load_shorts((const int8_t *)row + k + 2 * LANES * i);
                } else {
                    int8_t last[128] = {0};
                    memcpy(last, row + k, columns - k); /* never reads beyond the row */
                    for (int i = 0; i < 64 / LANES; i++) words[r][i] = load_shorts(last + 2 * LANES * i);
                }
            }
            for (int i = 0; i < 64 / LANES; i++) {
                ints pairs[LANES];
                for (int r = 0; r < LANES; r++) pairs[r] = (ints)words[r][i];
                transpose(pairs);
                int16_t *to = panel + (k - begin + 2 * LANES * i) * PANEL_ROWS + 2 * first;
                for (int j = 0; j < LANES; j++) *(shorts_at *)(to + 2 * j * PANEL_ROWS) = (shorts)pairs[j];
            }
        }
}

typedef double doubles __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

/* Adds sums, whose upper 16 bits are in `upper`, to `totals` (T, PANEL_ROWS), or initializes them. */
INLINE void add_totals(const ints (*sums)[2], const ints (*upper)[2], double *totals, int begins, int T) {
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int half = 0; half < 2; half++) {
            doubles *total = (doubles *)(totals + t * PANEL_ROWS + half * LANES), previous = {0};
            if (!begins) previous = *total;
            *total = previous + 65536.0 * __builtin_convertvector(upper[t][half], doubles) +
                     __builtin_convertvector(sums[t][half], doubles);
        }
}

/* Adds the products of a panel with `count` inputs of T tokens to `totals` (T, PANEL_ROWS), or initializes them. */
INLINE void tile_int(const int16_t *panel, int64_t count, const int16_t *codes, int64_t padded, int64_t bound,
                             double *totals, int begins, const uint8_t *ahead, int64_t lines, int T) {
    ints sums[PANEL_TOKENS][2], upper[PANEL_TOKENS][2];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int half = 0; half < 2; half++) sums[t][half] = upper[t][half] = (ints){0};
    for (int64_t first = 0; first < count; first += bound) {
        const int64_t end = count - first < bound ? count : first + bound;
        for (int64_t block = first; block < end; block += 32, ahead += 64 * lines) {
            for (int64_t line = 0; line < lines; line++) __builtin_prefetch(ahead + 64 * line, 0, 2);
            for (int64_t k = block; k < block + 32; k += 2) {
                const shorts_at *weights = (const shorts_at *)(panel + k * PANEL_ROWS);
                const shorts low = weights[0], high = weights[1];
                UNROLL for (int t = 0; t < T; t++) {
                    int32_t pair;
                    memcpy(&pair, codes + t * padded + k, 4);
                    const shorts x = (shorts)((ints){0} + pair);
                    sums[t][0] = add_products(sums[t][0], low, x);
                    sums[t][1] = add_products(sums[t][1], high, x);
                }
            }
        }
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                upper[t][half] += sums[t][half] >> 16;
                sums[t][half] &= 0xffff;
            }
    }
    add_totals(sums, upper, totals, begins, T);
}

/* The rows of all complete panels. Returns their number. workspace: PANEL floats; the panel uses up to a half, and the
 * totals of MAX_TOKENS a quarter. */
INLINE int64_t gemm_int(const product *p, int dtype) {
    const matrix *w = p->weight;
    const uint8_t *data = (const uint8_t *)w->data + p->begin * w->stride;
    const float *row_scales = (const float *)w->scales + p->begin, *scales = p->input_scales;
    const int16_t *codes = p->codes;
    const int64_t rows = p->end - p->begin, padded = p->input_stride, tokens = p->tokens, stride = w->stride;
    float *out = p->outputs;
    int16_t *panel = (int16_t *)(((uintptr_t)p->workspace + 63) / 64 * 64);
    double *totals = (double *)(panel + DEEP * PANEL_ROWS);
    /* Cache lines that a tile prefetches with each 32 inputs, so that the tiles prefetch all of the next rows. */
    const int64_t steps = tokens / PANEL_TOKENS * (padded / 32);
    const int64_t lines = (PANEL_ROWS * stride / 64 + steps - 1) / steps;
    int64_t n = 0;
    for (; n + PANEL_ROWS <= rows; n += PANEL_ROWS) {
        const uint8_t *ahead = data + (n + PANEL_ROWS) * stride, *end_ahead = ahead + PANEL_ROWS * stride;
        for (int64_t k = 0; k < padded; k += DEEP) {
            const int64_t end = min64(k + DEEP, padded);
            pack_int(data + n * stride, stride, w->columns, k, end, panel, dtype);
#define DO(T)                                                                                                           \
    tile_int(panel, end - k, codes + t * padded + k, padded, MAX_PRODUCTS(dtype), totals + t * PANEL_ROWS, k == 0,      \
             ahead, ahead < end_ahead ? lines : 0, T)
            for (int64_t t = 0, count; t < tokens; t += count, ahead += (end - k) / 32 * lines * 64) {
                count = tokens - t >= PANEL_TOKENS ? PANEL_TOKENS : min64(tokens - t, TILE);
                if (count == PANEL_TOKENS) DO(PANEL_TOKENS);
                else FOR_TILE(count, DO)
            }
#undef DO
        }
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t r = 0; r < PANEL_ROWS; r++)
                out[t * p->output_stride + n + r] =
                    totals[t * PANEL_ROWS + r] * ((double)scales[t] * row_scales[n + r]);
    }
    return n;
}
#else
/* All rows: NF4 weights are unpacked once for many tokens. workspace: PANEL floats. */
INLINE int64_t gemm_int(const product *p, int dtype) {
    const matrix *w = p->weight;
    const uint8_t *data = (const uint8_t *)w->data + p->begin * w->stride;
    const float *row_scales = (const float *)w->scales + p->begin;
    const int64_t rows = p->end - p->begin, padded = p->input_stride;
    const int64_t most = PANEL * 2 / padded / 4 * 4; /* rows of a panel */
    if (dtype == INT8 || !most) return 0;
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = min64(rows - first, most);
        int16_t *words = (int16_t *)p->workspace;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < padded; k += 128) {
                const nf4_unit unit = load_nf4(data + (first + r) * w->stride + k / 128 * NF4_UNIT);
                UNROLL for (int part = 0; part < 128; part += 2 * LANES)
                    *(shorts_at *)(words + r * padded + k + part) = unpack_nf4(&unit, part);
            }
        gemv_int((const uint8_t *)words, padded * sizeof(int16_t), row_scales + first, count, w->columns, p,
                 p->outputs + first, UNPACKED_NF4);
    }
    return rows;
}
#endif

INLINE void linear_int(const product *p, int dtype) {
    const matrix *w = p->weight;
    const int64_t done = p->tokens >= min_panel_tokens(dtype) ? gemm_int(p, dtype) : 0;
    const int64_t row = p->begin + done;
    gemv_int((const uint8_t *)w->data + row * w->stride, w->stride, (const float *)w->scales + row, p->end - row,
             w->columns, p, p->outputs + done, dtype);
}

static void linear_int8(const product *p) { linear_int(p, INT8); }
static void linear_nf4(const product *p) { linear_int(p, NF4); }

PEAK(peak_shorts, ints, 2 * LANES, add_products(sum, (shorts)sum, (shorts)x))
