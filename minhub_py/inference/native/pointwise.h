/* Operations on each number of a token: activations, norms, gates, the LSTM cell, the gated delta rule, and the selective
 * scan and the weighted average. */

/* v = activation(v + bias), in place; bias may be NULL. */
static void add_bias_activate(float *v, const float *bias, int64_t count, int activation) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = load_up_to(v, i, n, FLOAT32);
        if (bias) value += load_up_to(bias, i, n, FLOAT32);
        value = activate(value, activation);
        store_up_to(v + i, value, n);
    }
}

/* Soft cap of `count` numbers, in place. */
static void soft_cap_all(float *v, int64_t count, float cap) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = soft_cap(load_up_to(v, i, n, FLOAT32), cap);
        store_up_to(v + i, value, n);
    }
}

/* xIELU, in place. weights: alpha of positive numbers, alpha of negative numbers, beta, epsilon. For small x, e^x - 1 is a
 * polynomial, because the difference from x matters. */
static void xielu(float *v, const float *weights, int64_t count) {
    const float positive = weights[0], negative = weights[1], beta = weights[2];
    const vec epsilon = broadcast(weights[3]);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        const vec x = load_up_to(v, i, n, FLOAT32), low = blend(x > epsilon, epsilon, x);
        const vec series = low * (1 + low * (0.5f + low * (1 / 6.0f + low * (1 / 24.0f + low * (1 / 120.0f)))));
        const vec power = blend(low > -0.1f, series, vexp(low) - 1);
        store_up_to(v + i, blend(x > 0, positive * x * x, (power - x) * negative) + beta * x, n);
    }
}

/* --- norms and gates --- */

/* (x - mean) / sqrt(variance + epsilon) * weight + bias, over `count` numbers. */
static void norm(const float *x, const float *weight, const float *bias, float epsilon, int64_t count,
                       float *out) {
    vec sums = {0}, squares = {0};
    int64_t complete = count / LANES * LANES;
    for (int64_t i = 0; i < complete; i += LANES) sums += *(const vec_at *)(x + i);
    if (complete < count) sums += load_tail(x, complete, count - complete, FLOAT32);
    float mean = reduce_add(sums) / count;
    for (int64_t i = 0; i < complete; i += LANES) {
        vec difference = *(const vec_at *)(x + i) - mean;
        squares += difference * difference;
    }
    float sum = reduce_add(squares);
    for (int64_t i = complete; i < count; i++) sum += (x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrtf(sum / count + epsilon);
    for (int64_t i = 0; i < complete; i += LANES) {
        vec value = (*(const vec_at *)(x + i) - mean) * factor * *(const vec_at *)(weight + i);
        *(vec_at *)(out + i) = value + *(const vec_at *)(bias + i);
    }
    for (int64_t i = complete; i < count; i++) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

/* x / sqrt(mean of x * x + epsilon) * weight, over `count` numbers; out may be x. */
static void rms_norm(const float *x, const float *weight, float epsilon, int64_t count, float *out) {
    vec squares = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec value = load_up_to(x, i, count - i < LANES ? count - i : LANES, FLOAT32);
        squares += value * value;
    }
    float factor = 1 / sqrtf(reduce_add(squares) / count + epsilon);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = load_up_to(x, i, n, FLOAT32) * factor * load_up_to(weight, i, n, FLOAT32);
        store_up_to(out + i, value, n);
    }
}

/* out = activation(v) * factor; out may be v or factor. */
static void gate(const float *v, const float *factor, float *out, int64_t count, int activation) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec value = activate(load_up_to(v, i, n, FLOAT32), activation) * load_up_to(factor, i, n, FLOAT32);
        store_up_to(out + i, value, n);
    }
}

/* out = gate * sigmoid(alpha * gate) * (up + 1), both clamped first; v + bias has gate and up interleaved, `count` each. */
static void gate_interleaved(const float *v, const float *bias, int64_t count, float alpha, float limit, float *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec gate = {0}, up = {0};
        for (int lane = 0; lane < n; lane++) {
            gate[lane] = v[2 * (i + lane)] + bias[2 * (i + lane)];
            up[lane] = v[2 * (i + lane) + 1] + bias[2 * (i + lane) + 1];
        }
        gate = blend(gate > limit, broadcast(limit), gate);
        up = blend(up > limit, broadcast(limit), blend(up < -limit, broadcast(-limit), up));
        vec value = gate * sigmoid(alpha * gate) * (up + 1);
        store_up_to(out + i, value, n);
    }
}

