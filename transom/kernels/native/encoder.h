// Blocks: their norms and linear maps; and the blocks of an encoder, over chunks of rows, or with attention over one sequence after another.
//
// Between two products the rows of a chunk or a sequence stay in the second-level cache, where PyTorch writes each result of a layer to memory.

#pragma once

#include <cmath>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "float_products.h"
#include "parallel.h"
#include "products.h"

// native_structs.py mirrors the layout of these structures.
extern "C" struct Norm {
    const float* gain;  // null: no norm
    const float* shift; // or null
    float eps;
    int32_t centered;    // 0: RMS normalization, the mean is not subtracted
};

extern "C" struct Block {
    Norm attn_pre_norm, attn_post_norm, cross_pre_norm, cross_post_norm, ff_pre_norm, ff_post_norm;
    Linear qkv, o, q, cross_o, gate, up, down; // null weights for missing parts: cross-attention, the gate
};

extern "C" struct Sequences {  // of equal length; ``bias`` is added to the scores, null for none, and its keys are contiguous
    int32_t rows, length, n_heads, d_head, d_value;
    const float* bias;
    int64_t bias_row, bias_head, bias_query;  // strides, 0 where the bias is the same for all
};

namespace {

// Status codes of the library's functions, as in native_structs.py. No exception leaves the library: its callers are not C++.
enum Status : int { DONE = 0, NO_MEMORY = 1, OUT_OF_BOUNDS = 2, FAILED = 3 };

template <typename Work>
int guarded(Work work) noexcept {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (const std::length_error&) {
        return NO_MEMORY;
    } catch (...) {
        return FAILED;
    }
}

// Call ``work`` with a kind as a constant.
template <typename Work>
void with_kind(Kind kind, Work work) {
    switch (kind) {
        case BFLOAT16: return work(std::integral_constant<Kind, BFLOAT16>());
        case INT8: return work(std::integral_constant<Kind, INT8>());
        case FLOAT32: return work(std::integral_constant<Kind, FLOAT32>());
    }
}

void normalize(const Norm& norm, const float* x, int rows, int width, float* y) {
    for (int row = 0; row < rows; row++, x += width, y += width) {
        const __m512 mean = _mm512_set1_ps(norm.centered ? sum_of(width, [&](int i) { return part(x, i, width); }) / width : 0.0f);
        const float variance = sum_of(width, [&](int i) {
            const __m512 difference = _mm512_maskz_sub_ps(first(width - i), part(x, i, width), mean);
            return _mm512_mul_ps(difference, difference);
        }) / width;
        const __m512 over = _mm512_set1_ps(1.0f / std::sqrt(variance + norm.eps));
        for (int i = 0; i < width; i += LANES) {
            __m512 v = _mm512_mul_ps(_mm512_mul_ps(_mm512_sub_ps(part(x, i, width), mean), over), part(norm.gain, i, width));
            if (norm.shift) v = _mm512_add_ps(v, part(norm.shift, i, width));
            masked_store(y + i, first(width - i), v);
        }
    }
}

constexpr int ENCODER_ROWS = 96;  // rows of a chunk
constexpr int SEQUENCE_ROWS = 48; // of short sequences that pass through a block together; with more, products are slower
constexpr int QUERIES = 96;       // whose scores are computed together

// Width of rows of queries, keys and values of a sequence: with a power of two, all tokens would share a few sets of the first-level cache.
inline size_t padded_width(const Block& block) { return block.qkv.out_features + LANES; }

struct ChunkBuffers {
    Buffer<float> normed, gate, hidden, qkv, z, keys, scores;
    Rows rows;

    void reserve(Kind kind, const Block& block, int n_rows, int d_model) {
        at_least(normed, size_t(n_rows) * d_model);
        at_least(hidden, size_t(n_rows) * block.up.out_features);
        if (block.gate.weight) at_least(gate, size_t(n_rows) * block.up.out_features);
        rows.reserve(kind, n_rows, std::max({d_model, block.o.in_features, block.down.in_features}));
    }

