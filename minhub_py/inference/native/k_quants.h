/* GGUF's formats with 256 weights per block (ggml/src/ggml-common.h); nothing in them is aligned.
 *
 * Weight i of a block is scale * code[i] - offset * minimum[i / 16]. A code here is the stored one times the integer scale
 * of its group of 16 or 32 weights. It fits into 13 bits, and its products with the floats are exact.
 *
 * Vectors of stored codes have one byte for each weight, in an order of units of 16 weights that the format makes easy. In 16
 * bits, the even bytes come first, then the odd ones, so that each lane contains the same four weights. */

typedef int8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t ubytes16 __attribute__((vector_size(16)));
typedef uint64_t two_words __attribute__((vector_size(16)));
typedef uint32_t four_words __attribute__((vector_size(16)));
typedef ints ints_at __attribute__((aligned(4), may_alias));

typedef uint32_t bits_anywhere __attribute__((vector_size(4 * LANES), aligned(1), may_alias));

enum { VECTORS = 64 / LANES }; /* of bytes in a block */

typedef struct {
    bytes16 scales, minima; /* of each unit, in the order of vectors */
    float scale, offset;
} k_header;

INLINE int64_t k_width(int dtype) { /* bytes of a block */
    return dtype == Q2_K ? 84 : dtype == Q3_K ? 110 : dtype == Q4_K ? 144 : dtype == Q5_K ? 176 : dtype == Q6_K ? 210 : 136;
}

INLINE int has_minima(int dtype) {
    return dtype == Q2_K || dtype == Q4_K || dtype == Q5_K;
}

/* Whether vectors of units 4 positions apart have the same scales. */
INLINE int in_pairs(int dtype) {
    return dtype == Q4_K || dtype == Q5_K;
}

/* The unit of 16 weights at a position of vectors. Nibbles are used in the order of 64 stored bytes: 64 low ones, then 64
 * high ones. Q4_K and Q5_K, whose groups have two units: four first units of groups, then their second ones, so that vectors can
 * be added before they are multiplied by the scales. */
INLINE int unit_at(int position, int dtype) {
    if (in_pairs(dtype)) return position % 4 * 4 + position / 4;
    return dtype == IQ4_XS ? (position & 8) | (position & 3) << 1 | (position & 4) >> 2 : position;
}

/* One byte for each 32 weights, from byte `first`, as bytes for the units in the order of vectors. */
INLINE bytes16 spread(bytes16 groups, int first, int dtype) {
    static const bytes16 pairs = {0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7};
    static const bytes16 halves = {0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7};
    const bytes16 order = (dtype == IQ4_XS ? halves : pairs) + (int8_t)first; /* unit_at() / 2 */
#if LANES >= 8
    return (bytes16)_mm_shuffle_epi8((__m128i)groups, (__m128i)order);
#elif NEON
    return (bytes16)vqtbl1q_u8((uint8x16_t)groups, (uint8x16_t)order);
#else
    bytes16 result;
    for (int i = 0; i < 16; i++) result[i] = groups[order[i]];
    return result;
#endif
}

INLINE uint64_t join(uint32_t low, uint32_t high) {
    return low | (uint64_t)high << 32;
}

