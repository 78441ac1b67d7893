/* Quantization of weights to NF4. quantize.py defines the format, and has the same algorithm in Python, six times as slow. */

#include "decoder.h"

#define GROUP 32 /* inputs per scale */

/* Rounds a group with the step size `step`: indices into `nearest`. Returns the squared error, in units of step². */
static float round_group(const float *group, float step, const float *values, int32_t *index) {
    float error[GROUP], sums[8] = {0};
    const float inverse = 1 / step;
    for (int i = 0; i < GROUP; i++) {
        const float number = group[i] * inverse, at = 2 * number + 62;
        error[i] = number;
        index[i] = (int32_t)(at > 0 ? at < 124 ? at : 124 : 0); /* also for NaN */
    }
    for (int i = 0; i < GROUP; i++) error[i] -= values[index[i]];
    for (int i = 0; i < GROUP; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += error[i + j] * error[i + j];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* weight (rows, columns) -> codes (rows, units * NF4_UNIT), scales (rows,). factors: candidates for a group's scale, relative
 * to the scale that maps its largest weight to the largest value; the first is 1. nearest: the code of number n at
 * 2 * n + 62. */
API void pack_nf4(const float *weight, int64_t rows, int64_t columns, const float *factors, int64_t count,
                  const uint8_t *nearest, uint8_t *codes, float *scales) {
    const int64_t units = (columns + 4 * GROUP - 1) / (4 * GROUP);
    float values[125];
    for (int i = 0; i < 125; i++) values[i] = nf4[nearest[i]];
    memset(codes, 0, rows * units * NF4_UNIT);
    for (int64_t r = 0; r < rows; r++, weight += columns, codes += units * NF4_UNIT) {
        float largest_weight = 0, not_finite = 0;
        for (int64_t k = 0; k < columns; k++) {
            largest_weight = fmaxf(largest_weight, fabsf(weight[k]));
            not_finite += weight[k] * 0; /* NaN if a weight is not finite */
        }
        scales[r] = largest_weight / (63 * 31) + not_finite;
        const float scale = scales[r] > 1e-30f ? scales[r] : 1e-30f;
        for (int64_t k = 0; k < units * 4 * GROUP; k += GROUP) {
            uint8_t *unit = codes + k / (4 * GROUP) * NF4_UNIT;
            int32_t index[GROUP], best[GROUP];
            float group[GROUP] = {0}, largest = 0, least = INFINITY;
            for (int64_t i = 0; i < GROUP && k + i < columns; i++) {
                group[i] = weight[k + i];
                largest = fabsf(group[i]) > largest ? fabsf(group[i]) : largest;
            }
            float previous = 0;
            for (int64_t i = 0; i < count; i++) {
                float multiple = rintf(largest / (31 * scale) * factors[i]);
                multiple = multiple < 1 ? 1 : multiple > 63 ? 63 : multiple;
                if (multiple == previous) continue;
                previous = multiple;
                const float error = round_group(group, multiple * scale, values, index) * (multiple * multiple);
                if (i && !(error < least)) continue;
                least = error;
                unit[k % (4 * GROUP) / GROUP] = (uint8_t)multiple;
                memcpy(best, index, sizeof best);
            }
            for (int i = 0; i < GROUP; i++) { /* words, as in quantize.pack */
                const int part = k % (4 * GROUP) / GROUP;
                uint8_t *byte = unit + 4 + 2 * i + part / 2;
                *byte |= nearest[best[i]] << 4 * (part % 2);
            }
        }
    }
}
