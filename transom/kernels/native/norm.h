// Layer and RMS normalization, forward and backward.

#pragma once

#include <cmath>

#include "numbers.h"
#include "rows.h"

namespace {

// Rows are computed by functions of their own: gcc does not vectorize sums in a lambda, whose captured pointers it reads anew.
template <typename T, bool centered>
void norm_row(const T* __restrict x, const float* gamma, const float* beta, T* __restrict out, float* mean, float* inverse, int64_t width, float eps) {
    float sum = 0, squares = 0;
    if (centered) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++) sum += wide(x[j]);
    }
    const float m = sum / width;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < width; j++) squares += (wide(x[j]) - m) * (wide(x[j]) - m);
    const float r = 1.0f / std::sqrt(squares / width + eps);
    *inverse = r;
    if (centered) *mean = m;
    if (beta == nullptr) {
#pragma omp simd
        for (int64_t j = 0; j < width; j++) out[j] = narrow<T>((wide(x[j]) - m) * r * gamma[j]);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < width; j++) out[j] = narrow<T>((wide(x[j]) - m) * r * gamma[j] + beta[j]);
    }
}

// dx = (u - mean(u) - n mean(u n)) r with n = (x - mean) r and u = gamma G, without mean(u) for RMS normalization.
template <typename T, bool centered>
void norm_backward_row(
    const T* __restrict grad, const T* __restrict x, const float* __restrict gamma, float m, float r, T* __restrict dx, float* __restrict dgamma,
    float* __restrict dbeta, int64_t width) {
    float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (int64_t j = 0; j < width; j++) {
        const float u = wide(grad[j]) * gamma[j];
        sum += u;
        product += u * (wide(x[j]) - m);
    }
    const float of_u = centered ? sum / width : 0.0f, of_un = product * r / width;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        const float each = wide(grad[j]), n = (wide(x[j]) - m) * r;
        dgamma[j] += each * n;
        if (centered) dbeta[j] += each;
        dx[j] = narrow<T>((each * gamma[j] - of_u - n * of_un) * r);
    }
}

template <typename T, bool centered>
void norm_backward_rows(const T* grad, const T* x, const float* gamma, const float* mean, const float* inverse, T* dx, float* sums, Rows rows, int threads) {
    const int64_t width = rows.width;
    rows.for_each(threads, [=](int64_t i, int64_t chunk) {
        float *dgamma = sums + chunk * width, *dbeta = centered ? dgamma + rows.n_chunks * width : nullptr;
        norm_backward_row<T, centered>(grad + i * width, x + i * width, gamma, centered ? mean[i] : 0.0f, inverse[i], dx + i * width, dgamma, dbeta, width);
    });
}

template <typename T>
void norm(const T* x, const float* gamma, const float* beta, T* out, float* mean, float* inverse, Rows rows, float eps, int threads) {
    const int64_t width = rows.width;
    const auto each = mean == nullptr ? norm_row<T, false> : norm_row<T, true>;
    rows.for_each(threads, [=](int64_t i, int64_t) {
        each(x + i * width, gamma, beta, out + i * width, mean == nullptr ? nullptr : mean + i, inverse + i, width, eps);
    });
}

template <typename T>
bool norm_backward(
    const T* grad, const T* x, const float* gamma, const float* mean, const float* inverse, T* dx, float* dgamma, float* dbeta, Rows rows, int threads) {
    float* totals[] = {dgamma, dbeta};
    return with_chunk_sums(rows, mean == nullptr ? 1 : 2, totals, [&](float* sums) {
        if (mean == nullptr) norm_backward_rows<T, false>(grad, x, gamma, mean, inverse, dx, sums, rows, threads);
        else norm_backward_rows<T, true>(grad, x, gamma, mean, inverse, dx, sums, rows, threads);
    });
}

}  // namespace
