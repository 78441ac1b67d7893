/* GGUF's blocks unpacked to panels, and activations quantized to 8 bits in groups of 32, as gemm_blocks.h multiplies them. */

enum {
    PANEL_INPUTS = 256,
    PANEL_VECTORS = LANES == 16 ? 2 : 1, /* of rows */
    BLOCK_ROWS = PANEL_VECTORS * LANES,
};

typedef struct { /* LANES rows, 32 inputs */
    bits codes[8]; /* of four inputs; without a sign, except with SIGNED_BYTES */
    vec scales[2], offsets[2]; /* weight = scale * code + offset; of 32 inputs, or of 16 each */
} panel_group;

/* Whether codes that need all eight bits have a sign. Other codes are at most 63. */
#define SIGNED_BYTES (LANES < 16)

/* Stored codes minus the codes of weights. */
INLINE int excess_of(int dtype) {
    switch (dtype) {
    case Q4_0: return 8;
    case Q5_0: return 16;
    case MXFP4_BLOCK: return 12;
    case Q8_0:
    case IQ4_NL:
    case IQ4_XS: return 128;
    default: return excess(dtype);
    }
}

INLINE int has_offsets(int dtype) {
    return dtype == Q4_1 || dtype == Q5_1 || has_minima(dtype);
}

/* Groups with a scale in 32 inputs. */
INLINE int halves_of(int dtype) {
    return dtype == Q2_K || dtype == Q3_K || dtype == Q6_K ? 2 : 1;
}

INLINE int64_t block_size(int dtype) {
    return dtype >= Q2_K ? 256 : 32;
}

/* --- quantization --- */

/* Quantizes a token's inputs, four groups at a time. An input that is not finite makes scales NaN, and thereby all outputs. */
static void quantize_in_groups(const float *in, int64_t count, int dtype, byte_group *to) {
    const int excess = excess_of(dtype) == 128 && SIGNED_BYTES ? 0 : excess_of(dtype), halves = halves_of(dtype);
    enum { PARTS = 32 / LANES };
    for (int64_t i = 0; i < count; i += 128, to += 4) {
        const int64_t groups = min64((count - i) / 32, 4);
        vec x[4][PARTS], most[4], firsts[4], lasts[4], nans = {0};
        float limits[4], first_sums[4], last_sums[4];
        UNROLL for (int g = 0; g < 4; g++) {
            most[g] = firsts[g] = lasts[g] = (vec){0};
            UNROLL for (int part = 0; part < PARTS; part++) {
                x[g][part] = (vec){0};
                if (g < groups) x[g][part] = *(const vec_at *)(in + i + 32 * g + part * LANES);
                most[g] = vmax(most[g], vabs(x[g][part]));
                nans += x[g][part] * 0;
            }
        }
        const int finite = reduce_add(nans) == 0;
        reduce_max4(most[0], most[1], most[2], most[3], limits);
        UNROLL for (int g = 0; g < 4; g++) {
            if (g >= groups) break;
            const vec factor = broadcast(limits[g] >= 1e-30f ? 127 / limits[g] : 0);
            UNROLL for (int part = 0; part < PARTS; part++) {
                const ints codes = round_to_int(x[g][part] * factor);
                store_bytes(to[g].codes + part * LANES, codes);
                if (part < PARTS / 2) firsts[g] += to_float((bits)codes);
                else lasts[g] += to_float((bits)codes);
            }
        }
        reduce_add4(firsts[0], firsts[1], firsts[2], firsts[3], first_sums);
        reduce_add4(lasts[0], lasts[1], lasts[2], lasts[3], last_sums);
        for (int g = 0; g < groups; g++) {
            const float scale = !finite ? NAN : limits[g] >= 1e-30f ? limits[g] / 127 : 0;
            const float sums[2] = {halves == 1 ? first_sums[g] + last_sums[g] : first_sums[g], last_sums[g]};
            to[g].scale = scale;
            UNROLL for (int half = 0; half < 2; half++) {
                to[g].starts[half] = finite ? -excess * (int)sums[half] : 0;
                to[g].sums[half] = scale * sums[half];
            }
        }
    }
}

/* --- unpacking --- */