/* --- recurrent layers --- */

/* An LSTM cell: gates (4H,) in PyTorch's order i, f, g, o; h and c (H,) are updated in place. */
static void lstm_cell(float *gates, float *h, float *c, int64_t H) {
    for (int64_t j = 0; j < H; j += LANES) {
        int64_t n = H - j < LANES ? H - j : LANES;
        vec part[5];
        for (int gate = 0; gate < 4; gate++) part[gate] = load_up_to(gates + gate * H, j, n, FLOAT32);
        part[4] = load_up_to(c, j, n, FLOAT32);
        vec cell = sigmoid(part[1]) * part[4] + sigmoid(part[0]) * activate(part[2], TANH);
        vec output = sigmoid(part[3]) * activate(cell, TANH);
        store_up_to(c + j, cell, n);
        store_up_to(h + j, output, n);
    }
}

/* A convolution over time: replaces the inputs of `count` channels by the outputs. `window` (taps - 1, channels) has the
 * previous inputs; `next` gets them without the oldest, and may be `window`. weight (taps, channels), the last tap for the
 * newest input. */
static void convolve(const float *window, float *next, const float *weight, int64_t taps, int64_t channels, float *v,
                     int64_t count, int activation) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = count - i < LANES ? count - i : LANES;
        vec newest = load_up_to(v, i, n, FLOAT32), sum = {0};
        for (int64_t tap = 0; tap < taps; tap++) {
            vec input = tap + 1 < taps ? load_up_to(window, tap * channels + i, n, FLOAT32) : newest;
            sum += input * load_up_to(weight, tap * channels + i, n, FLOAT32);
            if (tap) store_up_to(next + (tap - 1) * channels + i, input, n);
        }
        sum = activate(sum, activation);
        store_up_to(v + i, sum, n);
    }
}

/* Scales v to the length `scale`, in place. */
static void normalize_length(float *v, float scale, int64_t count) {
    vec squares = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec value = load_up_to(v, i, count - i < LANES ? count - i : LANES, FLOAT32);
        squares += value * value;
    }
    float factor = scale / sqrtf(reduce_add(squares) + 1e-6f);
    for (int64_t i = 0; i < count; i++) v[i] *= factor;
}

/* `width` vectors of a row of the state, as in `delta_rule`; n numbers in the last one. */
INLINE void delta_columns(const float *state, float *next, const float *q, const float *k, const float *v, float decay,
                          float beta, int64_t K, int64_t V, float *out, int64_t width, int64_t n) {
    vec sums[4] = {{0}, {0}, {0}, {0}}, deltas[4];
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < width; j++)
            sums[j] += load_up_to(state, i * V + j * LANES, n, FLOAT32) * k[i];
    for (int64_t j = 0; j < width; j++) {
        deltas[j] = beta * (load_up_to(v, j * LANES, n, FLOAT32) - decay * sums[j]);
        sums[j] = (vec){0};
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < width; j++) {
            const int64_t at = i * V + j * LANES;
            vec value = decay * load_up_to(state, at, n, FLOAT32) + k[i] * deltas[j];
            sums[j] += value * q[i];
            store_up_to(next + at, value, n);
        }
    for (int64_t j = 0; j < width; j++) store_up_to(out + j * LANES, sums[j], n);
}

/* The gated delta rule: the state (K, V) decays, and is corrected by the fraction beta of the difference between v and its
 * output for k; out (V,) = q . next. `next` gets the new state, and may be `state`. */
static void delta_rule(const float *state, float *next, const float *q, const float *k, const float *v, float decay,
                       float beta, int64_t K, int64_t V, float *out) {
    int64_t at = 0;
    for (; at + 4 * LANES <= V; at += 4 * LANES)
        delta_columns(state + at, next + at, q, k, v + at, decay, beta, K, V, out + at, 4, LANES);
    for (; at < V; at += LANES)
        delta_columns(state + at, next + at, q, k, v + at, decay, beta, K, V, out + at, 1, min64(V - at, LANES));
}

/* ln(1 + e^v), by the series of ln(1 + u) = 2 atanh(u / (2 + u)) for u = e^-|v|. */
INLINE vec softplus(vec v) {
    const vec u = vexp(-vabs(v)), t = u / (2 + u), s = t * t;
    vec sum = 1.0f / 13 + s * (1.0f / 15);
    sum = 1.0f / 11 + s * sum;
    sum = 1.0f / 9 + s * sum;
    sum = 1.0f / 7 + s * sum;
    sum = 1.0f / 5 + s * sum;
    sum = 1.0f / 3 + s * sum;
    return vmax(v, (vec){0}) + 2 * t * (1 + s * sum);
}

