// Products of bfloat16 matrices on the matrix unit, by panels of tiles: the packing of operands, and the product of two panels.
//
// A panel holds 32 rows of the left operand, or 32 columns of the right one: a pair of tiles for each 32 numbers of the inner axis. A tile of the
// left operand has one row per line, with 32 numbers; one of the right operand has a pair of inner numbers of 16 columns in each line.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_products.h"
#include "matrix_unit.h"
#include "numbers.h"

#ifdef MATRIX_UNIT

namespace {
namespace bfloat16_products {

struct Matrix {  // of bfloat16 numbers
    const bf16* numbers;
    int64_t columns, stride;
};

constexpr int64_t PANEL = 32, DEPTH = 32;  // rows or columns of a panel, and inner numbers of a pair of tiles
constexpr int64_t PAIR = 2 * TILE;         // bytes

inline int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
inline int64_t whole(int64_t n) { return parts_of(n, PANEL) * PANEL; }

// Loads up to 32 numbers of a row; those that are missing, or all of a null row, are 0.
inline __m512i load_row(const bf16* row, int64_t n) {
    if (row == nullptr) return _mm512_setzero_si512();
    if (n >= PANEL) return _mm512_loadu_si512(row);
    alignas(64) bf16 numbers[PANEL] = {};
    std::memcpy(numbers, row, n * sizeof(bf16));
    return _mm512_load_si512(numbers);
}

// Writes two tiles of 32 rows and up to 32 columns from ``column``, two rows per line; adds each column of the 32 rows to ``sums``, unless null.
inline void pack_rows(const Matrix& from, int64_t first, int64_t end, int64_t column, uint8_t* to, float* sums) {
    alignas(64) static constexpr uint16_t places[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    const __m512i low = _mm512_load_si512(places[0]), high = _mm512_load_si512(places[1]), upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const int64_t n = from.columns - column;
    for (int64_t line = 0; line < LANES; line++) {
        const int64_t row = first + 2 * line;
        const bf16* at = from.numbers + row * from.stride + column;
        const __m512i even = load_row(row < end ? at : nullptr, n), odd = load_row(row + 1 < end ? at + from.stride : nullptr, n);
        const __m512i pairs[2] = {_mm512_permutex2var_epi16(even, low, odd), _mm512_permutex2var_epi16(even, high, odd)};
        for (int half = 0; half < 2; half++) {
            _mm512_storeu_si512(to + half * TILE + line * 64, pairs[half]);
            if (sums == nullptr) continue;
            const __m512 of_even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs[half], 16));
            total[half] = _mm512_add_ps(total[half], _mm512_add_ps(of_even, _mm512_castsi512_ps(_mm512_and_si512(pairs[half], upper))));
        }
    }
    if (sums == nullptr) return;
    for (int64_t half = 0; half < 2; half++) _mm512_storeu_ps(sums + half * LANES, _mm512_add_ps(total[half], _mm512_loadu_ps(sums + half * LANES)));
}

// Packs 32 rows of ``n`` columns as a right operand: a pair of tiles for each panel of 32 columns, ``stride`` bytes after one another. Adds each
// column of the rows to ``sums``, unless null.
inline void pack_columns(const Matrix& from, int64_t first, int64_t end, int64_t column, int64_t n, uint8_t* to, int64_t stride, float* sums = nullptr) {
    for (int64_t panel = 0; panel < n; panel += PANEL, to += stride)
        pack_rows(from, first, end, column + panel, to, sums == nullptr ? nullptr : sums + panel);
}

// Adds each of 32 columns of 32 rows to ``sums``.
inline void add_columns(const bf16* rows, int64_t stride, float* sums) {
    __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + LANES);
    for (int64_t row = 0; row < PANEL; row++, rows += stride) {
        low = _mm512_add_ps(low, wide(rows));
        high = _mm512_add_ps(high, wide(rows + LANES));
    }
    _mm512_storeu_ps(sums, low);
    _mm512_storeu_ps(sums + LANES, high);
}

