// Gradients of weight matrices, dW = G^T X in float32, from bfloat16 gradients G and inputs X, and of biases, on the matrix unit.
//
// The products are over the rows (tokens). Their left operand has to be packed transposed, which takes twice as long as packing the right one, so it
// is the narrower of G and X; if several layers read X, it is X. All of it is packed once. The right operand is packed for some columns and ROWS
// rows at a time, so that they stay in the near caches, as do the sums of these columns, in blocks of 32 x 32. If the left operand is X, the blocks
// are those of X^T G, and are transposed when they are stored. Sums are in float32: the results need neither the rounding to bfloat16 nor the copy
// to float32 of PyTorch's products.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bfloat16_products.h"
#include "parallel.h"

#ifdef MATRIX_UNIT

namespace {
namespace weight_gradient {

using namespace bfloat16_products;

struct Gradient {  // of a layer's outputs, with its results, which are contiguous; the bias may be null
    const bf16* numbers;
    float *weight, *bias;
    int64_t columns, stride;
};

struct Product {
    Matrix grad, x;
    int64_t rows;
    float *weight, *bias;
    bool add;        // to the weight's gradient
    bool x_is_left;  // x is the left operand, and grad the right one; otherwise the reverse

    const Matrix& left() const { return x_is_left ? x : grad; }
    const Matrix& right() const { return x_is_left ? grad : x; }
};

constexpr int64_t ROWS = 256;                                              // at a time
constexpr int64_t MOST_RIGHT = 512, MOST_LEFT = 512;                       // columns of a thread at a time
constexpr int64_t PACKED = MOST_RIGHT * ROWS * sizeof(bf16);               // bytes of a packed part per thread
constexpr int64_t WORK = PACKED + MOST_RIGHT * MOST_LEFT * sizeof(float);  // and of sums, as in kernels/linear.py

struct Part {  // of a weight's gradient: columns of the operands
    const Product& product;
    int64_t right, n_right, left, n_left;
};

// Writes 32 x 32 sums, of up to ``n_outputs`` and ``n_inputs``, to the weight's gradient, or adds them.
inline void store_block(const Product& product, const float* sums, int64_t output, int64_t input) {
    const int64_t n_outputs = std::min(PANEL, product.grad.columns - output), n_inputs = std::min(PANEL, product.x.columns - input);
    float* to = product.weight + output * product.x.columns + input;
    for (int64_t o = 0; o < n_outputs; o++, sums += PANEL, to += product.x.columns)
        for (int64_t i = 0; i < n_inputs; i++) to[i] = product.add ? to[i] + sums[i] : sums[i];
}

// Writes the blocks of a part, as compute_part() computes them, to the weight's gradient, or adds them.
inline void store_blocks(const Part& part, const float* block) {
    const Product& product = part.product;
    alignas(64) float transposed[PANEL * PANEL];
    for (int64_t j = 0; j < part.n_right; j += PANEL)
        for (int64_t i = 0; i < part.n_left; i += PANEL, block += PANEL * PANEL) {
            if (!product.x_is_left) {
                store_block(product, block, part.left + i, part.right + j);
                continue;
            }
            for (int64_t r = 0; r < PANEL; r += LANES)
                for (int64_t c = 0; c < PANEL; c += LANES) float_products::transpose_square(block + r * PANEL + c, PANEL, transposed + c * PANEL + r, PANEL);
            store_block(product, transposed, part.right + j, part.left + i);
        }
}

// Computes a part of the weight's gradient; ``left`` is all of the left operand, packed. Adds each of the part's columns of the right one to
// ``sums``, unless null.
inline void compute_part(const Part& part, const uint8_t* left, float* sums, uint8_t* work) {
    const Product& product = part.product;
    const int64_t panels = parts_of(product.left().columns, PANEL);
    float* blocks = (float*)(work + PACKED);
    for (int64_t first = 0; first < product.rows; first += ROWS) {
        const int64_t end = std::min(product.rows, first + ROWS), steps = parts_of(end - first, DEPTH), panel_bytes = steps * PAIR;
        for (int64_t step = 0; step < steps; step++)
            pack_columns(product.right(), first + step * DEPTH, end, part.right, part.n_right, work + step * PAIR, panel_bytes, sums);
        const uint8_t* of_rows = left + first / DEPTH * panels * PAIR + part.left / PANEL * panel_bytes;
        float* block = blocks;
        for (int64_t j = 0; j < part.n_right; j += PANEL)
            for (int64_t i = 0; i < part.n_left; i += PANEL, block += PANEL * PANEL)
                multiply_panels(of_rows + i / PANEL * panel_bytes, work + j / PANEL * panel_bytes, steps, block, PANEL, first > 0);
    }
    store_blocks(part, blocks);
}

// Divides ``n`` columns into equal parts of whole panels, of at most ``most``; returns the columns of a part.
inline int64_t part_of(int64_t n, int64_t most, int64_t least_parts) { return whole(parts_of(n, std::max(parts_of(n, most), least_parts))); }

// Packs all of the left operand; if that is the gradient, also computes the bias' gradient. ``sums`` has room for a float per column and 32 rows.
inline void pack_left(const Product& product, uint8_t* packed, float* sums, int threads) {
    const Matrix& left = product.left();
    const int64_t panels = parts_of(left.columns, PANEL), steps = parts_of(product.rows, DEPTH);
    const bool with_bias = product.bias != nullptr && !product.x_is_left;
    for_each_chunk(steps, threads, [&](int64_t step) {
        const int64_t first = step * DEPTH / ROWS * ROWS, end = std::min(product.rows, first + ROWS), panel_bytes = parts_of(end - first, DEPTH) * PAIR;
        float* sums_of_step = with_bias ? sums + step * panels * PANEL : nullptr;
        if (with_bias) std::fill_n(sums_of_step, panels * PANEL, 0.0f);
        uint8_t* to = packed + (first / DEPTH * panels + step - first / DEPTH) * PAIR;
        pack_transposed(left, step * DEPTH, end, 0, left.columns, to, panel_bytes, sums_of_step);
    });
    if (!with_bias) return;
    std::fill_n(product.bias, left.columns, 0.0f);
    for (int64_t step = 0; step < steps; step++)
        for (int64_t c = 0; c < left.columns; c++) product.bias[c] += sums[step * panels * PANEL + c];
}

// Computes the gradients of ``n`` layers that read x; the division among threads does not affect them. ``work`` has room for all of the left
// operand, its rows and columns rounded up to multiples of 32, for a float per column and 32 rows of it, and for WORK bytes per thread.
inline void compute(const Gradient* gradients, int n, const Matrix& x, int64_t rows, bool add, uint8_t* work, int threads) {
    const bool x_is_left = n > 1 || gradients[0].columns >= x.columns;
    std::vector<Product> products;
    for (const Gradient* each = gradients; each < gradients + n; each++)
        products.push_back({{each->numbers, each->columns, each->stride}, x, rows, each->weight, each->bias, add, x_is_left});
    const int64_t left_columns = products[0].left().columns, pairs = parts_of(rows, DEPTH) * parts_of(left_columns, PANEL);
    const int64_t n_left = part_of(left_columns, MOST_LEFT, 1), least_parts = parts_of(2 * threads, n * parts_of(left_columns, n_left));
    std::vector<Part> parts;
    for (const Product& product : products) {
        const int64_t columns = product.right().columns, n_right = part_of(columns, MOST_RIGHT, least_parts);
        for (int64_t right = 0; right < columns; right += n_right)
            for (int64_t left = 0; left < left_columns; left += n_left)
                parts.push_back({product, right, std::min(n_right, columns - right), left, std::min(n_left, left_columns - left)});
    }
    pack_left(products[0], work, (float*)(work + pairs * PAIR), threads);
    uint8_t* of_threads = work + pairs * (PAIR + PANEL * sizeof(float));
    std::atomic<size_t> next{0};
    for_each_chunk(std::min<int64_t>(threads, parts.size()), threads, [&](int64_t slot) {
        configure_tiles();
        for (size_t i; (i = next.fetch_add(1)) < parts.size();) {
            const Part& part = parts[i];
            float* bias = part.product.bias;
            alignas(64) float sums[MOST_RIGHT] = {};
            const bool with_bias = bias != nullptr && x_is_left && part.left == 0;
            compute_part(part, work, with_bias ? sums : nullptr, of_threads + slot * WORK);
            if (with_bias) std::memcpy(bias + part.right, sums, part.n_right * sizeof(float));
        }
        release_tiles();
    });
}

}  // namespace weight_gradient
}  // namespace

#endif
