/* Integer kernels for x86-64 with AVX-512 and VNNI. Without VNNI, the AVX2 kernels have bitwise the same results. */

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
#include "gemm_k.h"
#include "gemm_bytes.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

void use_vnni(kernel_table *table) {
    table->peaks[SHORTS] = peak_shorts;
    table->linear_int8 = linear_int8;
    table->linear_nf4 = linear_nf4;
    table->linear_k = linear_k;
    table->linear_k_bytes = linear_k_bytes;
    table->quantize_blocks = quantize_blocks;
    table->quantize_inputs = quantize_inputs;
    table->quantize_groups = quantize_groups;
    table->linear_bytes = linear_bytes;
}
#else
void use_vnni(kernel_table *table) {}
#endif
