/* The loops that read weights, keys and values. decoder.c includes this file once for each instruction set, with TARGET
 * naming it and LANES its floats to a register; whoever changes a loop changes all of them.
 *
 * The rule that everything here keeps: how one number is summed depends on that number alone - not on how many tokens
 * are computed at once, nor on which thread does it. So a row of a batch, a guessed id that is checked with others and
 * a single id give the same bits.
 *
 * Vectors are those of GCC and clang (vector_size), so that a plain C compiler for any processor makes something of
 * them; where compilers convert badly (8 and 16 bits), x86's and ARM's own instructions stand beside. */

#define PASTE(a, b) a##_##b
#define EXPAND(a, b) PASTE(a, b)
#define NAME(function) EXPAND(function, TARGET)
#define INLINE static inline __attribute__((always_inline))

typedef float NAME(vec) __attribute__((vector_size(4 * LANES)));
typedef float NAME(vec_at) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(4 * LANES)));
typedef uint32_t NAME(bits_at) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * LANES)));
typedef int16_t NAME(shorts) __attribute__((vector_size(4 * LANES)));
typedef int16_t NAME(shorts_at) __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef int16_t NAME(few_shorts) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
#define vec NAME(vec)
#define vec_at NAME(vec_at)
#define bits NAME(bits)
#define bits_at NAME(bits_at)
#define ints NAME(ints)
#define shorts NAME(shorts)
#define shorts_at NAME(shorts_at)

/* 0, 1, 2 … */
#if LANES == 16
static const bits NAME(lanes) = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
static const bits NAME(lanes) = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const bits NAME(lanes) = {0, 1, 2, 3};
#endif

/* --- LANES numbers as float32 --- */

INLINE vec NAME(load_bfloat16)(const uint16_t *from) {
#if LANES == 16
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#elif LANES == 8
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16);
#elif NEON
    return (vec)vshll_n_u16(vld1_u16(from), 16);
#else
    bits found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = (uint32_t)from[lane] << 16;
    return (vec)found;
#endif
}

INLINE vec NAME(load_float16)(const uint16_t *from) {
#if LANES == 16
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif LANES == 8
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#elif NEON
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    vec found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = half_to_float(from[lane]);
    return found;
#endif
}

#if NEON
/* 4 bytes, each the highest of a 32-bit number: a conversion that divides by 2 to the 24 makes signed numbers of them. */
INLINE int32x4_t NAME(raised)(uint8x16_t bytes) {
    const uint8x16_t places = {16, 16, 16, 0, 16, 16, 16, 1, 16, 16, 16, 2, 16, 16, 16, 3}; /* 16: there is none, so 0 */
    return vreinterpretq_s32_u8(vqtbl1q_u8(bytes, places));
}

INLINE uint8x16_t NAME(four_bytes)(const void *from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return vreinterpretq_u8_u32(vdupq_n_u32(word));
}
#endif

INLINE vec NAME(load_int8)(const int8_t *from) {
#if LANES == 16
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
#elif LANES == 8
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)from)));
#elif NEON
    return (vec)vcvtq_n_f32_s32(NAME(raised)(NAME(four_bytes)(from)), 24);
#else
    vec found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = from[lane];
    return found;
#endif
}

/* From number k on of a block of 32 in 16 bytes: its even weights first, which are the low halves of the bytes, then its
 * odd ones. The inputs lie in this order too (`unzip`), so nothing is moved for each weight. */
INLINE vec NAME(load_mxfp4)(const uint8_t *block, int k, float scale) {
    const uint8_t *from = block + k % 16;
#if LANES == 16
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
    const __m512 values = _mm512_loadu_ps(mxfp4) * scale; /* once for all of a block */
    if (k >= 16) codes = _mm512_srli_epi32(codes, 4);
    return (vec)_mm512_permutexvar_ps(codes, values); /* looks at the lowest four bits only */
#elif LANES == 8
    bits codes = (bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)from));
    const __m256 values = _mm256_loadu_ps(mxfp4) * scale;
    if (k >= 16) codes >>= 4;
    bits sizes = (bits)_mm256_permutevar8x32_ps(values, (__m256i)codes); /* at the lowest three */
    return (vec)(sizes ^ (codes << 28 & 0x80000000u)); /* the fourth is the sign */
#elif NEON
    const int8x16_t doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8x16_t word = NAME(four_bytes)(from), codes = k >= 16 ? vshrq_n_u8(word, 4) : vandq_u8(word, vdupq_n_u8(15));
    return (vec)vcvtq_n_f32_s32(NAME(raised)(vreinterpretq_u8_s8(vqtbl1q_s8(doubled, codes))), 25) * scale;
#else
    vec found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = mxfp4[from[lane] >> (k >= 16 ? 4 : 0) & 15];
    return found * scale;
#endif
}

/* A float16, wherever it lies, in each lane. */
INLINE vec NAME(all_half)(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
#if LANES == 16
    return (vec)_mm512_cvtph_ps(_mm256_set1_epi16(half));
#elif LANES == 8
    return (vec)_mm256_cvtph_ps(_mm_set1_epi16(half));
#elif NEON
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
#else
    return (vec){0} + half_to_float(half);
#endif
}

INLINE bits NAME(load_bytes)(const uint8_t *from) {
#if LANES == 16
    return (bits)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
#elif LANES == 8
    return (bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)from));
#elif NEON
    const uint8x16_t places = {0, 16, 16, 16, 1, 16, 16, 16, 2, 16, 16, 16, 3, 16, 16, 16}; /* 16: there is none, so 0 */
    return (bits)vqtbl1q_u8(NAME(four_bytes)(from), places);
#else
    bits found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = from[lane];
    return found;
#endif
}

INLINE vec NAME(numbers)(bits whole) {
    return __builtin_convertvector((ints)whole, vec);
}

/* Of the lowest four bits of each: number * scale + offset. Of 16 lanes the 16 values are made once for a block. */
INLINE vec NAME(nibbles)(bits codes, vec scale, vec offset) {
#if LANES == 16
    const vec values = NAME(numbers)(NAME(lanes)) * scale + offset;
    return (vec)_mm512_permutexvar_ps((__m512i)codes, (__m512)values);
#else
    return NAME(numbers)(codes & 15) * scale + offset;
#endif
}

/* Weights k to k + 31 of a row in a type of GGUF: each is its code times a scale, and an offset. Where a block has them
 * is said in ggml/src/ggml-common.h; nothing in it is aligned. Both products are exact, so that the sum is rounded the
 * same way whichever of them the compiler fuses with it. */
INLINE void NAME(unblock)(const uint8_t *row, int64_t k, int dtype, vec *weights) {
    if (dtype == Q8_0) { /* scale, 32 codes with signs */
        const uint8_t *block = row + k / 32 * 34;
        const vec scale = NAME(all_half)(block);
        UNROLL for (int part = 0; part < 32; part += LANES)
            weights[part / LANES] = NAME(load_int8)((const int8_t *)block + 2 + part) * scale;
    } else if (dtype == Q6_K) { /* lower four bits of 256, upper two, 16 scales with signs, their scale */
        const uint8_t *block = row + k / 256 * 210, *scales = block + 192 + k % 256 / 16;
        const uint8_t *low = block + k % 256 / 128 * 64 + k % 64, *high = block + 128 + k % 256 / 128 * 32;
        const uint32_t quarter = k % 128 / 32;
        const vec whole = NAME(all_half)(block + 208);
        UNROLL for (int part = 0; part < 32; part += LANES) {
            const bits codes = (NAME(load_bytes)(low + part) >> (quarter / 2 * 4) & 15) |
                               (NAME(load_bytes)(high + part) >> (quarter * 2) & 3) << 4;
            weights[part / LANES] = NAME(numbers)(codes - 32) * (whole * (float)(int8_t)scales[part / 16]);
        }
    } else if (dtype == Q4_K || dtype == Q5_K) { /* two scales, of the groups' 6-bit scales and offsets; codes */
        const uint8_t *block = row + k / 256 * (dtype == Q4_K ? 144 : 176), *packed = block + 4;
        const uint32_t group = k % 256 / 32;
        const int size = group < 4 ? packed[group] & 63 : (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        const int less = group < 4 ? packed[group + 4] & 63 : packed[group + 4] >> 4 | packed[group] >> 6 << 4;
        const vec scale = NAME(all_half)(block) * (float)size, offset = NAME(all_half)(block + 2) * -(float)less;
        const uint8_t *low = block + (dtype == Q4_K ? 16 : 48) + group / 2 * 32;
        UNROLL for (int part = 0; part < 32; part += LANES) {
            const bits codes = NAME(load_bytes)(low + part) >> (group % 2 * 4);
            if (dtype == Q4_K) {
                weights[part / LANES] = NAME(nibbles)(codes, scale, offset);
            } else {
                const bits fifth = (NAME(load_bytes)(block + 16 + part) >> group & 1) << 4;
                weights[part / LANES] = NAME(numbers)((codes & 15) | fifth) * scale + offset;
            }
        }
    } else { /* scale, offset if the type ends in 1, the fifth bits, codes: 16 low halves of the bytes, 16 high ones */
        const int has_offset = dtype == Q4_1 || dtype == Q5_1, five = dtype == Q5_0 || dtype == Q5_1;
        const uint8_t *block = row + k / 32 * (18 + 2 * has_offset + 4 * five), *low = block + 2 + 2 * has_offset;
        const vec scale = NAME(all_half)(block);
        const vec offset = has_offset ? NAME(all_half)(block + 2) : scale * (five ? -16.f : -8.f);
        uint32_t fifths;
        memcpy(&fifths, low, 4);
        UNROLL for (int part = 0; part < 32; part += LANES) {
            const bits codes = NAME(load_bytes)(low + 4 * five + part % 16) >> (uint32_t)(part / 16 * 4);
            if (five) {
                const bits fifth = (((bits){0} + fifths) >> (NAME(lanes) + part) & 1) << 4;
                weights[part / LANES] = NAME(numbers)((codes & 15) | fifth) * scale + offset;
            } else {
                weights[part / LANES] = NAME(nibbles)(codes, scale, offset);
            }
        }
    }
}

INLINE vec NAME(load)(const void *row, int64_t k, int dtype) {
    switch (dtype) {
    case FLOAT32: return *(const vec_at *)((const float *)row + k);
    case BFLOAT16: return NAME(load_bfloat16)((const uint16_t *)row + k);
    case FLOAT16: return NAME(load_float16)((const uint16_t *)row + k);
    default: return NAME(load_int8)((const int8_t *)row + k);
    }
}

/* The last `count` < LANES numbers of a row, and zeros. Never beyond the row: a file's mapping may end there. */
INLINE vec NAME(load_last)(const void *row, int64_t k, int64_t count, int dtype) {
    static const int sizes[] = {[FLOAT32] = 4, [BFLOAT16] = 2, [FLOAT16] = 2, [INT8] = 1};
    _Alignas(64) uint8_t last[4 * LANES] = {0};
    memcpy(last, (const uint8_t *)row + k * sizes[dtype], count * sizes[dtype]);
    return NAME(load)(last, 0, dtype);
}

/* The next `count` numbers of a row, at most LANES. */
INLINE vec NAME(load_some)(const void *row, int64_t k, int64_t count, int dtype) {
    return count >= LANES ? NAME(load)(row, k, dtype) : NAME(load_last)(row, k, count, dtype);
}

/* Likewise the other way; the call of memcpy, which takes longer than most of what is stored, is for the last ones. */
INLINE void NAME(store_some)(float *to, vec v, int64_t count) {
    if (count >= LANES) *(vec_at *)to = v;
    else memcpy(to, &v, count * sizeof(float));
}

INLINE vec NAME(all)(float value) {
#if LANES == 16
    return (vec)_mm512_set1_ps(value); /* one instruction that reads memory, where compilers make two of a sum with 0 */
#elif LANES == 8
    return (vec)_mm256_set1_ps(value);
#elif NEON
    return (vec)vdupq_n_f32(value);
#else
    return (vec){0} + value;
#endif
}

/* Lane by lane: yes where the comparison holds, else no. */
INLINE vec NAME(select)(ints holds, vec yes, vec no) {
    return (vec)(((bits)yes & (bits)holds) | ((bits)no & ~(bits)holds));
}

/* Always in the same order: lanes half a vector apart first, neighbours last. */
INLINE float NAME(sum)(vec v) {
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
/* Of 4 vectors what `join` makes of all lanes of each. */
#define OF_EACH(join, a, b, c, d, out)                                                                                  \
    const __m512 w = (__m512)a, x = (__m512)b, y = (__m512)c, z = (__m512)d;                                            \
    const __m512 first = join(_mm512_shuffle_f32x4(w, x, 0x44), _mm512_shuffle_f32x4(w, x, 0xee)); /* halves */         \
    const __m512 second = join(_mm512_shuffle_f32x4(y, z, 0x44), _mm512_shuffle_f32x4(y, z, 0xee));                     \
    __m512 v = join(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));              \
    v = join(v, _mm512_permute_ps(v, 0x4e)); /* a quarter each */                                                       \
    v = join(v, _mm512_permute_ps(v, 0xb1));                                                                            \
    const __m512i lanes = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);                            \
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, v)));
#endif

/* The sums of 4 vectors, each as above, in a third of the instructions. */
INLINE void NAME(sum_each)(vec a, vec b, vec c, vec d, float *out) {
#if LANES == 16
    OF_EACH(_mm512_add_ps, a, b, c, d, out)
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
    out[0] = NAME(sum)(a), out[1] = NAME(sum)(b), out[2] = NAME(sum)(c), out[3] = NAME(sum)(d);
#endif
}

