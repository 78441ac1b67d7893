/* Transposition of LANES vectors of LANES 32-bit numbers. */

#ifndef TRANSPOSE_H
#define TRANSPOSE_H

/* The lower or upper halves of two vectors, interleaved. */
INLINE ints interleave(ints a, ints b, int upper) {
#if LANES == 16
    const __m512i index = upper ? _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
                                 : _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (ints)_mm512_permutex2var_epi32((__m512i)a, index, (__m512i)b);
#else
    const __m256i first = _mm256_unpacklo_epi32((__m256i)a, (__m256i)b), /* of each 128 bits */
                  second = _mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
    return (ints)(upper ? _mm256_permute2x128_si256(first, second, 0x31) : _mm256_permute2x128_si256(first, second, 0x20));
#endif
}

/* Rows become columns. Each round interleaves the first half of all numbers with the second half, which rotates the bits
 * of a number's index (row, column) by one. After log2(LANES) rounds, row and column are exchanged. */
INLINE void transpose(ints m[LANES]) {
    UNROLL for (int round = 1; round < LANES; round *= 2) {
        ints next[LANES];
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = interleave(m[i], m[i + LANES / 2], 0);
            next[2 * i + 1] = interleave(m[i], m[i + LANES / 2], 1);
        }
        UNROLL for (int i = 0; i < LANES; i++) m[i] = next[i];
    }
}

#endif
