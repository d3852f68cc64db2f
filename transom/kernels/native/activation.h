// Activations of the feed-forward network, with bias or gate, forward and backward.

#pragma once

#include "numbers.h"
#include "rows.h"

namespace {

enum Activation : int { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4 };  // codes as in elementwise.py

struct ValueAndSlope {
    float value, slope;
};

template <int kind>
ALWAYS_INLINE ValueAndSlope activate(float x) {
    if (kind == RELU) return {x > 0 || x != x ? x : 0.0f, x > 0 ? 1.0f : 0.0f};
    if (kind == SIGMOID) {
        const float s = x != x ? x : sigmoid(x);
        return {s, s * (1.0f - s)};
    }
    if (kind == SILU) {
        const float s = sigmoid(x);
        return {x * s, s + x * s * (1.0f - s)};
    }
    if (kind == GELU_TANH) {  // x sigmoid(2 u), since (1 + tanh(u)) / 2 = sigmoid(2 u)
        const float k = 0.7978845608f, c = 0.044715f;
        const float s = sigmoid(2.0f * k * (x + c * x * x * x));
        return {x * s, s + x * s * (1.0f - s) * 2.0f * k * (1.0f + 3.0f * c * x * x)};
    }
    // GELU: x Phi(x). erfc(z) exp(z^2) is a polynomial in t = 1 / (1 + 3 z / 8), fitted for 0 <= z <= 10 with a relative error below 1.4e-8.
    const float z = std::fabs(x) * 0.70710678f, density = exponential(-z * z), t = 1.0f / (1.0f + 0.375f * z);
    float p = 0.0615381548f;
    p = p * t - 0.28732814f;
    p = p * t + 0.432394804f;
    p = p * t - 0.229409205f;
    p = p * t + 0.273721963f;
    p = p * t + 0.121506048f;
    p = p * t + 0.205313223f;
    p = p * t + 0.210649684f;
    p = p * t + 0.211613475f;
    const float tail = 0.5f * density * t * p, phi = x > 0 ? 1.0f - tail : tail;
    return {x * phi, phi + x * density * 0.39894228f};
}

template <typename T, int kind, bool gated, bool biased>
void activate_row(const T* x, const float* bias, const T* up, T* out, int64_t width) {
    float block[BLOCK];
    for (int64_t start = 0; start < width; start += BLOCK) {
        const int64_t n = std::min(BLOCK, width - start);
        float* y = results_of(out + start, block);
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            const int64_t j = start + k;
            const float value = activate<kind>(biased ? wide(x[j]) + bias[j] : wide(x[j])).value;
            y[k] = gated ? value * wide(up[j]) : value;
        }
        finish_block(out + start, y, n);
    }
}

template <typename T, int kind, bool gated, bool biased, bool summed, bool recompute>
void activate_backward_row(
    const T* grad, const T* x, const float* bias, const T* up, T* dx, T* dup, T* recomputed, float* __restrict dbias, int64_t width) {
    float blocks[3][BLOCK];
    for (int64_t start = 0; start < width; start += BLOCK) {
        const int64_t n = std::min(BLOCK, width - start);
        float *of_x = results_of(dx + start, blocks[0]), *of_up = blocks[1], *hidden = blocks[2];
        if (gated) of_up = results_of(dup + start, of_up);
        if (recompute) hidden = results_of(recomputed + start, hidden);
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            const int64_t j = start + k;
            const float each = wide(grad[j]), by = gated ? wide(up[j]) : 1.0f;
            const ValueAndSlope f = activate<kind>(biased ? wide(x[j]) + bias[j] : wide(x[j]));
            const float slope = each * by * f.slope;
            if (gated) of_up[k] = each * f.value;
            if (recompute) hidden[k] = gated ? f.value * by : f.value;
            if (summed) dbias[j] += slope;
            of_x[k] = slope;
        }
        finish_block(dx + start, of_x, n);
        if (gated) finish_block(dup + start, of_up, n);
        if (recompute) finish_block(recomputed + start, hidden, n);
    }
}

template <typename T>
struct ActivationTensors {  // whose rows begin ``stride`` elements after one another; dx may be grad
    const T *grad, *x;
    const float* bias;
    const T* up;
    T *dx, *dup, *recomputed;
    int64_t stride;
};

template <typename T, int kind>
void activate_rows(const T* x, const float* bias, const T* up, T* out, Rows rows, int64_t stride, int threads) {
    const int64_t width = rows.width;
    const auto each = up != nullptr     ? activate_row<T, kind, true, false>
                      : bias != nullptr ? activate_row<T, kind, false, true>
                                        : activate_row<T, kind, false, false>;
    rows.for_each(threads, [=](int64_t i, int64_t) { each(x + i * stride, bias, up == nullptr ? nullptr : up + i * stride, out + i * stride, width); });
}

template <typename T, int kind>
void activate_backward_rows(const ActivationTensors<T>& of, float* sums, Rows rows, int threads) {
    const int64_t width = rows.width;
    const bool gated = of.up != nullptr, recompute = of.recomputed != nullptr;
    const auto each = gated && recompute   ? activate_backward_row<T, kind, true, false, false, true>
                      : gated              ? activate_backward_row<T, kind, true, false, false, false>
                      : of.bias != nullptr ? activate_backward_row<T, kind, false, true, true, true>
                      : sums != nullptr    ? activate_backward_row<T, kind, false, false, true, true>
                      : recompute          ? activate_backward_row<T, kind, false, false, false, true>
                                           : activate_backward_row<T, kind, false, false, false, false>;
    rows.for_each(threads, [=](int64_t i, int64_t chunk) {
        const auto at = [=](auto* tensor) { return tensor == nullptr ? nullptr : tensor + i * of.stride; };
        each(at(of.grad), at(of.x), of.bias, at(of.up), at(of.dx), at(of.dup), at(of.recomputed), sums == nullptr ? nullptr : sums + chunk * width, width);
    });
}

template <typename T>
void activate(int kind, const T* x, const float* bias, const T* up, T* out, Rows rows, int64_t stride, int threads) {
    switch (kind) {
        case RELU: return activate_rows<T, RELU>(x, bias, up, out, rows, stride, threads);
        case GELU: return activate_rows<T, GELU>(x, bias, up, out, rows, stride, threads);
        case GELU_TANH: return activate_rows<T, GELU_TANH>(x, bias, up, out, rows, stride, threads);
        case SILU: return activate_rows<T, SILU>(x, bias, up, out, rows, stride, threads);
        case SIGMOID: return activate_rows<T, SIGMOID>(x, bias, up, out, rows, stride, threads);
    }
}

template <typename T>
bool activate_backward(int kind, const ActivationTensors<T>& of, float* dbias, Rows rows, int threads) {
    return with_chunk_sums(rows, dbias == nullptr ? 0 : 1, &dbias, [&](float* sums) {
        switch (kind) {
            case RELU: return activate_backward_rows<T, RELU>(of, sums, rows, threads);
            case GELU: return activate_backward_rows<T, GELU>(of, sums, rows, threads);
            case GELU_TANH: return activate_backward_rows<T, GELU_TANH>(of, sums, rows, threads);
            case SILU: return activate_backward_rows<T, SILU>(of, sums, rows, threads);
            case SIGMOID: return activate_backward_rows<T, SIGMOID>(of, sums, rows, threads);
        }
    });
}

}  // namespace