    void reserve_attention(const Block& block, const Sequences& sequences, int rows) {
        at_least(qkv, size_t(rows) * sequences.length * padded_width(block));
        at_least(z, size_t(rows) * sequences.length * block.o.in_features);
        at_least(keys, size_t(up_to(sequences.length, LANES)) * sequences.d_head);
        at_least(scores, size_t(up_to(sequences.length, LANES)) * QUERIES);
    }

   private:
    static void at_least(Buffer<float>& x, size_t n) {
        if (x.size() < n) x.resize(n);
    }
};

// Return x, or x normalized if there is a norm.
inline const float* before(const Norm& norm, const float* x, int rows, int d_model, ChunkBuffers& own) {
    if (!norm.gain) return x;
    normalize(norm, x, rows, d_model, own.normed.data());
    return own.normed.data();
}

template <Kind kind>
void apply(const Linear& map, const Rows& x, int rows, const Output& out) {
    product<kind>(map, x, rows, 0, up_to(map.out_features, LANES) / LANES, out);
}

template <Kind kind>
void project_rows(const Block& block, const float* x, int rows, int d_model, float* qkv, size_t width, ChunkBuffers& own) {
    own.rows.take(kind, before(block.attn_pre_norm, x, rows, d_model, own), rows, d_model);
    apply<kind>(block.qkv, own.rows, rows, {qkv, nullptr, nullptr, width});
}

template <Kind kind>
void finish_rows(const Block& block, const float* z, int rows, int d_model, float* x, ChunkBuffers& own) {
    own.rows.take(kind, z, rows, block.o.in_features);
    apply<kind>(block.o, own.rows, rows, {x, nullptr, x});
    if (block.attn_post_norm.gain) normalize(block.attn_post_norm, x, rows, d_model, x);
    own.rows.take(kind, before(block.ff_pre_norm, x, rows, d_model, own), rows, d_model);
    if (block.gate.weight) apply<kind>(block.gate, own.rows, rows, {own.gate.data()});
    apply<kind>(block.up, own.rows, rows, {own.hidden.data(), block.gate.weight ? own.gate.data() : nullptr});
    own.rows.take(kind, own.hidden.data(), rows, block.down.in_features);
    apply<kind>(block.down, own.rows, rows, {x, nullptr, x});
    if (block.ff_post_norm.gain) normalize(block.ff_post_norm, x, rows, d_model, x);
}

// Replace the scores of a query by their softmax, after adding the bias; weights are 0 if the bias of all keys is minus infinity.
inline void soften(float* scores, const float* bias, int keys) {
    __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (int j = 0; j < keys; j += LANES) {
        const __mmask16 mask = first(keys - j);
        __m512 s = _mm512_mask_blend_ps(mask, most, _mm512_loadu_ps(scores + j));
        if (bias) s = _mm512_mask_add_ps(s, mask, s, masked_load(mask, bias + j));
        _mm512_storeu_ps(scores + j, s);
        most = _mm512_max_ps(most, s);
    }
    const float largest = _mm512_reduce_max_ps(most);
    if (largest == -INFINITY) {
        std::fill_n(scores, keys, 0.0f);
        return;
    }
    for (int j = 0; j < keys; j += LANES) {
        const __m512 e = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(largest)));
        _mm512_storeu_ps(scores + j, e);
        total = _mm512_mask_add_ps(total, first(keys - j), total, e);
    }
    const __m512 inverse = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    for (int j = 0; j < keys; j += LANES) _mm512_storeu_ps(scores + j, _mm512_mul_ps(_mm512_loadu_ps(scores + j), inverse));
}

// Return the number of keys up to the last one that a row's bias, if it is the same for all queries, does not hide.
inline int visible_keys(const Sequences& sequences, const float* bias) {
    int keys = sequences.length;
    if (bias && !sequences.bias_query && !sequences.bias_head)
        while (keys > 1 && bias[keys - 1] == -INFINITY) keys--;
    return keys;
}

