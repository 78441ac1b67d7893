/* Vectors of LANES floats: all intrinsics of the float kernels are here. A file that includes the kernels defines LANES
 * (4: plain C and NEON, 8: AVX2, 16: AVX-512) and selects the instruction set.
 *
 * Vectors use the vector extension of GCC and clang (vector_size), which compiles for any processor. Intrinsics replace
 * them where compilers convert badly (8 and 16 bits).
 *
 * Invariant of all kernels: the summation order of a number depends on that number only, not on the number of tokens in
 * the call or on the thread. So single sequences, batches, prefill chunks and draft tokens are bitwise identical. */

#include "decoder.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* unaligned, in memory */
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int16_t shorts __attribute__((vector_size(4 * LANES)));
typedef int16_t shorts_at __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef int16_t half_shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef float four_at __attribute__((vector_size(16), aligned(4), may_alias));
typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));

#if LANES == 16
static const bits lane_numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
static const bits lane_numbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const bits lane_numbers = {0, 1, 2, 3};
#endif

/* Without vector instructions for them, conversions are long: one copy of each, not one per caller. */
#if LANES == 4 && !NEON
#define INLINE_FORMAT static __attribute__((noinline, unused))
#else
#define INLINE_FORMAT INLINE
#endif

/* --- loads and stores --- */

INLINE vec load_bfloat16(const uint16_t *from) {
#if LANES == 16
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#elif LANES == 8
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16);
#elif NEON
    return (vec)vshll_n_u16(vld1_u16(from), 16);
#else
    bits result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = (uint32_t)from[lane] << 16;
    return (vec)result;
#endif
}

INLINE_FORMAT vec load_float16(const uint16_t *from) {
#if LANES == 16
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif LANES == 8
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#elif NEON
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    vec result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = half_to_float(from[lane]);
    return result;
#endif
}

#if NEON
/* Four bytes, each as the highest byte of a 32-bit number. Dividing by 2^24 in the conversion makes signed numbers. */
INLINE int32x4_t expand_bytes(uint8x16_t bytes) {
    const uint8x16_t index = {16, 16, 16, 0, 16, 16, 16, 1, 16, 16, 16, 2, 16, 16, 16, 3}; /* 16: out of range, 0 */
    return vreinterpretq_s32_u8(vqtbl1q_u8(bytes, index));
}

INLINE uint8x16_t four_bytes(const void *from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return vreinterpretq_u8_u32(vdupq_n_u32(word));
}
#endif

INLINE vec load_int8(const int8_t *from) {
#if LANES == 16
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
#elif LANES == 8
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)from)));
#elif NEON
    return (vec)vcvtq_n_f32_s32(expand_bytes(four_bytes(from)), 24);
#else
    vec result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = from[lane];
    return result;
#endif
}

INLINE bits load_bytes(const uint8_t *from) {
#if LANES == 16
    return (bits)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
#elif LANES == 8
    return (bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)from));
#elif NEON
    const uint8x16_t index = {0, 16, 16, 16, 1, 16, 16, 16, 2, 16, 16, 16, 3, 16, 16, 16}; /* 16: out of range, 0 */
    return (bits)vqtbl1q_u8(four_bytes(from), index);
#else
    bits result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = from[lane];
    return result;
#endif
}

INLINE vec to_float(bits whole) {
    return __builtin_convertvector((ints)whole, vec);
}

INLINE vec load(const void *row, int64_t k, int dtype) {
    switch (dtype) {
    case FLOAT32: return *(const vec_at *)((const float *)row + k);
    case BFLOAT16: return load_bfloat16((const uint16_t *)row + k);
    case FLOAT16: return load_float16((const uint16_t *)row + k);
    default: return load_int8((const int8_t *)row + k);
    }
}

/* The last `count` < LANES numbers of a row, then zeros. Never reads beyond the row: a file mapping may end there. */
INLINE vec load_tail(const void *row, int64_t k, int64_t count, int dtype) {
    static const int sizes[] = {[FLOAT32] = 4, [BFLOAT16] = 2, [FLOAT16] = 2, [INT8] = 1};
    _Alignas(64) uint8_t last[4 * LANES] = {0};
    memcpy(last, (const uint8_t *)row + k * sizes[dtype], count * sizes[dtype]);
    return load(last, 0, dtype);
}

