/* Tiles of rows and tokens, for all products. */

#define DEEP 1024 /* inputs of a panel of weights stored (out, in); complete blocks of any format */

/* Rows from `begin` to `end`, 4 at a time, for all tokens: DO_ROWS(4, T) for tiles of at most `most` tokens of about equal
 * size, then DO_ROWS(1, 1) for the remaining rows. The inputs of `group` tokens stay in the L1 cache meanwhile. one_row:
 * one row after another, two tokens by DO_ROWS(1, 2); for few tokens, when memory sets the speed, which is highest in one
 * direction. */
#define FOR_ROWS(begin, end, tokens, group, most, one_row)                                                              \
    for (int64_t first = 0, last; first < (tokens); first = last) {                                                     \
        int64_t n = begin;                                                                                              \
        last = min64(first + (group), tokens);                                                                          \
        const int64_t tiles = (last - first + (most) - 1) / (most);                                                     \
        const int64_t tile_tokens = (last - first + tiles - 1) / tiles;                                                 \
        for (; !(one_row) && n + 4 <= (end); n += 4)                                                                    \
            for (int64_t t = first; t < last; t += tile_tokens) FOR_TILE(min64(last - t, tile_tokens), DO_FOUR)         \
        for (; n < (end); n++) {                                                                                        \
            int64_t t = first;                                                                                          \
            for (; (one_row) && t + 2 <= last; t += 2) DO_ROWS(1, 2);                                                   \
            for (; t < last; t++) DO_ROWS(1, 1);                                                                        \
        }                                                                                                               \
    }
#define DO_FOUR(T) DO_ROWS(4, T)

/* TILE: tokens of a tile, so that its sums fill the registers. FOR_TILE: separate code for each number of tokens. */

/* do_tile for 1 to TILE tokens, each number its own code. */
#if LANES == 16 || NEON
#define TILE 6
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

INLINE vec initial_sum(const float *sums, int begins) {
    if (begins) return (vec){0};
    return *(const vec_at *)sums;
}

/* A `peak_kernel` for vectors of `type`: `step` adds `products` products to `sum`, and depends on it. */
#define PEAK(name, type, products, step)                                                                                \
    static int64_t name(int64_t rounds, void *buffer) {                                                                 \
        type *vectors = buffer, sums[PEAK_SUMS], x = vectors[PEAK_SUMS];                                                \
        IN_REGISTERS for (int i = 0; i < PEAK_SUMS; i++) sums[i] = vectors[i];                                          \
        for (int64_t round = 0; round < rounds; round++)                                                                \
            UNROLL for (int i = 0; i < PEAK_SUMS; i++) {                                                                \
                const type sum = sums[i];                                                                               \
                sums[i] = step;                                                                                         \
            }                                                                                                           \
        IN_REGISTERS for (int i = 0; i < PEAK_SUMS; i++) vectors[i] = sums[i];                                          \
        return rounds * PEAK_SUMS * (products);                                                                         \
    }
