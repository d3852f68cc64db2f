// Attention of one query to the cached keys and values of a head, in float32 or bfloat16, one value after its key.

#pragma once

#include <cmath>
#include <type_traits>

#include "products.h"

namespace {

// Sums of the lanes of 16 vectors.
inline __m512 lane_sums(const __m512* x) {
    __m512 pairs[8], fours[4];
    for (int i = 0; i < 8; i++) pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const auto join = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); };
    return join(join(fours[0], fours[1]), join(fours[2], fours[3]));
}

// Two vectors of cached channels: 32 successive ones in float32; the even and the odd ones of 32 in bfloat16, as one instruction each widens them.
struct Pair {
    __m512 a, b;
};

inline Pair pair_at(const float* x) { return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + LANES)}; }

inline Pair pair_at(const uint16_t* x) {
    const __m512i bits = _mm512_loadu_si512(x), upper = _mm512_set1_epi32(int32_t(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), _mm512_castsi512_ps(_mm512_and_si512(bits, upper))};
}

// Order 32 channels as in a pair, or a pair as in memory.
template <typename Number>
inline Pair as_pair(Pair x) {
    if (sizeof(Number) == sizeof(float)) return x;
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {_mm512_permutex2var_ps(x.a, even, x.b), _mm512_permutex2var_ps(x.a, odd, x.b)};
}

template <typename Number>
inline Pair from_pair(Pair x) {
    if (sizeof(Number) == sizeof(float)) return x;
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    return {_mm512_permutex2var_ps(x.a, low, x.b), _mm512_permutex2var_ps(x.a, high, x.b)};
}

inline void store(float* x, Pair pair) {
    _mm512_storeu_ps(x, pair.a);
    _mm512_storeu_ps(x + LANES, pair.b);
}

// Fetch ``width`` cached numbers.
template <typename Number>
inline void prefetch(const Number* x, int width) {
    for (int c = 0; c < width; c += 64 / int(sizeof(Number))) _mm_prefetch((const char*)(x + c), _MM_HINT_T0);
}

// Lanes of q K^T for one key, whose sum is the score; q has the order of pairs.
template <typename Number>
inline __m512 score_lanes(const float* q, const Number* key, int d_head) {
    __m512 a = _mm512_setzero_ps(), b = _mm512_setzero_ps();
    int c = 0;
    for (; c + 2 * LANES <= d_head; c += 2 * LANES) {
        const Pair pair = pair_at(key + c);
        a = _mm512_fmadd_ps(_mm512_loadu_ps(q + c), pair.a, a);
        b = _mm512_fmadd_ps(_mm512_loadu_ps(q + c + LANES), pair.b, b);
    }
    if (c < d_head) a = _mm512_fmadd_ps(_mm512_loadu_ps(q + c), wide(key + c), a);
    return _mm512_add_ps(a, b);
}

// z = share sum_i weights_i value_i in 32 N channels, or in 16 if N is 0; also fetches ``fetched`` numbers, ``ahead`` after each value.
template <int N, typename ValueAt>
inline void add_values(int n_keys, const float* weights, ValueAt value_at, size_t ahead, int fetched, __m512 share, float* z) {
    using Number = std::remove_const_t<std::remove_pointer_t<decltype(value_at(0))>>;
    Pair sums[std::max(N, 1)] = {};
    for (int i = 0; i < n_keys; i++) {
        const Number* value = value_at(i);
        prefetch(value + ahead, fetched);
        const __m512 weight = _mm512_set1_ps(weights[i]);
        if (N == 0) sums[0].a = _mm512_fmadd_ps(weight, wide(value), sums[0].a);
        for (int c = 0; c < N; c++) {
            const Pair pair = pair_at(value + 2 * c * LANES);
            sums[c] = {_mm512_fmadd_ps(weight, pair.a, sums[c].a), _mm512_fmadd_ps(weight, pair.b, sums[c].b)};
        }
    }
    if (N == 0) _mm512_storeu_ps(z, _mm512_mul_ps(sums[0].a, share));
    for (int c = 0; c < N; c++) store(z + 2 * c * LANES, from_pair<Number>({_mm512_mul_ps(sums[c].a, share), _mm512_mul_ps(sums[c].b, share)}));
}

constexpr int NEAR_KEYS = 48, FAR_KEYS = 512;  // up to which the second next head is fetched, and the next one

// Attention of one query: z = softmax(q K^T / sqrt(d_head)) V with one head of keys and values, changing q. Key i is at key_at(i), its value
// after it, and that of the next head ``next_head`` numbers later. ``scores`` has room for 16 more than the keys.
template <typename KeyAt>
void attend(int d_head, int d_value, size_t next_head, float* q, int n_keys, KeyAt key_at, float* scores, float* z) {
    using Number = std::remove_const_t<std::remove_pointer_t<decltype(key_at(0))>>;
    if (n_keys == 0) {  // no key gives 0, never NaN
        for (int c = 0; c < d_value; c++) z[c] = 0.0f;
        return;
    }
    const __m512 over = _mm512_set1_ps(1.0f / std::sqrt(float(d_head))), lowest = _mm512_set1_ps(-INFINITY);
    const size_t ahead = n_keys <= NEAR_KEYS ? 2 * next_head : next_head;
    const int fetched_key = n_keys <= FAR_KEYS ? d_head : 0;
    __m512 most = lowest;
    for (int c = 0; c + 2 * LANES <= d_head; c += 2 * LANES) store(q + c, as_pair<Number>(pair_at(q + c)));
    for (int i = 0; i < n_keys; i += LANES) {
        __m512 sums[LANES];
        const int here = std::min(LANES, n_keys - i);
        for (int k = 0; k < here; k++) {
            const Number* key = key_at(i + k);
            prefetch(key + ahead, fetched_key);
            sums[k] = score_lanes(q, key, d_head);
        }
        for (int k = here; k < LANES; k++) sums[k] = _mm512_setzero_ps();
        const __m512 score = _mm512_mask_mul_ps(lowest, first(here), lane_sums(sums), over);
        _mm512_storeu_ps(scores + i, score);
        most = _mm512_max_ps(most, score);
    }
    const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < n_keys; i += LANES) {
        const __m512 weight = _mm512_maskz_mov_ps(first(n_keys - i), exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), largest)));
        _mm512_storeu_ps(scores + i, weight);
        total = _mm512_add_ps(total, weight);
    }
    const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    for (int c = 0, here; c < d_value; c += here) {
        const int left = d_value - c;
        here = left >= 4 * LANES ? 4 * LANES : left >= 2 * LANES ? 2 * LANES : LANES;
        const auto value_at = [&](int i) { return key_at(i) + d_head + c; };
        const int fetched = n_keys <= FAR_KEYS ? here : 0;
        switch (here / LANES) {
            case 1: add_values<0>(n_keys, scores, value_at, ahead, fetched, share, z + c); break;
            case 2: add_values<1>(n_keys, scores, value_at, ahead, fetched, share, z + c); break;
            default: add_values<2>(n_keys, scores, value_at, ahead, fetched, share, z + c);
        }
    }
}

}  // namespace