/* e to the v: Cephes' polynomial for the fraction, the exponent's bits for the rest; within 2 units of the last place.
 * Below -87 it is e^-87, above 88 e^88, and NaN stays NaN. */
INLINE vec NAME(exp)(vec v) {
    v = NAME(select)(v < -87, NAME(all)(-87), NAME(select)(v > 88, NAME(all)(88), v));
    vec shifted = v * 1.44269504088896341f + 12582912.f; /* 1.5 * 2^23: rounds to a whole number in the lowest bits */
    vec whole = shifted - 12582912.f;
    vec rest = v - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec sum = NAME(all)(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1;
    return sum * (vec)(((bits)shifted << 23) + 0x3f800000u);
}

INLINE vec NAME(sigmoid)(vec v) {
    return 1 / (1 + NAME(exp)(-v));
}

INLINE vec NAME(activate)(vec v, int activation) {
    switch (activation) {
    case GELU: /* the error function has no short polynomial; rare, so the C library's */
        for (int lane = 0; lane < LANES; lane++) v[lane] *= 0.5f * erfcf(v[lane] * -0.70710678118654752f);
        return v;
    case GELU_TANH: /* 0.5 v (1 + tanh u) = v sigmoid(2 u) */
        return v * NAME(sigmoid)(v * (1 + 0.044715f * v * v) * 1.59576912160573071f);
    case RELU: return NAME(select)(v < 0, (vec){0}, v); /* so that NaN stays NaN */
    case SILU: return v * NAME(sigmoid)(v);
    case TANH: return 2 * NAME(sigmoid)(2 * v) - 1;
    case SIGMOID: return NAME(sigmoid)(v);
    default: return v;
    }
}

/* --- products --- */

/* out[t][r] = sum over k of weight[r][k] * in[t][k], for R rows and T tokens known to the compiler. */
INLINE void NAME(dot)(const matrix *w, int64_t row, const float *in, int64_t in_stride, float *out, int64_t out_stride,
                      int R, int T, int dtype) {
    const int size = dtype == FLOAT32 ? 4 : 2;
    const int64_t stride = w->stride, columns = w->columns;
    const uint8_t *data = (const uint8_t *)w->data + row * stride;
    const uint8_t *exponents = w->scales; /* MXFP4's */
    if (dtype == MXFP4) exponents += row * (columns / 32);
    vec sums[4][5];
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) sums[r][t] = (vec){0};
    int64_t k = 0;
    if (dtype == MXFP4) {
        for (; k < columns; k += 32)
            for (int r = 0; r < R; r++) {
                const uint8_t *block = data + r * stride + k / 2;
                __builtin_prefetch(block + AHEAD);
                const float scale = power_of_two(exponents[r * (columns / 32) + k / 32]);
                UNROLL for (int part = 0; part < 32; part += LANES) {
                    vec weight = NAME(load_mxfp4)(block, part, scale);
                    for (int t = 0; t < T; t++) sums[r][t] += weight * *(const vec_at *)(in + t * in_stride + k + part);
                }
            }
    } else if (dtype >= Q8_0) {
        const int64_t width = stride * 32 / columns; /* of 32 weights, in bytes */
        for (; k < columns; k += 32)
            for (int r = 0; r < R; r++) {
                vec weights[32 / LANES];
                __builtin_prefetch(data + r * stride + k / 32 * width + AHEAD);
                NAME(unblock)(data + r * stride, k, dtype == BLOCKS ? w->dtype : dtype, weights);
                UNROLL for (int part = 0; part < 32; part += LANES)
                    for (int t = 0; t < T; t++)
                        sums[r][t] += weights[part / LANES] * *(const vec_at *)(in + t * in_stride + k + part);
            }
    } else {
        for (; k + LANES <= columns; k += LANES)
            for (int r = 0; r < R; r++) {
                __builtin_prefetch(data + r * stride + k * size + AHEAD);
                vec weight = NAME(load)(data + r * stride, k, dtype);
                for (int t = 0; t < T; t++) sums[r][t] += weight * *(const vec_at *)(in + t * in_stride + k);
            }
        if (k < columns)
            for (int r = 0; r < R; r++) {
                vec weight = NAME(load_last)(data + r * stride, k, columns - k, dtype);
                for (int t = 0; t < T; t++)
                    sums[r][t] += weight * NAME(load_last)(in + t * in_stride, k, columns - k, FLOAT32);
            }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) out[t * out_stride + r] = NAME(sum)(sums[r][t]);
}

/* Weights stored (out, in): the outputs from `begin` to before `end`. */
INLINE void NAME(linear_out_in)(const matrix *w, int64_t begin, int64_t end, const float *in, int64_t in_stride,
                                float *out, int64_t out_stride, int64_t tokens, int dtype) {
    /* A single token: as FOR_ROWS does it. But each addition waits for the one before, so few bytes at a time are slow. */
    const int singly = tokens == 1 && dtype <= FLOAT16 && LANES * (dtype == FLOAT32 ? 4 : 2) >= 32;
    for (int64_t first = 0; first < tokens; first += 16) { /* so few inputs stay in the nearest cache */
        const int64_t last = first + 16 < tokens ? first + 16 : tokens;
        int64_t n = begin;
        for (; !singly && n + 4 <= end; n += 4) {
            int64_t t = first;
            float *to = out + n - begin;
            for (; t + 4 <= last && t + 5 != last; t += 4)
                NAME(dot)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 4, dtype);
            switch (last - t) { /* the rest at once: to go through the weights again costs more */
            case 5: NAME(dot)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 5, dtype); break;
            case 3: NAME(dot)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 3, dtype); break;
            case 2: NAME(dot)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 2, dtype); break;
            case 1: NAME(dot)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 1, dtype);
            }
        }
        for (; n < end; n++)
            for (int64_t t = first; t < last; t++)
                NAME(dot)(w, n, in + t * in_stride, in_stride, out + t * out_stride + n - begin, out_stride, 1, 1,
                          dtype);
    }
}

/* As `dot` does, for V vectors of outputs of weights stored (in, out), not in 8 bits or fewer. */
INLINE void NAME(columns)(const matrix *w, int64_t column, const float *in, int64_t in_stride, float *out,
                          int64_t out_stride, int V, int T, int dtype) {
    vec sums[256 / LANES][5];
    for (int v = 0; v < V; v++)
        for (int t = 0; t < T; t++) sums[v][t] = (vec){0};
    const uint8_t *data = (const uint8_t *)w->data;
    for (int64_t k = 0; k < w->columns; k++) {
        for (int v = 0; v < V; v++) {
            vec weight = NAME(load)(data + k * w->stride, column + v * LANES, dtype);
            for (int t = 0; t < T; t++) sums[v][t] += weight * in[t * in_stride + k];
        }
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < V; v++) *(vec_at *)(out + t * out_stride + v * LANES) = sums[v][t];
}

/* Weights stored (in, out), likewise. The more of each stored row at a time, the better for memory. */
INLINE void NAME(linear_in_out)(const matrix *w, int64_t begin, int64_t end, const float *in, int64_t in_stride,
                                float *out, int64_t out_stride, int64_t tokens, int dtype) {
    int64_t n = begin;
    while (tokens == 1 && n + 128 <= end) {
        const int64_t wide = end - n >= 256 ? 256 : end - n >= 192 ? 192 : 128;
        if (wide == 256) NAME(columns)(w, n, in, in_stride, out + n - begin, out_stride, 256 / LANES, 1, dtype);
        else if (wide == 192) NAME(columns)(w, n, in, in_stride, out + n - begin, out_stride, 192 / LANES, 1, dtype);
        else NAME(columns)(w, n, in, in_stride, out + n - begin, out_stride, 128 / LANES, 1, dtype);
        n += wide;
    }
    for (; n + 4 * LANES <= end; n += 4 * LANES) {
        int64_t t = 0;
        float *to = out + n - begin;
        for (; t + 4 <= tokens && t + 5 != tokens; t += 4)
            NAME(columns)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 4, dtype);
        switch (tokens - t) { /* as above */
        case 5: NAME(columns)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 5, dtype); break;
        case 3: NAME(columns)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 3, dtype); break;
        case 2: NAME(columns)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 2, dtype); break;
        case 1: NAME(columns)(w, n, in + t * in_stride, in_stride, to + t * out_stride, out_stride, 4, 1, dtype);
        }
    }
    for (; n + LANES <= end; n += LANES)
        for (int64_t t = 0; t < tokens; t++)
            NAME(columns)(w, n, in + t * in_stride, in_stride, out + t * out_stride + n - begin, out_stride, 1, 1,
                          dtype);
    for (; n < end; n++)
        for (int64_t t = 0; t < tokens; t++) {
            const uint8_t *data = (const uint8_t *)w->data;
            float sum = 0;
            for (int64_t k = 0; k < w->columns; k++)
                sum = fmaf(NAME(load_last)(data + k * w->stride, n, 1, dtype)[0], in[t * in_stride + k], sum);
            out[t * out_stride + n - begin] = sum;
        }
}

/* Weights in a type of GGUF, likewise. A single token, where speed counts most, has its own code for each type. */
static void NAME(linear_blocks)(const matrix *w, int64_t begin, int64_t end, const float *in, int64_t in_stride,
                                float *out, int64_t out_stride, int64_t tokens) {
    int64_t n = begin;
    for (; tokens == 1 && n + 4 <= end; n += 4) {
        float *to = out + n - begin;
        switch (w->dtype) {
        case Q8_0: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q8_0); break;
        case Q4_0: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q4_0); break;
        case Q4_1: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q4_1); break;
        case Q5_0: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q5_0); break;
        case Q5_1: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q5_1); break;
        case Q4_K: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q4_K); break;
        case Q5_K: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q5_K); break;
        default: NAME(dot)(w, n, in, 0, to, 0, 4, 1, Q6_K);
        }
    }
    NAME(linear_out_in)(w, n, end, in, in_stride, out + n - begin, out_stride, tokens, BLOCKS);
}

/* out[t][n - begin] = weight[n] . in[t] for the outputs n from `begin` to before `end`. */
static void NAME(linear_few)(const matrix *w, int64_t begin, int64_t end, const float *in, int64_t in_stride, float *out,
                             int64_t out_stride, int64_t tokens) {
    if (w->transposed) {
        switch (w->dtype) {
        case FLOAT32: NAME(linear_in_out)(w, begin, end, in, in_stride, out, out_stride, tokens, FLOAT32); break;
        case BFLOAT16: NAME(linear_in_out)(w, begin, end, in, in_stride, out, out_stride, tokens, BFLOAT16); break;
        default: NAME(linear_in_out)(w, begin, end, in, in_stride, out, out_stride, tokens, FLOAT16);
        }
        return;
    }
    switch (w->dtype) { /* each case its own code */
    case FLOAT32: NAME(linear_out_in)(w, begin, end, in, in_stride, out, out_stride, tokens, FLOAT32); break;
    case BFLOAT16: NAME(linear_out_in)(w, begin, end, in, in_stride, out, out_stride, tokens, BFLOAT16); break;
    case FLOAT16: NAME(linear_out_in)(w, begin, end, in, in_stride, out, out_stride, tokens, FLOAT16); break;
    case MXFP4: NAME(linear_out_in)(w, begin, end, in, in_stride, out, out_stride, tokens, MXFP4); break;
    default: NAME(linear_blocks)(w, begin, end, in, in_stride, out, out_stride, tokens);
    }
}

/* --- products of many tokens ---
 *
 * The weights of some outputs are unpacked once, to float32 in the order in which they are used: a panel, which stays in
 * the second cache while all tokens meet it. A tile of its outputs and a few tokens has its sums in registers. They are
 * made as `dot` and `columns` make them, the inputs one after another; where a panel has a part of the inputs only, what
 * the sums are so far waits in memory, which changes no bit. */

#define DEEP 1024   /* inputs of a panel of weights stored (out, in); whole blocks of any dtype */
#define SHALLOW 128 /* stored (in, out): so wide panels that memory gives long stretches of each row */

/* Rows from `begin` to before `end`, 4 at a time, for all tokens: DO_ROWS(4, T) for tiles of at most `most` of them,
 * all of about the same size, and what is left by DO_ROWS(1, 1). The inputs of a `few` tokens stay in the nearest cache
 * meanwhile. singly: all rows one after another, two tokens by DO_ROWS(1, 2). That is for so few tokens that memory
 * counts, which is read fastest in one direction. */
#define FOR_ROWS(begin, end, tokens, few, most, singly)                                                                 \
    for (int64_t first = 0, last; first < (tokens); first = last) {                                                     \
        int64_t n = begin;                                                                                              \
        last = first + (few) < (tokens) ? first + (few) : (tokens);                                                     \
        const int64_t tiles = (last - first + (most) - 1) / (most), each = (last - first + tiles - 1) / tiles;          \
        for (; !(singly) && n + 4 <= (end); n += 4)                                                                     \
            for (int64_t t = first; t < last; t += each) FOR_TILE(last - t < each ? last - t : each, DO_FOUR)           \
        for (; n < (end); n++) {                                                                                        \
            int64_t t = first;                                                                                          \
            for (; (singly) && t + 2 <= last; t += 2) DO_ROWS(1, 2);                                                    \
            for (; t < last; t++) DO_ROWS(1, 1);                                                                        \
        }                                                                                                               \
    }
#define DO_FOUR(T) DO_ROWS(4, T)

/* do_tile for 1 to TILE tokens, each number its own code. */
#if LANES == 16 || NEON
#define TILE 6 /* tokens: with 4 vectors of weights as many sums as there are registers for */
#define FOR_TILE(count, do_tile)                                                                                        \
    switch (count) {                                                                                                    \
    case 1: do_tile(1); break;                                                                                          \
    case 2: do_tile(2); break;                                                                                          \
    case 3: do_tile(3); break;                                                                                          \
    case 4: do_tile(4); break;                                                                                          \
    case 5: do_tile(5); break;                                                                                          \
    default: do_tile(6);                                                                                                \
    }
