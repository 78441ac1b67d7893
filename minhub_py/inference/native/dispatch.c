/* Selects the kernels for the processor at run time. */

#include "decoder.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

kernel_table kernels;
_Alignas(64) int16_t nf4_scaled[256][16];
nf4_factor nf4_factors[256];

/* Each x86 level includes the ones before it; dotprod is the level of ARM. */
enum { PLAIN, DOTPROD, AVX2, AVX512, VNNI, BF16, AMX, LEVELS };
static const char *const names[LEVELS] = {NEON ? "neon" : "plain", "dotprod", "avx2", "avx512", "vnni", "bf16", "amx"};

/* The highest level for which the processor and the system have registers and instructions; AMX may still be refused. */
static int highest_level(void) {
#if defined(__x86_64__)
    /* By CPUID itself: not every compiler's library knows all features. */
    unsigned a, b, c, d, leaf1 = 0, leaf7b = 0, leaf7c = 0, leaf7a = 0, state = 0;
    if (__get_cpuid(1, &a, &b, &leaf1, &d) && leaf1 >> 27 & 1) /* registers that the system saves */
        __asm__("xgetbv" : "=a"(state), "=d"(d) : "c"(0));
    a = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) leaf7b = b, leaf7c = c;
    if (a && __get_cpuid_count(7, 1, &a, &b, &c, &d)) leaf7a = a;
    if ((state & 6) != 6 || !(leaf1 >> 12 & 1) || !(leaf1 >> 29 & 1) || !(leaf7b >> 5 & 1)) return PLAIN; /* FMA, F16C */
    if ((state & 0xe6) != 0xe6 || (leaf7b & 0xc0030000u) != 0xc0030000u) return AVX2;                   /* F, DQ, BW, VL */
    if (!(leaf7c >> 11 & 1)) return AVX512;
    return leaf7a >> 5 & 1 ? AMX : VNNI;
#else
    return DOTPROD;
#endif
}

/* Fills the table up to a level. Returns the highest level that was reached. */
static int fill(int level, kernel_table *table) {
    int reached = PLAIN;
    memset(table, 0, sizeof *table);
    use_plain(table);
    use_blocks_plain(table);
    if (level == DOTPROD && use_dotprod(table)) reached = DOTPROD;
    if (level >= AVX2) use_avx2(table), use_blocks_avx2(table), reached = AVX2;
    if (level >= AVX512) use_avx512(table), reached = AVX512;
    if (level >= VNNI) use_vnni(table), use_blocks_vnni(table), reached = VNNI;
    if (level >= BF16 && use_bf16(table)) reached = BF16;
    if (level >= AMX && reached == BF16 && use_amx(table)) reached = AMX;
    return reached;
}

/* Fills the tables of NF4. */
static void fill_nf4(void) {
    for (int byte = 0; byte < 256; byte++) {
        const int scale = nf4_scale(byte), magnitude = scale < 0 ? -scale : scale;
        for (int code = 0; code < 16; code++) {
            const int level = nf4[nf4_table(byte)][code];
            nf4_scaled[byte][code] = level * scale;
            nf4_factors[byte].levels[code] = scale < 0 ? -level : level;
        }
        for (int half = 0; half < 2; half++) nf4_factors[byte].scales[half] = magnitude * 0x10001 << 8 * half;
    }
}

/* Selects the kernels with this name, or the best ones for NULL. Returns their name, or NULL if they are unavailable. */
API const char *choose(const char *name) {
    const int highest = highest_level();
    for (int level = highest; level >= PLAIN; level--) {
        kernel_table table;
        if (name && strcmp(name, names[level])) continue;
        if (fill(level, &table) != level) continue;
        fill_nf4();
        kernels = table;
        return names[level];
    }
    return NULL;
}

/* Runs a peak kernel of the chosen kernels. Returns the number of products; 0: the processor does not multiply such numbers. */
API int64_t add_products(int32_t factors, int64_t rounds) {
    _Alignas(64) char sums[64 * (PEAK_SUMS + 1)] = {0};
    return kernels.peaks[factors] ? kernels.peaks[factors](rounds, sums) : 0;
}

/* Whether the processor has AMX instructions for bfloat16, which PyTorch's products use. */
API int has_bfloat16_tiles(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 && d >> 24 & 1;
#else
    return 0;
#endif
}

/* A fingerprint of the structures, which library.py compares: a checkout can be newer than its compiled library. */
API int64_t interface(void) {
    return 33 + 1000 * (int64_t)(sizeof(operation) + 1000 * sizeof(call)); /* the first number changes with the meaning of a field */
}