/* 16 bytes of LANES rows: lane r of out[j] has bytes 4 j to 4 j + 3 of row r. */
INLINE void columns_of(const uint8_t *from, int64_t stride, bits out[4]) {
#if LANES >= 8
    UNROLL for (int k = 0; k < 4; k++) { /* rows k, 4 + k, ... */
        const uint8_t *row = from + k * stride;
#if LANES == 16
        __m512i rows = _mm512_castsi128_si512(_mm_loadu_si128((const void *)row)); /* masks: no shuffles, which are the limit */
        rows = _mm512_mask_broadcast_i32x4(rows, 0x00f0, _mm_loadu_si128((const void *)(row + 4 * stride)));
        rows = _mm512_mask_broadcast_i32x4(rows, 0x0f00, _mm_loadu_si128((const void *)(row + 8 * stride)));
        out[k] = (bits)_mm512_mask_broadcast_i32x4(rows, 0xf000, _mm_loadu_si128((const void *)(row + 12 * stride)));
#else
        const __m256i rows = _mm256_castsi128_si256(_mm_loadu_si128((const void *)row));
        out[k] = (bits)_mm256_inserti128_si256(rows, _mm_loadu_si128((const void *)(row + 4 * stride)), 1);
#endif
    }
#if LANES == 16
    const __m512i a = (__m512i)out[0], b = (__m512i)out[1], c = (__m512i)out[2], d = (__m512i)out[3];
    const __m512i e = _mm512_unpacklo_epi32(a, b), f = _mm512_unpackhi_epi32(a, b);
    const __m512i g = _mm512_unpacklo_epi32(c, d), h = _mm512_unpackhi_epi32(c, d);
    out[0] = (bits)_mm512_unpacklo_epi64(e, g), out[1] = (bits)_mm512_unpackhi_epi64(e, g);
    out[2] = (bits)_mm512_unpacklo_epi64(f, h), out[3] = (bits)_mm512_unpackhi_epi64(f, h);
#else
    const __m256i a = (__m256i)out[0], b = (__m256i)out[1], c = (__m256i)out[2], d = (__m256i)out[3];
    const __m256i e = _mm256_unpacklo_epi32(a, b), f = _mm256_unpackhi_epi32(a, b);
    const __m256i g = _mm256_unpacklo_epi32(c, d), h = _mm256_unpackhi_epi32(c, d);
    out[0] = (bits)_mm256_unpacklo_epi64(e, g), out[1] = (bits)_mm256_unpackhi_epi64(e, g);
    out[2] = (bits)_mm256_unpacklo_epi64(f, h), out[3] = (bits)_mm256_unpackhi_epi64(f, h);
#endif
#else
    for (int j = 0; j < 4; j++) {
        uint32_t words[LANES];
        for (int r = 0; r < LANES; r++) memcpy(&words[r], from + r * stride + 4 * j, 4);
        memcpy(&out[j], words, sizeof words);
    }
#endif
}

/* The lower 16 bits of each lane, as float16. */
INLINE vec halves_to_floats(bits halves) {
#if LANES == 16
    return (vec)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)halves));
#elif LANES == 8
    const __m256i low = _mm256_and_si256((__m256i)halves, _mm256_set1_epi32(0xffff));
    return (vec)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
#elif NEON
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)halves)));
#else
    vec result;
    for (int lane = 0; lane < LANES; lane++) result[lane] = half_to_float(halves[lane]);
    return result;
#endif
}

/* The values of MXFP4's codes, doubled, plus 12. */
static const int8_t mxfp4_bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* The values of 16-entry tables by bytes from 0 to 15. */
INLINE bits look_up_bytes(bits codes, const int8_t *values) {
#if LANES == 16
    return (bits)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)values)), (__m512i)codes);
#elif LANES == 8
    return (bits)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)values)), (__m256i)codes);
#elif NEON
    return (bits)vqtbl1q_s8(vld1q_s8(values), (uint8x16_t)codes);
#else
    uint8_t bytes[4 * LANES];
    memcpy(bytes, &codes, sizeof bytes);
    for (int i = 0; i < 4 * LANES; i++) bytes[i] = values[bytes[i]];
    memcpy(&codes, bytes, sizeof bytes);
    return codes;
#endif
}

/* Adds 16 to the codes 4 n to 4 n + 3 of each lane whose bits are set. */
INLINE bits add_fifths(bits codes, bits fifths, int n) {
#if LANES == 16
    const __m512i first = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0); /* byte of each lane */
    const __m512i byte = _mm512_shuffle_epi8((__m512i)fifths, _mm512_add_epi32(first, _mm512_set1_epi32(n / 2 * 0x01010101)));
    const __mmask64 set = _mm512_test_epi8_mask(byte, _mm512_set1_epi32(0x08040201u << n % 2 * 4));
    return (bits)_mm512_mask_add_epi8((__m512i)codes, set, (__m512i)codes, _mm512_set1_epi8(16));
