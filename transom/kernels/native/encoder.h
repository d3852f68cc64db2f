// Blocks: their norms and linear maps; and the blocks of an encoder, all but attention itself, over chunks of rows.
//
// Between two products the rows of a chunk stay in the second-level cache, where PyTorch writes each result of a layer to memory.

#pragma once

#include <cmath>
#include <new>
#include <stdexcept>
#include <type_traits>

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
        __m512 total = _mm512_setzero_ps();
        if (norm.centered)
            for (int i = 0; i < width; i += LANES) total = _mm512_add_ps(total, part(x, i, width));
        __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
        __m512 squares = _mm512_setzero_ps();
        for (int i = 0; i < width; i += LANES) {
            __mmask16 mask = first(width - i);
            __m512 d = _mm512_maskz_sub_ps(mask, part(x, i, width), mean);
            squares = _mm512_fmadd_ps(d, d, squares);
        }
        __m512 over = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / width + norm.eps));
        for (int i = 0; i < width; i += LANES) {
            __mmask16 mask = first(width - i);
            __m512 v = _mm512_mul_ps(_mm512_sub_ps(part(x, i, width), mean), over);
            v = _mm512_mul_ps(v, masked_load(mask, norm.gain + i));
            if (norm.shift) v = _mm512_add_ps(v, masked_load(mask, norm.shift + i));
            masked_store(y + i, mask, v);
        }
    }
}

constexpr int ENCODER_ROWS = 96;  // rows of a chunk

struct ChunkBuffers {
    std::vector<float> normed, gate, hidden;
    Rows rows;

    void reserve(Kind kind, const Block& block, int n_rows, int d_model) {
        const auto at_least = [](std::vector<float>& x, size_t n) { if (x.size() < n) x.resize(n); };
        at_least(normed, size_t(n_rows) * d_model);
        at_least(hidden, size_t(n_rows) * block.up.out_features);
        if (block.gate.weight) at_least(gate, size_t(n_rows) * block.up.out_features);
        rows.reserve(kind, n_rows, std::max({d_model, block.o.in_features, block.down.in_features}));
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
void project_rows(const Block& block, const float* x, int rows, int d_model, float* qkv, ChunkBuffers& own) {
    own.rows.take(kind, before(block.attn_pre_norm, x, rows, d_model, own), rows, d_model);
    apply<kind>(block.qkv, own.rows, rows, {qkv});
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

// Call work(kind, buffers, first row, number of rows) for each chunk of rows.
template <typename Work>
int encoder_rows(Kind kind, const Block& block, int rows, int d_model, int threads, const Work& work) {
    const int turns = (rows + threads * ENCODER_ROWS - 1) / (threads * ENCODER_ROWS), n_chunks = threads * turns;  // as many for each thread
    const int chunk = (rows + n_chunks - 1) / n_chunks;
    std::atomic<int> status{DONE};
    for_each_chunk((rows + chunk - 1) / chunk, threads, [&](int64_t i) {
        const int from = int(i) * chunk, here = std::min(chunk, rows - from);
        thread_local ChunkBuffers own;  // allocating anew in each call costs as much as quantizing
        const int failed = guarded([&] { return own.reserve(kind, block, here, d_model), DONE; });
        if (failed) return status.store(failed);
        configure_tiles();
        with_kind(kind, [&](auto constant) { work(constant, own, from, here); });
        release_tiles();
    });
    return status;
}

}  // namespace