/* `width` vectors of channels from `at` on, as in `selective_scan`; n numbers in the last one. */
INLINE void scan_channels(const scan *t, int64_t at, int64_t width, int64_t n) {
    vec steps[4], inputs[4], decays[4], sums[4];
    for (int64_t j = 0; j < width; j++) {
        const int64_t i = at + j * LANES;
        vec dt = t->by_channel ? load_up_to(t->dt, i, n, FLOAT32) : broadcast(*t->dt);
        if (t->bias) dt += broadcast(*t->bias);
        steps[j] = softplus(dt);
        inputs[j] = steps[j] * load_up_to(t->x, i, n, FLOAT32);
        if (!t->by_channel) decays[j] = vexp(steps[j] * *t->decay);
        sums[j] = (vec){0};
    }
    for (int64_t s = 0; s < t->states; s++)
        for (int64_t j = 0; j < width; j++) {
            const int64_t i = s * t->stride + at + j * LANES;
            if (t->by_channel) decays[j] = vexp(steps[j] * load_up_to(t->decay, i, n, FLOAT32));
            vec value = decays[j] * load_up_to(t->state, i, n, FLOAT32) + t->b[s] * inputs[j];
            sums[j] += value * t->c[s];
            store_up_to(t->next + i, value, n);
        }
    for (int64_t j = 0; j < width; j++) {
        const int64_t i = at + j * LANES;
        const vec skip = t->by_channel ? load_up_to(t->skip, i, n, FLOAT32) : broadcast(*t->skip);
        const vec y = sums[j] + skip * load_up_to(t->x, i, n, FLOAT32);
        store_up_to(t->out + i, y * activate(load_up_to(t->z, i, n, FLOAT32), SILU), n);
    }
}

/* The selective scan: the state decays by exp(dt A), dt b x is added, and out = (c . next + D x) * silu(z). */
static void selective_scan(const scan *t, int64_t channels) {
    int64_t at = 0;
    for (; at + 4 * LANES <= channels; at += 4 * LANES) scan_channels(t, at, 4, LANES);
    for (; at < channels; at += LANES) scan_channels(t, at, 1, min64(channels - at, LANES));
}

/* Joins two sums, given the logarithms of their factors: *larger is the factor of the result, and *first and *second are
 * the factors of the sums. */
INLINE void join_sums(vec a, vec b, vec *larger, vec *first, vec *second) {
    const vec one = broadcast(1), smaller = vexp(-vabs(a - b));
    *larger = vmax(a, b);
    *first = blend(a > b, one, smaller);
    *second = blend(a > b, smaller, one);
}

/* The weighted average of RWKV: out = sigmoid(r) * (n e^m + v e^(k + bonus)) / (d e^m + e^(k + bonus)) for the state n, d
 * and m, which then decays and gets v and 1 with the factor e^k. d is at least 1 after the first token. */
static void wkv(const average *t, int64_t channels) {
    for (int64_t i = 0; i < channels; i += LANES) {
        const int64_t count = min64(channels - i, LANES);
        const vec n = load_up_to(t->state, i, count, FLOAT32), d = load_up_to(t->state, t->stride + i, count, FLOAT32);
        const vec stored = load_up_to(t->state, 2 * t->stride + i, count, FLOAT32);
        const vec m = blend(d > 0, stored, broadcast(-1e38f));
        const vec k = load_up_to(t->k, i, count, FLOAT32), v = load_up_to(t->v, i, count, FLOAT32);
        vec larger, first, second;
        join_sums(m, k + load_up_to(t->bonus, i, count, FLOAT32), &larger, &first, &second);
        const vec y = (first * n + second * v) / (first * d + second);
        store_up_to(t->out + i, y * sigmoid(load_up_to(t->r, i, count, FLOAT32)), count);
        join_sums(m - load_up_to(t->decay, i, count, FLOAT32), k, &larger, &first, &second);
        store_up_to(t->next + i, first * n + second * v, count);
        store_up_to(t->next + t->stride + i, first * d + second, count);
        store_up_to(t->next + 2 * t->stride + i, larger, count);
    }
}
