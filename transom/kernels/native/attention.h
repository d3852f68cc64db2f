// Attention of a training step in float32: softmax(Q K^T / sqrt(d_k)) V, forward and backward, for processors with AVX-512.
//
// Each head is computed in blocks of queries, whose scores stay in the near caches, and keys after the last visible one of a block are left
// out: 3 of 8 pairs in a causal mask of four blocks. The backward pass computes the weights again from the normalizer of each query, so no
// weights are kept. Vectors are read and written where the projections have them.

using namespace float_products;

struct Strides {  // of a tensor (batch, head, token, channel) whose channels are contiguous, in elements
    int64_t batch, head, token;
};

struct AttentionShape {  // as AttentionStruct in native_structs.py; z is the output, or its gradient
    int64_t batch, kv_heads, group, queries, keys, d_head, d_value, block, row;  // row: keys, rounded up to a multiple of 16
    Strides q, k, v, z, mask;
    float scale;
};

// Computes the scores of a block of queries, whose keys are transposed; returns the number of keys that any of the queries may see.
inline int64_t block_scores(const AttentionShape& shape, const float* q, const float* keys, const uint8_t* mask, int64_t n, float* scores) {
    int64_t end = mask == nullptr ? shape.keys : 0;
    if (mask != nullptr)
        for (int64_t i = 0; i < n; i++) end = std::max(end, visible_end(mask + i * shape.mask.token, shape.keys));
    const int64_t whole = (end + LANES - 1) / LANES * LANES;
    multiply(q, shape.q.token, 1, keys, shape.row, scores, shape.row, n, whole, shape.d_head, shape.scale, false);
    return end;
}

struct Normalizer {  // a weight is exp(score - largest) inverse
    float largest, inverse;
};

// Replaces a row of scores by weights, which are 0 if no key is visible.
inline Normalizer weigh_row(float* __restrict s, const uint8_t* __restrict mask, int64_t end) {
    if (mask != nullptr) {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) s[j] = mask[j] ? s[j] : -INFINITY;
    }
    const float largest = largest_of(s, end);
    bool visible = largest > -INFINITY || mask == nullptr;
    for (int64_t j = 0; j < end && !visible; j++) visible = mask[j];
    if (!visible) {
        std::fill(s, s + end, 0.0f);
        return {0.0f, 0.0f};
    }
    const float sum = exponentiate(s, end, largest), inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t j = 0; j < end; j++) s[j] *= inverse;
    return {largest, inverse};
}

// Replaces a row of scores by the weights that the forward pass had.
inline void weigh_row_again(float* __restrict s, const uint8_t* __restrict mask, int64_t end, Normalizer normalizer) {
    const float largest = normalizer.largest, inverse = normalizer.inverse;
    if (mask == nullptr) {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) s[j] = numerator(s[j] - largest) * inverse;
    } else {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) s[j] = mask[j] ? numerator(s[j] - largest) * inverse : 0.0f;
    }
}

inline const uint8_t* mask_of(const AttentionShape& shape, const uint8_t* mask, int64_t b, int64_t h, int64_t query) {
    return mask == nullptr ? nullptr : mask + b * shape.mask.batch + h * shape.mask.head + query * shape.mask.token;
}

// Fetch vectors into the second-level cache.
inline void prefetch(const float* x, int64_t stride, int64_t n, int64_t width) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c += LANES) __builtin_prefetch(x + i * stride + c, 0, 2);
}

constexpr int64_t MAX_PREFETCHED = 1 << 16;  // elements: a quarter of a MiB, so that the current head keeps the cache

// Fetch the vectors of the next key-value head of the same row, unless they are many; ``grad`` is null in the forward pass.
inline void prefetch_next(const AttentionShape& shape, const float* q, const float* k, const float* v, const float* grad, int64_t b, int64_t kv) {
    const int64_t n = shape.keys * (shape.d_head + shape.d_value) + shape.queries * (shape.d_head + (grad == nullptr ? 0 : shape.d_value));
    if (n > MAX_PREFETCHED) return;
    const int64_t h = (kv + 1) * shape.group;
    prefetch(k + b * shape.k.batch + (kv + 1) * shape.k.head, shape.k.token, shape.keys, shape.d_head);
    prefetch(v + b * shape.v.batch + (kv + 1) * shape.v.head, shape.v.token, shape.keys, shape.d_value);
    prefetch(q + b * shape.q.batch + h * shape.q.head, shape.q.token, shape.queries, shape.d_head);
    if (grad != nullptr) prefetch(grad + b * shape.z.batch + h * shape.z.head, shape.z.token, shape.queries, shape.d_value);
}

struct Head {  // a key-value head of a row of the batch
    int64_t b, kv;
    float* work;
    bool next;  // whether the same thread computes head kv + 1 after it
};

