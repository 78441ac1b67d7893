/* Rounding of weights to NF4. quantize.py says what is made, and does the same without this file, in six times the time. */

#define GROUP 32 /* inputs of a scale */

/* Where a group's numbers are in `nearest`, if `step` is what 1 stands for; the squared error of those codes, in steps. */
static float round_group(const float *group, float step, const float *values, int32_t *places) {
    float off[GROUP], sums[8] = {0};
    const float inverse = 1 / step;
    for (int i = 0; i < GROUP; i++) {
        const float number = group[i] * inverse, place = 2 * number + 62;
        off[i] = number;
        places[i] = (int32_t)(place > 0 ? place < 124 ? place : 124 : 0); /* also if it is no number */
    }
    for (int i = 0; i < GROUP; i++) off[i] -= values[places[i]];
    for (int i = 0; i < GROUP; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += off[i + j] * off[i + j];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* weight: (rows, columns) -> codes (rows, units * UNIT), scales (rows,). factors: of the scale with which a group's largest
 * weight is the largest value, those to try, the first of which is 1. nearest: the code of number n at 2 * n + 62. */
API void pack_nf4(const float *weight, int64_t rows, int64_t columns, const float *factors, int64_t count,
                  const uint8_t *nearest, uint8_t *codes, float *scales) {
    const int64_t units = (columns + 4 * GROUP - 1) / (4 * GROUP);
    float values[125];
    for (int i = 0; i < 125; i++) values[i] = nf4[nearest[i]];
    memset(codes, 0, rows * units * UNIT);
    for (int64_t r = 0; r < rows; r++, weight += columns, codes += units * UNIT) {
        float most = 0, odd = 0;
        for (int64_t k = 0; k < columns; k++) {
            most = fabsf(weight[k]) > most ? fabsf(weight[k]) : most;
            odd += weight[k] * 0; /* NaN if one is not finite */
        }
        scales[r] = most / (63 * 31) + odd;
        const float scale = scales[r] > 1e-30f ? scales[r] : 1e-30f;
        for (int64_t k = 0; k < units * 4 * GROUP; k += GROUP) {
            uint8_t *unit = codes + k / (4 * GROUP) * UNIT;
            int32_t found[GROUP], best[GROUP];
            float group[GROUP] = {0}, largest = 0, least = INFINITY;
            for (int64_t i = 0; i < GROUP && k + i < columns; i++) {
                group[i] = weight[k + i];
                largest = fabsf(group[i]) > largest ? fabsf(group[i]) : largest;
            }
            float before = 0;
            for (int64_t i = 0; i < count; i++) {
                float whole = rintf(largest / (31 * scale) * factors[i]);
                whole = whole < 1 ? 1 : whole > 63 ? 63 : whole;
                if (whole == before) continue;
                before = whole;
                const float error = round_group(group, whole * scale, values, found) * (whole * whole);
                if (i && !(error < least)) continue;
                least = error;
                unit[k % (4 * GROUP) / GROUP] = (uint8_t)whole;
                memcpy(best, found, sizeof best);
            }
            for (int i = 0; i < GROUP; i++) { /* words: quantize.pack */
                const int part = k % (4 * GROUP) / GROUP;
                uint8_t *byte = unit + 4 + 2 * i + part / 2;
                *byte |= nearest[best[i]] << 4 * (part % 2);
            }
        }
    }
}