#else
#define TILE 3
#define FOR_TILE(count, do_tile)                                                                                        \
    switch (count) {                                                                                                    \
    case 1: do_tile(1); break;                                                                                          \
    case 2: do_tile(2); break;                                                                                          \
    default: do_tile(3);                                                                                                \
    }
#endif

/* Whether it pays; measured (NOTES.md). */
INLINE int NAME(are_many)(const matrix *w, int64_t tokens) {
    if (w->transposed || w->dtype >= Q8_0) return tokens >= 6;
    return tokens >= (LANES == 16 ? 24 : 12);
}

/* LANES weights of a row from k on, as `dot` has them. */
INLINE vec NAME(unpack)(const matrix *w, int64_t row, int64_t k, int dtype) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->stride;
    if (dtype == MXFP4) {
        const uint8_t exponent = ((const uint8_t *)w->scales)[row * (w->columns / 32) + k / 32];
        return NAME(load_mxfp4)(data + k / 32 * 16, k % 32, power_of_two(exponent));
    }
    return NAME(load_some)(data, k, w->columns - k, dtype);
}

/* Weights of `rows` outputs, 4 at a time: LANES of the first, of the second, ... */
INLINE void NAME(pack_rows)(const matrix *w, int64_t row, int64_t rows, int64_t k, int64_t end, float *panel, int dtype) {
    const int step = dtype >= Q8_0 ? 32 : LANES;
    const int asks = dtype == BFLOAT16 || dtype == FLOAT16; /* for the next rows; for those in float32 tiles do it */
    for (int64_t first = row; first < row + rows; first += 4)
        for (int64_t i = k; i < end; i += step, panel += 4 * step)
            for (int r = 0; r < 4; r++) {
                const uint8_t *data = (const uint8_t *)w->data + (first + r) * w->stride;
                vec weights[32 / LANES];
                if (asks) __builtin_prefetch(data + rows * w->stride + i * 2, 0, 2);
                if (dtype >= Q8_0) NAME(unblock)(data, i, w->dtype, weights);
                else weights[0] = NAME(unpack)(w, first + r, i, dtype);
                for (int v = 0; v < step / LANES; v++) *(vec_at *)(panel + (4 * v + r) * LANES) = weights[v];
            }
}

/* Of `width` outputs the weights of an input, 4 * LANES outputs at a time: all inputs of the first of them come first. */
INLINE void NAME(pack_columns)(const matrix *w, int64_t column, int64_t width, int64_t k, int64_t end, float *panel,
                               int dtype) {
    const int64_t stride = w->stride;
    const uint8_t *row = (const uint8_t *)w->data + k * stride;
    for (int64_t i = 0; i < end - k; i++, row += stride)
        for (int64_t n = 0; n < width; n += 4 * LANES)
            UNROLL for (int v = 0; v < 4; v++)
                *(vec_at *)(panel + n * (end - k) + (4 * i + v) * LANES) =
                    NAME(load)(row, column + n + v * LANES, dtype);
}

INLINE vec NAME(begun)(const float *sums, int begins) {
    if (begins) return (vec){0};
    return *(const vec_at *)sums;
}

/* The sums of 4 outputs for T tokens go on with `count` inputs. They begin with zero (`begins`); at the end (`ends`)
 * each vector is added up, else it goes back to `sums`. ahead: memory to ask for, as many floats, or NULL. */
INLINE void NAME(tile_rows)(const float *panel, const float *in, int64_t in_stride, int64_t count, float *sums, int begins,
                            int ends, float *out, int64_t out_stride, const uint8_t *ahead, int T) {
    vec s[4][TILE];
    for (int r = 0; r < 4; r++)
        for (int t = 0; t < T; t++) s[r][t] = NAME(begun)(sums + (t * 4 + r) * LANES, begins);
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
                s[r][t] += *(const vec_at *)(panel + r * LANES) * NAME(load_last)(in + t * in_stride, k, count - k, FLOAT32);
    for (int t = 0; t < T; t++)
        if (ends) NAME(sum_each)(s[0][t], s[1][t], s[2][t], s[3][t], out + t * out_stride);
        else
            for (int r = 0; r < 4; r++) *(vec_at *)(sums + (t * 4 + r) * LANES) = s[r][t];
}

/* The sums of 4 * LANES outputs for T tokens, in `out`, go on with `count` inputs. ahead: memory to ask for, rows of 16
 * lines of the cache, `stride` apart, or NULL. */
INLINE void NAME(tile_columns)(const float *panel, const float *in, int64_t in_stride, int64_t count, int begins,
                               float *out, int64_t out_stride, const uint8_t *ahead, int64_t stride, int T) {
    vec s[4][TILE];
    for (int v = 0; v < 4; v++)
        for (int t = 0; t < T; t++) s[v][t] = NAME(begun)(out + t * out_stride + v * LANES, begins);
    for (int64_t k = 0; k < count; k++, panel += 4 * LANES) {
        vec x[TILE];
        if (ahead) __builtin_prefetch(ahead + k / 16 * stride + k % 16 * 64, 0, 2);
        for (int t = 0; t < T; t++) x[t] = NAME(all)(in[t * in_stride + k]);
        for (int v = 0; v < 4; v++) {
            const vec weight = *(const vec_at *)(panel + v * LANES);
            for (int t = 0; t < T; t++) s[v][t] += weight * x[t];
        }
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < 4; v++) *(vec_at *)(out + t * out_stride + v * LANES) = s[v][t];
}

static void NAME(tiles_of_rows)(const float *panel, int64_t rows, const float *in, int64_t in_stride, int64_t count,
                                float *sums, int begins, int ends, float *out, int64_t out_stride, int64_t tokens,
                                const uint8_t *next, int64_t stride) {
    const int64_t whole = (count + LANES - 1) / LANES * LANES;
    int64_t row = 0; /* of the next panel, if there is one: each tile asks for one */
    for (int64_t t = 0; t < tokens; t += TILE)
        for (int64_t r = 0; r < rows; r += 4, row++) {
            const uint8_t *ahead = next && row < rows ? next + row * stride : NULL;
#define DO(T)                                                                                                           \
    NAME(tile_rows)(panel + r * whole, in + t * in_stride, in_stride, count, sums + (r * tokens + t * 4) * LANES,       \
                    begins, ends, out + t * out_stride + r, out_stride, ahead, T)
            FOR_TILE(tokens - t < TILE ? tokens - t : TILE, DO)
#undef DO
        }
}

static void NAME(tiles_of_columns)(const float *panel, int64_t width, const float *in, int64_t in_stride, int64_t count,
                                   int begins, float *out, int64_t out_stride, int64_t tokens, const uint8_t *next,
                                   int64_t stride) {
    int64_t row = 0; /* of the next panel: each tile asks for some, one after another, since each is in another page */
    for (int64_t t = 0; t < tokens; t += TILE)
        for (int64_t n = 0; n < width; n += 4 * LANES, row += count / 16) {
            const uint8_t *ahead = next && row < count ? next + row * stride : NULL;
#define DO(T)                                                                                                           \
    NAME(tile_columns)(panel + n * count, in + t * in_stride, in_stride, count, begins, out + t * out_stride + n,       \
                       out_stride, ahead, stride, T)
            FOR_TILE(tokens - t < TILE ? tokens - t : TILE, DO)
#undef DO
        }
}

/* As `linear_few` does, for as many outputs as make whole tiles; their number. room: PANEL floats, and for each token
 * and output of a panel of rows LANES more. */
INLINE int64_t NAME(linear_many)(const matrix *w, int64_t begin, int64_t end, const float *in, int64_t in_stride,
                                 float *out, int64_t out_stride, int64_t tokens, float *room, int dtype) {
    const int64_t unit = w->transposed ? 4 * LANES : 4, depth = w->transposed ? SHALLOW : DEEP, most = PANEL / depth;
    const int64_t whole = (end - begin) / unit * unit;
    for (int64_t n = 0; n < whole; n += most) {
        const int64_t width = whole - n < most ? whole - n : most;
        for (int64_t k = 0; k < w->columns; k += depth) {
            const int64_t last = w->columns - k < depth ? w->columns : k + depth;
            /* What the next panel has: further inputs of the same outputs, or the first ones of the next outputs. */
            const int64_t row = begin + n + (last < w->columns ? 0 : most), input = last < w->columns ? last : 0;
            const int64_t at = w->transposed ? input * w->stride + row * 4 : row * w->stride + input * 4;
            const uint8_t *next = dtype == FLOAT32 ? (const uint8_t *)w->data + at : NULL;
            if (w->transposed) {
                NAME(pack_columns)(w, begin + n, width, k, last, room, dtype);
                NAME(tiles_of_columns)(room, width, in + k, in_stride, last - k, k == 0, out + n, out_stride, tokens,
                                       next, w->stride);
            } else {
                NAME(pack_rows)(w, begin + n, width, k, last, room, dtype);
                NAME(tiles_of_rows)(room, width, in + k, in_stride, last - k, room + PANEL, k == 0,
                                    last == w->columns, out + n, out_stride, tokens, next, w->stride);
            }
        }
    }
    return whole;
}

/* out[t][n - begin] = weight[n] . in[t] for the outputs n from `begin` to before `end`. room: as `linear_many` has it. */
static void NAME(linear)(const matrix *w, int64_t begin, int64_t end, const float *in, int64_t in_stride, float *out,
                         int64_t out_stride, int64_t tokens, float *room) {
    int64_t done = 0;
    if (NAME(are_many)(w, tokens))
        switch (w->dtype) { /* each case its own code */
        case FLOAT32: done = NAME(linear_many)(w, begin, end, in, in_stride, out, out_stride, tokens, room, FLOAT32); break;
        case BFLOAT16: done = NAME(linear_many)(w, begin, end, in, in_stride, out, out_stride, tokens, room, BFLOAT16); break;
        case FLOAT16: done = NAME(linear_many)(w, begin, end, in, in_stride, out, out_stride, tokens, room, FLOAT16); break;
        case MXFP4: done = NAME(linear_many)(w, begin, end, in, in_stride, out, out_stride, tokens, room, MXFP4); break;
        default: done = NAME(linear_many)(w, begin, end, in, in_stride, out, out_stride, tokens, room, BLOCKS);
        }
    if (begin + done < end)
        NAME(linear_few)(w, begin + done, end, in, in_stride, out + done, out_stride, tokens);
}

#if LANES == 16 && PAIRS
/* --- products of weights in bfloat16, where the processor multiplies it ---
 *
 * One instruction adds two products of bfloat16 to each lane's sum in float32. So the inputs are rounded to bfloat16, too,
 * as PyTorch does it. Instructions are text, since the rest of the file is for processors without them, too. */

/* A token's inputs as bfloat16, zeros up to `padded`. */
INLINE void NAME(round_to_pairs)(const float *in, int64_t count, int64_t padded, int16_t *codes) {
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec x = i < count ? NAME(load_some)(in, i, count - i, FLOAT32) : (vec){0};
        NAME(few_shorts) rounded;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(x));
        *(NAME(few_shorts) *)(codes + i) = rounded;
    }
}

INLINE vec NAME(add_pairs)(vec sums, shorts a, shorts b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}

/* The sums of `dot_pairs` go on with 32 inputs, of which the weights have those in `mask`. */
INLINE void NAME(step_pairs)(const uint8_t *data, int64_t stride, __mmask32 mask, int64_t ahead, const int16_t *codes,
                             int64_t padded, vec sums[4][TILE], int R, int T) {
    const int16_t *later = T > 3 ? codes + 3 * padded : codes;
    /* As if they changed here: else there would be a pointer for each token, and most of those in memory. */
    __asm__("" : "+r"(codes), "+r"(later));
    shorts x[TILE];
    UNROLL for (int t = 0; t < T; t++)
        x[t] = *(const shorts_at *)(t < 3 ? codes + t * padded : later + (t - 3) * padded);
    UNROLL for (int r = 0; r < R; r++) {
        const shorts weights = (shorts)_mm512_maskz_loadu_epi16(mask, data + r * stride);
        __builtin_prefetch(data + r * stride + ahead);
        UNROLL for (int t = 0; t < T; t++) sums[r][t] = NAME(add_pairs)(sums[r][t], weights, x[t]);
    }
}

#define HELD (2 * TILE) /* tokens of long rows together */

/* As `dot` does, with the inputs from `begin` to before `end`: whole vectors, but for the last ones. The sums begin with
 * zero, or go on with those in `held`, where they are left if there are more inputs. */
INLINE void NAME(dot_pairs)(const matrix *w, int64_t row, const int16_t *codes, int64_t padded, int64_t begin, int64_t end,
                            int64_t ahead, float *held, float *out, int64_t out_stride, int R, int T) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->stride;
    const int64_t stride = w->stride, whole = begin + (end - begin) / (2 * LANES) * (2 * LANES);
    vec sums[4][TILE];
    IN_REGISTERS for (int r = 0; r < R; r++)
        IN_REGISTERS for (int t = 0; t < T; t++) sums[r][t] = NAME(begun)(held + (r * HELD + t) * LANES, begin == 0);
    for (int64_t k = begin; k < whole; k += 2 * LANES)
        NAME(step_pairs)(data + 2 * k, stride, ~0u, ahead, codes + k, padded, sums, R, T);
    if (whole < end) { /* never beyond the row */
        const __mmask32 mask = (1u << (end - whole)) - 1;
        NAME(step_pairs)(data + 2 * whole, stride, mask, ahead, codes + whole, padded, sums, R, T);
    }
    IN_REGISTERS for (int t = 0; t < T; t++)
        if (end < w->columns)
            IN_REGISTERS for (int r = 0; r < R; r++) *(vec_at *)(held + (r * HELD + t) * LANES) = sums[r][t];
        else if (R == 4) NAME(sum_each)(sums[0][t], sums[1][t], sums[2][t], sums[3][t], out + t * out_stride);
        else out[t * out_stride] = NAME(sum)(sums[0][t]);
}

