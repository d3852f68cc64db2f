// From logits to log probabilities, and to the next token of greedy search, with AVX-512.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "products.h"

namespace {

inline float largest_of(__m512 x) {  // gcc 12 warns of _mm512_reduce_max_ps
    alignas(64) float lanes[LANES];
    _mm512_store_ps(lanes, x);
    return *std::max_element(lanes, lanes + LANES);
}

// Return log(sum(exp(z))); NaN if one of z is NaN, or if the largest is infinite.
float log_sum_exp(const float* z, int width) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    __mmask16 is_nan = 0;
    for (int i = 0; i < width; i += LANES) {
        const __m512 v = part(z, i, width);
        most = _mm512_mask_max_ps(most, first(width - i), most, v);
        is_nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    }
    const float largest = largest_of(most);
    const __m512 shift = _mm512_set1_ps(largest);
    const float sum = sum_of(width, [&](int i) {
        return _mm512_maskz_mov_ps(first(width - i), exponential(_mm512_sub_ps(part(z, i, width), shift)));
    });
    return is_nan || !std::isfinite(largest) ? NAN : largest + std::log(sum);
}

// Replace logits z by log p = z - log(sum(exp(z))).
void apply_log_softmax(float* z, int width) {
    const __m512 log_sum = _mm512_set1_ps(log_sum_exp(z, width));
    for (int i = 0; i < width; i += LANES) masked_store(z + i, first(width - i), _mm512_sub_ps(part(z, i, width), log_sum));
}

// Return the first place of the largest z - shift; if all are NaN, the first whose z is not minus infinity.
int64_t place_of_largest(const float* z, int width, float shift) {
    const __m512 by = _mm512_set1_ps(shift);
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < width; i += LANES) most = _mm512_mask_max_ps(most, first(width - i), most, _mm512_sub_ps(part(z, i, width), by));
    const __m512 largest = _mm512_set1_ps(largest_of(most));
    for (int i = 0; i < width; i += LANES)
        if (const __mmask16 found = _mm512_mask_cmp_ps_mask(first(width - i), _mm512_sub_ps(part(z, i, width), by), largest, _CMP_EQ_OQ))
            return i + __builtin_ctz(found);
    const float* other = std::find_if(z, z + width, [](float v) { return v != -INFINITY; });
    return other < z + width ? other - z : 0;
}

}  // namespace

// Greedy search (search/greedy.py): the most probable token follows, until it is the end token. native_structs.py mirrors the layout.
extern "C" struct Greedy {
    int64_t* tokens;            // (rows of the search, width): the start token of each row, then those that were found
    float* log_p;               // of all tokens of a row
    const int64_t* min_length;  // of each row: tokens before the end token
    const int64_t* max_length;  // of each row, end token included
    const int64_t* suppressed;  // tokens that never follow
    int32_t* rows;              // for each row of the state, its row of the search
    int32_t width, n_tokens;    // n_tokens: tokens of each row so far, start token excluded
    int32_t n_suppressed;
    int64_t end;

    int64_t* last(int row) const { return tokens + size_t(rows[row]) * width + n_tokens; }

    // Append the next token of a row of the state, given its logits, which are overwritten.
    void append(int row, float* z, int vocabulary) const {
        const int64_t index = rows[row];
        const float log_sum = log_sum_exp(z, vocabulary);
        for (int i = 0; i < n_suppressed; i++) z[suppressed[i]] = -INFINITY;
        if (n_tokens < min_length[index]) z[end] = -INFINITY;
        const int64_t token = n_tokens + 1 < max_length[index] ? place_of_largest(z, vocabulary, log_sum) : end;
        log_p[index] += z[token] - log_sum;
        last(row)[1] = token;
    }
};
