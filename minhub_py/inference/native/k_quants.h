/* GGUF's formats with 256 weights per block (ggml/src/ggml-common.h); nothing in them is aligned.
 *
 * Weight i of a block is scale * code[i] - offset * minimum[i / 16]. A code here is the stored one times the integer scale
 * of its group of 16 or 32 weights. It fits into 13 bits, and its products with the floats are exact. */

typedef int8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t ubytes16 __attribute__((vector_size(16)));
typedef uint64_t two_words __attribute__((vector_size(16)));
typedef ints ints_at __attribute__((aligned(4), may_alias));

enum { PARTS = 128 / LANES }; /* vectors of codes in a block */

typedef struct {
    bytes16 scales, minima; /* of each 16 weights */
    vec scale, offset;      /* in all lanes */
} k_header;

INLINE int64_t k_width(int dtype) { /* bytes of a block */
    return dtype == Q2_K ? 84 : dtype == Q3_K ? 110 : dtype == Q4_K ? 144 : dtype == Q5_K ? 176 : dtype == Q6_K ? 210 : 136;
}

INLINE int has_minima(int dtype) {
    return dtype == Q2_K || dtype == Q4_K || dtype == Q5_K;
}

/* Eight bytes, each twice. */
INLINE bytes16 twice(uint64_t bytes) {
    const two_words both = {bytes, bytes};
#if defined(__SSE2__)
    return (bytes16)_mm_unpacklo_epi8((__m128i)both, (__m128i)both);
#elif NEON
    return (bytes16)vzip1q_u8((uint8x16_t)both, (uint8x16_t)both);
#else
    bytes16 result;
    for (int i = 0; i < 16; i++) result[i] = ((bytes16)both)[i / 2];
    return result;
#endif
}

INLINE uint64_t join(uint32_t low, uint32_t high) {
    return low | (uint64_t)high << 32;
}

INLINE k_header k_header_of(const uint8_t *block, int dtype) {
    static const int scale_at[] = {[Q2_K] = 80, [Q3_K] = 108, [Q4_K] = 0, [Q5_K] = 0, [Q6_K] = 208, [IQ4_XS] = 0};
    const uint32_t four = 0x0f0f0f0f, two = 0x03030303;
    k_header h = {.scale = broadcast_half(block + scale_at[dtype])};
    uint32_t a, b, c;
    if (has_minima(dtype)) h.offset = broadcast_half(block + scale_at[dtype] + 2);
    switch (dtype) {
    case Q2_K: { /* 4 bits of each scale and minimum */
        const ubytes16 both = (ubytes16)*(const bytes16 *)block;
        h.scales = (bytes16)(both & 15), h.minima = (bytes16)(both >> 4);
        break;
    }
    case Q4_K:
    case Q5_K: /* 6 bits of 8 scales and 8 minima */
        memcpy(&a, block + 4, 4), memcpy(&b, block + 8, 4), memcpy(&c, block + 12, 4);
        h.scales = twice(join(a & 0x3f3f3f3f, (c & four) | (a >> 6 & two) << 4));
        h.minima = twice(join(b & 0x3f3f3f3f, (c >> 4 & four) | (b >> 6 & two) << 4));
        break;
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
        h.scales = twice(scales) - 32;
    }
    }
    return h;
}

/* 2 * LANES bytes, as shorts. */
INLINE shorts load_ushorts(const uint8_t *from) {
#if LANES == 16
    return (shorts)_mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)from));
#elif LANES == 8
    return (shorts)_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)from));
#elif NEON
    return (shorts)vmovl_u8(vld1_u8(from));
#else
    shorts result;
    for (int lane = 0; lane < 2 * LANES; lane++) result[lane] = from[lane];
    return result;
#endif
}

/* `count` bits of bytes in shorts. */
INLINE shorts bits_of(shorts bytes, int first, int count) {
    const shorts moved = bytes >> first;
    return first + count == 8 ? moved : moved & (int16_t)((1 << count) - 1);
}