/* room: HELD * LANES floats for each output, of few outputs where rows are long. */
static void NAME(linear_pairs)(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                               float *out, int64_t out_stride, int64_t tokens, float *room) {
    /* What some tokens and 4 rows have stays in the nearest cache: 40 KB. Of long rows that are parts. */
    const int64_t columns = w->columns, depth = tokens > TILE && columns > 2 * DEEP ? DEEP : columns;
    const int64_t fit = 20480 / columns - 4, few = depth < columns ? HELD : fit > TILE ? fit / TILE * TILE : TILE;
    const int64_t ahead = depth < columns ? 4 * w->stride : AHEAD; /* of a part: the next rows' */
    for (int64_t start = 0; start < tokens; start += few) {
        const int64_t count = tokens - start < few ? tokens - start : few;
        for (int64_t k = 0; k < columns; k += depth) {
            const int64_t stop = columns - k < depth ? columns : k + depth;
#define DO_ROWS(R, T)                                                                                                   \
    NAME(dot_pairs)(w, n, codes + (start + t) * padded, padded, k, stop, ahead,                                         \
                    room + ((n - begin) * HELD + t) * LANES, out + (start + t) * out_stride + n - begin, out_stride, R, T)
            FOR_ROWS(begin, end, count, count, TILE, tokens <= 2)
#undef DO_ROWS
        }
    }
}
#endif

/* --- products of weights in 8 bits and in NF4, in whole numbers ---
 *
 * The inputs of a token are rounded to codes of 16 bits, with a scale for each token: an error of 1/65534 of the
 * largest one, where weights have been rounded to 1/254 of theirs. For NF4 they have 15 bits, so that twice as many
 * products fit into 32 (BOUND). Then all products and sums are whole numbers, and exact: a single id, many of them, and
 * tiles (tiles.h) give the same bits in whatever order each of them adds. */

/* To the nearest whole number, of two the even one. */
INLINE ints NAME(rounded)(vec v) {
#if LANES == 16
    return (ints)_mm512_cvtps_epi32((__m512)v);
#elif LANES == 8
    return (ints)_mm256_cvtps_epi32((__m256)v);
#elif defined(__SSE2__)
    return (ints)_mm_cvtps_epi32((__m128)v);
#else
    ints found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = (int32_t)rintf(v[lane]);
    return found;
#endif
}

INLINE vec NAME(size)(vec v) {
    return (vec)((bits)v & 0x7fffffff);
}

INLINE vec NAME(greater)(vec a, vec b) {
#if LANES == 16
    return (vec)_mm512_max_ps((__m512)b, (__m512)a);
#else
    return NAME(select)(b > a, b, a);
#endif
}

INLINE float NAME(greatest)(vec v) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float most = v[0];
    for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
    return most;
#endif
}

INLINE void NAME(greatest_each)(vec a, vec b, vec c, vec d, float *out) {
#if LANES == 16
    OF_EACH(_mm512_max_ps, a, b, c, d, out)
#else
    out[0] = NAME(greatest)(a), out[1] = NAME(greatest)(b), out[2] = NAME(greatest)(c), out[3] = NAME(greatest)(d);
#endif
}

/* Of all sizes; odd: 0, or NaN if an input is not finite. */
INLINE float NAME(largest)(const float *in, int64_t count, float *odd) {
    vec largest = {0}, odds = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        const vec x = NAME(load_some)(in, i, count - i, FLOAT32);
        largest = NAME(greater)(largest, NAME(size)(x));
        odds += x * 0;
    }
    *odd = NAME(sum)(odds);
    return NAME(greatest)(largest);
}

/* Codes of a token's inputs for weights of `dtype`, zeros up to `padded`, a multiple of 64; input = scale * code, code
 * from -limit to limit. One that is not finite makes the scale NaN, and with it all outputs. */
static void NAME(round_inputs)(const float *in, int64_t count, int64_t padded, int dtype, int16_t *codes, float *scale) {
#if LANES == 16 && PAIRS
    if (dtype == BFLOAT16) {
        NAME(round_to_pairs)(in, count, padded, codes);
        return;
    }
#endif
    const float limit = dtype == INT8 ? 32767 : 16383;
    float odd;
    const float most = NAME(largest)(in, count, &odd);
    const vec factor = NAME(all)(most >= 1e-30f ? limit / most : 0);
    *scale = most >= 1e-30f ? most / limit : 0;
    if (odd != 0) *scale = NAN;
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec x = i < count ? NAME(load_some)(in, i, count - i, FLOAT32) : (vec){0};
        *(NAME(few_shorts) *)(codes + i) = __builtin_convertvector(NAME(rounded)(x * factor), NAME(few_shorts));
    }
}

/* Numbers that fit into 8 bits. */
INLINE void NAME(store_bytes)(int8_t *to, ints v) {
#if LANES == 16
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8((__m512i)v));
#else
    for (int lane = 0; lane < LANES; lane++) to[lane] = v[lane];
#endif
}

/* Likewise with 8 bits for the inputs, and a scale for each 32 of them that is a whole number of times the token's:
 * input = scale * times * code, code from -127 to 127, times from 1 to 31. So times * code are codes of 16 bits, for
 * whatever multiplies those. If `apart`, what `tile_bytes` wants: the codes as bytes, `times` of each group, and what a
 * group's sum begins with. */
static void NAME(round_groups)(const float *in, int64_t count, int64_t padded, int apart, int16_t *codes, float *scale) {
    int8_t *bytes = (int8_t *)codes;
    int32_t *times = (int32_t *)(bytes + padded), *begun = times + padded / 32;
    float odd;
    const float most = NAME(largest)(in, count, &odd), inverse = most >= 1e-30f ? 31 / most : 0;
    *scale = odd != 0 ? NAN : inverse ? most / (31 * 127) : 0;
    for (int64_t i = 0; i < padded; i += 128) {
        vec x[4][32 / LANES], found[4];
        float shares[4], sums[4], factors[4];
        UNROLL for (int g = 0; g < 4; g++) {
            found[g] = (vec){0};
            UNROLL for (int part = 0; part < 32 / LANES; part++) {
                const int64_t at = i + g * 32 + part * LANES;
                x[g][part] = at < count ? NAME(load_some)(in, at, count - at, FLOAT32) : (vec){0};
                found[g] = NAME(greater)(found[g], NAME(size)(x[g][part]));
            }
        }
        NAME(greatest_each)(found[0], found[1], found[2], found[3], shares);
        UNROLL for (int g = 0; g < 4; g++) { /* the times: the share of 31, rounded up */
            const float share = shares[g] * inverse;
            const float down = share < 31 ? (float)(int)share : 31; /* also if it is no number */
            const float up = down < share && down < 31 ? down + 1 : down;
            shares[g] = up > 0 ? up : 1;
            factors[g] = 127 * inverse / shares[g];
        }
        UNROLL for (int g = 0; g < 4; g++) {
            const vec factor = NAME(all)(factors[g]);
            found[g] = (vec){0};
            UNROLL for (int part = 0; part < 32 / LANES; part++) {
                const int64_t at = i + g * 32 + part * LANES;
                const ints code = NAME(rounded)(x[g][part] * factor);
                if (apart) {
                    NAME(store_bytes)(bytes + at, code);
                    found[g] += NAME(numbers)((bits)code);
                } else {
                    const NAME(few_shorts) few = __builtin_convertvector(code, NAME(few_shorts));
                    *(NAME(few_shorts) *)(codes + at) = few * (int16_t)shares[g];
                }
            }
        }
        if (!apart) continue;
        NAME(sum_each)(found[0], found[1], found[2], found[3], sums);
        UNROLL for (int g = 0; g < 4; g++) {
            times[i / 32 + g] = (int)shares[g];
            begun[i / 32 + g] = odd != 0 ? 0 : -128 * (int)sums[g];
        }
    }
}

/* 2 * LANES 8-bit weights. */
INLINE shorts NAME(load_shorts)(const int8_t *from) {
#if LANES == 16
    return (shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)from));
#elif LANES == 8
    return (shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)from));
#elif NEON
    return (shorts)vmovl_s8(vld1_s8(from));
#else
    shorts found;
    for (int lane = 0; lane < 2 * LANES; lane++) found[lane] = from[lane];
    return found;
#endif
}

/* 128 weights of a row of NF4, which are 68 bytes: a scale for each 32 of them, from 0 to 63, then 32 little-endian words,
 * of which the j-th has the codes of weights j, 32 + j, 64 + j and 96 + j, from its lowest bits on. */
typedef struct {
    shorts words[16 / LANES];
    uint32_t scales;
} NAME(nf4_unit);

INLINE NAME(nf4_unit) NAME(load_unit)(const uint8_t *from) {
    NAME(nf4_unit) unit;
    memcpy(&unit.scales, from, 4);
    for (int i = 0; i < 16 / LANES; i++) unit.words[i] = ((const shorts_at *)(from + 4))[i];
    return unit;
}

/* The weights from `k` on, which the compiler knows: of each the value of its code times its scale. */
INLINE shorts NAME(nf4_weights)(const NAME(nf4_unit) *unit, int k) {
    const int part = k / 32, scale = unit->scales >> 8 * part & 63; /* whatever the bytes are */
    const shorts codes = unit->words[k % 32 / (2 * LANES)];
#if LANES == 16
    const __m512i places = _mm512_srli_epi16((__m512i)codes, 4 * part); /* of which five bits count */
    return (shorts)_mm512_permutexvar_epi16(places, _mm512_load_si512(nf4_scaled[scale]));
#elif LANES == 8
    const __m256i words = (__m256i)codes,
                  moved = part < 2 ? _mm256_slli_epi16(words, 8 - 4 * part) : _mm256_srli_epi16(words, 4 * part - 8),
                  places = _mm256_and_si256(moved, _mm256_set1_epi16(0xf00)), /* in lower bytes 0, the code of 0 */
                  values = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)nf4)), places);
    return (shorts)_mm256_mulhi_epi16(values, _mm256_set1_epi16(scale << 8));
#elif NEON
    const uint16x8_t moved = vshlq_u16((uint16x8_t)codes, vdupq_n_s16(8 - 4 * part));
    const uint8x16_t places = vreinterpretq_u8_u16(vandq_u16(moved, vdupq_n_u16(0xf00)));
    return (shorts)vmulq_n_s16(vshrq_n_s16(vreinterpretq_s16_s8(vqtbl1q_s8(vld1q_s8(nf4), places)), 8), scale);
#else
    shorts found;
    for (int lane = 0; lane < 2 * LANES; lane++) found[lane] = nf4[codes[lane] >> 4 * part & 15] * scale;
    return found;
#endif
}

#if LANES == 16
/* 16 rows of NF4 for tiles.h, weight = 256 * high + low: of each 64 inputs 16 rows of high bytes, then of low ones. */
static void NAME(split_rows)(const uint8_t *data, int64_t stride, int64_t padded, uint8_t *planes) {
    const __m512i bytes = _mm512_set1_epi16(255);
    for (int64_t r = 0; r < 16; r++)
        for (int64_t k = 0; k < padded; k += 128) {
            const NAME(nf4_unit) unit = NAME(load_unit)(data + r * stride + k / 128 * UNIT);
            UNROLL for (int part = 0; part < 128; part += 32) {
                const __m512i weights = (__m512i)NAME(nf4_weights)(&unit, part);
                uint8_t *to = planes + (k + part / 64 * 64) * 32 + r * 64 + part % 64;
                _mm256_storeu_si256((void *)to, _mm512_cvtepi16_epi8(_mm512_srai_epi16(weights, 8)));
                _mm256_storeu_si256((void *)(to + 1024), _mm512_cvtepi16_epi8(_mm512_and_si512(weights, bytes)));
            }
        }
}
#endif

