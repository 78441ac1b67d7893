/* Products of whole numbers by the tiles of AMX: 16 rows of 64 bytes, and one instruction that multiplies 16 x 64 by
 * 64 x 16 numbers. It knows 8-bit numbers only, so the 16-bit codes of the inputs (kernels.h) come as two planes,
 * code = 256 * high + low. Weights in 8 bits lie in the model's memory as a tile wants them; those of NF4 are unpacked to
 * two planes, too. */

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <sys/syscall.h>
#include <unistd.h>

#define TILES 16 /* tokens of a group, and outputs of a tile */

typedef struct {
    uint8_t palette, start, zeros[14];
    uint16_t bytes[16]; /* of a tile's row */
    uint8_t rows[16];
} tile_shapes;

/* Whether the processor has them, and Linux lets this process use them: it wants to be asked. */
static int allow_tiles(void) {
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return 0;
    return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the tiles' contents */);
}

/* What a product has to be for them; else vectors, with the same bits. */
static int suits_tiles(const matrix *w, int64_t tokens) {
    if (w->dtype == BFLOAT16 || w->rows < TILES || w->columns > 1 << 15) return 0; /* so that 32 bits hold the sums of 255 * 255 */
    return w->dtype == NF4 ? tokens > 6 : tokens > 2 && w->columns % 64 == 0;
}

/* 64 codes of one of a group's tokens, as its planes' tiles have them: a row is 4 inputs of each token. */
__attribute__((target("avx512f,avx512bw"))) static void split_codes(const int16_t *codes, int64_t token, uint8_t *planes) {
    uint8_t high[64], low[64];
    for (int i = 0; i < 64; i++) high[i] = codes[i] >> 8, low[i] = codes[i] & 255;
    for (int row = 0; row < 16; row++) {
        memcpy(planes + 64 * row + 4 * token, high + 4 * row, 4);
        memcpy(planes + 1024 + 64 * row + 4 * token, low + 4 * row, 4);
    }
}

/* Turns rows of 16 numbers into columns: out[t * stride + r] = in[r][t] for the r of the mask and t < tokens. */
__attribute__((target("avx512f"))) static void store_turned(__m512 in[16], __mmask16 wanted, float *out, int64_t stride,
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
    for (int64_t t = 0; t < tokens; t++) _mm512_mask_storeu_ps(out + t * stride, wanted, in[t]);
}

/* The sums of a tile of outputs for a group of tokens, from whole numbers to floats as `dot_codes` does it. sums: of
 * `planes` tiles, each of a 256th of the one before. */
__attribute__((target("avx512f"))) static void store_sums(int32_t (*sums)[256], int planes, const float *row_scales,
                                                          const float *scales, __mmask16 wanted, float *out,
                                                          int64_t stride, int64_t tokens) {
    __m512 found[16];
    const __m512d scale[2] = {_mm512_cvtps_pd(_mm256_loadu_ps(scales)), _mm512_cvtps_pd(_mm256_loadu_ps(scales + 8))};
    for (int r = 0; r < 16; r++) {
        __m256 half[2];
        for (int i = 0; i < 2; i++) {
            __m512d sum = _mm512_setzero_pd();
            for (int plane = 0; plane < planes; plane++)
                sum = sum * 256 + _mm512_cvtepi32_pd(_mm256_loadu_si256((const void *)(sums[plane] + 16 * r + 8 * i)));
            half[i] = _mm512_cvtpd_ps(sum * (scale[i] * row_scales[r]));
        }
        found[r] = _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(half[0])),
                                                       _mm256_castps_pd(half[1]), 1));
    }
    store_turned(found, wanted, out, stride, tokens);
}

/* Of a tile that begins with row `from`, those outputs that are from `begin` to before `end`. */
static int wanted_rows(int64_t from, int64_t begin, int64_t end) {
    return (begin > from ? 0xffff << (begin - from) : 0xffff) & (end - from < TILES ? (1 << (end - from)) - 1 : 0xffff);
}

__attribute__((target("amx-tile"))) static void begin_tiles(void) {
    _Alignas(64) tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    _tile_loadconfig(&shapes);
}

/* As `linear_codes` does, from planes: of each group of tokens, of each 64 inputs, the high one's tile and the low one's.
 * scales: of whole groups. */
__attribute__((target("amx-tile,amx-int8,avx512f"))) static void
linear_tiles(const matrix *w, int64_t begin, int64_t end, const uint8_t *planes, int64_t padded, const float *scales,
             float *out, int64_t out_stride, int64_t tokens) {
    const int8_t *data = w->data;
    const float *row_scales = w->scales;
    _Alignas(64) int32_t sums[4][256];
    begin_tiles();
    for (int64_t n = begin; n < end; n += 2 * TILES) {
        /* Two tiles of outputs, moved back into the weights where they would end behind them. */
        const int64_t last = w->rows - TILES, one = n < last ? n : last, two = n + TILES < last ? n + TILES : last;
        for (int64_t t = 0; t < tokens; t += TILES) {
            const uint8_t *group = planes + 2 * t * padded;
            const int64_t count = tokens - t < TILES ? tokens - t : TILES;
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
                if (first >= end) break;
                store_sums(sums + 2 * i, 2, row_scales + from, scales + t, wanted_rows(from, first, end),
                           out + t * out_stride + from - begin, out_stride, count);
            }
        }
    }
    _tile_release();
}

/* Likewise of NF4, whose rows become planes, too: 16 at a time. room: 32 * padded bytes. */
__attribute__((target("amx-tile,amx-int8,avx512f"))) static void
linear_split(const matrix *w, int64_t begin, int64_t end, const uint8_t *planes, int64_t padded, const float *scales,
             float *out, int64_t out_stride, int64_t tokens, uint8_t *room) {
    _Alignas(64) int32_t sums[3][256];
    begin_tiles();
    for (int64_t n = begin; n < end; n += TILES) {
        const int64_t from = n < w->rows - TILES ? n : w->rows - TILES;
        split_rows_avx512((const uint8_t *)w->data + from * w->stride, w->stride, padded, room);
        for (int64_t t = 0; t < tokens; t += TILES) {
            const uint8_t *group = planes + 2 * t * padded;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            for (int64_t k = 0; k < padded; k += 64, group += 2048) {
                _tile_loadd(3, room + k * 32, 64);
                _tile_loadd(4, room + k * 32 + 1024, 64);
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
            store_sums(sums, 3, (const float *)w->scales + from, scales + t, wanted_rows(from, n, end),
                       out + t * out_stride + from - begin, out_stride, tokens - t < TILES ? tokens - t : TILES);
        }
    }
    _tile_release();
}
#else
#define TILES 1
static int allow_tiles(void) { return 0; }
static int suits_tiles(const matrix *w, int64_t tokens) { return 0; }
static void split_codes(const int16_t *codes, int64_t token, uint8_t *planes) {}
static void linear_tiles(const matrix *w, int64_t begin, int64_t end, const uint8_t *planes, int64_t padded,
                         const float *scales, float *out, int64_t out_stride, int64_t tokens) {}
static void linear_split(const matrix *w, int64_t begin, int64_t end, const uint8_t *planes, int64_t padded,
                         const float *scales, float *out, int64_t out_stride, int64_t tokens, uint8_t *room) {}
#endif
