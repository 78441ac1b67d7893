/* Products with INT8 and NF4 weights by AMX: tiles of 16 rows of 64 bytes, and an instruction that multiplies 16 x 64 by
 * 64 x 16 numbers of 8 bits. The 16-bit codes of the inputs come as two planes, code = 256 * high + low. INT8 weights are
 * used from the model's memory; NF4 weights are unpacked to two planes, too. */

#define LANES 16
#include "decoder.h"

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-tile,amx-int8,avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
                             apply_to = function)
#else
#pragma GCC target("amx-tile,amx-int8,avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#endif
#include "simd.h"
#include "blocks.h"

#define TILES 16 /* tokens of a group, and outputs of a tile */

typedef struct {
    uint8_t palette, start, zeros[14];
    uint16_t bytes[16]; /* of a tile's row */
    uint8_t rows[16];
} tile_shapes;

/* Whether the processor has tiles, and Linux permits them to this process, which must request them. */
static int allow_tiles(void) {
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return 0;
    return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the tiles' contents */);
}

/* Writes 64 codes of one of a group's tokens into the tiles of both planes: a row has 4 inputs of each token. */
static void split_codes(const int16_t *codes, int64_t token, uint8_t *planes) {
    uint8_t high[64], low[64];
    for (int i = 0; i < 64; i++) high[i] = codes[i] >> 8, low[i] = codes[i] & 255;
    for (int row = 0; row < 16; row++) {
        memcpy(planes + 64 * row + 4 * token, high + 4 * row, 4);
        memcpy(planes + 1024 + 64 * row + 4 * token, low + 4 * row, 4);
    }
}

/* Transposes: out[t * stride + r] = in[r][t] for the r of the mask and t < tokens. */
static void store_transposed(__m512 in[16], __mmask16 mask, float *out, int64_t stride,
                                                            int64_t tokens) {
    __m512 v[16];
    for (int i = 0; i < 16; i += 2) { /* pairs of rows, then fours, eights and all */
        v[i] = _mm512_unpacklo_ps(in[i], in[i + 1]);
        v[i + 1] = _mm512_unpackhi_ps(in[i], in[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            in[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(v[i + j]), _mm512_castps_pd(v[i + j + 2])));
            in[i + 2 * j + 1] =
                _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(v[i + j]), _mm512_castps_pd(v[i + j + 2])));
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            v[i + j] = _mm512_shuffle_f32x4(in[i + j], in[i + j + 4], 0x88);
            v[i + j + 4] = _mm512_shuffle_f32x4(in[i + j], in[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        in[j] = _mm512_shuffle_f32x4(v[j], v[j + 8], 0x88);
        in[j + 8] = _mm512_shuffle_f32x4(v[j], v[j + 8], 0xdd);
    }
    for (int64_t t = 0; t < tokens; t++) _mm512_mask_storeu_ps(out + t * stride, mask, in[t]);
}

/* Converts the sums of a tile of outputs for a group of tokens to floats as `rows_int` does. sums: of `planes` tiles, each
 * 1/256 of the previous one. */
static void store_sums(int32_t (*sums)[256], int planes, const float *row_scales,
                                                          const float *scales, __mmask16 mask, float *out,
                                                          int64_t stride, int64_t tokens) {
    __m512 rows[16];
    const __m512d scale[2] = {_mm512_cvtps_pd(_mm256_loadu_ps(scales)), _mm512_cvtps_pd(_mm256_loadu_ps(scales + 8))};
    for (int r = 0; r < 16; r++) {
        __m256 half[2];
        for (int i = 0; i < 2; i++) {
            __m512d sum = _mm512_setzero_pd();
            for (int plane = 0; plane < planes; plane++)
                sum = sum * 256 + _mm512_cvtepi32_pd(_mm256_loadu_si256((const void *)(sums[plane] + 16 * r + 8 * i)));
            half[i] = _mm512_cvtpd_ps(sum * (scale[i] * row_scales[r]));
        }
        rows[r] = _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(half[0])),
                                                       _mm256_castps_pd(half[1]), 1));
    }
    store_transposed(rows, mask, out, stride, tokens);
}

/* The outputs from `begin` to `end` of a tile that starts at row `from`, as a mask. */
static int row_mask(int64_t from, int64_t begin, int64_t end) {
    return (begin > from ? 0xffff << (begin - from) : 0xffff) & (end - from < TILES ? (1 << (end - from)) - 1 : 0xffff);
}

static void begin_tiles(void) {
    _Alignas(64) tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    _tile_loadconfig(&shapes);
}