/* The next `count` numbers of a row, at most LANES. */
INLINE vec load_up_to(const void *row, int64_t k, int64_t count, int dtype) {
    return count >= LANES ? load(row, k, dtype) : load_tail(row, k, count, dtype);
}

/* Stores `count` numbers, at most LANES. The call of memcpy is slow, and only for the last ones. */
INLINE void store_up_to(float *to, vec v, int64_t count) {
    if (count >= LANES) *(vec_at *)to = v;
    else memcpy(to, &v, count * sizeof(float));
}

INLINE vec broadcast(float value) {
#if LANES == 16
    return (vec)_mm512_set1_ps(value); /* one load; compilers make two instructions of {0} + value */
#elif LANES == 8
    return (vec)_mm256_set1_ps(value);
#elif NEON
    return (vec)vdupq_n_f32(value);
#else
    return (vec){0} + value;
#endif
}

/* For each lane: `yes` where the comparison holds, otherwise `no`. */
INLINE vec blend(ints holds, vec yes, vec no) {
    return (vec)(((bits)yes & (bits)holds) | ((bits)no & ~(bits)holds));
}

/* --- reductions --- */

/* The sum of all lanes, always in the same order: lanes half a vector apart first, neighbors last. */
INLINE float reduce_add(vec v) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)v);
#elif NEON
    return vpadds_f32(vadd_f32(vget_low_f32((float32x4_t)v), vget_high_f32((float32x4_t)v)));
#else
    float lanes[LANES];
    memcpy(lanes, &v, sizeof lanes);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int lane = 0; lane < step; lane++) lanes[lane] += lanes[lane + step];
    return lanes[0];
#endif
}

#if LANES == 16
/* Reduces 4 vectors with `join`, each over all lanes. */
#define REDUCE4(join, a, b, c, d, out)                                                                                  \
    const __m512 w = (__m512)a, x = (__m512)b, y = (__m512)c, z = (__m512)d;                                            \
    const __m512 first = join(_mm512_shuffle_f32x4(w, x, 0x44), _mm512_shuffle_f32x4(w, x, 0xee)); /* halves */         \
    const __m512 second = join(_mm512_shuffle_f32x4(y, z, 0x44), _mm512_shuffle_f32x4(y, z, 0xee));                     \
    __m512 v = join(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));              \
    v = join(v, _mm512_permute_ps(v, 0x4e)); /* a quarter each */                                                       \
    v = join(v, _mm512_permute_ps(v, 0xb1));                                                                            \
    const __m512i index = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);                            \
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(index, v)));
#endif

/* The sums of 4 vectors in the order of reduce_add, with a third of the instructions. */
INLINE void reduce_add4(vec a, vec b, vec c, vec d, float *out) {
#if LANES == 16
    REDUCE4(_mm512_add_ps, a, b, c, d, out)
#elif LANES == 8
    const __m256 w = (__m256)a, x = (__m256)b, y = (__m256)c, z = (__m256)d;
    const __m256 first = _mm256_permute2f128_ps(w, x, 0x20) + _mm256_permute2f128_ps(w, x, 0x31); /* halves */
    const __m256 second = _mm256_permute2f128_ps(y, z, 0x20) + _mm256_permute2f128_ps(y, z, 0x31);
    __m256 v = _mm256_shuffle_ps(first, second, 0x44) + _mm256_shuffle_ps(first, second, 0xee); /* quarters: a c | b d */
    v = _mm256_shuffle_ps(v, v, 0x88) + _mm256_shuffle_ps(v, v, 0xdd);
    _mm_storeu_ps(out, _mm_unpacklo_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
#elif NEON
    const float64x2_t w = (float64x2_t)a, x = (float64x2_t)b, y = (float64x2_t)c, z = (float64x2_t)d;
    const float32x4_t first = (float32x4_t)vzip1q_f64(w, x) + (float32x4_t)vzip2q_f64(w, x); /* halves */
    const float32x4_t second = (float32x4_t)vzip1q_f64(y, z) + (float32x4_t)vzip2q_f64(y, z);
    vst1q_f32(out, vpaddq_f32(first, second));
#else
    out[0] = reduce_add(a), out[1] = reduce_add(b), out[2] = reduce_add(c), out[3] = reduce_add(d);
#endif
}

INLINE vec vabs(vec v) {
    return (vec)((bits)v & 0x7fffffff);
}

INLINE vec vmax(vec a, vec b) {
#if LANES == 16
    return (vec)_mm512_max_ps((__m512)b, (__m512)a);
#else
    return blend(b > a, b, a);
#endif
}

INLINE float reduce_max(vec v) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float most = v[0];
    for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
    return most;
#endif
}

