// Attention of a training step in bfloat16 on the matrix unit, forward and backward; scores, weights' sums and gradients' sums are in float32.
//
// As in attention.h, a thread computes whole heads, in blocks of queries whose scores stay in the near caches, keys after the last visible one
// are left out, and the backward pass computes the weights again. Keys, values, queries and gradients are packed once per head or block.

#ifdef MATRIX_UNIT

namespace bfloat16_attention {

using namespace bfloat16_products;

// Memory of a thread: the packed operands of a head and a block, and the sums of the gradients of keys and values.
struct Work {
    uint8_t *keys_t, *keys, *values_t, *values;                    // of a head, as right operands: transposed, and not
    uint8_t *queries, *grads, *weights, *grads_of_scores;          // of 32 queries, as left operands
    uint8_t *block_queries, *block_grads, *weights_t, *scores_t;   // of a block: as right operands, and transposed left ones
    float *scores, *grads_of_weights, *out, *dk, *dv;
    int64_t bytes = 0;

    // Divides the memory at ``at``; if it is null, only ``bytes`` is set.
    Work(const AttentionShape& shape, bool backward, uint8_t* at) {
        const int64_t n_keys = whole(shape.keys), d = whole(shape.d_head), d_value = whole(shape.d_value), only_backward = backward ? 1 : 0;
        const int64_t block = only_backward * whole(shape.block);
        const auto take = [&](auto*& part, int64_t n, int64_t size) {
            part = at == nullptr ? nullptr : (std::remove_reference_t<decltype(part)>)(at + bytes);
            bytes += n * size;
        };
        take(keys_t, n_keys * d, 2), take(keys, only_backward * n_keys * d, 2);
        take(values_t, only_backward * n_keys * d_value, 2), take(values, (1 - only_backward) * n_keys * d_value, 2);
        take(queries, PANEL * d, 2), take(grads, only_backward * PANEL * d_value, 2);
        take(weights, PANEL * n_keys, 2), take(grads_of_scores, only_backward * PANEL * n_keys, 2);
        take(block_queries, block * d, 2), take(block_grads, block * d_value, 2), take(weights_t, block * n_keys, 2), take(scores_t, block * n_keys, 2);
        take(scores, PANEL * n_keys, 4), take(grads_of_weights, only_backward * PANEL * n_keys, 4), take(out, PANEL * std::max(d, d_value), 4);
        take(dk, only_backward * n_keys * d, 4), take(dv, only_backward * n_keys * d_value, 4);
    }
};

struct Mask {  // of 32 queries; ``shown`` is null if they may attend to all keys
    const uint8_t* shown;
    int64_t stride, end;  // keys that any query may attend to, a multiple of 32
    const uint8_t* row(int64_t i) const { return shown == nullptr ? nullptr : shown + i * stride; }
};

inline Mask mask_of_queries(const AttentionShape& shape, const uint8_t* mask, int64_t b, int64_t h, int64_t query, int64_t n) {
    const uint8_t* shown = mask_of(shape, mask, b, h, query);
    int64_t end = shown == nullptr ? shape.keys : 0;
    if (shown != nullptr)
        for (int64_t i = 0; i < n; i++) end = std::max(end, visible_end(shown + i * shape.mask.token, shape.keys));
    return {shown, shape.mask.token, whole(end)};
}

// Replaces scores by scale * score, or by minus infinity where they are hidden or there is no key; returns whether any is visible.
inline bool hide(float* __restrict s, const uint8_t* __restrict mask, int64_t keys, int64_t end, float scale) {
    const int64_t n = std::min(keys, end);
    if (mask == nullptr) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] *= scale;
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] = mask[j] ? s[j] * scale : -INFINITY;
    }
    for (int64_t j = n; j < end; j++) s[j] = -INFINITY;
    bool visible = mask == nullptr;
    for (int64_t j = n - 1; j >= 0 && !visible; j--) visible = mask[j];
    return visible;
}

// Writes a row of numbers as a line of each pair of tiles of a left operand.
inline void store_row(const float* __restrict x, int64_t n, int64_t row, uint8_t* to) {
    for (int64_t j = 0; j < n; j += DEPTH) finish_block((bf16*)(to + j / DEPTH * PAIR + row * 64), x + j, DEPTH);
}

inline void store_vector(const float* __restrict x, bf16* __restrict to, int64_t n, float factor) {
#pragma omp simd
    for (int64_t c = 0; c < n; c++) to[c] = narrow<bf16>(x[c] * factor);
}

inline Matrix rows_of(const bf16* x, const Strides& strides, int64_t b, int64_t h, int64_t width) {
    return {x + b * strides.batch + h * strides.head, width, strides.token};
}