// Attention of one head; ``work`` holds the scores of a block and the transposed keys.
inline void attend(
    const AttentionShape& shape, const float* q, const float* k, const float* v, const uint8_t* mask, float* z, Normalizer* normalizers, const Head& head) {
    const int64_t b = head.b, kv = head.kv;
    float* work = head.work;
    const float* values = v + b * shape.v.batch + kv * shape.v.head;
    float* keys = work + shape.block * shape.row;
    if (head.next) prefetch_next(shape, q, k, v, nullptr, b, kv);
    transpose(k + b * shape.k.batch + kv * shape.k.head, shape.k.token, shape.keys, shape.d_head, keys, shape.row);
    for (int64_t h = kv * shape.group; h < (kv + 1) * shape.group; h++) {
        for (int64_t start = 0; start < shape.queries; start += shape.block) {
            const int64_t n = std::min(shape.block, shape.queries - start);
            const uint8_t* visible = mask_of(shape, mask, b, h, start);
            const int64_t end = block_scores(shape, q + b * shape.q.batch + h * shape.q.head + start * shape.q.token, keys, visible, n, work);
            Normalizer* of_queries = normalizers + (b * shape.kv_heads * shape.group + h) * shape.queries + start;
            for (int64_t i = 0; i < n; i++) of_queries[i] = weigh_row(work + i * shape.row, visible == nullptr ? nullptr : visible + i * shape.mask.token, end);
            float* out = z + b * shape.z.batch + h * shape.z.head + start * shape.z.token;
            multiply(work, shape.row, 1, values, shape.v.token, out, shape.z.token, n, shape.d_value, end, 1.0f, false);
        }
    }
}

struct Gradients {  // those of q, k and v lie in memory as (batch, token, head, channel)
    const float* z;
    float *q, *k, *v;
};

// With P the weights and G the gradient of Z: dV = P^T G, dP = G V^T, dS = P (dP - rowsum(P dP)), dQ = scale dS K, dK = scale dS^T Q.
// ``work`` holds the scores of a block and their gradients, and the transposed keys and values.
inline void attend_backward(
    const AttentionShape& shape, const float* q, const float* k, const float* v, const uint8_t* mask, const Normalizer* normalizers, const Gradients& grad,
    const Head& head) {
    const int64_t b = head.b, kv = head.kv, heads = shape.kv_heads * shape.group, d = shape.d_head, d_value = shape.d_value;
    float* work = head.work;
    const float *keys = k + b * shape.k.batch + kv * shape.k.head, *values = v + b * shape.v.batch + kv * shape.v.head;
    float *dk = grad.k + (b * shape.keys * shape.kv_heads + kv) * d, *dv = grad.v + (b * shape.keys * shape.kv_heads + kv) * d_value;
    float *dp = work + shape.block * shape.row, *keys_t = dp + shape.block * shape.row, *values_t = keys_t + d * shape.row;
    if (head.next) prefetch_next(shape, q, k, v, grad.z, b, kv);
    transpose(keys, shape.k.token, shape.keys, d, keys_t, shape.row);
    transpose(values, shape.v.token, shape.keys, d_value, values_t, shape.row);
    for (int64_t j = 0; j < shape.keys; j++) {
        std::fill_n(dk + j * shape.kv_heads * d, d, 0.0f);
        std::fill_n(dv + j * shape.kv_heads * d_value, d_value, 0.0f);
    }
    for (int64_t h = kv * shape.group; h < (kv + 1) * shape.group; h++) {
        for (int64_t start = 0; start < shape.queries; start += shape.block) {
            const int64_t n = std::min(shape.block, shape.queries - start);
            const uint8_t* visible = mask_of(shape, mask, b, h, start);
            const Normalizer* of_queries = normalizers + (b * heads + h) * shape.queries + start;
            const float* queries = q + b * shape.q.batch + h * shape.q.head + start * shape.q.token;
            const float* g = grad.z + b * shape.z.batch + h * shape.z.head + start * shape.z.token;
            const int64_t end = block_scores(shape, queries, keys_t, visible, n, work), whole = (end + LANES - 1) / LANES * LANES;
            multiply(g, shape.z.token, 1, values_t, shape.row, dp, shape.row, n, whole, d_value, 1.0f, false);
            for (int64_t i = 0; i < n; i++) weigh_row_again(work + i * shape.row, visible == nullptr ? nullptr : visible + i * shape.mask.token, end, of_queries[i]);
            multiply(work, 1, shape.row, g, shape.z.token, dv, shape.kv_heads * d_value, end, d_value, n, 1.0f, true);
            for (int64_t i = 0; i < n; i++) softmax_backward_row(dp + i * shape.row, work + i * shape.row, end);
            multiply(dp, shape.row, 1, keys, shape.k.token, grad.q + ((b * shape.queries + start) * heads + h) * d, heads * d, n, d, end, shape.scale, false);
            multiply(dp, 1, shape.row, queries, shape.q.token, dk, shape.kv_heads * d, end, d, n, shape.scale, true);
        }
    }
}

// Runs body(head) for each key-value head of each row of the batch; each thread has its own ``floats`` floats of ``work``. The heads of
// a row lie beside one another in memory. With many rows, a thread therefore takes all heads of a row, one after another.
template <typename Body>
void for_each_head(const AttentionShape& shape, float* work, int64_t floats, int threads, const Body& body) {
    const int64_t n_items = shape.batch * shape.kv_heads, at_once = shape.batch >= 4 * threads ? shape.kv_heads : 1;
    std::atomic<int64_t> next{0};
    for_each_chunk(std::min<int64_t>(threads, n_items), threads, [&](int64_t slot) {
        for (int64_t i; (i = next.fetch_add(at_once)) < n_items;)
            for (int64_t item = i; item < i + at_once; item++)
                body(Head{item / shape.kv_heads, item % shape.kv_heads, work + slot * floats, item + 1 < i + at_once});
    });
}