/* sums + a * b, two products in each lane: neighbours, but for ARM. */
INLINE ints NAME(add_products)(ints sums, shorts a, shorts b, int vnni) {
#if LANES == 16
    if (vnni) { /* as text: so one function is for processors with it and without */
        __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
        return sums;
    }
    return (ints)_mm512_add_epi32((__m512i)sums, _mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif LANES == 8
    return (ints)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16((__m256i)a, (__m256i)b));
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

/* Sums of two lanes each, in 64 bits. */
#if LANES == 16
INLINE __m512i NAME(widened)(ints v) {
    const __m512i first = _mm512_mul_epi32((__m512i)v, _mm512_set1_epi64(1));
    const __m512i second = _mm512_srai_epi64((__m512i)v, 32);
    return _mm512_add_epi64(first, second);
}
#elif LANES == 8
INLINE __m256d NAME(widened)(ints v) {
    return _mm256_cvtepi32_pd(_mm256_castsi256_si128((__m256i)v)) +
           _mm256_cvtepi32_pd(_mm256_extracti128_si256((__m256i)v, 1));
}
#endif

/* The sum of all lanes, which may need more than 32 bits. */
INLINE double NAME(total)(ints v) {
#if LANES == 16
    return _mm512_reduce_add_epi64(NAME(widened)(v));
#elif LANES == 8
    const __m256d four = NAME(widened)(v);
    const __m128d two = _mm256_castpd256_pd128(four) + _mm256_extractf128_pd(four, 1);
    return two[0] + two[1];
#else
    int64_t sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += v[lane];
    return sum;
#endif
}

/* Adds to each of 4 totals the sum of all lanes of its vector, in half of the instructions. */
INLINE void NAME(total_each)(const ints v[4], double *totals) {
#if LANES == 16
    const __m512i a = NAME(widened)(v[0]), b = NAME(widened)(v[1]), c = NAME(widened)(v[2]), d = NAME(widened)(v[3]);
    const __m512i first = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); /* a b a b ... */
    const __m512i second = _mm512_add_epi64(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
    const __m512i halves = _mm512_add_epi64(_mm512_shuffle_i64x2(first, second, 0x88),
                                            _mm512_shuffle_i64x2(first, second, 0xdd)); /* a b a b c d c d */
    const __m256i x = _mm512_castsi512_si256(halves), y = _mm512_extracti64x4_epi64(halves, 1);
    const __m256d sums = _mm256_cvtepi64_pd(
        _mm256_add_epi64(_mm256_permute2x128_si256(x, y, 0x20), _mm256_permute2x128_si256(x, y, 0x31)));
    _mm256_storeu_pd(totals, _mm256_loadu_pd(totals) + sums);
#elif LANES == 8
    const __m256d first = _mm256_hadd_pd(NAME(widened)(v[0]), NAME(widened)(v[1])); /* a b a b */
    const __m256d second = _mm256_hadd_pd(NAME(widened)(v[2]), NAME(widened)(v[3]));
    const __m256d sums = _mm256_permute2f128_pd(first, second, 0x20) + _mm256_permute2f128_pd(first, second, 0x31);
    _mm256_storeu_pd(totals, _mm256_loadu_pd(totals) + sums);
#else
    for (int i = 0; i < 4; i++) totals[i] += NAME(total)(v[i]);
#endif
}

/* Inputs of a lane after which its 32 bits could be full: 2^31 is more than 512 * 2^15 * 127 + 2^16, and than
 * 64 * 2^14 * 31 * 63 + 2^16, where 2^16 is what `tile_codes` keeps of the inputs before. */
#define BOUND(dtype) (dtype == INT8 ? 512 : 64)
#define WORDS BLOCKS /* for the compiler: weights of NF4 that have been unpacked to 16 bits */

/* The sums of `dot_codes`, those of the first row in place `first`, go on with a vector of weights for each row. */
INLINE void NAME(step_codes)(const shorts *weights, const int16_t *codes, int64_t padded, ints sums[TILE][4], int first,
                             int R, int T, int vnni) {
    const int16_t *later = T > 3 ? codes + 3 * padded : codes;
    /* As if they changed here: GCC would have a pointer for each token, and most of those in memory. */
    if (T > 3) __asm__("" : "+r"(codes), "+r"(later));
    IN_REGISTERS for (int t = 0; t < T; t++) {
        const shorts x = *(const shorts_at *)(t < 3 ? codes + t * padded : later + (t - 3) * padded);
        IN_REGISTERS for (int r = 0; r < R; r++)
            sums[t][first + r] = NAME(add_products)(sums[t][first + r], weights[r], x, vnni);
    }
}

/* out[t][r] = scale[t] * row_scale[r] * sum over k of weight[r][k] * code[t][k], for R rows and T tokens known to the
 * compiler. data, stride: of the rows. */
INLINE void NAME(dot_codes)(const uint8_t *data, int64_t stride, const float *row_scales, int64_t columns,
                            const int16_t *codes, int64_t padded, const float *scales, float *out, int64_t out_stride,
                            int R, int T, int dtype, int vnni) {
    const int vector = 2 * LANES, step = dtype == NF4 || R == 1 ? 128 : vector; /* inputs */
    const int width = dtype == NF4 ? UNIT : dtype == INT8 ? step : 2 * step;    /* bytes of a step */
    const int64_t whole = dtype == INT8 ? columns : padded; /* the others' rows are padded, too */
    const uint8_t *at = data;
    double totals[TILE][4] = {{0}};
    const int64_t bound = BOUND(dtype) * LANES * (R == 1 ? 4 : 1);
    for (int64_t first = 0; first < whole; first += bound) {
        const int64_t end = whole - first < bound ? whole : first + bound;
        ints sums[TILE][4]; /* of R rows; of one row 4 by turns, as each addition waits for the one before */
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int r = 0; r < 4; r++) sums[t][r] = (ints){0};
        int64_t k = first;
        for (; k + step <= end; k += step, at += width) {
            NAME(nf4_unit) units[4];
            IN_REGISTERS for (int r = 0; r < R; r++) {
                for (int line = 0; line == 0 || line + 64 <= width; line += 64)
                    __builtin_prefetch(at + r * stride + line + AHEAD);
                if (dtype == NF4) units[r] = NAME(load_unit)(at + r * stride);
#if LANES == 16 /* as if they changed here: GCC would load them again for each part, and take half as long again */
                if (dtype == NF4) __asm__("" : "+v"(units[r].words[0]), "+r"(units[r].scales));
#endif
            }
            UNROLL for (int part = 0; part < step; part += vector) {
                shorts weights[4];
                IN_REGISTERS for (int r = 0; r < R; r++)
                    if (dtype == NF4) weights[r] = NAME(nf4_weights)(&units[r], part);
                    else if (dtype == INT8) weights[r] = NAME(load_shorts)((const int8_t *)at + r * stride + part);
                    else weights[r] = *(const shorts_at *)(at + r * stride + 2 * part);
                NAME(step_codes)(weights, codes + k + part, padded, sums, R == 1 ? part / vector % 4 : 0, R, T, vnni);
            }
        }
        /* Of INT8 less than a step is left. */
        UNROLL for (int part = 0; R == 1 && part < 128 - vector; part += vector, k += vector) {
            if (k + vector > end) break;
            const shorts weights = NAME(load_shorts)((const int8_t *)data + k);
            NAME(step_codes)(&weights, codes + k, padded, sums, part / vector % 4, 1, T, vnni);
        }
        if (k < end) /* less than a vector */
            IN_REGISTERS for (int r = 0; r < R; r++) {
                int8_t last[2 * LANES] = {0};
                memcpy(last, data + r * stride + k, end - k); /* never beyond the row */
                const shorts weights = NAME(load_shorts)(last);
                NAME(step_codes)(&weights, codes + k, padded, sums, R == 1 ? 3 : r, 1, T, vnni);
            }
        IN_REGISTERS for (int t = 0; t < T; t++)
            if (R == 4) NAME(total_each)(sums[t], totals[t]);
            else if (end - first <= bound / 4) /* all four fit into 32 bits */
                totals[t][0] += NAME(total)(sums[t][0] + sums[t][1] + sums[t][2] + sums[t][3]);
            else
                IN_REGISTERS for (int i = 0; i < 4; i++) totals[t][0] += NAME(total)(sums[t][i]);
    }
    IN_REGISTERS for (int t = 0; t < T; t++)
        if (R == 4) {
            const four_doubles rows = __builtin_convertvector(*(const four_at *)row_scales, four_doubles);
            const four_doubles found = *(const four_doubles *)totals[t] * (rows * (double)scales[t]);
            *(four_at *)(out + t * out_stride) = __builtin_convertvector(found, four_at);
        } else
            out[t * out_stride] = totals[t][0] * ((double)scales[t] * row_scales[0]);
}

/* The outputs of `rows` rows for all tokens. */
INLINE void NAME(rows_of_codes)(const uint8_t *data, int64_t stride, const float *row_scales, int64_t rows,
                                int64_t columns, const int16_t *codes, int64_t padded, const float *scales, float *out,
                                int64_t out_stride, int64_t tokens, int dtype, int vnni) {
#define DO_ROWS(R, T)                                                                                                   \
    NAME(dot_codes)(data + n * stride, stride, row_scales + n, columns, codes + t * padded, padded, scales + t,         \
                    out + t * out_stride + n, out_stride, R, T, dtype, vnni)
    const int most = LANES == 8 && dtype == INT8 ? 2 : TILE; /* as AVX2 has few registers */
    FOR_ROWS(0, rows, tokens, 4 * TILE, most, LANES >= 8 && tokens <= (dtype == INT8 ? 2 : 1))
#undef DO_ROWS
}

/* --- the same of many ids ---
 *
 * The sums of `dot_codes` are spread over lanes, and adding those up takes time when rows are short. For
 * many ids some rows are unpacked once into a panel: of each pair of inputs the weights of all its rows, one after
 * another. So a lane has the sum of one row, and no sum is spread. After as many inputs as 32 bits have room for, the
 * upper 16 bits of each are put aside. */

/* Tokens from which it pays, ABREAST at least; measured (NOTES.md) where there are as many lanes. */
INLINE int64_t NAME(many_codes)(int dtype, int vnni) {
    if (dtype == INT8) return LANES == 16 ? 32 : 20;
    return LANES == 8 ? 8 : vnni ? 24 : 12;
}

#if LANES >= 8
#define PANEL_ROWS (2 * LANES)
#define ABREAST (LANES == 16 ? 12 : 4) /* tokens: with two vectors of weights as many sums as there are registers for */

/* The lower or upper halves of two vectors, by turns. */
INLINE ints NAME(interleave)(ints a, ints b, int upper) {
#if LANES == 16
    const __m512i places = upper ? _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
                                 : _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (ints)_mm512_permutex2var_epi32((__m512i)a, places, (__m512i)b);
#else
    const __m256i first = _mm256_unpacklo_epi32((__m256i)a, (__m256i)b), /* of each 128 bits */
                  second = _mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
    return (ints)(upper ? _mm256_permute2x128_si256(first, second, 0x31) : _mm256_permute2x128_si256(first, second, 0x20));
#endif
}

/* Rows become columns. Each round interleaves the first half of all numbers with the second, which rotates the bits of
 * a number's place, (row, column), by one. After as many rounds as a row has bits the two are exchanged. */
INLINE void NAME(transpose)(ints m[LANES]) {
    UNROLL for (int done = 1; done < LANES; done *= 2) {
        ints next[LANES];
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = NAME(interleave)(m[i], m[i + LANES / 2], 0);
            next[2 * i + 1] = NAME(interleave)(m[i], m[i + LANES / 2], 1);
        }
        UNROLL for (int i = 0; i < LANES; i++) m[i] = next[i];
    }
}

/* The panel of PANEL_ROWS rows from `data` on, of their inputs from `begin` to before `end`, both multiples of 128. */
INLINE void NAME(pack_codes)(const uint8_t *data, int64_t stride, int64_t columns, int64_t begin, int64_t end,
                             int16_t *panel, int dtype) {
    for (int64_t k = begin; k < end; k += 128)
        for (int first = 0; first < PANEL_ROWS; first += LANES) {
            shorts words[LANES][64 / LANES]; /* of 128 inputs */
            for (int r = 0; r < LANES; r++) {
                const uint8_t *row = data + (first + r) * stride;
                if (dtype == NF4) {
                    const NAME(nf4_unit) unit = NAME(load_unit)(row + k / 128 * UNIT);
                    UNROLL for (int i = 0; i < 64 / LANES; i++) words[r][i] = NAME(nf4_weights)(&unit, 2 * LANES * i);
                } else if (columns - k >= 128) {
                    UNROLL for (int i = 0; i < 64 / LANES; i++)
                        words[r][i] = NAME(load_shorts)((const int8_t *)row + k + 2 * LANES * i);
                } else {
                    int8_t last[128] = {0};
                    memcpy(last, row + k, columns - k); /* never beyond the row */
                    for (int i = 0; i < 64 / LANES; i++) words[r][i] = NAME(load_shorts)(last + 2 * LANES * i);
                }
            }
            for (int i = 0; i < 64 / LANES; i++) {
                ints pairs[LANES];
                for (int r = 0; r < LANES; r++) pairs[r] = (ints)words[r][i];
                NAME(transpose)(pairs);
                int16_t *to = panel + (k - begin + 2 * LANES * i) * PANEL_ROWS + 2 * first;
                for (int j = 0; j < LANES; j++) *(shorts_at *)(to + 2 * j * PANEL_ROWS) = (shorts)pairs[j];
            }
        }
}

typedef double NAME(doubles) __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

/* Adds sums, whose upper 16 bits are in `upper`, to `totals` (T, PANEL_ROWS), or begins them. */
INLINE void NAME(add_totals)(const ints (*sums)[2], const ints (*upper)[2], double *totals, int begins, int T) {
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int half = 0; half < 2; half++) {
            NAME(doubles) *total = (NAME(doubles) *)(totals + t * PANEL_ROWS + half * LANES), so_far = {0};
            if (!begins) so_far = *total;
            *total = so_far + 65536.0 * __builtin_convertvector(upper[t][half], NAME(doubles)) +
                     __builtin_convertvector(sums[t][half], NAME(doubles));
        }
}

/* Adds to `totals` (T, PANEL_ROWS) the products of a panel with `count` inputs of T tokens, or begins them. */
INLINE void NAME(tile_codes)(const int16_t *panel, int64_t count, const int16_t *codes, int64_t padded, int64_t bound,
                             double *totals, int begins, const uint8_t *ahead, int64_t lines, int T, int vnni) {
    ints sums[ABREAST][2], upper[ABREAST][2];
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
                    sums[t][0] = NAME(add_products)(sums[t][0], low, x, vnni);
                    sums[t][1] = NAME(add_products)(sums[t][1], high, x, vnni);
                }
            }
        }
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                upper[t][half] += sums[t][half] >> 16;
                sums[t][half] &= 0xffff;
            }
    }
    NAME(add_totals)(sums, upper, totals, begins, T);
}

/* As `rows_of_codes` does, for as many rows as make whole panels; their number. room: PANEL floats, of which the panel
 * takes a half at most, and its totals for MOST_TOKENS a quarter. */
