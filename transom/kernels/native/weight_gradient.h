// The gradient of a weight matrix, dW = G^T X in float32, from bfloat16 gradients G and inputs X, and that of the bias, on the matrix unit.
//
// The products are over the rows (tokens). A tile of X has two rows per line, whose numbers alternate, as the instructions require; one of G
// is such a tile, transposed. X is packed once, and G for some outputs and ROWS rows at a time, so that they stay in the near caches, as do the
// sums of these outputs, in blocks of 32 x 32. Sums are in float32: the results need neither the rounding to bfloat16 nor the copy to float32
// of PyTorch's products.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bfloat16_products.h"
#include "parallel.h"

#ifdef MATRIX_UNIT

namespace {
namespace weight_gradient {

using namespace bfloat16_products;

struct Product {
    Matrix grad, x;
    int64_t rows;
    float *weight, *bias;  // the results: contiguous; the bias may be null
    bool add;              // to the weight's
};

constexpr int64_t ROWS = 1024;                                                     // at a time
constexpr int64_t MOST_OUTPUTS = 256, MOST_INPUTS = 512;                           // of a thread at a time
constexpr int64_t PACKED = MOST_OUTPUTS * ROWS * sizeof(bf16);                     // bytes of packed gradients per thread
constexpr int64_t WORK = PACKED + MOST_OUTPUTS * MOST_INPUTS * sizeof(float);      // and of sums, as in kernels/linear.py

struct Part {  // of the results
    int64_t output, n_outputs, input, n_inputs;
};

// Writes blocks of 32 outputs and 32 inputs, as compute_part() computes them, to the weight's gradient, or adds them.
inline void store_blocks(const Product& product, const Part& part, const float* block) {
    for (int64_t j = 0; j < part.n_inputs; j += PANEL)
        for (int64_t i = 0; i < part.n_outputs; i += PANEL, block += PANEL * PANEL) {
            const int64_t outputs = std::min(PANEL, part.n_outputs - i), inputs = std::min(PANEL, part.n_inputs - j);
            for (int64_t o = 0; o < outputs; o++) {
                const float* from = block + o * PANEL;
                float* to = product.weight + (part.output + i + o) * product.x.columns + part.input + j;
                for (int64_t c = 0; c < inputs; c++) to[c] = product.add ? to[c] + from[c] : from[c];
            }
        }
}

// Computes a part of the weight's gradient, and of the bias' if the part has the first input; ``packed`` is all of X.
inline void compute_part(const Product& product, const Part& part, const uint8_t* packed, uint8_t* work) {
    const int64_t width = product.x.columns, panels = parts_of(width, PANEL);
    const bool with_bias = product.bias != nullptr && part.input == 0;
    float* blocks = (float*)(work + PACKED);
    alignas(64) float sums[MOST_OUTPUTS] = {};
    for (int64_t first = 0; first < product.rows; first += ROWS) {
        const int64_t end = std::min(product.rows, first + ROWS), steps = parts_of(end - first, DEPTH), panel_bytes = steps * PAIR;
        for (int64_t step = 0; step < steps; step++)
            pack_transposed(product.grad, first + step * DEPTH, end, part.output, part.n_outputs, work + step * PAIR, panel_bytes, with_bias ? sums : nullptr);
        const uint8_t* of_x = packed + first / DEPTH * panels * PAIR;
        float* block = blocks;
        for (int64_t j = 0; j < part.n_inputs; j += PANEL)
            for (int64_t i = 0; i < part.n_outputs; i += PANEL, block += PANEL * PANEL)
                multiply_panels(work + i / PANEL * panel_bytes, of_x + (part.input + j) / PANEL * panel_bytes, steps, block, PANEL, first > 0);
    }
    store_blocks(product, part, blocks);
    if (with_bias) std::memcpy(product.bias + part.output, sums, part.n_outputs * sizeof(float));
}

// Computes the gradients; the division among threads does not affect them. ``work`` has room for all of X, its rows and columns rounded up to
// multiples of 32, and for WORK bytes per thread.
inline void compute(const Product& product, uint8_t* work, int threads) {
    const int64_t outputs = product.grad.columns, inputs = product.x.columns, rows = product.rows, panels = parts_of(inputs, PANEL);
    const int64_t depth = parts_of(rows, DEPTH);
    for_each_chunk(depth, threads, [&](int64_t step) {
        const int64_t first = step * DEPTH / ROWS * ROWS, end = std::min(rows, first + ROWS), panel_bytes = parts_of(end - first, DEPTH) * PAIR;
        pack_columns(product.x, step * DEPTH, end, 0, inputs, work + (first / DEPTH * panels + step - first / DEPTH) * PAIR, panel_bytes);
    });
    uint8_t* of_threads = work + depth * panels * PAIR;
    const int64_t columns = parts_of(inputs, MOST_INPUTS), per_column = std::max<int64_t>(parts_of(2 * threads, columns), 1);
    const int64_t n_outputs = std::min(MOST_OUTPUTS, whole(parts_of(outputs, per_column))), n_parts = parts_of(outputs, n_outputs) * columns;
    std::atomic<int64_t> next{0};
    for_each_chunk(std::min<int64_t>(threads, n_parts), threads, [&](int64_t slot) {
        configure_tiles();
        for (int64_t i; (i = next.fetch_add(1)) < n_parts;) {
            const int64_t output = i / columns * n_outputs, input = i % columns * MOST_INPUTS;
            const Part part{output, std::min(n_outputs, outputs - output), input, std::min(MOST_INPUTS, inputs - input)};
            compute_part(product, part, work, of_threads + slot * WORK);
        }
        release_tiles();
    });
}

}  // namespace weight_gradient
}  // namespace

#endif