INLINE k_header k_header_of(const uint8_t *block, int dtype) {
    static const int scale_at[] = {[Q2_K] = 80, [Q3_K] = 108, [Q4_K] = 0, [Q5_K] = 0, [Q6_K] = 208, [IQ4_XS] = 0};
    const uint32_t four = 0x0f0f0f0f, two = 0x03030303;
    k_header h = {.scale = half_at(block + scale_at[dtype])};
    uint32_t a, b, c;
    if (has_minima(dtype)) h.offset = half_at(block + scale_at[dtype] + 2);
    switch (dtype) {
    case Q2_K: { /* 4 bits of each scale and minimum */
        const ubytes16 both = (ubytes16)*(const bytes16 *)block;
        h.scales = (bytes16)(both & 15), h.minima = (bytes16)(both >> 4);
        break;
    }
    case Q4_K:
    case Q5_K: { /* 6 bits of 8 scales and 8 minima */
        const four_words all = (four_words)*(const bytes16 *)block, first = {all[1], all[3], all[2], all[3]};
        const four_words last = {0, all[1], 0, all[2]}, six = {0x3f3f3f3f, four, 0x3f3f3f3f, four}, by = {0, 0, 0, 4};
        const bytes16 both = (bytes16)((first >> by & six) | (last >> 2 & 0x30303030));
        h.scales = spread(both, 0, dtype), h.minima = spread(both, 8, dtype);
        break;
    }
    case Q3_K: /* 6 bits of 16 scales + 32 */
        memcpy(&a, block + 96, 4), memcpy(&b, block + 100, 4), memcpy(&c, block + 104, 4);
        h.scales = (bytes16)(two_words){join((a & four) | (c & two) << 4, (b & four) | (c >> 2 & two) << 4),
                                        join((a >> 4 & four) | (c >> 4 & two) << 4,
                                             (b >> 4 & four) | (c >> 6 & two) << 4)} - 32;
        break;
    case Q6_K: h.scales = *(const bytes16 *)(block + 192); break;
    default: { /* IQ4_XS: upper 2 bits of 8 scales + 32, lower 4 bits */
        uint64_t scales = 0;
        memcpy(&a, block + 4, 4);
        for (int i = 0; i < 8; i++)
            scales |= (uint64_t)((a >> 4 * i & 15) | (block[2 + i / 4] >> 2 * (i % 4) & 3) << 4) << 8 * i;
        h.scales = spread((bytes16)(two_words){scales, 0}, 0, dtype) - 32;
    }
    }
    return h;
}

/* Vector i of nibbles. */
INLINE bits nibble_codes(const uint8_t *from, int i, int dtype) {
    const int at = 4 * LANES * i;
    int high = at % 128 >= 64;
    bits both;
    if (in_pairs(dtype)) { /* each 16 bytes are from another 32 */
        const int second = at % 128 / 64 * 16;
        high = at >= 128;
#if LANES == 16
        const __m512i first = _mm512_loadu_si512((const void *)from), last = _mm512_loadu_si512((const void *)(from + 64));
        both = (bits)(second ? _mm512_shuffle_i64x2(first, last, 0xdd) : _mm512_shuffle_i64x2(first, last, 0x88));
#elif LANES == 8
        const __m128i *units = (const __m128i *)(from + i % 2 * 64 + second);
        both = (bits)_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(units)), _mm_loadu_si128(units + 2), 1);
#else
        both = *(const bits_anywhere *)(from + i % 4 * 32 + second);
#endif
    } else {
        both = *(const bits_anywhere *)(from + at / 128 * 64 + at % 64);
    }
    return (high ? both >> 4 : both) & 0x0f0f0f0f;
}

/* 32 bytes, for vector i: twice, once, or half of them. */
INLINE bits repeat_32(const uint8_t *from, int i) {
#if LANES == 16
    return (bits)_mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)from));
#else
    return *(const bits_anywhere *)(from + 4 * LANES * i % 32);
#endif
}

/* 16 bytes in all units. */
INLINE bits repeat_16(const uint8_t *from) {
#if LANES == 16
    return (bits)_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)from));
#elif LANES == 8
    return (bits)_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)from));
#else
    return *(const bits_anywhere *)from;
#endif
}

/* Moves a bit of each byte, or neighboring bits, to the bits `to`: from the bit `step` * group % 8 in vector i. Other bits,
 * also of the next byte, must be masked. */
