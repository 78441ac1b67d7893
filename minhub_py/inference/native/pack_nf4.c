/* Quantization of weights to NF4. quantize.py defines the format, and has the same algorithm in Python, six times as slow. */

#include "decoder.h"

enum { GROUP = 32, VARIANTS = 4 }; /* inputs per scale; two tables of levels with two signs */

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

/* The levels of a table with a sign, and the code of the level nearest to n, at 2 * n + 62. */
typedef struct {
    float values[125], top, bottom; /* the largest level, the negative of the smallest */
    const uint8_t *nearest;
} variant;

static variant variant_of(int number, const uint8_t *nearest) {
    variant v = {.nearest = nearest + 125 * number};
    for (int i = 0; i < 125; i++) v.values[i] = nf4[number / 2][v.nearest[i]] * (number % 2 ? -1.f : 1.f);
    v.top = v.values[124], v.bottom = -v.values[0];
    return v;
}

/* Writes group `part` of a unit, which has `size` weights and then zeros: of all variants and candidates for its scale, the one
 * with the smallest squared error. */
static void pack_group(const float *weight, int64_t size, float scale, const float *factors, int64_t count,
                       const variant *variants, uint8_t *unit, int part) {
    int32_t index[GROUP], best[GROUP];
    float group[GROUP] = {0}, high = 0, low = 0, least = INFINITY;
    const variant *chosen = NULL;
    for (int64_t i = 0; i < size; i++) {
        group[i] = weight[i];
        high = group[i] > high ? group[i] : high;
        low = group[i] < low ? group[i] : low;
    }
    for (const variant *v = variants; v < variants + VARIANTS; v++) {
        const float above = high / (v->top * scale), below = -low / (v->bottom * scale);
        const float largest = above > below ? above : below;
        float previous = 0;
        for (int64_t i = 0; i < count; i++) {
            float multiple = rintf(largest * factors[i]);
            multiple = multiple < 1 ? 1 : multiple > 63 ? 63 : multiple;
            if (multiple == previous) continue;
            previous = multiple;
            const float error = round_group(group, multiple * scale, v->values, index) * (multiple * multiple);
            if (chosen && !(error < least)) continue;
            least = error;
            chosen = v;
            const int number = (int)(v - variants), whole = number % 2 ? -(int)multiple : (int)multiple;
            unit[part] = (uint8_t)((whole & 127) | number / 2 << 7);
            memcpy(best, index, sizeof best);
        }
    }
    for (int i = 0; i < GROUP; i++) /* words, as in quantize.pack */
        unit[4 + 2 * i + part / 2] |= chosen->nearest[best[i]] << 4 * (part % 2);
}

/* weight (rows, columns) -> codes (rows, units * NF4_UNIT), scales (rows,). factors: candidates for a group's scale, relative
 * to the scale that maps its largest weight to the largest level, or its smallest one to the smallest; the first is 1.
 * nearest (4, 125): the nearest code for each table, without and with a change of sign. */
API void pack_nf4(const float *weight, int64_t rows, int64_t columns, const float *factors, int64_t count,
                  const uint8_t *nearest, uint8_t *codes, float *scales) {
    const int64_t units = (columns + 4 * GROUP - 1) / (4 * GROUP);
    variant variants[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) variants[i] = variant_of(i, nearest);
    memset(codes, 0, rows * units * NF4_UNIT);
    for (int64_t r = 0; r < rows; r++, weight += columns, codes += units * NF4_UNIT) {
        float largest_weight = 0, not_finite = 0;
        for (int64_t k = 0; k < columns; k++) {
            largest_weight = fmaxf(largest_weight, fabsf(weight[k]));
            not_finite += weight[k] * 0; /* NaN if a weight is not finite */
        }
        scales[r] = largest_weight / (63 * 31) + not_finite;
        const float scale = scales[r] > 1e-30f ? scales[r] : 1e-30f;
        for (int64_t k = 0; k < units * 4 * GROUP; k += GROUP)
            pack_group(weight + k, min64(columns - k, GROUP), scale, factors, count, variants,
                       codes + k / (4 * GROUP) * NF4_UNIT, k % (4 * GROUP) / GROUP);
    }
}
