// Numbers in memory, float32 or bfloat16, and functions of float32 numbers that the compiler vectorizes.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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

// exp(x) with a relative error below 2^-22 (Cephes, expf) for |x| <= 87; x is clamped to this range, and NaN stays NaN.
ALWAYS_INLINE float exponential(float x) {
    const float clamped = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
    const float n = std::nearbyint(clamped * 1.44269504088896341f);
    const float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float scale;
    std::memcpy(&scale, &bits, 4);
    return p * scale;
}

ALWAYS_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace
