/* Activations of 16 bits as two planes of bytes, code = 256 * high + low, for products whose lanes or tiles have 16 tokens. */

#include "transpose.h"

#define TILES 16 /* tokens of a group, and outputs of a tile */

/* Writes 64 codes of `count` tokens into the tiles of both planes: a row has 4 inputs of each token. */
static void split_codes(const int16_t *codes, int64_t stride, int64_t count, uint8_t *planes) {
    ints high[TILES], low[TILES];
    for (int64_t t = 0; t < TILES; t++) {
        const void *from = codes + min64(t, count - 1) * stride;
        const __m512i first = _mm512_loadu_si512(from), last = _mm512_loadu_si512((const int16_t *)from + 32);
        const __m512i bytes = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(first));
        low[t] = (ints)_mm512_inserti64x4(bytes, _mm512_cvtepi16_epi8(last), 1);
        const __m512i upper = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(_mm512_srli_epi16(first, 8)));
        high[t] = (ints)_mm512_inserti64x4(upper, _mm512_cvtepi16_epi8(_mm512_srli_epi16(last, 8)), 1);
    }
    transpose(high);
    transpose(low);
    memcpy(planes, high, sizeof high);
    memcpy(planes + sizeof high, low, sizeof low);
}

/* Stores the outputs of the mask and the first `tokens` tokens of a tile. tile: a vector of tokens for each output. */
INLINE void store_tile(ints tile[TILES], int mask, float *out, int64_t stride, int64_t tokens) {
    transpose(tile);
    for (int64_t t = 0; t < tokens; t++) _mm512_mask_storeu_ps(out + t * stride, mask, (__m512)tile[t]);
}

/* Converts the sums of a tile of outputs for a group of tokens to floats as `rows_int` does. sums: of `planes` tiles, each
 * 1/256 of the previous one. */
static void store_sums(int32_t (*sums)[256], int planes, const float *row_scales, const float *scales, int mask, float *out,
                       int64_t stride, int64_t tokens) {
    ints rows[TILES];
    const __m512d scale[2] = {_mm512_cvtps_pd(_mm256_loadu_ps(scales)), _mm512_cvtps_pd(_mm256_loadu_ps(scales + 8))};
    for (int r = 0; r < 16; r++) {
        __m256 half[2];
        for (int i = 0; i < 2; i++) {
            __m512d sum = _mm512_setzero_pd();
            for (int plane = 0; plane < planes; plane++)
                sum = sum * 256 + _mm512_cvtepi32_pd(_mm256_loadu_si256((const void *)(sums[plane] + 16 * r + 8 * i)));
            half[i] = _mm512_cvtpd_ps(sum * (scale[i] * row_scales[r]));
        }
        rows[r] = (ints)_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(half[0])), _mm256_castps_pd(half[1]), 1);
    }
    store_tile(rows, mask, out, stride, tokens);
}

/* The outputs from `begin` to `end` of a tile that starts at row `from`, as a mask. */
static int row_mask(int64_t from, int64_t begin, int64_t end) {
    return (begin > from ? 0xffff << (begin - from) : 0xffff) & (end - from < TILES ? (1 << (end - from)) - 1 : 0xffff);
}
