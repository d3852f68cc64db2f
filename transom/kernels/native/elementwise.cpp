// Element-wise operations of a training step in bfloat16, forward and backward, each in one pass over memory.
//
// Arithmetic is in float32. Loops are plain, so that the compiler vectorizes them for the machine on which it runs. Rows are divided into
// chunks that do not depend on the number of threads, and partial sums are added in the order of the chunks, so results do not either.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using bf16 = uint16_t;

enum Activation : int { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4 };  // codes as in elementwise.py

inline float wide(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

inline bf16 narrow(float x) {  // to the nearest bfloat16, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (bf16)rounded;  // NaN stays NaN
}

// exp(x) with a relative error below 2^-22 (Cephes, expf) for |x| <= 87; x is clamped to this range, and NaN stays NaN.
inline float exponential(float x) {
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

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

struct ValueAndSlope {
    float value, slope;
};

template <int kind>
inline ValueAndSlope activate(float x) {
    if (kind == RELU) return {x > 0 || x != x ? x : 0.0f, x > 0 ? 1.0f : 0.0f};
    if (kind == SIGMOID) {
        const float s = sigmoid(x);
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
    // GELU: x Phi(x), with erfc as in Abramowitz and Stegun 7.1.26, whose exp(-z^2) is also that of the density
    const float z = std::fabs(x) * 0.70710678f, density = exponential(-z * z), t = 1.0f / (1.0f + 0.3275911f * z);
    const float tail = 0.5f * density * t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float phi = x > 0 ? 1.0f - tail : tail;
    return {x * phi, phi + x * density * 0.39894228f};
}

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the OpenMP library that PyTorch has loaded
Parallel parallel_ = nullptr;

// Runs body(chunk) for each chunk, on up to ``threads`` threads.
template <typename Body>
void for_each_chunk(int64_t n_chunks, int threads, const Body& body) {
    struct Work {
        const Body& body;
        int64_t n_chunks;
        std::atomic<int64_t> next;
    } work{body, n_chunks, {0}};
    const auto run = [](void* data) {
        Work& mine = *(Work*)data;
        for (int64_t i; (i = mine.next.fetch_add(1)) < mine.n_chunks;) mine.body(i);
    };
    const int64_t most = std::min<int64_t>(threads, n_chunks);
    if (parallel_ == nullptr || most < 2) run(&work); else parallel_(run, &work, (unsigned)most, 0);
}

constexpr int64_t CHUNK = 1 << 14;  // elements

template <typename Body>
void for_each_range(int64_t n, int threads, const Body& body) {
    for_each_chunk((n + CHUNK - 1) / CHUNK, threads, [&](int64_t i) { body(i * CHUNK, std::min(n, (i + 1) * CHUNK)); });
}

template <int kind>
void gate_kind(const bf16* x, const bf16* up, bf16* out, int64_t n, int threads) {
    for_each_range(n, threads, [=](int64_t start, int64_t end) {
        if (up == nullptr) {
#pragma omp simd
            for (int64_t i = start; i < end; i++) out[i] = narrow(activate<kind>(wide(x[i])).value);
        } else {
#pragma omp simd
            for (int64_t i = start; i < end; i++) out[i] = narrow(activate<kind>(wide(x[i])).value * wide(up[i]));
        }
    });
}

template <int kind>
void gate_backward_kind(const bf16* grad, const bf16* x, const bf16* up, bf16* dx, bf16* dup, int64_t n, int threads) {
    for_each_range(n, threads, [=](int64_t start, int64_t end) {
        if (up == nullptr) {
#pragma omp simd
            for (int64_t i = start; i < end; i++) dx[i] = narrow(wide(grad[i]) * activate<kind>(wide(x[i])).slope);
        } else {
#pragma omp simd
            for (int64_t i = start; i < end; i++) {
                const float g = wide(grad[i]);
                const ValueAndSlope f = activate<kind>(wide(x[i]));
                dup[i] = narrow(g * f.value);
                dx[i] = narrow(g * wide(up[i]) * f.slope);
            }
        }
    });
}

constexpr int64_t MAX_CHUNKS = 32;  // of rows, each with its own sums of the gradients of gamma and beta

struct Rows {
    int64_t n, width, per_chunk, n_chunks;
    Rows(int64_t rows, int64_t width) : n(rows), width(width) {
        per_chunk = std::max<int64_t>((rows + MAX_CHUNKS - 1) / MAX_CHUNKS, 16);
        n_chunks = (rows + per_chunk - 1) / per_chunk;
    }
};

template <bool centered>
void norm_rows(const bf16* x, const float* gamma, const float* beta, bf16* out, float* mean, float* inverse, Rows rows, float eps, int threads) {
    const int64_t width = rows.width;
    for_each_chunk(rows.n_chunks, threads, [=](int64_t chunk) {
        for (int64_t i = chunk * rows.per_chunk; i < std::min(rows.n, (chunk + 1) * rows.per_chunk); i++) {
            const bf16* from = x + i * width;
            bf16* to = out + i * width;
            float sum = 0, squares = 0;
            if (centered) {
#pragma omp simd reduction(+ : sum)
                for (int64_t j = 0; j < width; j++) sum += wide(from[j]);
            }
            const float m = sum / width;
#pragma omp simd reduction(+ : squares)
            for (int64_t j = 0; j < width; j++) squares += (wide(from[j]) - m) * (wide(from[j]) - m);
            const float r = 1.0f / std::sqrt(squares / width + eps);
            inverse[i] = r;
            if (centered) mean[i] = m;
            if (beta == nullptr) {
#pragma omp simd
                for (int64_t j = 0; j < width; j++) to[j] = narrow((wide(from[j]) - m) * r * gamma[j]);
            } else {
#pragma omp simd
                for (int64_t j = 0; j < width; j++) to[j] = narrow((wide(from[j]) - m) * r * gamma[j] + beta[j]);
            }
        }
    });
}

// dx = (u - mean(u) - n mean(u n)) r with n = (x - mean) r and u = gamma G, without mean(u) for RMS normalization.
template <bool centered>
void norm_backward_rows(const bf16* grad, const bf16* x, const float* gamma, const float* mean, const float* inverse, bf16* dx, float* sums, Rows rows, int threads) {
    const int64_t width = rows.width;
    for_each_chunk(rows.n_chunks, threads, [=](int64_t chunk) {
        float *dgamma = sums + chunk * width, *dbeta = sums + (rows.n_chunks + chunk) * width;
        for (int64_t i = chunk * rows.per_chunk; i < std::min(rows.n, (chunk + 1) * rows.per_chunk); i++) {
            const bf16 *g = grad + i * width, *from = x + i * width;
            bf16* to = dx + i * width;
            const float m = centered ? mean[i] : 0.0f, r = inverse[i];
            float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
            for (int64_t j = 0; j < width; j++) {
                const float each = wide(g[j]), n = (wide(from[j]) - m) * r, u = each * gamma[j];
                product += u * n;
                dgamma[j] += each * n;
                if (centered) {
                    sum += u;
                    dbeta[j] += each;
                }
            }
            const float of_u = sum / width, of_un = product / width;
#pragma omp simd
            for (int64_t j = 0; j < width; j++) {
                const float n = (wide(from[j]) - m) * r;
                to[j] = narrow((wide(g[j]) * gamma[j] - of_u - n * of_un) * r);
            }
        }
    });
}

}  // namespace

extern "C" {

void transom_set_parallel(void* gomp_parallel) { parallel_ = (Parallel)gomp_parallel; }

// f(x), or f(x) * up; up is null for the first.
void transom_gate(int kind, const bf16* x, const bf16* up, bf16* out, int64_t n, int threads) {
    switch (kind) {
        case RELU: return gate_kind<RELU>(x, up, out, n, threads);
        case GELU: return gate_kind<GELU>(x, up, out, n, threads);
        case GELU_TANH: return gate_kind<GELU_TANH>(x, up, out, n, threads);
        case SILU: return gate_kind<SILU>(x, up, out, n, threads);
        case SIGMOID: return gate_kind<SIGMOID>(x, up, out, n, threads);
    }
}

void transom_gate_backward(int kind, const bf16* grad, const bf16* x, const bf16* up, bf16* dx, bf16* dup, int64_t n, int threads) {
    switch (kind) {
        case RELU: return gate_backward_kind<RELU>(grad, x, up, dx, dup, n, threads);
        case GELU: return gate_backward_kind<GELU>(grad, x, up, dx, dup, n, threads);
        case GELU_TANH: return gate_backward_kind<GELU_TANH>(grad, x, up, dx, dup, n, threads);
        case SILU: return gate_backward_kind<SILU>(grad, x, up, dx, dup, n, threads);
        case SIGMOID: return gate_backward_kind<SIGMOID>(grad, x, up, dx, dup, n, threads);
    }
}

// Layer normalization, or RMS normalization if ``mean`` is null; ``inverse`` is 1 / sigma of each row.
void transom_norm(
    const bf16* x, const float* gamma, const float* beta, bf16* out, float* mean, float* inverse, int64_t rows, int64_t width, float eps, int threads) {
    if (mean == nullptr) norm_rows<false>(x, gamma, beta, out, mean, inverse, Rows(rows, width), eps, threads);
    else norm_rows<true>(x, gamma, beta, out, mean, inverse, Rows(rows, width), eps, threads);
}

// Returns 1 if memory is short. ``dbeta`` is not written for RMS normalization.
int transom_norm_backward(
    const bf16* grad, const bf16* x, const float* gamma, const float* mean, const float* inverse, bf16* dx, float* dgamma, float* dbeta, int64_t n_rows,
    int64_t width, int threads) {
    const Rows rows(n_rows, width);
    std::vector<float> sums;
    try {
        sums.assign(2 * rows.n_chunks * width, 0.0f);
    } catch (...) {
        return 1;
    }
    if (mean == nullptr) norm_backward_rows<false>(grad, x, gamma, mean, inverse, dx, sums.data(), rows, threads);
    else norm_backward_rows<true>(grad, x, gamma, mean, inverse, dx, sums.data(), rows, threads);
    for (int of_beta = 0; of_beta < (mean == nullptr ? 1 : 2); of_beta++) {
        float* total = of_beta ? dbeta : dgamma;
        std::fill(total, total + width, 0.0f);
        for (int64_t chunk = 0; chunk < rows.n_chunks; chunk++) {
            const float* part = sums.data() + (of_beta * rows.n_chunks + chunk) * width;
#pragma omp simd
            for (int64_t j = 0; j < width; j++) total[j] += part[j];
        }
    }
    return 0;
}

// Turns the pairs (x_k, x_{k + pairs}) of each vector by an angle; all tensors have the axes (batch, heads, length, d_head), and vectors
// are contiguous. ``backward`` turns by the negative angle. Strides are in elements.
void transom_rotate(
    const bf16* x, const float* cos, const float* sin, bf16* out, const int64_t* shape, const int64_t* x_strides, const int64_t* table_strides,
    const int64_t* out_strides, int64_t pairs, int backward, int threads) {
    const int64_t batch = shape[0], heads = shape[1], length = shape[2], d_head = shape[3];
    const float sign = backward ? -1.0f : 1.0f;
    for_each_chunk(batch * length, threads, [=](int64_t chunk) {
        const int64_t b = chunk / length, t = chunk % length;
        const float *c = cos + b * table_strides[0] + t * table_strides[1], *s = sin + b * table_strides[0] + t * table_strides[1];
        for (int64_t h = 0; h < heads; h++) {
            const bf16* from = x + b * x_strides[0] + h * x_strides[1] + t * x_strides[2];
            bf16* to = out + b * out_strides[0] + h * out_strides[1] + t * out_strides[2];
#pragma omp simd
            for (int64_t k = 0; k < pairs; k++) {
                const float first = wide(from[k]), second = wide(from[k + pairs]), turned = sign * s[k];
                to[k] = narrow(first * c[k] - second * turned);
                to[k + pairs] = narrow(second * c[k] + first * turned);
            }
            std::memcpy(to + 2 * pairs, from + 2 * pairs, (d_head - 2 * pairs) * sizeof(bf16));
        }
    });
}

}  // extern "C"
