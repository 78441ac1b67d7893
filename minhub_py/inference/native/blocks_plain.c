/* Products of GGUF's blocks with 8-bit activations, for every processor: plain C, and NEON on ARM. */

#include "decoder.h"

#define LANES 4
#include "simd.h"
#include "blocks.h"
#include "k_quants.h"
#include "rows.h"
#include "gemm_int.h"
#include "unpack_blocks.h"
#include "gemm_blocks.h"

void use_blocks_plain(kernel_table *table) {
    table->peaks[BYTES] = peak_bytes;
    table->linear_blocks = linear_blocks;
    table->quantize_in_groups = quantize_in_groups;
}