INLINE bits move_bits(bits bytes, int i, int step, int to, int dtype) {
    int left[LANES / 4];
    UNROLL for (int unit = 0; unit < LANES / 4; unit++) left[unit] = to - unit_at(LANES / 4 * i + unit, dtype) / 2 * step % 8;
#if LANES == 16
    const ints by = {left[0], left[0], left[0], left[0], left[1], left[1], left[1], left[1],
                     left[2], left[2], left[2], left[2], left[3], left[3], left[3], left[3]};
    return (bits)_mm512_rolv_epi32((__m512i)bytes, (__m512i)by); /* modulo 32 */
#elif LANES == 8
    const ints by = {left[0], left[0], left[0], left[0], left[1], left[1], left[1], left[1]};
    return left[0] + left[1] > 0 ? bytes << (bits)by : bytes >> (bits)-by; /* none, or all in one direction */
#else
    return left[0] > 0 ? bytes << left[0] : bytes >> -left[0];
#endif
}

/* The values of codes of IQ4_XS, which have a sign. */
INLINE bits iq4_values(bits codes) {
#if LANES == 16
    const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)iq4));
    return (bits)_mm512_shuffle_epi8(values, (__m512i)codes);
#elif LANES == 8
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)iq4));
    return (bits)_mm256_shuffle_epi8(values, (__m256i)codes);
#elif NEON
    return (bits)vqtbl1q_s8(vld1q_s8(iq4), (uint8x16_t)codes);
#else
    bytes16 result;
    for (int i = 0; i < 16; i++) result[i] = iq4[((bytes16)codes)[i]];
    return (bits)result;
#endif
}

/* Vector i, a constant for the compiler, of stored codes: bytes without a sign, except of IQ4_XS. */
INLINE bits stored_codes(const uint8_t *block, int i, int dtype) {
    const int in_128 = LANES * i / 32 * 32; /* of the 32 bytes that have two bits of 128 weights */
    switch (dtype) {
    case Q2_K: return move_bits(repeat_32(block + 16 + in_128, i), i, 2, 0, dtype) & 0x03030303;
    case Q3_K:
        return (move_bits(repeat_32(block + 32 + in_128, i), i, 2, 0, dtype) & 0x03030303) |
               (move_bits(repeat_32(block, i), i, 1, 2, dtype) & 0x04040404);
    case Q4_K: return nibble_codes(block + 16, i, dtype);
    case Q5_K: {
        const bits fifths = repeat_16(block + 16 + LANES * i / 16 % 2 * 16);
        return nibble_codes(block + 48, i, dtype) | (move_bits(fifths, i, 1, 4, dtype) & 0x10101010);
    }
    case Q6_K:
        return nibble_codes(block, i, dtype) |
               (move_bits(repeat_32(block + 128 + in_128, i), i, 2, 4, dtype) & 0x30303030);
    default: return iq4_values(nibble_codes(block + 8, i, dtype));
    }
}

/* Stored codes minus the codes of weights. */
INLINE int excess(int dtype) {
    return dtype == Q3_K ? 4 : dtype == Q6_K ? 32 : 0;
}

/* The scales of vector i, twice for each four weights. */
INLINE shorts scales_at(bytes16 scales, int i) {
#if LANES == 16
    const shorts units = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
    const __m512i all = _mm512_castsi256_si512(_mm256_cvtepi8_epi16((__m128i)scales));
    return (shorts)_mm512_permutexvar_epi16((__m512i)(units + (int16_t)(4 * i)), all);
#elif LANES == 8
    const bytes16 units = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    return (shorts)_mm256_cvtepi8_epi16(_mm_shuffle_epi8((__m128i)scales, (__m128i)(units + (int8_t)(2 * i))));
#else
    return (shorts){0} + scales[i];
#endif
}

#if LANES == 16
/* The scales of all units, each with 128 times itself in the upper half. */
INLINE ints scales_of_bytes(bytes16 scales) {
    const ints all = (ints)_mm512_cvtepi8_epi32((__m128i)scales);
    return (all & 0xffff) | (ints)((bits)all << 23);
}
#endif