INLINE int64_t NAME(panels_of_codes)(const matrix *w, const uint8_t *data, const float *row_scales, int64_t rows,
                                     const int16_t *codes, int64_t padded, const float *scales, float *out,
                                     int64_t out_stride, int64_t tokens, float *room, int vnni) {
    const int64_t bound = BOUND(w->dtype);
    int16_t *panel = (int16_t *)(((uintptr_t)room + 63) / 64 * 64);
    double *totals = (double *)(panel + DEEP * PANEL_ROWS);
    /* Lines of the cache that a tile asks for with each 32 inputs, so that tiles ask for all of the next rows. */
    const int64_t steps = tokens / ABREAST * (padded / 32);
    const int64_t each = (PANEL_ROWS * w->stride / 64 + steps - 1) / steps;
    int64_t n = 0;
    for (; n + PANEL_ROWS <= rows; n += PANEL_ROWS) {
        const uint8_t *ahead = data + (n + PANEL_ROWS) * w->stride, *asked = ahead + PANEL_ROWS * w->stride;
        for (int64_t k = 0; k < padded; k += DEEP) {
            const int64_t end = padded - k < DEEP ? padded : k + DEEP;
            if (w->dtype == INT8)
                NAME(pack_codes)(data + n * w->stride, w->stride, w->columns, k, end, panel, INT8);
            else
                NAME(pack_codes)(data + n * w->stride, w->stride, w->columns, k, end, panel, NF4);
#define DO(T)                                                                                                           \
    NAME(tile_codes)(panel, end - k, codes + t * padded + k, padded, bound, totals + t * PANEL_ROWS, k == 0, ahead,     \
                     ahead < asked ? each : 0, T, vnni)
            for (int64_t t = 0, count; t < tokens; t += count, ahead += (end - k) / 32 * each * 64) {
                count = tokens - t >= ABREAST ? ABREAST : tokens - t < TILE ? tokens - t : TILE;
                if (count == ABREAST) DO(ABREAST);
                else FOR_TILE(count, DO)
            }
#undef DO
        }
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t r = 0; r < PANEL_ROWS; r++)
                out[t * out_stride + n + r] = totals[t * PANEL_ROWS + r] * ((double)scales[t] * row_scales[n + r]);
    }
    return n;
}
#else
/* As `rows_of_codes` does, for all rows: those of NF4 are unpacked once for many tokens. room: PANEL floats. */
INLINE int64_t NAME(panels_of_codes)(const matrix *w, const uint8_t *data, const float *row_scales, int64_t rows,
                                     const int16_t *codes, int64_t padded, const float *scales, float *out,
                                     int64_t out_stride, int64_t tokens, float *room, int vnni) {
    const int64_t most = PANEL * 2 / padded / 4 * 4; /* rows of a panel */
    if (w->dtype == INT8 || !most) return 0;
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = rows - first < most ? rows - first : most;
        int16_t *words = (int16_t *)room;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < padded; k += 128) {
                const NAME(nf4_unit) unit = NAME(load_unit)(data + (first + r) * w->stride + k / 128 * UNIT);
                UNROLL for (int part = 0; part < 128; part += 2 * LANES)
                    *(shorts_at *)(words + r * padded + k + part) = NAME(nf4_weights)(&unit, part);
            }
        NAME(rows_of_codes)((const uint8_t *)room, padded * sizeof(int16_t), row_scales + first, count, w->columns, codes,
                            padded, scales, out + first, out_stride, tokens, WORDS, vnni);
    }
    return rows;
}
#endif

INLINE void NAME(linear_rounded)(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                                 const float *scales, float *out, int64_t out_stride, int64_t tokens, float *room,
                                 int vnni) {
    const uint8_t *data = (const uint8_t *)w->data + begin * w->stride;
    const float *row_scales = (const float *)w->scales + begin;
    int64_t done = 0;
    if (tokens >= NAME(many_codes)(w->dtype, vnni))
        done = NAME(panels_of_codes)(w, data, row_scales, end - begin, codes, padded, scales, out, out_stride, tokens,
                                     room, vnni);
    const int64_t rest = end - begin - done;
    data += done * w->stride;
    if (w->dtype == INT8)
        NAME(rows_of_codes)(data, w->stride, row_scales + done, rest, w->columns, codes, padded, scales, out + done,
                            out_stride, tokens, INT8, vnni);
    else
        NAME(rows_of_codes)(data, w->stride, row_scales + done, rest, w->columns, codes, padded, scales, out + done,
                            out_stride, tokens, NF4, vnni);
}

/* out[t][n - begin] = weight[n] . in[t] for the outputs n from `begin` to before `end`, of inputs that are codes.
 * room: PANEL floats. */
static void NAME(linear_codes)(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                               const float *scales, float *out, int64_t out_stride, int64_t tokens, float *room) {
#if LANES == 16 && PAIRS
    if (w->dtype == BFLOAT16) {
        NAME(linear_pairs)(w, begin, end, codes, padded, out, out_stride, tokens, room);
        return;
    }
#endif
#if LANES == 16
    if (vnni) {
        NAME(linear_rounded)(w, begin, end, codes, padded, scales, out, out_stride, tokens, room, 1);
        return;
    }
#endif
    NAME(linear_rounded)(w, begin, end, codes, padded, scales, out, out_stride, tokens, room, 0);
}

#if LANES == 16
/* --- the same of inputs in 8 bits ---
 *
 * With `times` apart (`round_groups`) a group's inputs are bytes, and so are weights: one instruction adds four products to
 * each 32 bits, where 16-bit codes have two. It wants one of the factors without a sign: weight + 128, and 128 times the sum
 * of the codes less. A group's sum is then multiplied by `times`, and by the group's scale in NF4. */

#define PANEL_GROUPS (DEEP / 32)

/* As `pack_codes`, but of each four inputs the weights of all rows; of NF4 without the scales, which are in `scales`
 * (groups, PANEL_ROWS). */
INLINE void NAME(pack_bytes)(const uint8_t *data, int64_t stride, int64_t columns, int64_t begin, int64_t end,
                             uint8_t *panel, uint8_t *scales, int dtype) {
    const __m512i signs = _mm512_set1_epi8(-128), low = _mm512_set1_epi8(15);
    const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)nf4));
    for (int64_t k = begin; k < end; k += 128)
        for (int first = 0; first < PANEL_ROWS; first += LANES) {
            ints words[2][LANES]; /* of 64 inputs */
            for (int r = 0; r < LANES; r++) {
                const uint8_t *row = data + (first + r) * stride;
                __m512i weights[2];
                if (dtype == NF4) {
                    const uint8_t *unit = row + k / 128 * UNIT;
                    const __m512i codes = _mm512_loadu_si512((const void *)(unit + 4));
                    const __m256i firsts = _mm512_cvtepi16_epi8(codes);
                    const __m256i lasts = _mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 8));
                    for (int i = 0; i < 4; i++) scales[((k - begin) / 32 + i) * PANEL_ROWS + first + r] = unit[i] & 63;
                    weights[0] = _mm512_inserti64x4(_mm512_castsi256_si512(firsts), _mm256_srli_epi16(firsts, 4), 1);
                    weights[1] = _mm512_inserti64x4(_mm512_castsi256_si512(lasts), _mm256_srli_epi16(lasts, 4), 1);
                    for (int i = 0; i < 2; i++) weights[i] = _mm512_shuffle_epi8(values, _mm512_and_si512(weights[i], low));
                } else
                    for (int i = 0; i < 2; i++) { /* never beyond the row */
                        const int64_t rest = columns - k - 64 * i;
                        const __mmask64 mask = rest >= 64 ? ~0ull : rest > 0 ? (1ull << rest) - 1 : 0;
                        weights[i] = _mm512_maskz_loadu_epi8(mask, row + k + 64 * i);
                    }
                for (int i = 0; i < 2; i++) words[i][r] = (ints)_mm512_xor_si512(weights[i], signs);
            }
            for (int i = 0; i < 2; i++) {
                NAME(transpose)(words[i]);
                uint8_t *to = panel + (k - begin + 64 * i) * PANEL_ROWS + 4 * first;
                for (int j = 0; j < LANES; j++) *(bits_at *)(to + 4 * j * PANEL_ROWS) = (bits)words[i][j];
            }
        }
}

/* Adds to `totals` (T, PANEL_ROWS) the products of a panel with `groups` groups of T tokens, or begins them. bytes, times,
 * begun: of the first group; stride: bytes of a token. */
INLINE void NAME(tile_bytes)(const uint8_t *panel, const uint8_t *scales, int64_t groups, const int8_t *bytes,
                             const int32_t *times, const int32_t *begun, int64_t stride, double *totals, int begins,
                             const uint8_t *ahead, int64_t lines, int T, int dtype) {
    /* 2^31 is more than 32 * 32 * 127 * 31 * 127, and than 8 * 32 * 127 * 31 * 31 * 63 + 2^16. */
    const int64_t bound = dtype == NF4 ? 8 : PANEL_GROUPS;
    ints sums[TILE][2], upper[TILE][2];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int half = 0; half < 2; half++) sums[t][half] = upper[t][half] = (ints){0};
    for (int64_t first = 0; first < groups; first += bound) {
        const int64_t end = groups - first < bound ? groups : first + bound;
        for (int64_t g = first; g < end; g++) {
            ints products[TILE][2];
            for (int64_t line = g * lines; line < (g + 1) * lines; line++) __builtin_prefetch(ahead + 64 * line, 0, 2);
            UNROLL for (int t = 0; t < T; t++) {
                const int32_t start = *(const int32_t *)((const uint8_t *)(begun + g) + t * stride);
                products[t][0] = products[t][1] = (ints)_mm512_set1_epi32(start);
            }
            UNROLL for (int four = 0; four < 8; four++) {
                const ints *weights = (const ints *)(panel + (g * 8 + four) * 4 * PANEL_ROWS);
                const ints low = weights[0], high = weights[1];
                UNROLL for (int t = 0; t < T; t++) {
                    int32_t word;
                    memcpy(&word, bytes + t * stride + g * 32 + four * 4, 4);
                    const ints x = (ints)_mm512_set1_epi32(word);
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(products[t][0]) : "v"(low), "v"(x));
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(products[t][1]) : "v"(high), "v"(x));
                }
            }
            UNROLL for (int half = 0; half < 2; half++) {
                const ints scale = (ints)NAME(load_bytes)(scales + g * PANEL_ROWS + half * LANES);
                UNROLL for (int t = 0; t < T; t++) {
                    const int32_t factor = *(const int32_t *)((const uint8_t *)(times + g) + t * stride);
                    if (dtype == NF4) products[t][half] *= scale;
                    sums[t][half] += products[t][half] * (ints)_mm512_set1_epi32(factor);
                }
            }
        }
        if (dtype == INT8) continue;
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                upper[t][half] += sums[t][half] >> 16;
                sums[t][half] &= 0xffff;
            }
    }
    NAME(add_totals)(sums, upper, totals, begins, T);
}

/* As `linear_codes` does, from bytes: 32 outputs or more. */
static void NAME(linear_bytes)(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                               const float *scales, float *out, int64_t out_stride, int64_t tokens, float *room) {
    uint8_t *panel = (uint8_t *)(((uintptr_t)room + 63) / 64 * 64), *group_scales = panel + DEEP * PANEL_ROWS;
    double *totals = (double *)(group_scales + PANEL_GROUPS * PANEL_ROWS);
    /* Lines of the cache that a tile asks for with each group, so that tiles ask for all of the next rows. */
    const int64_t steps = (tokens + TILE - 1) / TILE * (padded / 32);
    const int64_t each = (PANEL_ROWS * w->stride / 64 + steps - 1) / steps;
    for (int64_t n = begin; n < end; n += PANEL_ROWS) {
        /* Moved back into the weights where it would end behind them. */
        const int64_t from = n < w->rows - PANEL_ROWS ? n : w->rows - PANEL_ROWS;
        const uint8_t *data = (const uint8_t *)w->data + from * w->stride;
        const uint8_t *ahead = data + PANEL_ROWS * w->stride, *asked = ahead + PANEL_ROWS * w->stride;
        for (int64_t k = 0; k < padded; k += DEEP) {
            const int64_t last = padded - k < DEEP ? padded : k + DEEP;
            if (w->dtype == INT8) NAME(pack_bytes)(data, w->stride, w->columns, k, last, panel, group_scales, INT8);
            else NAME(pack_bytes)(data, w->stride, w->columns, k, last, panel, group_scales, NF4);
#define DO(T)                                                                                                           \
    {                                                                                                                   \
        const int8_t *bytes = (const int8_t *)(codes + t * padded) + k;                                                 \
        const int32_t *times = (const int32_t *)((const int8_t *)(codes + t * padded) + padded) + k / 32;               \
        if (w->dtype == INT8)                                                                                           \
            NAME(tile_bytes)(panel, group_scales, (last - k) / 32, bytes, times, times + padded / 32, 2 * padded,       \
                             totals + t * PANEL_ROWS, k == 0, ahead, lines, T, INT8);                                   \
        else                                                                                                            \
            NAME(tile_bytes)(panel, group_scales, (last - k) / 32, bytes, times, times + padded / 32, 2 * padded,       \
                             totals + t * PANEL_ROWS, k == 0, ahead, lines, T, NF4);                                    \
    }
            /* Tiles of as many tokens each: one of a few takes almost as long as a whole one. */
            for (int64_t t = 0, left = (tokens + TILE - 1) / TILE, count; left > 0; t += count, left--) {
                const int64_t lines = ahead < asked ? each : 0;
                count = (tokens - t + left - 1) / left;
                FOR_TILE(count, DO)
                ahead += (last - k) / 32 * lines * 64;
            }
#undef DO
        }
        const int64_t stop = end < n + PANEL_ROWS ? end : n + PANEL_ROWS;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t r = n; r < stop; r++)
                out[t * out_stride + r - begin] =
                    totals[t * PANEL_ROWS + r - from] * ((double)scales[t] * ((const float *)w->scales)[r]);
    }
}
#else
static void NAME(linear_bytes)(const matrix *w, int64_t begin, int64_t end, const int16_t *codes, int64_t padded,
                               const float *scales, float *out, int64_t out_stride, int64_t tokens, float *room) {}
