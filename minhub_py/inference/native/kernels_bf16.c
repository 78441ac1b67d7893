/* bfloat16 kernels for x86-64 with AVX-512 and BF16. Assemblers of older systems do not know the instructions. */

#include "decoder.h"

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#endif

#define LANES 16
#include "simd.h"
#include "rows.h"
#include "transpose.h"
#include "pointwise.h"
#include "attention.h"
#include "gemm_bf16.h"
#include "attention_bf16.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

int use_bf16(kernel_table *table) {
    table->peaks[BFLOATS] = peak_bfloats;
    table->to_bf16 = to_bf16;
    table->linear_bf16 = linear_bf16;
    table->attend_bf16 = attend_bf16;
    return 1;
}
#else
int use_bf16(kernel_table *table) { return 0; }
#endif
