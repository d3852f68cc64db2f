// Numbers in memory, float32 or bfloat16, and functions of float32 numbers that the compiler vectorizes.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))  // gcc does not vectorize loops with calls

namespace {

using bf16 = uint16_t;

ALWAYS_INLINE float wide(float x) { return x; }

ALWAYS_INLINE float wide(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

#ifdef __AVX512F__
inline __m512 wide(const bf16* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}
#endif

template <typename T>
ALWAYS_INLINE T narrow(float x);

template <>
ALWAYS_INLINE float narrow<float>(float x) { return x; }

template <>
ALWAYS_INLINE bf16 narrow<bf16>(float x) {  // to the nearest bfloat16, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (bf16)rounded;  // NaN stays NaN
}

constexpr int64_t BLOCK = 64;  // numbers of a row whose results are computed in float32 before they are written as bfloat16

// Returns where the results of a block are computed: in ``block``, or in their place if that is in float32.
ALWAYS_INLINE float* results_of(float* place, float*) { return place; }
ALWAYS_INLINE float* results_of(bf16*, float* block) { return block; }

// Writes the results of a block to their place, where possible by an instruction that compilers do not choose for loops; it turns numbers below 1.2e-38 into 0.
ALWAYS_INLINE void finish_block(float*, const float*, int64_t) {}
ALWAYS_INLINE void finish_block(bf16* place, const float* block, int64_t n) {
#ifdef __AVX512BF16__
    for (int64_t k = 0; k < n; k += 16) {
        const __mmask16 there = n - k >= 16 ? 0xffff : (__mmask16)((1 << (n - k)) - 1);
        _mm256_mask_storeu_epi16(place + k, there, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, block + k)));
    }
#else
    for (int64_t k = 0; k < n; k++) place[k] = narrow<bf16>(block[k]);
#endif
}

// exp(x) with a relative error below 2^-22 (Cephes, expf) for |x| <= 87. Other numbers give nonsense, and NaN stays NaN.
ALWAYS_INLINE float exponential_within_range(float x) {
    const float SHIFT = 12582912.0f + 127.0f;  // 1.5 * 2^23 + 127: the lowest bits of n + SHIFT are those of the exponent of 2^n
    const float shifted = x * 1.44269504088896341f + SHIFT, n = shifted - SHIFT;
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    bits <<= 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return p * scale;
}

// exp(x), where x is clamped to [-87, 87].
ALWAYS_INLINE float exponential(float x) { return exponential_within_range(x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x); }

// 1 / (1 + exp(-x)), where x is clamped to [-87, 87]; of NaN it is a number, too. Integers are compared: with floats, gcc computes both branches of the clamp
// for all numbers, and products with the smallest sigmoid are denormal, which takes ten times as long.
ALWAYS_INLINE float sigmoid(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    const int32_t size = bits & 0x7fffffff, limit = 0x42ae0000;  // 87.0f
    const int32_t clamped = (size < limit ? size : limit) | (~bits & INT32_MIN);
    float negative;
    std::memcpy(&negative, &clamped, 4);
    return 1.0f / (1.0f + exponential_within_range(negative));
}

}  // namespace
