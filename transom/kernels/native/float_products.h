// Products of float32 matrices that lie in memory as they are, without packing, and transposes.

#pragma once

#include <algorithm>
#include <cstdint>

#include "matrix_unit.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {
namespace float_products {

typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t TILE_ROWS = 6, TILE_VECTORS = 4;  // 24 accumulators of 32 registers

// A tile of C = alpha A B, or C += alpha A B: element (i, c) of A is a[i * row + c * column], and rows of B are contiguous.
template <int rows, int vectors>
inline void multiply_tile(
    const float* a, int64_t row, int64_t column, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t inner, float alpha, bool add) {
    Vector sums[rows][vectors] = {};
    for (int64_t k = 0; k < inner; k++) {
        Vector of_b[vectors];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) of_b[j] = *(const Vector*)(b + k * ldb + j * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const float of_a = a[i * row + k * column];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] += of_a * of_b[j];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            Vector* to = (Vector*)(c + i * ldc + j * LANES);
            *to = add ? *to + alpha * sums[i][j] : alpha * sums[i][j];
        }
    }
}

template <int vectors>
void multiply_columns(
    const float* a, int64_t row, int64_t column, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t inner, float alpha, bool add) {
    int64_t i = 0;
    for (; i + TILE_ROWS <= m; i += TILE_ROWS) multiply_tile<TILE_ROWS, vectors>(a + i * row, row, column, b, ldb, c + i * ldc, ldc, inner, alpha, add);
    a += i * row;
    c += i * ldc;
    switch (m - i) {
        case 1: return multiply_tile<1, vectors>(a, row, column, b, ldb, c, ldc, inner, alpha, add);
        case 2: return multiply_tile<2, vectors>(a, row, column, b, ldb, c, ldc, inner, alpha, add);
        case 3: return multiply_tile<3, vectors>(a, row, column, b, ldb, c, ldc, inner, alpha, add);
        case 4: return multiply_tile<4, vectors>(a, row, column, b, ldb, c, ldc, inner, alpha, add);
        case 5: return multiply_tile<5, vectors>(a, row, column, b, ldb, c, ldc, inner, alpha, add);
    }
}

// C (m x n) = alpha A B, or C += alpha A B; n is a multiple of 16.
inline void multiply(
    const float* a, int64_t row, int64_t column, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t inner, float alpha, bool add) {
    int64_t j = 0;
    for (; j + TILE_VECTORS * LANES <= n; j += TILE_VECTORS * LANES) multiply_columns<TILE_VECTORS>(a, row, column, b + j, ldb, c + j, ldc, m, inner, alpha, add);
    switch ((n - j) / LANES) {
        case 1: return multiply_columns<1>(a, row, column, b + j, ldb, c + j, ldc, m, inner, alpha, add);
        case 2: return multiply_columns<2>(a, row, column, b + j, ldb, c + j, ldc, m, inner, alpha, add);
        case 3: return multiply_columns<3>(a, row, column, b + j, ldb, c + j, ldc, m, inner, alpha, add);
    }
}

#ifdef __AVX512F__
// Writes the transpose of 16 x 16 numbers: exchanges blocks of 8 x 8 lanes, then of 4 x 4, 2 x 2 and single lanes.
inline void transpose_square(const float* x, int64_t stride, float* out, int64_t row) {
    __m512 rows[LANES];
    for (int i = 0; i < LANES; i++) rows[i] = _mm512_loadu_ps(x + i * stride);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
    for (int size = 8; size > 0; size /= 2) {
        const __mmask16 second = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(size));
        const __m512i from_first = _mm512_mask_add_epi32(lane, second, lane, _mm512_set1_epi32(16 - size));
        const __m512i from_second = _mm512_mask_mov_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(size)), second, _mm512_add_epi32(lane, _mm512_set1_epi32(16)));
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (i & size) continue;
            const __m512 a = rows[i], b = rows[i + size];
            rows[i] = _mm512_permutex2var_ps(a, from_first, b);
            rows[i + size] = _mm512_permutex2var_ps(a, from_second, b);
        }
    }
    for (int i = 0; i < LANES; i++) _mm512_storeu_ps(out + i * row, rows[i]);
}
#endif

// Writes the transpose of vectors x (n x width) to out (width x row); columns from n to row are 0, and width is a multiple of 16.
inline void transpose(const float* x, int64_t stride, int64_t n, int64_t width, float* __restrict out, int64_t row) {
    int64_t start = 0;
#ifdef __AVX512F__
    for (; start + LANES <= n; start += LANES)
        for (int64_t c = 0; c < width; c += LANES) transpose_square(x + start * stride + c, stride, out + c * row + start, row);
#endif
    for (; start < row; start += LANES)
        for (int64_t c = 0; c < width; c++)
            for (int64_t j = start; j < start + LANES; j++) out[c * row + j] = j < n ? x[j * stride + c] : 0.0f;
}

}  // namespace float_products
}  // namespace
