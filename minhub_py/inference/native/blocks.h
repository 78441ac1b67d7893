/* Quantized weight formats: MXFP4, GGUF's blocks of 32, and NF4. GGUF's blocks are defined in
 * ggml/src/ggml-common.h; nothing in them is aligned. */

/* LANES weights of an MXFP4 block (32 weights in 16 bytes), from index k: even weights, the low halves of the bytes, come
 * first, then odd ones. The inputs have the same order (`unzip`), so no weight is moved. */
INLINE_FORMAT vec load_mxfp4(const uint8_t *block, int k, float scale) {
    const uint8_t *from = block + k % 16;
#if LANES == 16
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
    const __m512 values = _mm512_loadu_ps(mxfp4) * scale; /* once per block */
    if (k >= 16) codes = _mm512_srli_epi32(codes, 4);
    return (vec)_mm512_permutexvar_ps(codes, values); /* selects by the lowest four bits */
#elif LANES == 8
    bits codes = (bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)from));
    const __m256 values = _mm256_loadu_ps(mxfp4) * scale;
    if (k >= 16) codes >>= 4;
    bits sizes = (bits)_mm256_permutevar8x32_ps(values, (__m256i)codes); /* selects by the lowest three bits */
    return (vec)(sizes ^ (codes << 28 & 0x80000000u)); /* the fourth is the sign */
#elif NEON
    const int8x16_t doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8x16_t word = four_bytes(from), codes = k >= 16 ? vshrq_n_u8(word, 4) : vandq_u8(word, vdupq_n_u8(15));
    return (vec)vcvtq_n_f32_s32(expand_bytes(vreinterpretq_u8_s8(vqtbl1q_s8(doubled, codes))), 25) * scale;
#else
    vec result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = mxfp4[from[lane] >> (k >= 16 ? 4 : 0) & 15];
    return result * scale;
#endif
}

/* A float16 without alignment. */
INLINE float half_at(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
#if LANES >= 8
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16(half)));
#elif NEON
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
#else
    return half_to_float(half);
#endif
}

/* The same in every lane. */
INLINE vec broadcast_half(const uint8_t *from) {
    return broadcast(half_at(from));
}

/* The lowest four bits of each lane: number * scale + offset. With 16 lanes the 16 values are computed once per block. */
INLINE vec nibbles(bits codes, vec scale, vec offset) {
#if LANES == 16
    const vec values = to_float(lane_numbers) * scale + offset;
    return (vec)_mm512_permutexvar_ps((__m512i)codes, (__m512)values);
#else
    return to_float(codes & 15) * scale + offset;
#endif
}

static const float iq4_floats[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float mxfp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.f, -1, -2, -3, -4, -6, -8, -12};

/* The value of the lowest four bits of each lane. */
INLINE vec look_up(bits codes, const float *values) {
#if LANES == 16
    return (vec)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(values));
#elif LANES == 8
    return (vec)_mm256_i32gather_ps(values, (__m256i)(codes & 15), 4);
#else
    vec result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = values[codes[lane] & 15];
    return result;
#endif
}

/* Weights k to k + 31 of a row: each is its code times a scale, plus an offset. Both products are exact, so the sum is
 * rounded identically if the compiler fuses either product with it. */
INLINE_FORMAT void unpack_block(const uint8_t *row, int64_t k, int dtype, vec *weights) {
    if (dtype == Q8_0) { /* scale, 32 signed codes */
        const uint8_t *block = row + k / 32 * 34;
        const vec scale = broadcast_half(block);
        UNROLL for (int part = 0; part < 32; part += LANES)
            weights[part / LANES] = load_int8((const int8_t *)block + 2 + part) * scale;
    } else if (dtype == IQ4_NL || dtype == MXFP4_BLOCK) { /* scale, or half of it as an exponent; codes as in Q4_0 */
        const uint8_t *block = row + k / 32 * (dtype == IQ4_NL ? 18 : 17), *low = block + (dtype == IQ4_NL ? 2 : 1);
        const vec scale = dtype == IQ4_NL ? broadcast_half(block) : (vec){0} + (*block ? power_of_two(*block - 1) : 0x1p-128f);
        UNROLL for (int part = 0; part < 32; part += LANES) {
            const bits codes = load_bytes(low + part % 16) >> (uint32_t)(part / 16 * 4);
            weights[part / LANES] = look_up(codes, dtype == IQ4_NL ? iq4_floats : mxfp4_doubled) * scale;
        }
    } else { /* scale, offset if the type ends in 1, fifth bits, codes: 16 low halves of bytes, 16 high halves */
        const int has_offset = dtype == Q4_1 || dtype == Q5_1, five = dtype == Q5_0 || dtype == Q5_1;
        const uint8_t *block = row + k / 32 * (18 + 2 * has_offset + 4 * five), *low = block + 2 + 2 * has_offset;
        const vec scale = broadcast_half(block);
        const vec offset = has_offset ? broadcast_half(block + 2) : scale * (five ? -16.f : -8.f);
        uint32_t fifths;
        memcpy(&fifths, low, 4);
        UNROLL for (int part = 0; part < 32; part += LANES) {
            const bits codes = load_bytes(low + 4 * five + part % 16) >> (uint32_t)(part / 16 * 4);
            if (five) {
#if LANES == 16
                const vec values = to_float(lane_numbers) * scale + offset; /* once per block, as those from 16 to 31 */
                const vec upper = to_float(lane_numbers + 16) * scale + offset;
                const __m512 low_values = _mm512_permutexvar_ps((__m512i)codes, (__m512)values);
                weights[part / LANES] =
                    (vec)_mm512_mask_permutexvar_ps(low_values, fifths >> part, (__m512i)codes, (__m512)upper);
#else
                const bits fifth = (((bits){0} + fifths) >> (lane_numbers + part) & 1) << 4;
                weights[part / LANES] = to_float((codes & 15) | fifth) * scale + offset;
#endif
            } else {
                weights[part / LANES] = nibbles(codes, scale, offset);
            }
        }
    }
}