/* 16 rows of NF4 as two planes, weight = 256 * high + low: for each 64 inputs, 16 rows of high bytes, then of low bytes. */
static void split_rows(const uint8_t *data, int64_t stride, int64_t padded, uint8_t *planes) {
    const __m512i bytes = _mm512_set1_epi16(255);
    for (int64_t r = 0; r < 16; r++)
        for (int64_t k = 0; k < padded; k += 128) {
            const nf4_unit unit = load_nf4(data + r * stride + k / 128 * NF4_UNIT);
            UNROLL for (int part = 0; part < 128; part += 32) {
                const __m512i weights = (__m512i)unpack_nf4(&unit, part);
                uint8_t *to = planes + (k + part / 64 * 64) * 32 + r * 64 + part % 64;
                _mm256_storeu_si256((void *)to, _mm512_cvtepi16_epi8(_mm512_srai_epi16(weights, 8)));
                _mm256_storeu_si256((void *)(to + 1024), _mm512_cvtepi16_epi8(_mm512_and_si512(weights, bytes)));
            }
        }
}

/* INT8 weights. codes: for each group of tokens and each 64 inputs, the high plane's tile and the low plane's. */
static void tiles_int8(const product *p) {
    const matrix *w = p->weight;
    const int8_t *data = w->data;
    const float *row_scales = w->scales;
    _Alignas(64) int32_t sums[4][256];
    begin_tiles();
    for (int64_t n = p->begin; n < p->end; n += 2 * TILES) {
        /* Two tiles of outputs, moved back into the weights if they would end beyond them. */
        const int64_t last = w->rows - TILES, one = min64(n, last), two = min64(n + TILES, last);
        for (int64_t t = 0; t < p->tokens; t += TILES) {
            const uint8_t *group = (const uint8_t *)p->codes + 2 * t * p->input_stride;
            const int64_t count = min64(p->tokens - t, TILES);
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t k = 0; k < w->columns; k += 64, group += 2048) {
                _tile_loadd(4, data + one * w->stride + k, w->stride);
                _tile_loadd(5, data + two * w->stride + k, w->stride);
                _tile_loadd(6, group, 64);
                _tile_loadd(7, group + 1024, 64);
                _tile_dpbssd(0, 4, 6);
                _tile_dpbsud(1, 4, 7);
                _tile_dpbssd(2, 5, 6);
                _tile_dpbsud(3, 5, 7);
            }
            _tile_stored(0, sums[0], 64);
            _tile_stored(1, sums[1], 64);
            _tile_stored(2, sums[2], 64);
            _tile_stored(3, sums[3], 64);
            for (int i = 0; i < 2; i++) {
                const int64_t from = i ? two : one, first = n + i * TILES;
                if (first >= p->end) break;
                store_sums(sums + 2 * i, 2, row_scales + from, p->input_scales + t, row_mask(from, first, p->end),
                           p->outputs + t * p->output_stride + from - p->begin, p->output_stride, count);
            }
        }
    }
    _tile_release();
}

/* NF4 weights: 16 rows at a time become planes in the workspace, 32 * input_stride bytes. */
static void tiles_nf4(const product *p) {
    const matrix *w = p->weight;
    uint8_t *planes = (uint8_t *)p->workspace;
    _Alignas(64) int32_t sums[3][256];
    begin_tiles();
    for (int64_t n = p->begin; n < p->end; n += TILES) {
        const int64_t from = min64(n, w->rows - TILES);
        split_rows((const uint8_t *)w->data + from * w->stride, w->stride, p->input_stride, planes);
        for (int64_t t = 0; t < p->tokens; t += TILES) {
            const uint8_t *group = (const uint8_t *)p->codes + 2 * t * p->input_stride;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            for (int64_t k = 0; k < p->input_stride; k += 64, group += 2048) {
                _tile_loadd(3, planes + k * 32, 64);
                _tile_loadd(4, planes + k * 32 + 1024, 64);
                _tile_loadd(5, group, 64);
                _tile_loadd(6, group + 1024, 64);
                _tile_dpbssd(0, 3, 5);
                _tile_dpbsud(1, 3, 6);
                _tile_dpbuud(2, 4, 6);
                _tile_dpbusd(1, 4, 5);
            }
            _tile_stored(0, sums[0], 64);
            _tile_stored(1, sums[1], 64);
            _tile_stored(2, sums[2], 64);
            store_sums(sums, 3, (const float *)w->scales + from, p->input_scales + t, row_mask(from, n, p->end),
                       p->outputs + t * p->output_stride + from - p->begin, p->output_stride,
                       min64(p->tokens - t, TILES));
        }
    }
    _tile_release();
}

/* Tiles have bitwise the same results as vectors, which compute all other products. */
static void linear_tiles(const product *p) {
    if (p->weight->dtype == INT8) tiles_int8(p);
    else tiles_nf4(p);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

int use_amx(kernel_table *table) {
    if (!allow_tiles()) return 0;
    table->linear_tiles = linear_tiles;
    table->split_codes = split_codes;
    return 1;
}
#else
int use_amx(kernel_table *table) { return 0; }
#endif
