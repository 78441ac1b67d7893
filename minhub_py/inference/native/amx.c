/* Products with INT8 and NF4 weights by AMX: tiles of 16 rows of 64 bytes, and an instruction that multiplies 16 x 64 by
 * 64 x 16 numbers of 8 bits. INT8 weights are used from the model's memory; NF4 weights are unpacked to two planes, as the
 * inputs are. */

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
#include "planes.h"

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

/* The thresholds are measured. The 32 bits of a tile hold the sums of 2^15 products of 255 * 255. */
static int suits_tiles(const matrix *w, int64_t tokens) {
    if (w->rows < TILES || w->columns > 1 << 15) return 0;
    return w->dtype == INT8 ? tokens > 2 && w->columns % 64 == 0 : tokens > 6;
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
    table->suits_tiles = suits_tiles;
    table->split_codes = split_codes;
    return 1;
}
#else
int use_amx(kernel_table *table) { return 0; }
#endif