/* Weights 0 and 2, or 1 and 3 (odd), of each four of vector i: codes times scales. */
INLINE shorts k_codes(bits stored, shorts scales, int odd, int dtype) {
    shorts codes;
    if (dtype == IQ4_XS) codes = (odd ? (shorts)stored : (shorts)(stored << 8)) >> 8;
    else codes = (shorts)((odd ? stored >> 8 : stored) & 0x00ff00ff) - (int16_t)excess(dtype);
    return codes * scales;
}

/* The minima of LANES units. */
INLINE ints minima_at(const k_header *h, int i) {
#if LANES == 16
    return (ints)_mm512_cvtepu8_epi32((__m128i)h->minima);
#elif LANES == 8
    return (ints)_mm256_cvtepu8_epi32(i ? _mm_srli_si128((__m128i)h->minima, 8) : (__m128i)h->minima);
#else
    ints result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = h->minima[i * LANES + lane];
    return result;
#endif
}

/* A row as floats. */
INLINE void unpack_k(const uint8_t *row, int64_t columns, float *out, int dtype) {
    for (const uint8_t *block = row; columns > 0; columns -= 256, block += k_width(dtype), out += 256) {
        const k_header h = k_header_of(block, dtype);
        UNROLL for (int i = 0; i < VECTORS; i++) {
            const bits stored = stored_codes(block, i, dtype);
            const shorts scales = scales_at(h.scales, i);
            UNROLL for (int odd = 0; odd < 2; odd++) {
                const shorts codes = k_codes(stored, scales, odd, dtype);
                for (int j = 0; j < 2 * LANES; j++) {
                    const int at = 4 * LANES * i + 2 * j + odd, unit = unit_at(at / 16, dtype);
                    out[16 * unit + at % 16] = h.scale * codes[j] - h.offset * h.minima[at / 16];
                }
            }
        }
    }
}

static void unpack_k_row(const uint8_t *row, int64_t columns, float *out, int dtype) {
    switch (dtype) {
    case Q2_K: unpack_k(row, columns, out, Q2_K); break;
    case Q3_K: unpack_k(row, columns, out, Q3_K); break;
    case Q4_K: unpack_k(row, columns, out, Q4_K); break;
    case Q5_K: unpack_k(row, columns, out, Q5_K); break;
    case Q6_K: unpack_k(row, columns, out, Q6_K); break;
    default: unpack_k(row, columns, out, IQ4_XS);
    }
}

/* A row of a matrix in any format, as floats. */
static void unpack_row(const matrix *w, int64_t row, float *out) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->stride;
    const float *scales = w->scales;
    if (w->dtype >= Q2_K) {
        unpack_k_row(data, w->columns, out, w->dtype);
        return;
    }
    if (w->dtype >= Q8_0) {
        for (int64_t k = 0; k < w->columns; k += 32) {
            vec weights[32 / LANES];
            unpack_block(data, k, w->dtype, weights);
            memcpy(out + k, weights, sizeof weights);
        }
        return;
    }
    for (int64_t k = 0; w->dtype == NF4 && k < w->columns; k += 128) {
        const nf4_unit unit = load_nf4(data + k / 128 * NF4_UNIT);
        UNROLL for (int part = 0; part < 128; part += 2 * LANES) {
            const shorts weights = unpack_nf4(&unit, part);
            for (int64_t i = 0; i < 2 * LANES && k + part + i < w->columns; i++)
                out[k + part + i] = weights[i] * scales[row];
        }
    }
    for (int64_t k = 0; w->dtype != NF4 && k < w->columns; k += LANES) {
        int64_t n = w->columns - k < LANES ? w->columns - k : LANES;
        vec value = load_up_to(data, k, n, w->dtype);
        if (w->dtype == INT8) value *= scales[row];
        store_up_to(out + k, value, n);
    }
}