// Writes the transpose of 32 rows of 32 numbers. Quarters of rows are loaded so that all shuffles stay within quarters of vectors. The unpacks
// of 32 and 64 bits have full masks, because gcc 12 warns of an uninitialized value in those without a mask.
inline void transpose_block(const bf16* rows, int64_t stride, uint8_t* to) {
    for (int64_t quarter = 0; quarter < 4; quarter++, rows += 8, to += 8 * 64) {
        __m512i a[8], b[8];
        for (int64_t i = 0; i < 8; i++) {  // rows i, i + 8, i + 16 and i + 24
            const bf16* at = rows + i * stride;
            a[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)at));
            a[i] = _mm512_mask_broadcast_i32x4(a[i], 0x00f0, _mm_loadu_si128((const __m128i*)(at + 8 * stride)));
            a[i] = _mm512_mask_broadcast_i32x4(a[i], 0x0f00, _mm_loadu_si128((const __m128i*)(at + 16 * stride)));
            a[i] = _mm512_mask_broadcast_i32x4(a[i], 0xf000, _mm_loadu_si128((const __m128i*)(at + 24 * stride)));
        }
        for (int64_t i = 0; i < 8; i += 2) {
            b[i] = _mm512_unpacklo_epi16(a[i], a[i + 1]);      // columns 0 to 3
            b[i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 1]);  // columns 4 to 7
        }
        for (int64_t half = 0; half < 2; half++)
            for (int64_t i = 0; i < 2; i++) {  // pairs of columns, from rows 4i to 4i + 3 of each eight
                a[4 * half + i] = _mm512_maskz_unpacklo_epi32(0xffff, b[4 * i + half], b[4 * i + half + 2]);
                a[4 * half + i + 2] = _mm512_maskz_unpackhi_epi32(0xffff, b[4 * i + half], b[4 * i + half + 2]);
            }
        for (int64_t pair = 0; pair < 4; pair++) {
            const __m512i first = a[2 * pair], second = a[2 * pair + 1];
            _mm512_storeu_si512(to + 2 * pair * 64, _mm512_maskz_unpacklo_epi64(0xff, first, second));
            _mm512_storeu_si512(to + (2 * pair + 1) * 64, _mm512_maskz_unpackhi_epi64(0xff, first, second));
        }
    }
}

// Packs the transpose of 32 rows of ``n`` columns as a left operand. Adds each column of the rows to ``sums``, unless null.
inline void pack_transposed(const Matrix& from, int64_t first, int64_t end, int64_t column, int64_t n, uint8_t* to, int64_t stride, float* sums) {
    alignas(64) bf16 whole_block[PANEL * PANEL];
    for (int64_t panel = 0; panel < n; panel += PANEL, to += stride) {
        const bf16* rows = from.numbers + first * from.stride + column + panel;
        int64_t apart = from.stride;
        if (end - first < PANEL || from.columns - column - panel < PANEL) {
            for (int64_t i = 0; i < PANEL; i++)
                _mm512_store_si512(whole_block + i * PANEL, load_row(first + i < end ? rows + i * apart : nullptr, from.columns - column - panel));
            rows = whole_block, apart = PANEL;
        }
        transpose_block(rows, apart, to);
        if (sums != nullptr) add_columns(rows, apart, sums + panel);
    }
}

// Packs up to 32 rows as a left operand: a panel, with a pair of tiles for each 32 columns.
inline void pack_panel(const Matrix& from, int64_t first, int64_t end, uint8_t* to) {
    for (int64_t column = 0; column < from.columns; column += DEPTH, to += PAIR)
        for (int64_t i = 0; i < PANEL; i++)
            _mm512_storeu_si512(to + i * 64, load_row(first + i < end ? from.numbers + (first + i) * from.stride + column : nullptr, from.columns - column));
}

// Packs the transpose of up to 32 rows as a right operand: a panel, with a pair of tiles for each 32 columns.
inline void pack_panel_transposed(const Matrix& from, int64_t first, int64_t end, uint8_t* to) {
    alignas(64) uint8_t rows[PAIR];
    for (int64_t column = 0; column < from.columns; column += DEPTH, to += PAIR) {
        for (int64_t i = 0; i < PANEL; i++)
            _mm512_store_si512(rows + i * 64, load_row(first + i < end ? from.numbers + (first + i) * from.stride + column : nullptr, from.columns - column));
        for (int half = 0; half < 2; half++) float_products::transpose_square((const float*)(rows + half * TILE), LANES, (float*)(to + half * TILE), LANES);
    }
}

// Multiplies two panels: 32 x 32 results, which are stored at ``to``, or added to what is there.
inline void multiply_panels(const uint8_t* a, const uint8_t* b, int64_t steps, float* to, int64_t stride, bool add) {
    const size_t bytes = stride * sizeof(float);
    if (add) {
        _tile_loadd(0, to, bytes);
        _tile_loadd(1, to + LANES, bytes);
        _tile_loadd(2, to + LANES * stride, bytes);
        _tile_loadd(3, to + LANES * stride + LANES, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t step = 0; step < steps; step++, a += PAIR, b += PAIR) {
        touch_tile(a, 64);
        _tile_loadd(4, a, 64);
        touch_tile(b, 64);
        _tile_loadd(6, b, 64);
        touch_tile(a + TILE, 64);
        _tile_loadd(5, a + TILE, 64);
        touch_tile(b + TILE, 64);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to, bytes);
    _tile_stored(1, to + LANES, bytes);
    _tile_stored(2, to + LANES * stride, bytes);
    _tile_stored(3, to + LANES * stride + LANES, bytes);
}

}  // namespace bfloat16_products
}  // namespace

#endif
