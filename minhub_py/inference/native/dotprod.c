/* Products with INT8 weights by the dot product instruction of ARMv8.2, which adds four products of signed bytes to each of
 * four sums. The 16-bit codes of the inputs become two numbers,
 *     code = 256 * high + low + 128,    -128 <= high, low <= 127,
 * so the sum of weight * code is 256 * sum(weight * high) + sum(weight * low) + 128 * sum(weight). */

#include "decoder.h"

#if NEON
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include "platform.h"
#endif

static int has_dots(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, NULL, 0) && value;
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43); /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
#else
    return 0;
#endif
}

/* Assembly, because the rest of the file also runs on processors without the instruction. */
INLINE int32x4_t dot(int32x4_t sums, int8x16_t a, int8x16_t b) {
    __asm__(".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(a), "w"(b));
    return sums;
}

/* Weights of a row, then zeros. */
INLINE int8x16_t load_weights(const int8_t *from, int64_t count) {
    int8_t last[16] = {0};
    if (count >= 16) return vld1q_s8(from);
    memcpy(last, from, count);
    return vld1q_s8(last);
}

#define DOT_BOUND (1 << 18) /* inputs after which a lane could overflow: each 16 add at most 4 * 2^14 */

/* As `rows_int`, for R rows and T tokens, both constants for the compiler. */
INLINE void dot_planes(const matrix *w, int64_t row, const int16_t *codes, int64_t padded, const float *scales, float *out,
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
                if (T == 1) __builtin_prefetch(data + r * w->stride + k + PREFETCH);
                plain[r] = dot(plain[r], weights[r], vdupq_n_s8(1));
            }
            for (int t = 0; t < T; t++) {
                const int8x16x2_t x = vld2q_s8((const int8_t *)(codes + t * padded + k)); /* low bytes, high bytes */
                const int8x16_t low_bytes = veorq_s8(x.val[0], vdupq_n_s8(-128));
                for (int r = 0; r < R; r++) {
                    high[r][t] = dot(high[r][t], weights[r], x.val[1]);
                    low[r][t] = dot(low[r][t], weights[r], low_bytes);
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

/* Bitwise the same results as `linear_int8` of gemm_int.h. */
static void linear_dotprod(const product *p) {
    const matrix *w = p->weight;
    for (int64_t first = 0; first < p->tokens; first += 16) { /* 16 inputs stay in the L1 cache */
        const int64_t last = min64(first + 16, p->tokens);
        for (int64_t n = p->begin; n < p->end; n += n + 4 <= p->end ? 4 : 1)
            for (int64_t t = first; t < last; t += 2) {
                const int16_t *in = p->codes + t * p->input_stride;
                const float *scales = p->input_scales + t;
                float *to = p->outputs + t * p->output_stride + n - p->begin;
                const int64_t padded = p->input_stride, stride = p->output_stride;
                if (n + 4 <= p->end && t + 2 <= last) dot_planes(w, n, in, padded, scales, to, stride, 4, 2);
                else if (n + 4 <= p->end) dot_planes(w, n, in, padded, scales, to, stride, 4, 1);
                else if (t + 2 <= last) dot_planes(w, n, in, padded, scales, to, stride, 1, 2);
                else dot_planes(w, n, in, padded, scales, to, stride, 1, 1);
            }
    }
}

int use_dotprod(kernel_table *table) {
    if (!has_dots()) return 0;
    table->linear_int8 = linear_dotprod;
    return 1;
}
#else
int use_dotprod(kernel_table *table) { return 0; }
#endif