#elif LANES == 8
    const __m256i first = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0)); /* as above */
    const __m256i byte = _mm256_shuffle_epi8((__m256i)fifths, _mm256_add_epi32(first, _mm256_set1_epi32(n / 2 * 0x01010101)));
    const __m256i bit = _mm256_and_si256(n % 2 ? byte : _mm256_slli_epi32(byte, 4), _mm256_set1_epi32(0x80402010u));
    return codes | (bits)_mm256_min_epu8(bit, _mm256_set1_epi8(16));
#else
    return codes | ((fifths >> 4 * n & 15) * 0x00204081u & 0x01010101u) << 4;
#endif
}

/* 32 weights of LANES rows, in a format with blocks of 32. */
INLINE void unpack_group(const uint8_t *rows, int64_t stride, panel_group *to, int dtype) {
    const int five = dtype == Q5_0 || dtype == Q5_1, offsets = has_offsets(dtype);
    const int codes_at = dtype == MXFP4_BLOCK ? 1 : 2 + 2 * offsets + 4 * five;
    bits header[4], codes[2][4];
    columns_of(rows, stride, header);
    columns_of(rows + codes_at, stride, codes[0]);
    if (dtype == Q8_0) columns_of(rows + codes_at + 16, stride, codes[1]);
    const bits fifths = offsets ? header[1] : header[0] >> 16 | header[1] << 16;
    if (dtype == MXFP4_BLOCK) { /* half of 2 to the power of the exponent minus 127 */
        const bits exponent = header[0] & 255;
        const vec smallest = broadcast(0x1p-128f);
        to->scales[0] = blend((ints)exponent == 0, smallest, blend((ints)exponent == 1, broadcast(0x1p-127f),
                                                                   (vec)((exponent - 1) << 23)));
    } else to->scales[0] = halves_to_floats(header[0]);
    if (offsets) to->offsets[0] = halves_to_floats(header[0] >> 16);
    UNROLL for (int j = 0; j < 4; j++)
        UNROLL for (int half = 0; half < 2; half++) {
            bits code = dtype == Q8_0 ? codes[half][j] : codes[0][j] >> 4 * half & 0x0f0f0f0fu;
            if (five) code = add_fifths(code, fifths, 4 * half + j);
            if (dtype == IQ4_NL) code = look_up_bytes(code, iq4);
            if (dtype == MXFP4_BLOCK) code = look_up_bytes(code, mxfp4_bytes);
            to->codes[4 * half + j] = excess_of(dtype) == 128 && !SIGNED_BYTES ? code ^ 0x80808080u : code;
        }
}

/* 256 weights of LANES rows of IQ4_XS. */
INLINE void unpack_iq4_xs(const uint8_t *rows, int64_t stride, panel_group *to) {
    bits header[4];
    columns_of(rows, stride, header);
    for (int g = 0; g < 8; g++) {
        bits codes[4];
        const bits high = header[0] >> (16 + 2 * g) & 3, low = header[1] >> 4 * g & 15;
        to[g].scales[0] = halves_to_floats(header[0]) * to_float((low | high << 4) - 32);
        columns_of(rows + 8 + 16 * g, stride, codes);
        UNROLL for (int j = 0; j < 8; j++) {
            const bits code = look_up_bytes(codes[j % 4] >> j / 4 * 4 & 0x0f0f0f0fu, iq4);
            to[g].codes[j] = SIGNED_BYTES ? code : code ^ 0x80808080u;
        }
    }
}

/* Bits of each byte, as `mask` with the lowest at bit 0, from bit `from` to bit `to`. */
INLINE bits move(bits bytes, uint32_t mask, int from, int to) {
    return (to > from ? bytes << (to - from) : bytes >> (from - to)) & mask << to;
}

/* The scales and offsets of 256 weights of LANES rows of Q4_K and Q5_K. */
INLINE void unpack_scales_by_32(const uint8_t *rows, int64_t stride, panel_group *to) {
    bits header[4]; /* of the floats, then of 6 bits of 8 scales and 8 minima */
    columns_of(rows, stride, header);
    const vec scale = halves_to_floats(header[0]), offset = -halves_to_floats(header[0] >> 16);
    UNROLL for (int g = 0; g < 8; g++) {
        const int byte = 8 * (g % 4);
        const bits last = header[3] >> byte;
        const bits scales = g < 4 ? header[1] >> byte & 63 : (last & 15) | (header[1] >> byte & 0xc0) >> 2;
        const bits minima = g < 4 ? header[2] >> byte & 63 : (last >> 4 & 15) | (header[2] >> byte & 0xc0) >> 2;
        to[g].scales[0] = scale * to_float(scales);
        to[g].offsets[0] = offset * to_float(minima);
    }
}

