/* Products of GGUF's blocks with 8-bit activations, for x86-64 with AVX-512 and VNNI. */

#include "decoder.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#endif

#define LANES 16
#include "simd.h"
#include "blocks.h"
#include "k_quants.h"
#include "rows.h"
#include "gemm_int.h"
#include "unpack_blocks.h"
#include "gemm_blocks.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

void use_blocks_vnni(kernel_table *table) {
    table->peaks[BYTES] = peak_bytes;
    table->linear_blocks = linear_blocks;
    table->quantize_in_groups = quantize_in_groups;
}
#else
void use_blocks_vnni(kernel_table *table) {}
#endif