/* 2 * LANES 8-bit weights. */
INLINE shorts load_shorts(const int8_t *from) {
#if LANES == 16
    return (shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)from));
#elif LANES == 8
    return (shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)from));
#elif NEON
    return (shorts)vmovl_s8(vld1_s8(from));
#else
    shorts result;
    for (int lane = 0; lane < 2 * LANES; lane++) result[lane] = from[lane];
    return result;
#endif
}

/* --- NF4 --- */

/* 128 weights in NF4_UNIT bytes: a byte for each 32 weights, whose lowest seven bits are a scale with a sign and whose
 * highest bit selects a table of levels, then 32 little-endian words. Word j has the codes of weights j, 32 + j, 64 + j and
 * 96 + j, from the lowest bits. */
typedef struct {
    shorts words[16 / LANES];
    uint32_t scales;
} nf4_unit;

INLINE nf4_unit load_nf4(const uint8_t *from) {
    nf4_unit unit;
    memcpy(&unit.scales, from, 4);
    for (int i = 0; i < 16 / LANES; i++) unit.words[i] = ((const shorts_at *)(from + 4))[i];
    return unit;
}

/* 2 * LANES weights from index k, a constant for the compiler: each is the value of its code times its scale. */
INLINE_FORMAT shorts unpack_nf4(const nf4_unit *unit, int k) {
    const int part = k / 32;
    const uint8_t byte = unit->scales >> 8 * part;
    const shorts codes = unit->words[k % 32 / (2 * LANES)];
#if LANES == 16
    const __m512i index = _mm512_srli_epi16((__m512i)codes, 4 * part); /* selects by five bits: levels twice */
    const __m512i levels = _mm512_broadcast_i64x4(_mm256_load_si256((const void *)nf4_scaled[byte]));
    return (shorts)_mm512_permutexvar_epi16(index, levels);
#elif LANES == 8
    const nf4_factor *factor = &nf4_factors[byte];
    const __m256i words = (__m256i)codes, /* the indexes of parts 0 and 2, or 1 and 3, are in the lower and upper bytes */
                  index = _mm256_and_si256(part % 2 ? _mm256_srli_epi16(words, 4) : words, _mm256_set1_epi8(15)),
                  levels = _mm256_broadcastsi128_si256(_mm_load_si128((const void *)factor->levels)),
                  values = _mm256_shuffle_epi8(levels, index);
    return (shorts)_mm256_maddubs_epi16(_mm256_set1_epi32(factor->scales[part / 2]), values);
#elif NEON
    const uint16x8_t moved = vshlq_u16((uint16x8_t)codes, vdupq_n_s16(8 - 4 * part));
    const uint8x16_t index = vreinterpretq_u8_u16(vandq_u16(moved, vdupq_n_u16(0xf00)));
    const int8x16_t values = vqtbl1q_s8(vld1q_s8(nf4[nf4_table(byte)]), index);
    return (shorts)vmulq_n_s16(vshrq_n_s16(vreinterpretq_s16_s8(values), 8), nf4_scale(byte));
#else
    shorts result;
    for (int lane = 0; lane < 2 * LANES; lane++) result[lane] = nf4_scaled[byte][codes[lane] >> 4 * part & 15];
    return result;
#endif
}
