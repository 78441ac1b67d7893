/* Float kernels for x86-64 with AVX-512 (F, BW, VL, DQ). */

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
#include "gemv.h"
#include "gemm_f32.h"
#include "pointwise.h"
#include "attention.h"
#include "attention_text.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

void use_avx512(kernel_table *table) {
    table->peaks[FLOATS] = peak_floats;
    table->linear = linear;
    table->unpack_row = unpack_row;
    table->add_bias_activate = add_bias_activate;
    table->attend = attend;
    table->attend_text = attend_text;
    table->lstm_cell = lstm_cell;
    table->norm = norm;
    table->rms_norm = rms_norm;
    table->gate = gate;
    table->soft_cap = soft_cap_all;
    table->xielu = xielu;
    table->gate_interleaved = gate_interleaved;
    table->convolve = convolve;
    table->normalize_length = normalize_length;
    table->delta_rule = delta_rule;
    table->selective_scan = selective_scan;
    table->wkv = wkv;
}
#else
void use_avx512(kernel_table *table) {}
#endif