#endif

/* v = activation(v + bias), in place; bias may be NULL. */
static void NAME(finish)(float *v, const float *bias, int64_t count, int activation) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = NAME(load_some)(v, i, n, FLOAT32);
        if (bias) value += NAME(load_some)(bias, i, n, FLOAT32);
        value = NAME(activate)(value, activation);
        NAME(store_some)(v + i, value, n);
    }
}

/* A row of a matrix of any dtype, as float32. */
static void NAME(row)(const matrix *w, int64_t row, float *out) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->stride;
    const float *scales = w->scales;
    if (w->dtype >= Q8_0) {
        for (int64_t k = 0; k < w->columns; k += 32) {
            vec weights[32 / LANES];
            NAME(unblock)(data, k, w->dtype, weights);
            memcpy(out + k, weights, sizeof weights);
        }
        return;
    }
    for (int64_t k = 0; w->dtype == NF4 && k < w->columns; k += 128) {
        const NAME(nf4_unit) unit = NAME(load_unit)(data + k / 128 * UNIT);
        UNROLL for (int part = 0; part < 128; part += 2 * LANES) {
            const shorts weights = NAME(nf4_weights)(&unit, part);
            for (int64_t i = 0; i < 2 * LANES && k + part + i < w->columns; i++)
                out[k + part + i] = weights[i] * scales[row];
        }
    }
    for (int64_t k = 0; w->dtype != NF4 && k < w->columns; k += LANES) {
        int64_t n = w->columns - k < LANES ? w->columns - k : LANES;
        vec value = NAME(load_some)(data, k, n, w->dtype);
        if (w->dtype == INT8) value *= scales[row];
        NAME(store_some)(out + k, value, n);
    }
}

/* cap * tanh(v / cap): at most `cap`, and near v where v is small. */
INLINE vec NAME(capped)(vec v, float cap) {
    return NAME(activate)(v / cap, TANH) * cap;
}

/* Likewise for `count` numbers, in place. */
static void NAME(cap)(float *v, int64_t count, float cap) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = NAME(capped)(NAME(load_some)(v, i, n, FLOAT32), cap);
        NAME(store_some)(v + i, value, n);
    }
}

/* --- attention --- */

/* Scores of T queries for the positions from `begin` to before `end`, before all that the softmax has. */
INLINE void NAME(scores)(const memory *kept, const query *queries, int64_t begin, int64_t end, int T, int dtype) {
    const int width = dtype == FLOAT32 ? 4 : 2;
    const int64_t D = kept->D, whole = D / LANES * LANES;
    const float scale = kept->scale;
    int64_t slot = begin % kept->size; /* the slots go around, one after another: no division for each */
    for (int64_t i = begin; i < end;) {
        const int64_t count = end - i < 4 ? end - i : 4;
        const uint8_t *keys[4];
        for (int64_t j = 0; j < 4; j++) { /* the last few stand in for what is beyond the end */
            keys[j] = kept->keys + slot * D * width;
            if (j < count) slot = slot + 1 < kept->size ? slot + 1 : 0;
        }
        vec sums[TILE][4];
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int j = 0; j < 4; j++) sums[t][j] = (vec){0};
        for (int64_t d = 0; d < whole; d += LANES)
            IN_REGISTERS for (int j = 0; j < 4; j++) {
                const vec key = NAME(load)(keys[j], d, dtype);
                __builtin_prefetch(keys[j] + d * width + AHEAD_OF_HEADS);
                IN_REGISTERS for (int t = 0; t < T; t++) sums[t][j] += key * *(const vec_at *)(queries[t].q + d);
            }
        if (whole < D)
            IN_REGISTERS for (int j = 0; j < 4; j++) {
                const vec key = NAME(load_last)(keys[j], whole, D - whole, dtype);
                IN_REGISTERS for (int t = 0; t < T; t++)
                    sums[t][j] += key * NAME(load_last)(queries[t].q, whole, D - whole, FLOAT32);
            }
        UNROLL for (int t = 0; t < T; t++) { /* unrolled, sums stay in registers */
            float found[4];
            NAME(sum_each)(sums[t][0], sums[t][1], sums[t][2], sums[t][3], found);
            float *to = queries[t].scores + i - queries[t].first;
            if (count == 4) *(four_at *)to = *(const four_at *)found * scale;
            else
                for (int64_t j = 0; j < count; j++) to[j] = found[j] * scale;
        }
        i += count;
    }
}

/* What the values of these positions add to the outputs of T queries, by what their scores have become. */
INLINE void NAME(outputs)(const memory *kept, const query *queries, int64_t begin, int64_t end, int T, int dtype) {
    const int width = dtype == FLOAT32 ? 4 : 2;
    const int64_t D = kept->D, start = begin % kept->size;
    int64_t d = 0;
    for (; d + 4 * LANES <= D; d += 4 * LANES) {
        vec sums[TILE][4];
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int v = 0; v < 4; v++) sums[t][v] = *(const vec_at *)(queries[t].out + d + v * LANES);
        for (int64_t i = begin, slot = start; i < end; i++, slot = slot + 1 < kept->size ? slot + 1 : 0) {
            const uint8_t *from = kept->values + (slot * D + d) * width;
            vec weights[TILE];
            IN_REGISTERS for (int t = 0; t < T; t++) weights[t] = NAME(all)(queries[t].scores[i - queries[t].first]);
            IN_REGISTERS for (int v = 0; v < 4; v++) {
                const vec value = NAME(load)(from, v * LANES, dtype);
                __builtin_prefetch(from + v * LANES * width + AHEAD_OF_HEADS);
                IN_REGISTERS for (int t = 0; t < T; t++) sums[t][v] += value * weights[t];
            }
        }
        IN_REGISTERS for (int t = 0; t < T; t++)
            IN_REGISTERS for (int v = 0; v < 4; v++) *(vec_at *)(queries[t].out + d + v * LANES) = sums[t][v];
    }
    for (; d < D; d += LANES) {
        const int64_t n = D - d < LANES ? D - d : LANES;
        vec sums[TILE];
        IN_REGISTERS for (int t = 0; t < T; t++) sums[t] = NAME(load_some)(queries[t].out, d, n, FLOAT32);
        for (int64_t i = begin, slot = start; i < end; i++, slot = slot + 1 < kept->size ? slot + 1 : 0) {
            const vec value = NAME(load_some)(kept->values + slot * D * width, d, n, dtype);
            IN_REGISTERS for (int t = 0; t < T; t++) sums[t] += value * queries[t].scores[i - queries[t].first];
        }
        IN_REGISTERS for (int t = 0; t < T; t++) NAME(store_some)(queries[t].out + d, sums[t], n);
    }
}

#if LANES == 16 && PAIRS
/* --- the same for keys and values in bfloat16, where the processor multiplies it ---
 *
 * Queries are rounded to bfloat16, too, and so is what scores become. A lane has the score of one key: 16 keys are turned
 * around for all queries that are there. Outputs take two positions at a time, an even one and the next, in an order of
 * numbers that unpacking makes; what is beyond the ends of a query counts as zero, whatever it is. */

#define WIDEST 256 /* numbers of a head */

INLINE shorts NAME(all_pairs)(const int16_t *from) {
    int32_t pair;
    memcpy(&pair, from, 4);
    return (shorts)_mm512_set1_epi32(pair);
}

/* Of 32 numbers from d on those that a head of D has. */
INLINE __mmask32 NAME(those_of)(int64_t d, int64_t D) {
    return D - d >= 32 ? ~0u : D > d ? (1u << (D - d)) - 1 : 0;
}

INLINE void NAME(scores_of_pairs)(const memory *kept, const query *queries, int64_t begin, int64_t end, int T) {
    const int16_t *rounded = queries->rounded;
    int64_t slot = begin % kept->size;
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t count = end - i < LANES ? end - i : LANES;
        const uint8_t *keys[LANES];
        vec sums[TILE][2];
        for (int64_t j = 0; j < LANES; j++) { /* what is beyond the end stands in, and is not stored */
            keys[j] = kept->keys + 2 * slot * kept->D;
            if (j < count) slot = slot + 1 < kept->size ? slot + 1 : 0;
        }
        UNROLL for (int t = 0; t < T; t++) sums[t][0] = sums[t][1] = (vec){0};
        for (int64_t d = 0; d < kept->D; d += 32) {
            const __mmask32 mask = NAME(those_of)(d, kept->D);
            ints turned[LANES];
            UNROLL for (int j = 0; j < LANES; j++) {
                turned[j] = (ints)_mm512_maskz_loadu_epi16(mask, keys[j] + 2 * d);
                __builtin_prefetch(keys[j] + 2 * d + AHEAD_OF_HEADS);
            }
            NAME(transpose)(turned);
            UNROLL for (int j = 0; j < LANES; j++)
                UNROLL for (int t = 0; t < T; t++)
                    sums[t][j % 2] = NAME(add_pairs)(sums[t][j % 2], (shorts)turned[j],
                                                     NAME(all_pairs)(rounded + t * WIDEST + d + 2 * j));
        }
        UNROLL for (int t = 0; t < T; t++)
            _mm512_mask_storeu_ps(queries[t].scores + i - queries[t].first, (1u << count) - 1,
                                  (__m512)((sums[t][0] + sums[t][1]) * kept->scale));
    }
}

/* For V times 32 numbers from d on. weights: of each query, as if from position 0 on. */
INLINE void NAME(outputs_of_pairs)(const memory *kept, const query *queries, int64_t begin, int64_t end, int64_t d, int T,
                                   int V) {
    const int64_t bytes = 2 * kept->D;
    const uint8_t *values = kept->values + 2 * d, *last = values + (kept->size - 1) * bytes;
    const uint8_t *at = values + begin % kept->size * bytes;
    const __mmask32 masks[2] = {NAME(those_of)(d, kept->D), NAME(those_of)(d + 32, kept->D)};
    const int16_t *weights[TILE];
    vec sums[TILE][4];
    UNROLL for (int t = 0; t < T; t++) {
        weights[t] = (const int16_t *)queries[t].scores - (queries[t].first & ~1ll);
        UNROLL for (int v = 0; v < 2 * V; v++) sums[t][v] = *(const vec_at *)(queries->sums + t * WIDEST + d + v * LANES);
    }
    for (int64_t i = begin & ~1ll; i < end; i += 2) {
        __m512i pair[2][2];
        UNROLL for (int which = 0; which < 2; which++) { /* where a query begins or ends within a pair, it is alone */
            if (T == 1 && (i + which < begin || i + which >= end)) {
                pair[which][0] = pair[which][1] = _mm512_setzero_si512();
                continue;
            }
            UNROLL for (int v = 0; v < V; v++) {
                pair[which][v] = _mm512_maskz_loadu_epi16(masks[v], at + 64 * v);
                __builtin_prefetch(at + 64 * v + AHEAD_OF_HEADS);
            }
            at = at == last ? values : at + bytes;
        }
        UNROLL for (int v = 0; v < V; v++) {
            const shorts low = (shorts)_mm512_unpacklo_epi16(pair[0][v], pair[1][v]);
            const shorts high = (shorts)_mm512_unpackhi_epi16(pair[0][v], pair[1][v]);
            UNROLL for (int t = 0; t < T; t++) {
                const shorts weight = NAME(all_pairs)(weights[t] + i);
                sums[t][2 * v] = NAME(add_pairs)(sums[t][2 * v], low, weight);
                sums[t][2 * v + 1] = NAME(add_pairs)(sums[t][2 * v + 1], high, weight);
            }
        }
    }
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int v = 0; v < 2 * V; v++) *(vec_at *)(queries->sums + t * WIDEST + d + v * LANES) = sums[t][v];
}

INLINE void NAME(attend_pairs)(const memory *kept, const query *queries, int64_t begin, int64_t end, int T, int stage) {
    int64_t d = 0;
    if (stage == SCORES) {
        NAME(scores_of_pairs)(kept, queries, begin, end, T);
        return;
    }
    for (; d + 32 < kept->D; d += 64) NAME(outputs_of_pairs)(kept, queries, begin, end, d, T, 2);
    if (d < kept->D) NAME(outputs_of_pairs)(kept, queries, begin, end, d, T, 1);
}

/* A query's weights in bfloat16, where its scores are, from the even position at or before its first on. */
static void NAME(round_weights)(const query *q) {
    const int64_t count = q->end - q->first, odd = q->first & 1;
    int16_t *to = (int16_t *)q->scores;
    for (int64_t i = 0; i < count; i += LANES) { /* what is written lies before what is still to be read */
        NAME(few_shorts) rounded;
        const vec weights = NAME(load_some)(q->scores, i, count - i, FLOAT32);
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(weights));
        *(NAME(few_shorts) *)(to + odd + i) = rounded;
    }
    if (odd) to[0] = 0;
    to[odd + count] = 0;
}

/* The outputs from their sums, in the usual order again. */
static void NAME(finish_pairs)(const query *q, int64_t D, float total) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t d = 0; d < D; d += LANES) {
        const __m512 first = _mm512_loadu_ps(q->sums + d / 32 * 32), second = _mm512_loadu_ps(q->sums + d / 32 * 32 + LANES);
        const vec found = (vec)_mm512_permutex2var_ps(first, d % 32 ? high : low, second);
        NAME(store_some)(q->out + d, found / total, D - d);
    }
}
#endif