// Multiplies a left panel of ``steps`` pairs of tiles with ``n`` columns, whose panels lie ``apart`` bytes after one another.
inline void multiply_columns(const uint8_t* a, const uint8_t* b, int64_t apart, int64_t steps, float* to, int64_t stride, int64_t n) {
    for (int64_t j = 0; j < n; j += PANEL) multiply_panels(a, b + j / PANEL * apart, steps, to + j, stride, false);
}

// Packs rows as a right operand, with all of them as the inner axis.
inline void pack_all(const Matrix& from, int64_t first, int64_t n, uint8_t* to) {
    const int64_t steps = parts_of(n, DEPTH);
    for (int64_t step = 0; step < steps; step++) pack_columns(from, first + step * DEPTH, first + n, 0, from.columns, to + step * PAIR, steps * PAIR);
}

inline void pack_all_transposed(const Matrix& from, int64_t n, uint8_t* to) {
    for (int64_t i = 0; i < n; i += PANEL) pack_panel_transposed(from, i, n, to + i / PANEL * parts_of(from.columns, DEPTH) * PAIR);
}

// Computes the scores of 32 queries, not scaled yet.
inline void scores_of(const AttentionShape& shape, const Matrix& q, int64_t first, int64_t end, const Mask& mask, const Work& work) {
    const int64_t steps = parts_of(shape.d_head, DEPTH);
    pack_panel(q, first, end, work.queries);
    multiply_columns(work.queries, work.keys_t, steps * PAIR, steps, work.scores, whole(shape.keys), mask.end);
}

inline void attend(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, const uint8_t* mask, bf16* z, Normalizer* normalizers, const Head& head) {
    const Work work(shape, false, (uint8_t*)head.work);
    const int64_t row = whole(shape.keys), d_value = whole(shape.d_value), apart = row / DEPTH * PAIR;
    pack_all_transposed(rows_of(k, shape.k, head.b, head.kv, shape.d_head), shape.keys, work.keys_t);
    pack_all(rows_of(v, shape.v, head.b, head.kv, shape.d_value), 0, shape.keys, work.values);
    for (int64_t h = head.kv * shape.group; h < (head.kv + 1) * shape.group; h++)
        for (int64_t first = 0; first < shape.queries; first += PANEL) {
            const int64_t n = std::min(PANEL, shape.queries - first);
            const Mask shown = mask_of_queries(shape, mask, head.b, h, first, n);
            Normalizer* of_queries = normalizers + (head.b * shape.kv_heads * shape.group + h) * shape.queries + first;
            scores_of(shape, rows_of(q, shape.q, head.b, h, shape.d_head), first, shape.queries, shown, work);
            for (int64_t i = 0; i < n; i++) {
                float* s = work.scores + i * row;
                of_queries[i] = {0.0f, 0.0f};
                if (hide(s, shown.row(i), shape.keys, shown.end, shape.scale)) {
                    const float largest = largest_of(s, shown.end);
                    of_queries[i] = {largest, 1.0f / exponentiate(s, shown.end, largest)};
                } else {
                    std::fill_n(s, shown.end, 0.0f);
                }
                store_row(s, shown.end, i, work.weights);
            }
            multiply_columns(work.weights, work.values, apart, shown.end / DEPTH, work.out, d_value, d_value);
            bf16* to = z + head.b * shape.z.batch + h * shape.z.head + first * shape.z.token;
            for (int64_t i = 0; i < n; i++) store_vector(work.out + i * d_value, to + i * shape.z.token, shape.d_value, of_queries[i].inverse);
        }
}

struct Gradients {  // those of q, k and v lie in memory as (batch, token, head, channel)
    const bf16* z;
    bf16 *q, *k, *v;
};

// Replaces a row of scores by weights P, and the weights' gradients by those of the scores, P (dP - sum(P dP)).
inline void weigh_row_backward(float* __restrict s, float* __restrict dp, const uint8_t* mask, const AttentionShape& shape, int64_t end, Normalizer normalizer) {
    float sum = 0;
    hide(s, mask, shape.keys, end, shape.scale);
#pragma omp simd
    for (int64_t j = 0; j < end; j++) s[j] = numerator(s[j] - normalizer.largest) * normalizer.inverse;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < end; j++) sum += s[j] * dp[j];
#pragma omp simd
    for (int64_t j = 0; j < end; j++) dp[j] = s[j] * (dp[j] - sum);
}

// Transposes the panel of 32 queries ``step`` of a block; keys from ``end`` to ``block_end`` have no weight.
inline void transpose_weights(const uint8_t* panel, int64_t step, int64_t steps, int64_t end, int64_t block_end, uint8_t* to) {
    for (int64_t j = 0; j < block_end; j += PANEL) {
        uint8_t* pair = to + (j / PANEL * steps + step) * PAIR;
        if (j >= end) std::memset(pair, 0, PAIR);
        else pack_transposed({(const bf16*)(panel + j / DEPTH * PAIR), PANEL, PANEL}, 0, PANEL, 0, PANEL, pair, PAIR, nullptr);
    }
}

