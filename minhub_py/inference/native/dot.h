/* Products of 8-bit weights by the dot products of ARMv8.2: one instruction adds four products of signed 8-bit numbers to
 * each of four sums. The inputs' codes have 16 bits (kernels.h), so each is two numbers,
 *     code = 256 * high + low + 128,    high and low from -128 to 127,
 * and the sum of weight * code is 256 * (of weight * high) + (of weight * low) + 128 * (of weight). */

#if NEON
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static int has_dots(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, NULL, 0) && found;
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43); /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
#else
    return 0;
#endif
}

/* As text, because the rest of the file is for processors without it, too. */
static inline __attribute__((always_inline)) int32x4_t dot(int32x4_t sums, int8x16_t a, int8x16_t b) {
    __asm__(".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(a), "w"(b));
    return sums;
}

/* Weights of a row; zeros beyond its end. */
static inline __attribute__((always_inline)) int8x16_t load_weights(const int8_t *from, int64_t count) {
    int8_t last[16] = {0};
    if (count >= 16) return vld1q_s8(from);
    memcpy(last, from, count);
    return vld1q_s8(last);
}

#define DOT_BOUND (1 << 18) /* inputs after which a lane's 32 bits could be full: each 16 add at most 4 * 2^14 to it */

/* As `dot_codes` of kernels.h, for R rows and T tokens known to the compiler. */
static inline __attribute__((always_inline)) void dot_planes(const matrix *w, int64_t row, const int16_t *codes,
                                                             int64_t padded, const float *scales, float *out,
                                                             int64_t out_stride, int R, int T) {
    const int8_t *data = (const int8_t *)w->data + row * w->stride;
    const float *row_scales = (const float *)w->scales + row;
    int64_t totals[4][2] = {{0}};
    for (int64_t first = 0; first < w->columns; first += DOT_BOUND) {
        const int64_t end = w->columns - first < DOT_BOUND ? w->columns : first + DOT_BOUND;
        int32x4_t high[4][2], low[4][2], plain[4];
        for (int r = 0; r < R; r++) {
            plain[r] = vdupq_n_s32(0);
            for (int t = 0; t < T; t++) high[r][t] = low[r][t] = vdupq_n_s32(0);
        }
        for (int64_t k = first; k < end; k += 16) {
            int8x16_t weights[4];
            for (int r = 0; r < R; r++) {
                weights[r] = load_weights(data + r * w->stride + k, end - k);
                if (T == 1) __builtin_prefetch(data + r * w->stride + k + AHEAD);
                plain[r] = dot(plain[r], weights[r], vdupq_n_s8(1));
            }
            for (int t = 0; t < T; t++) {
                const int8x16x2_t x = vld2q_s8((const int8_t *)(codes + t * padded + k)); /* low bytes, high bytes */
                const int8x16_t less = veorq_s8(x.val[0], vdupq_n_s8(-128));
                for (int r = 0; r < R; r++) {
                    high[r][t] = dot(high[r][t], weights[r], x.val[1]);
                    low[r][t] = dot(low[r][t], weights[r], less);
                }
            }
        }
        for (int r = 0; r < R; r++)
            for (int t = 0; t < T; t++)
                totals[r][t] += 256 * vaddlvq_s32(high[r][t]) + vaddlvq_s32(low[r][t]) + 128 * vaddlvq_s32(plain[r]);
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            out[t * out_stride + r] = (double)totals[r][t] * ((double)scales[t] * row_scales[r]);
}

/* As `linear_codes` of kernels.h, with the same bits. */
static void linear_dots(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                        const float *scales, float *out, int64_t out_stride, int64_t tokens) {
    for (int64_t first = 0; first < tokens; first += 16) { /* so few inputs stay in the nearest cache */
        const int64_t last = first + 16 < tokens ? first + 16 : tokens;
        for (int64_t n = begin; n < end; n += n + 4 <= end ? 4 : 1)
            for (int64_t t = first; t < last; t += 2) {
                const int16_t *in = codes + t * padded;
                float *to = out + t * out_stride + n - begin;
                if (n + 4 <= end && t + 2 <= last) dot_planes(w, n, in, padded, scales + t, to, out_stride, 4, 2);
                else if (n + 4 <= end) dot_planes(w, n, in, padded, scales + t, to, out_stride, 4, 1);
                else if (t + 2 <= last) dot_planes(w, n, in, padded, scales + t, to, out_stride, 1, 2);
                else dot_planes(w, n, in, padded, scales + t, to, out_stride, 1, 1);
            }
    }
}
#else
static int has_dots(void) { return 0; }
static void linear_dots(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                        const float *scales, float *out, int64_t out_stride, int64_t tokens) {}
#endif