/* Scores become e to the score less the largest; their sum. */
static float NAME(weights)(const memory *kept, const query *q) {
    float *scores = q->scores;
    const int64_t count = q->end - q->first;
    float largest = -INFINITY;
    if (kept->cap) NAME(cap)(scores, count, kept->cap);
    if (q->bias)
        for (int64_t i = 0; i < count; i++) {
            const int64_t distance = q->first + i - q->position, reach = kept->reach;
            scores[i] += q->bias[distance < -reach ? -reach : distance > reach ? reach : distance];
        }
    for (int64_t i = count; i % LANES; i++) scores[i] = -INFINITY;
    vec most = NAME(all)(-INFINITY);
    for (int64_t i = 0; i < count; i += LANES) {
        const vec score = *(const vec_at *)(scores + i);
        most = NAME(select)(most > score, most, score);
    }
    for (int lane = 0; lane < LANES; lane++) largest = largest > most[lane] ? largest : most[lane];
    if (q->sink && *q->sink > largest) largest = *q->sink;
    vec totals = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec weight = NAME(exp)(*(const vec_at *)(scores + i) - largest);
        *(vec_at *)(scores + i) = weight;
        totals += weight;
    }
    const float total = NAME(sum)(totals);
    return q->sink ? total + NAME(exp)(NAME(all)(*q->sink - largest))[0] : total;
}

INLINE void NAME(attend_typed)(const memory *kept, const query *queries, int64_t begin, int64_t end, int T, int stage,
                               int dtype) {
    if (stage == SCORES && T == 1) NAME(scores)(kept, queries, begin, end, 1, dtype);
    else if (stage == SCORES) NAME(scores)(kept, queries, begin, end, TILE, dtype);
    else if (T == 1) NAME(outputs)(kept, queries, begin, end, 1, dtype);
    else NAME(outputs)(kept, queries, begin, end, TILE, dtype);
}

/* A stage for 1 or TILE queries and some positions. */
static void NAME(attend_part)(const memory *kept, const query *queries, int64_t begin, int64_t end, int T, int stage) {
#if LANES == 16 && PAIRS
    if (queries->rounded) {
        if (T == 1) NAME(attend_pairs)(kept, queries, begin, end, 1, stage);
        else NAME(attend_pairs)(kept, queries, begin, end, TILE, stage);
        return;
    }
#endif
    switch (kept->dtype) { /* each case its own code */
    case FLOAT32: NAME(attend_typed)(kept, queries, begin, end, T, stage, FLOAT32); break;
    case BFLOAT16: NAME(attend_typed)(kept, queries, begin, end, T, stage, BFLOAT16); break;
    default: NAME(attend_typed)(kept, queries, begin, end, T, stage, FLOAT16);
    }
}

/* A stage for the positions of each query in ascending order: those that TILE of them have in common at once. */
static void NAME(attend_stage)(const memory *kept, const query *queries, int64_t count, int stage) {
    int64_t begin = queries[0].first, end = queries[0].end;
    for (int64_t t = 1; t < count; t++) {
        begin = begin > queries[t].first ? begin : queries[t].first;
        end = end < queries[t].end ? end : queries[t].end;
    }
    if (queries->rounded) begin += begin & 1, end -= end & 1; /* whole pairs */
    const int together = count == TILE && begin < end;
    for (int64_t t = 0; t < count; t++)
        NAME(attend_part)(kept, queries + t, queries[t].first, together ? begin : queries[t].end, 1, stage);
    if (!together) return;
    NAME(attend_part)(kept, queries, begin, end, TILE, stage);
    for (int64_t t = 0; t < count; t++) NAME(attend_part)(kept, queries + t, end, queries[t].end, 1, stage);
}

#if LANES == 16 && PAIRS
/* As `attend` does, for heads of WIDEST numbers at most. */
static void NAME(attend_in_pairs)(const memory *kept, query *queries, int64_t count) {
    const int64_t padded = (kept->D + 31) / 32 * 32;
    _Alignas(64) int16_t rounded[TILE][WIDEST];
    _Alignas(64) float sums[TILE][WIDEST];
    for (; count > 0; queries += TILE, count -= TILE) {
        const int64_t part = count < TILE ? count : TILE;
        float totals[TILE];
        for (int64_t t = 0; t < part; t++) {
            NAME(round_to_pairs)(queries[t].q, kept->D, padded, rounded[t]);
            memset(sums[t], 0, padded * sizeof(float));
            queries[t].rounded = rounded[t], queries[t].sums = sums[t];
        }
        NAME(attend_stage)(kept, queries, part, SCORES);
        for (int64_t t = 0; t < part; t++) {
            totals[t] = NAME(weights)(kept, queries + t);
            NAME(round_weights)(queries + t);
        }
        NAME(attend_stage)(kept, queries, part, OUTPUTS);
        for (int64_t t = 0; t < part; t++) NAME(finish_pairs)(queries + t, kept->D, totals[t]);
    }
}
#endif

/* out (D,) = softmax(q . keys * scale) . values for queries of one text and head. */
static void NAME(attend)(const memory *kept, query *queries, int64_t count) {
#if LANES == 16 && PAIRS
    if (pairs && kept->dtype == BFLOAT16 && kept->D <= WIDEST) {
        NAME(attend_in_pairs)(kept, queries, count);
        return;
    }
#endif
    for (; count > 0; queries += TILE, count -= TILE) {
        const int64_t part = count < TILE ? count : TILE;
        float totals[TILE];
        NAME(attend_stage)(kept, queries, part, SCORES);
        for (int64_t t = 0; t < part; t++) {
            totals[t] = NAME(weights)(kept, queries + t);
            memset(queries[t].out, 0, kept->D * sizeof(float));
        }
        NAME(attend_stage)(kept, queries, part, OUTPUTS);
        for (int64_t t = 0; t < part; t++)
            for (int64_t d = 0; d < kept->D; d++) queries[t].out[d] /= totals[t];
    }
}

/* --- the LSTM cell --- */

/* gates (4H,) in PyTorch's order i, f, g, o; h and c (H,) are updated in place. */
static void NAME(recur)(float *gates, float *h, float *c, int64_t H) {
    for (int64_t j = 0; j < H; j += LANES) {
        int64_t n = H - j < LANES ? H - j : LANES;
        vec part[5];
        for (int gate = 0; gate < 4; gate++) part[gate] = NAME(load_some)(gates + gate * H, j, n, FLOAT32);
        part[4] = NAME(load_some)(c, j, n, FLOAT32);
        vec cell = NAME(sigmoid)(part[1]) * part[4] + NAME(sigmoid)(part[0]) * NAME(activate)(part[2], TANH);
        vec output = NAME(sigmoid)(part[3]) * NAME(activate)(cell, TANH);
        NAME(store_some)(c + j, cell, n);
        NAME(store_some)(h + j, output, n);
    }
}

/* (x - mean) / sqrt(variance + epsilon) * weight + bias, over `count` numbers. */
static void NAME(norm)(const float *x, const float *weight, const float *bias, float epsilon, int64_t count,
                       float *out) {
    vec sums = {0}, squares = {0};
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) sums += *(const vec_at *)(x + i);
    if (whole < count) sums += NAME(load_last)(x, whole, count - whole, FLOAT32);
    float mean = NAME(sum)(sums) / count;
    for (int64_t i = 0; i < whole; i += LANES) {
        vec difference = *(const vec_at *)(x + i) - mean;
        squares += difference * difference;
    }
    float sum = NAME(sum)(squares);
    for (int64_t i = whole; i < count; i++) sum += (x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrtf(sum / count + epsilon);
    for (int64_t i = 0; i < whole; i += LANES) {
        vec value = (*(const vec_at *)(x + i) - mean) * factor * *(const vec_at *)(weight + i);
        *(vec_at *)(out + i) = value + *(const vec_at *)(bias + i);
    }
    for (int64_t i = whole; i < count; i++) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

/* x / sqrt(mean of x * x + epsilon) * weight, over `count` numbers; out may be x. */
static void NAME(rms_norm)(const float *x, const float *weight, float epsilon, int64_t count, float *out) {
    vec squares = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec value = NAME(load_some)(x, i, count - i < LANES ? count - i : LANES, FLOAT32);
        squares += value * value;
    }
    float factor = 1 / sqrtf(NAME(sum)(squares) / count + epsilon);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = NAME(load_some)(x, i, n, FLOAT32) * factor * NAME(load_some)(weight, i, n, FLOAT32);
        NAME(store_some)(out + i, value, n);
    }
}

/* out = activation(v) * with; out may be either. */
static void NAME(gate)(const float *v, const float *with, float *out, int64_t count, int activation) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = NAME(activate)(NAME(load_some)(v, i, n, FLOAT32), activation) * NAME(load_some)(with, i, n, FLOAT32);
        NAME(store_some)(out + i, value, n);
    }
}

/* out = gate * sigmoid(alpha * gate) * (up + 1), clamped before; v + bias holds gate and up in turn, `count` of each. */
static void NAME(gate_in_turn)(const float *v, const float *bias, int64_t count, float alpha, float limit, float *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec gate = {0}, up = {0};
        for (int lane = 0; lane < n; lane++) {
            gate[lane] = v[2 * (i + lane)] + bias[2 * (i + lane)];
            up[lane] = v[2 * (i + lane) + 1] + bias[2 * (i + lane) + 1];
        }
        gate = NAME(select)(gate > limit, NAME(all)(limit), gate);
        up = NAME(select)(up > limit, NAME(all)(limit), NAME(select)(up < -limit, NAME(all)(-limit), up));
        vec value = gate * NAME(sigmoid)(alpha * gate) * (up + 1);
        NAME(store_some)(out + i, value, n);
    }
}

/* --- the gated delta rule --- */

/* The next inputs of `count` channels become the outputs of a convolution over them and those before, which `window`
 * (taps - 1, channels) holds and then forgets the oldest of. weight (taps, channels), the last tap for the newest. */
static void NAME(convolve)(float *window, const float *weight, int64_t taps, int64_t channels, float *v, int64_t count,
                           int activation) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec newest = NAME(load_some)(v, i, n, FLOAT32), sum = {0};
        for (int64_t tap = 0; tap < taps; tap++) {
            vec input = tap + 1 < taps ? NAME(load_some)(window, tap * channels + i, n, FLOAT32) : newest;
            sum += input * NAME(load_some)(weight, tap * channels + i, n, FLOAT32);
            if (tap) NAME(store_some)(window + (tap - 1) * channels + i, input, n);
        }
        sum = NAME(activate)(sum, activation);
        NAME(store_some)(v + i, sum, n);
    }
}

/* v gets a length of `scale`, in place. */
static void NAME(unit)(float *v, float scale, int64_t count) {
    vec squares = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec value = NAME(load_some)(v, i, count - i < LANES ? count - i : LANES, FLOAT32);
        squares += value * value;
    }
    float factor = scale / sqrtf(NAME(sum)(squares) + 1e-6f);
    for (int64_t i = 0; i < count; i++) v[i] *= factor;
}

/* For `width` vectors of a row of the state, as `delta_rule` below; n numbers in the last of them. */
INLINE void NAME(delta_columns)(float *state, const float *q, const float *k, const float *v, float decay, float beta,
                                int64_t K, int64_t V, float *out, int64_t width, int64_t n) {
    vec sums[4] = {{0}, {0}, {0}, {0}}, deltas[4];
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < width; j++)
            sums[j] += NAME(load_some)(state, i * V + j * LANES, n, FLOAT32) * k[i];
    for (int64_t j = 0; j < width; j++) {
        deltas[j] = beta * (NAME(load_some)(v, j * LANES, n, FLOAT32) - decay * sums[j]);
        sums[j] = (vec){0};
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < width; j++) {
            float *at = state + i * V + j * LANES;
            vec value = decay * NAME(load_some)(at, 0, n, FLOAT32) + k[i] * deltas[j];
            sums[j] += value * q[i];
            NAME(store_some)(at, value, n);
        }
    for (int64_t j = 0; j < width; j++) NAME(store_some)(out + j * LANES, sums[j], n);
}

/* The state (K, V) decays, is asked for k, and is corrected by a part beta of what the answer lacks of v;
 * out (V,) = q . state. */
static void NAME(delta_rule)(float *state, const float *q, const float *k, const float *v, float decay, float beta,
                             int64_t K, int64_t V, float *out) {
    int64_t at = 0;
    for (; at + 4 * LANES <= V; at += 4 * LANES)
        NAME(delta_columns)(state + at, q, k, v + at, decay, beta, K, V, out + at, 4, LANES);
    for (; at < V; at += LANES)
        NAME(delta_columns)(state + at, q, k, v + at, decay, beta, K, V, out + at, 1, V - at < LANES ? V - at : LANES);
}

static const kernels NAME(kernels) = {NAME(linear), NAME(round_inputs), NAME(round_groups), NAME(linear_codes),
                                      NAME(linear_bytes), NAME(finish), NAME(row), NAME(attend), NAME(recur), NAME(norm),
                                      NAME(rms_norm), NAME(gate), NAME(cap), NAME(gate_in_turn), NAME(convolve),
                                      NAME(unit), NAME(delta_rule)};

#undef vec
#undef vec_at
#undef bits
#undef bits_at
#undef ints
#undef shorts
#undef shorts_at
#undef BOUND
#undef WORDS
#undef PANEL_ROWS
#undef PANEL_GROUPS
#undef ABREAST
#undef PASTE
#undef EXPAND
#undef NAME
#undef INLINE
#undef TILE
#undef DEEP
#undef SHALLOW
#undef FOR_TILE
#undef FOR_ROWS
#undef DO_FOUR
#undef WIDEST
#undef OF_EACH