// Adds the product of transposed weights, over the queries of a block, with vectors of the queries to ``sums``, one row per key.
inline void add_products(const uint8_t* weights, const uint8_t* vectors, int64_t steps, int64_t keys, int64_t width, float* sums) {
    for (int64_t c = 0; c < width; c += PANEL)
        for (int64_t j = 0; j < keys; j += PANEL)
            multiply_panels(weights + j / PANEL * steps * PAIR, vectors + c / PANEL * steps * PAIR, steps, sums + j * width + c, width, true);
}

// The gradients of a block of queries: writes those of the queries, and adds those of keys and values to work.dk and work.dv.
inline void attend_backward_block(
    const AttentionShape& shape, const Matrix& q, const Matrix& g, const uint8_t* mask, const Normalizer* normalizers, bf16* dq, const Work& work, int64_t b,
    int64_t h, int64_t first) {
    const int64_t n = std::min(shape.block, shape.queries - first), steps = parts_of(n, PANEL), heads = shape.kv_heads * shape.group;
    const int64_t row = whole(shape.keys), d = whole(shape.d_head), d_value = whole(shape.d_value), of_values = d_value / DEPTH;
    const int64_t block_end = mask_of_queries(shape, mask, b, h, first, n).end;
    pack_all(q, first, n, work.block_queries);
    pack_all(g, first, n, work.block_grads);
    for (int64_t step = 0; step < steps; step++) {
        const int64_t start = first + step * PANEL, here = std::min(PANEL, first + n - start);
        const Mask shown = mask_of_queries(shape, mask, b, h, start, here);
        scores_of(shape, q, start, shape.queries, shown, work);
        pack_panel(g, start, shape.queries, work.grads);
        multiply_columns(work.grads, work.values_t, of_values * PAIR, of_values, work.grads_of_weights, row, shown.end);
        for (int64_t i = 0; i < PANEL; i++) {
            float *s = work.scores + i * row, *dp = work.grads_of_weights + i * row;
            if (i < here) weigh_row_backward(s, dp, shown.row(i), shape, shown.end, normalizers[start + i]);
            else std::fill_n(s, shown.end, 0.0f), std::fill_n(dp, shown.end, 0.0f);
            store_row(s, shown.end, i, work.weights);
            store_row(dp, shown.end, i, work.grads_of_scores);
        }
        multiply_columns(work.grads_of_scores, work.keys, row / DEPTH * PAIR, shown.end / DEPTH, work.out, d, d);
        bf16* to = dq + ((b * shape.queries + start) * heads + h) * shape.d_head;
        for (int64_t i = 0; i < here; i++) store_vector(work.out + i * d, to + i * heads * shape.d_head, shape.d_head, shape.scale);
        transpose_weights(work.weights, step, steps, shown.end, block_end, work.weights_t);
        transpose_weights(work.grads_of_scores, step, steps, shown.end, block_end, work.scores_t);
    }
    add_products(work.weights_t, work.block_grads, steps, block_end, d_value, work.dv);
    add_products(work.scores_t, work.block_queries, steps, block_end, d, work.dk);
}

inline void attend_backward(
    const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, const uint8_t* mask, const Normalizer* normalizers, const Gradients& grad,
    const Head& head) {
    const Work work(shape, true, (uint8_t*)head.work);
    const int64_t b = head.b, kv = head.kv, row = whole(shape.keys), d = whole(shape.d_head), d_value = whole(shape.d_value);
    const Matrix keys = rows_of(k, shape.k, b, kv, shape.d_head), values = rows_of(v, shape.v, b, kv, shape.d_value);
    pack_all_transposed(keys, shape.keys, work.keys_t);
    pack_all(keys, 0, shape.keys, work.keys);
    pack_all_transposed(values, shape.keys, work.values_t);
    std::fill_n(work.dk, row * d, 0.0f);
    std::fill_n(work.dv, row * d_value, 0.0f);
    for (int64_t h = kv * shape.group; h < (kv + 1) * shape.group; h++) {
        const Matrix queries = rows_of(q, shape.q, b, h, shape.d_head), grads = rows_of(grad.z, shape.z, b, h, shape.d_value);
        const Normalizer* of_queries = normalizers + (b * shape.kv_heads * shape.group + h) * shape.queries;
        for (int64_t first = 0; first < shape.queries; first += shape.block)
            attend_backward_block(shape, queries, grads, mask, of_queries, grad.q, work, b, h, first);
    }
    for (int64_t j = 0; j < shape.keys; j++) {
        const int64_t vector = (b * shape.keys + j) * shape.kv_heads + kv;
        store_vector(work.dk + j * d, grad.k + vector * shape.d_head, shape.d_head, shape.scale);
        store_vector(work.dv + j * d_value, grad.v + vector * shape.d_value, shape.d_value, 1.0f);
    }
}

}  // namespace bfloat16_attention

#endif