/* The scales of 2 * LANES weights from index k, a constant for the compiler. */
INLINE shorts scales_at(bytes16 scales, int k) {
#if LANES == 16
    const __m512i all = _mm512_castsi256_si512(_mm256_cvtepi8_epi16((__m128i)scales));
    const __m512i index = _mm512_inserti64x4(_mm512_set1_epi16(k / 16), _mm256_set1_epi16(k / 16 + 1), 1);
    return (shorts)_mm512_permutexvar_epi16(index, all);
#elif LANES == 8
    return (shorts)_mm256_cvtepi8_epi16(_mm_shuffle_epi8((__m128i)scales, _mm_set1_epi8(k / 16)));
#else
    return (shorts){0} + scales[k / 16];
#endif
}

/* The values of 2 * LANES codes of IQ4_XS from index k: in 16 bytes, low halves first. */
INLINE shorts iq4_values(const uint8_t *from, int k) {
#if LANES == 16
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)from));
    const __m512i index = _mm512_inserti64x4(_mm512_castsi256_si512(words), _mm256_srli_epi16(words, 4), 1);
    const __m256i values = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)iq4));
    return (shorts)_mm512_permutexvar_epi16(_mm512_and_si512(index, _mm512_set1_epi16(15)), _mm512_castsi256_si512(values));
#elif LANES == 8
    const __m128i index = _mm_srli_epi16(_mm_loadu_si128((const void *)from), k % 32 / 16 * 4);
    const __m128i values = _mm_loadu_si128((const void *)iq4);
    return (shorts)_mm256_cvtepi8_epi16(_mm_shuffle_epi8(values, _mm_and_si128(index, _mm_set1_epi8(15))));
#elif NEON
    const uint8x8_t bytes = vld1_u8(from + k % 16), index = k % 32 < 16 ? vand_u8(bytes, vdup_n_u8(15)) : vshr_n_u8(bytes, 4);
    return (shorts)vmovl_s8(vqtbl1_s8(vld1q_s8(iq4), index));
#else
    shorts result;
    for (int lane = 0; lane < 2 * LANES; lane++) result[lane] = iq4[from[(k + lane) % 16] >> k % 32 / 16 * 4 & 15];
    return result;
#endif
}

/* The codes of 2 * LANES weights from index k, a constant for the compiler. */
INLINE shorts k_codes(const uint8_t *block, const k_header *h, int k, int dtype) {
    const int quarter = k % 128 / 32, eighth = k / 32; /* of 128 and of 256 weights */
    const uint8_t *in_32 = block + k % 32, *in_64 = in_32 + k / 64 * 32, *in_128 = in_32 + k / 128 * 32;
    shorts codes;
    switch (dtype) {
    case Q2_K: codes = bits_of(load_ushorts(in_128 + 16), 2 * quarter, 2); break;
    case Q3_K: /* without the third bit the code is 4 smaller */
        codes = (bits_of(load_ushorts(in_128 + 32), 2 * quarter, 2) | bits_of(load_ushorts(in_32), eighth, 1) << 2) - 4;
        break;
    case Q4_K: codes = bits_of(load_ushorts(in_64 + 16), 4 * (eighth % 2), 4); break;
    case Q5_K:
        codes = bits_of(load_ushorts(in_64 + 48), 4 * (eighth % 2), 4) | bits_of(load_ushorts(in_32 + 16), eighth, 1) << 4;
        break;
    case Q6_K: {
        const shorts low = bits_of(load_ushorts(in_32 + k / 128 * 64 + k % 64 / 32 * 32), 4 * (quarter / 2), 4);
        codes = (low | bits_of(load_ushorts(in_128 + 128), 2 * quarter, 2) << 4) - 32;
        break;
    }
    default: codes = iq4_values(block + 8 + k / 32 * 16, k);
    }
    const int per_16 = dtype == Q2_K || dtype == Q3_K || dtype == Q6_K; /* otherwise two groups have one scale */
    return codes * scales_at(h->scales, per_16 ? k : k / 32 * 32);
}

/* The minima of each 16 weights. */
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
    for (const uint8_t *block = row; columns > 0; columns -= 256, block += k_width(dtype)) {
        const k_header h = k_header_of(block, dtype);
        UNROLL for (int part = 0; part < PARTS; part++) {
            const shorts codes = k_codes(block, &h, part * 2 * LANES, dtype);
            for (int lane = 0; lane < 2 * LANES; lane++, out++)
                *out = h.scale[0] * codes[lane] - h.offset[0] * h.minima[(part * 2 * LANES + lane) / 16];
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