INLINE void reduce_max4(vec a, vec b, vec c, vec d, float *out) {
#if LANES == 16
    REDUCE4(_mm512_max_ps, a, b, c, d, out)
#else
    out[0] = reduce_max(a), out[1] = reduce_max(b), out[2] = reduce_max(c), out[3] = reduce_max(d);
#endif
}

/* --- rounding and functions --- */

/* Rounds to the nearest integer, half to even. */
INLINE ints round_to_int(vec v) {
#if LANES == 16
    return (ints)_mm512_cvtps_epi32((__m512)v);
#elif LANES == 8
    return (ints)_mm256_cvtps_epi32((__m256)v);
#elif defined(__SSE2__)
    return (ints)_mm_cvtps_epi32((__m128)v);
#else
    ints result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = (int32_t)rintf(v[lane]);
    return result;
#endif
}

/* The exponential function: Cephes' polynomial for the fraction, the exponent's bits for the integer part; within 2 units
 * in the last place. Below -87 it returns e^-87, above 88 e^88; NaN stays NaN. */
INLINE vec vexp(vec v) {
    v = blend(v < -87, broadcast(-87), blend(v > 88, broadcast(88), v));
    vec shifted = v * 1.44269504088896341f + 12582912.f; /* 1.5 * 2^23: rounds to an integer in the lowest bits */
    vec whole = shifted - 12582912.f;
    vec rest = v - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec sum = broadcast(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1;
    return sum * (vec)(((bits)shifted << 23) + 0x3f800000u);
}

INLINE vec sigmoid(vec v) {
    return 1 / (1 + vexp(-v));
}

/* v times half the complementary error function of u = -v / sqrt(2). For positive u, the latter is e^(-u^2) t p(t) with
 * t = 1 / (1 + u / 2) and a polynomial p, fitted to scipy's erfcx for u < 9.4. Within 2e-7 |v|. */
INLINE vec gelu(vec v) {
    const vec u = vabs(v) * 0.70710678118654752f, t = 1 / (1 + u * 0.5f);
    vec sum = broadcast(-0.05885041132569313f);
    sum = sum * t + 0.2835032045841217f;
    sum = sum * t - 0.4849678874015808f;
    sum = sum * t + 0.27549684047698975f;
    sum = sum * t - 0.024841655045747757f;
    sum = sum * t + 0.20192548632621765f;
    sum = sum * t + 0.24329812824726105f;
    sum = sum * t + 0.28234827518463135f;
    sum = sum * t + 0.2820879817008972f;
    const vec tail = vexp(-u * u) * t * sum;
    return 0.5f * v * blend(v < 0, tail, 2 - tail);
}

INLINE vec activate(vec v, int activation) {
    switch (activation) {
    case GELU: return gelu(v);
    case GELU_TANH: /* 0.5 v (1 + tanh u) = v sigmoid(2 u) */
        return v * sigmoid(v * (1 + 0.044715f * v * v) * 1.59576912160573071f);
    case RELU: return blend(v < 0, (vec){0}, v); /* keeps NaN */
    case SILU: return v * sigmoid(v);
    case TANH: return 2 * sigmoid(2 * v) - 1;
    case SIGMOID: return sigmoid(v);
    case SQUARED_RELU: return blend(v < 0, (vec){0}, v * v);
    default: return v;
    }
}

/* cap * tanh(v / cap): at most `cap`, close to v for small v. */
INLINE vec soft_cap(vec v, float cap) {
    return activate(v / cap, TANH) * cap;
}