/* The codes of Q4_K and Q5_K. */
INLINE void unpack_by_32(const uint8_t *rows, int64_t stride, panel_group *to, int dtype) {
    UNROLL for (int part = 0; part < 2; part++) {
        bits fifths[4], codes[4];
        if (dtype == Q5_K) columns_of(rows + 16 + 16 * part, stride, fifths);
        UNROLL for (int pair = 0; pair < 4; pair++) { /* of groups */
            columns_of(rows + k_width(dtype) - 128 + 32 * pair + 16 * part, stride, codes);
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int high = 0; high < 2; high++) {
                    bits code = codes[j] >> 4 * high & 0x0f0f0f0fu;
                    if (dtype == Q5_K) code |= move(fifths[j], 0x01010101u, 2 * pair + high, 4);
                    to[2 * pair + high].codes[4 * part + j] = code;
                }
        }
    }
}

/* The scales and offsets of 256 weights of LANES rows of Q2_K, Q3_K and Q6_K. */
INLINE void unpack_scales_by_16(const uint8_t *rows, int64_t stride, panel_group *to, int dtype) {
    bits header[4], floats[4];
    columns_of(rows + (dtype == Q6_K ? 192 : dtype == Q3_K ? 94 : 0), stride, header);
    columns_of(rows + (dtype == Q6_K ? 194 : dtype == Q3_K ? 94 : 68), stride, floats); /* the last four bytes */
    const vec scale = halves_to_floats(dtype == Q2_K ? floats[3] : floats[3] >> 16);
    if (dtype == Q3_K) /* from byte 96 on */
        UNROLL for (int i = 0; i < 3; i++) header[i] = header[i] >> 16 | header[i + 1] << 16;
    UNROLL for (int i = 0; i < 16; i++) {
        vec *scales = &to[i / 2].scales[i % 2];
        const bits byte = header[i / 4] >> 8 * (i % 4);
        if (dtype == Q6_K) *scales = scale * to_float((bits)((ints)(byte << 24) >> 24));
        else if (dtype == Q3_K) {
            const bits low = header[i / 4 % 2] >> (8 * (i % 4) + i / 8 * 4) & 15;
            const bits high = header[2] >> (8 * (i % 4) + i / 4 * 2) & 3;
            *scales = scale * to_float((low | high << 4) - 32);
        } else {
            *scales = scale * to_float(byte & 15);
            to[i / 2].offsets[i % 2] = -halves_to_floats(floats[3] >> 16) * to_float(byte >> 4 & 15);
        }
    }
}

/* The codes of Q2_K, Q3_K and Q6_K. */
INLINE void unpack_by_16(const uint8_t *rows, int64_t stride, panel_group *to, int dtype) {
    UNROLL for (int n = 0; n < 2; n++) /* 128 weights */
        UNROLL for (int part = 0; part < 2; part++) {
            bits low[2][4], high[4];
            if (dtype == Q6_K)
                UNROLL for (int i = 0; i < 2; i++) columns_of(rows + 64 * n + 32 * i + 16 * part, stride, low[i]);
            else columns_of(rows + (dtype == Q2_K ? 16 : 32) + 32 * n + 16 * part, stride, low[0]);
            if (dtype == Q6_K) columns_of(rows + 128 + 32 * n + 16 * part, stride, high);
            if (dtype == Q3_K) columns_of(rows + 16 * part, stride, high);
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int i = 0; i < 4; i++) {
                    bits code;
                    if (dtype == Q6_K)
                        code = move(low[i % 2][j], 0x0f0f0f0fu, i / 2 * 4, 0) | move(high[j], 0x03030303u, 2 * i, 4);
                    else code = move(low[0][j], 0x03030303u, 2 * i, 0);
                    if (dtype == Q3_K) code |= move(high[j], 0x01010101u, 4 * n + i, 2);
                    to[4 * n + i].codes[4 * part + j] = code;
                }
        }
}

/* The scales and offsets of blocks of 256, except IQ4_XS. */
INLINE void unpack_block_scales(const uint8_t *rows, int64_t stride, panel_group *to, int dtype) {
    if (halves_of(dtype) == 1) unpack_scales_by_32(rows, stride, to);
    else unpack_scales_by_16(rows, stride, to, dtype);
}

INLINE void unpack_rows_of(const uint8_t *rows, int64_t stride, panel_group *to, int dtype) {
    if (dtype < Q2_K) unpack_group(rows, stride, to, dtype);
    else if (dtype == IQ4_XS) unpack_iq4_xs(rows, stride, to);
    else {
        unpack_block_scales(rows, stride, to, dtype);
        if (halves_of(dtype) == 1) unpack_by_32(rows, stride, to, dtype);
        else unpack_by_16(rows, stride, to, dtype);
    }
}