// z (length, n_heads d_value) = softmax(Q K^T / sqrt(d_head) + bias) V for one row of the batch, whose queries, keys and values are in qkv.
inline void attend_sequence(const Sequences& sequences, int row, const float* qkv, size_t width, float* z, ChunkBuffers& own) {
    const int length = sequences.length, d_head = sequences.d_head, d_value = sequences.d_value, z_width = sequences.n_heads * d_value;
    const int k_start = sequences.n_heads * d_head, v_start = 2 * k_start;
    const float* bias = sequences.bias ? sequences.bias + row * sequences.bias_row : nullptr;
    const int keys = visible_keys(sequences, bias), padded = up_to(keys, LANES);
    const float scale = 1.0f / std::sqrt(float(d_head));
    float *const scores = own.scores.data(), *const transposed = own.keys.data();
    for (int head = 0; head < sequences.n_heads; head++, z += d_value) {
        const float *q = qkv + head * d_head, *k = q + k_start, *v = qkv + v_start + head * d_value;
        float_products::transpose(k, width, keys, d_head, transposed, padded);
        for (int start = 0; start < length; start += QUERIES) {
            const int n = std::min(QUERIES, length - start);
            float_products::multiply(q + size_t(start) * width, width, 1, transposed, padded, scores, padded, n, padded, d_head, scale, false);
            for (int i = 0; i < n; i++) {
                const float* added = bias ? bias + head * sequences.bias_head + (start + i) * sequences.bias_query : nullptr;
                soften(scores + size_t(i) * padded, added, keys);
            }
            float_products::multiply(scores, padded, 1, v, width, z + size_t(start) * z_width, z_width, n, d_value, keys, 1.0f, false);
        }
    }
}

// Pass the residual stream of rows ``begin`` to ``end`` of the batch, x (end - begin, length, d_model), through a block.
template <Kind kind>
void read_sequences(const Block& block, const Sequences& sequences, int begin, int end, int d_model, float* x, ChunkBuffers& own) {
    const int n = (end - begin) * sequences.length, n_chunks = (n + ENCODER_ROWS - 1) / ENCODER_ROWS, chunk = (n + n_chunks - 1) / n_chunks;
    const size_t qkv_width = padded_width(block), z_width = block.o.in_features;
    float *const qkv = own.qkv.data(), *const z = own.z.data();
    for (int from = 0; from < n; from += chunk)
        project_rows<kind>(block, x + size_t(from) * d_model, std::min(chunk, n - from), d_model, qkv + from * qkv_width, qkv_width, own);
    for (int row = begin; row < end; row++) {
        const size_t from = size_t(row - begin) * sequences.length;
        attend_sequence(sequences, row, qkv + from * qkv_width, qkv_width, z + from * z_width, own);
    }
    for (int from = 0; from < n; from += chunk)
        finish_rows<kind>(block, z + from * z_width, std::min(chunk, n - from), d_model, x + size_t(from) * d_model, own);
}

// Call work(kind, buffers, begin, end) for each part of ``n`` items, of at most ``most`` items, with as many parts for each thread;
// reserve(buffers, number of items) allocates what it needs.
template <typename Reserve, typename Work>
int encoder_parts(Kind kind, int n, int most, int threads, const Reserve& reserve, const Work& work) {
    const int turns = (n + threads * most - 1) / (threads * most);
    const int64_t n_parts = std::min(n, threads * turns);
    std::atomic<int> status{DONE};
    for_each_chunk(n_parts, threads, [&](int64_t i) {
        const int begin = int(n * i / n_parts), end = int(n * (i + 1) / n_parts);
        thread_local ChunkBuffers buffers;  // allocating anew in each call costs as much as quantizing
        ChunkBuffers& own = buffers;
        const int failed = guarded([&] { return reserve(own, end - begin), DONE; });
        if (failed) return status.store(failed);
        configure_tiles();
        with_kind(kind, [&](auto constant) { work(constant, own, begin, end); });
        release_tiles();
    });
    return status;
}

}  // namespace
