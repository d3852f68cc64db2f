// Element-wise operations of a training step in bfloat16 or float32, forward and backward, each in one pass over memory.
//
// Arithmetic is in float32 (T is the type in memory). Loops are plain, so that the compiler vectorizes them for the machine on which it runs. Rows are divided into
// chunks that do not depend on the number of threads, and partial sums are added in the order of the chunks, so results do not either.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))  // gcc does not vectorize loops with calls

namespace {

using bf16 = uint16_t;

enum Activation : int { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4 };  // codes as in elementwise.py

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

struct ValueAndSlope {
    float value, slope;
};

template <int kind>
ALWAYS_INLINE ValueAndSlope activate(float x) {
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

constexpr int64_t CHUNK = 1 << 14;  // elements

template <typename Body>
void for_each_range(int64_t n, int threads, const Body& body) {
    for_each_chunk((n + CHUNK - 1) / CHUNK, threads, [&](int64_t i) { body(i * CHUNK, std::min(n, (i + 1) * CHUNK)); });
}

template <typename T, int kind>
void gate_kind(const T* x, const T* up, T* out, int64_t n, int threads) {
    for_each_range(n, threads, [=](int64_t start, int64_t end) {
        if (up == nullptr) {
#pragma omp simd
            for (int64_t i = start; i < end; i++) out[i] = narrow<T>(activate<kind>(wide(x[i])).value);
        } else {
#pragma omp simd
            for (int64_t i = start; i < end; i++) out[i] = narrow<T>(activate<kind>(wide(x[i])).value * wide(up[i]));
        }
    });
}

template <typename T, int kind>
void gate_backward_kind(const T* grad, const T* x, const T* up, T* dx, T* dup, int64_t n, int threads) {
    for_each_range(n, threads, [=](int64_t start, int64_t end) {
        if (up == nullptr) {
#pragma omp simd
            for (int64_t i = start; i < end; i++) dx[i] = narrow<T>(wide(grad[i]) * activate<kind>(wide(x[i])).slope);
        } else {
#pragma omp simd
            for (int64_t i = start; i < end; i++) {
                const float g = wide(grad[i]);
                const ValueAndSlope f = activate<kind>(wide(x[i]));
                dup[i] = narrow<T>(g * f.value);
                dx[i] = narrow<T>(g * wide(up[i]) * f.slope);
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

template <typename T, bool centered>
void norm_rows(const T* x, const float* gamma, const float* beta, T* out, float* mean, float* inverse, Rows rows, float eps, int threads) {
    const int64_t width = rows.width;
    for_each_chunk(rows.n_chunks, threads, [=](int64_t chunk) {
        for (int64_t i = chunk * rows.per_chunk; i < std::min(rows.n, (chunk + 1) * rows.per_chunk); i++)
            norm_row<T, centered>(x + i * width, gamma, beta, out + i * width, centered ? mean + i : nullptr, inverse + i, width, eps);
    });
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
    for_each_chunk(rows.n_chunks, threads, [=](int64_t chunk) {
        float *dgamma = sums + chunk * width, *dbeta = sums + (rows.n_chunks + chunk) * width;
        for (int64_t i = chunk * rows.per_chunk; i < std::min(rows.n, (chunk + 1) * rows.per_chunk); i++) {
            const float m = centered ? mean[i] : 0.0f;
            norm_backward_row<T, centered>(grad + i * width, x + i * width, gamma, m, inverse[i], dx + i * width, dgamma, dbeta, width);
        }
    });
}

template <typename T>
void rotate_vectors(
    const T* x, const float* cos, const float* sin, T* out, const int64_t* shape, const int64_t* x_strides, const int64_t* table_strides,
    const int64_t* out_strides, int64_t pairs, bool backward, int threads) {
    const int64_t batch = shape[0], heads = shape[1], length = shape[2], d_head = shape[3];
    const float sign = backward ? -1.0f : 1.0f;
    for_each_chunk(batch * length, threads, [=](int64_t chunk) {
        const int64_t b = chunk / length, t = chunk % length;
        const float *c = cos + b * table_strides[0] + t * table_strides[1], *s = sin + b * table_strides[0] + t * table_strides[1];
        for (int64_t h = 0; h < heads; h++) {
            const T* from = x + b * x_strides[0] + h * x_strides[1] + t * x_strides[2];
            T* to = out + b * out_strides[0] + h * out_strides[1] + t * out_strides[2];
#pragma omp simd
            for (int64_t k = 0; k < pairs; k++) {
                const float first = wide(from[k]), second = wide(from[k + pairs]), turned = sign * s[k];
                to[k] = narrow<T>(first * c[k] - second * turned);
                to[k + pairs] = narrow<T>(second * c[k] + first * turned);
            }
            std::memcpy(to + 2 * pairs, from + 2 * pairs, (d_head - 2 * pairs) * sizeof(T));
        }
    });
}

constexpr int64_t MAX_SOFTMAX_KEYS = 4096;  // as in elementwise.py: a row of numerators is kept on the stack

// Returns how many keys are left without the zeros at the end, in steps of 16: the others are skipped, half of all in a causal mask.
template <typename X>
int64_t visible_end(const X* row, int64_t keys) {
    constexpr int64_t STEP = 16, WORDS = STEP * sizeof(X) / 8;
    for (; keys >= STEP; keys -= STEP) {
        uint64_t words[WORDS], any = 0;
        std::memcpy(words, row + keys - STEP, sizeof(words));
        for (int64_t i = 0; i < WORDS; i++) any |= words[i];
        if (any != 0) break;
    }
    return keys;
}

// exp(x) for x <= 0, and 0 where it would be smaller than 2e-38, so that minus infinity gives 0.
ALWAYS_INLINE float numerator(float x) { return x < -87.0f ? 0.0f : exponential(x); }

inline float largest_of(const float* x, int64_t n) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < n; j++) largest = x[j] > largest ? x[j] : largest;
    return largest;
}

// Replaces x by exp(x - largest), and returns the sum, in two loops: gcc does not vectorize one that both stores and sums.
inline float exponentiate(float* x, int64_t n, float largest) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) x[j] = numerator(x[j] - largest);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) sum += x[j];
    return sum;
}

template <typename T>
bool softmax_row(T* __restrict s, const uint8_t* __restrict mask, int64_t keys) {
    float scores[MAX_SOFTMAX_KEYS + 16];
    const int64_t end = mask == nullptr ? keys : visible_end(mask, keys);
    bool visible = mask == nullptr;
    for (int64_t j = end - 1; j >= 0 && !visible; j--) visible = mask[j];
    if (!visible) {
        std::fill(s, s + keys, narrow<T>(1.0f / keys));
        return false;
    }
    const int64_t padded = (end + 15) / 16 * 16;  // whole vectors
    for (int64_t j = end; j < padded; j++) scores[j] = -INFINITY;
    if (mask == nullptr) {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) scores[j] = wide(s[j]);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) scores[j] = mask[j] ? wide(s[j]) : -INFINITY;
    }
    const float inverse = 1.0f / exponentiate(scores, padded, largest_of(scores, padded));
#pragma omp simd
    for (int64_t j = 0; j < end; j++) s[j] = narrow<T>(scores[j] * inverse);
    std::memset((void*)(s + end), 0, (keys - end) * sizeof(T));
    return true;
}

template <typename T>
int64_t softmax_rows(T* s, const uint8_t* mask, const int64_t* shape, const int64_t* mask_strides, int threads) {
    const int64_t heads = shape[1], queries = shape[2], keys = shape[3], rows = shape[0] * heads * queries;
    const int64_t per_chunk = std::max<int64_t>(1, CHUNK / keys);
    std::atomic<int64_t> n_empty{0};
    for_each_chunk((rows + per_chunk - 1) / per_chunk, threads, [&](int64_t chunk) {
        for (int64_t i = chunk * per_chunk; i < std::min(rows, (chunk + 1) * per_chunk); i++) {
            const int64_t b = i / (heads * queries), h = i / queries % heads, q = i % queries;
            const uint8_t* of_row = mask == nullptr ? nullptr : mask + b * mask_strides[0] + h * mask_strides[1] + q * mask_strides[2];
            if (!softmax_row(s + i * keys, of_row, keys)) n_empty.fetch_add(1);
        }
    });
    return n_empty;
}

// dS = P (dP - sum(P dP))
template <typename T>
void softmax_backward_row(T* __restrict grad, const T* __restrict p, int64_t keys) {
    const int64_t end = visible_end(p, keys);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < end; j++) sum += wide(grad[j]) * wide(p[j]);
#pragma omp simd
    for (int64_t j = 0; j < end; j++) grad[j] = narrow<T>((wide(grad[j]) - sum) * wide(p[j]));
    std::memset((void*)(grad + end), 0, (keys - end) * sizeof(T));
}

template <typename T>
void softmax_backward_rows(T* grad, const T* p, int64_t rows, int64_t keys, int threads) {
    const int64_t per_chunk = std::max<int64_t>(1, CHUNK / keys);
    for_each_chunk((rows + per_chunk - 1) / per_chunk, threads, [=](int64_t chunk) {
        for (int64_t i = chunk * per_chunk; i < std::min(rows, (chunk + 1) * per_chunk); i++) softmax_backward_row(grad + i * keys, p + i * keys, keys);
    });
}

// 64-bit words of keyed dropout masks (layers/dropout.py): outputs of SplitMix64.
ALWAYS_INLINE uint64_t dropout_word(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

struct Words {  // as WordRange in layers/dropout.py
    const int64_t* seeds;
    int64_t n_seeds, first_token, n_tokens, first_word, n_skipped, width, n_words;
};

// Random is the signed type of one element's random number: int8_t, or int32_t for small probabilities.
template <typename T, typename Random>
void dropout_row(const T* __restrict x, const T* __restrict residual, T* __restrict out, uint64_t seed, uint64_t first, const Words& words, Random kept_below, float scale) {
    constexpr int64_t PER_WORD = 8 / sizeof(Random), BLOCK = 64;
    uint64_t block[BLOCK];
    Random random[BLOCK * PER_WORD];
    for (int64_t word = 0; word < words.n_words; word += BLOCK) {
        const int64_t n = std::min(BLOCK, words.n_words - word);
        for (int64_t k = 0; k < n; k++) block[k] = dropout_word(seed, first + (uint64_t)(word + k));
        std::memcpy(random, block, sizeof(block));
        const int64_t origin = word * PER_WORD - words.n_skipped, start = std::max<int64_t>(origin, 0);
        const int64_t length = std::min(words.width, origin + n * PER_WORD) - start;
        const Random* numbers = random + (start - origin);
        const T *from = x + start, *added = residual == nullptr ? nullptr : residual + start;
        T* to = out + start;
        if (added == nullptr) {
#pragma omp simd
            for (int64_t j = 0; j < length; j++) to[j] = narrow<T>(wide(from[j]) * (numbers[j] < kept_below ? scale : 0.0f));
        } else {
#pragma omp simd
            for (int64_t j = 0; j < length; j++) to[j] = narrow<T>(wide(added[j]) + wide(from[j]) * (numbers[j] < kept_below ? scale : 0.0f));
        }
    }
}

template <typename T, typename Random>
void dropout_rows(const T* x, const T* residual, T* out, const Words& words, Random kept_below, float scale, int threads) {
    const int64_t rows = words.n_seeds * words.n_tokens, width = words.width, per_chunk = std::max<int64_t>(1, CHUNK / width);
    for_each_chunk((rows + per_chunk - 1) / per_chunk, threads, [=](int64_t chunk) {
        for (int64_t i = chunk * per_chunk; i < std::min(rows, (chunk + 1) * per_chunk); i++) {
            const uint64_t first = ((uint64_t)(words.first_token + i % words.n_tokens) << 32) + (uint64_t)words.first_word;
            const T* added = residual == nullptr ? nullptr : residual + i * width;
            dropout_row(x + i * width, added, out + i * width, (uint64_t)words.seeds[i / words.n_tokens], first, words, kept_below, scale);
        }
    });
}

template <typename T>
void dropout(const T* x, const T* residual, T* out, const int64_t* seeds, const int64_t* sizes, int64_t kept_below, int bytes, float scale, int threads) {
    const Words words{seeds, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]};
    if (bytes == 1) dropout_rows<T, int8_t>(x, residual, out, words, (int8_t)kept_below, scale, threads);
    else dropout_rows<T, int32_t>(x, residual, out, words, (int32_t)kept_below, scale, threads);
}

template <typename T>
void gate(int kind, const T* x, const T* up, T* out, int64_t n, int threads) {
    switch (kind) {
        case RELU: return gate_kind<T, RELU>(x, up, out, n, threads);
        case GELU: return gate_kind<T, GELU>(x, up, out, n, threads);
        case GELU_TANH: return gate_kind<T, GELU_TANH>(x, up, out, n, threads);
        case SILU: return gate_kind<T, SILU>(x, up, out, n, threads);
        case SIGMOID: return gate_kind<T, SIGMOID>(x, up, out, n, threads);
    }
}

template <typename T>
void gate_backward(int kind, const T* grad, const T* x, const T* up, T* dx, T* dup, int64_t n, int threads) {
    switch (kind) {
        case RELU: return gate_backward_kind<T, RELU>(grad, x, up, dx, dup, n, threads);
        case GELU: return gate_backward_kind<T, GELU>(grad, x, up, dx, dup, n, threads);
        case GELU_TANH: return gate_backward_kind<T, GELU_TANH>(grad, x, up, dx, dup, n, threads);
        case SILU: return gate_backward_kind<T, SILU>(grad, x, up, dx, dup, n, threads);
        case SIGMOID: return gate_backward_kind<T, SIGMOID>(grad, x, up, dx, dup, n, threads);
    }
}

template <typename T>
void norm(const T* x, const float* gamma, const float* beta, T* out, float* mean, float* inverse, Rows rows, float eps, int threads) {
    if (mean == nullptr) norm_rows<T, false>(x, gamma, beta, out, mean, inverse, rows, eps, threads);
    else norm_rows<T, true>(x, gamma, beta, out, mean, inverse, rows, eps, threads);
}

template <typename T>
int norm_backward(
    const T* grad, const T* x, const float* gamma, const float* mean, const float* inverse, T* dx, float* dgamma, float* dbeta, Rows rows, int threads) {
    const int64_t width = rows.width;
    std::vector<float> sums;
    try {
        sums.assign(2 * rows.n_chunks * width, 0.0f);
    } catch (...) {
        return 1;
    }
    if (mean == nullptr) norm_backward_rows<T, false>(grad, x, gamma, mean, inverse, dx, sums.data(), rows, threads);
    else norm_backward_rows<T, true>(grad, x, gamma, mean, inverse, dx, sums.data(), rows, threads);
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

#include "attention.h"

}  // namespace

extern "C" {

// ``work`` has ``floats`` floats per thread.
void transom_attention(
    const AttentionShape* shape, const float* q, const float* k, const float* v, const uint8_t* mask, float* z, Normalizer* normalizers, float* work,
    int64_t floats, int threads) {
    for_each_head(*shape, work, floats, threads, [=](int64_t b, int64_t kv, float* own) {
        attend(*shape, q, k, v, mask, z, normalizers, b, kv, own);
    });
}

void transom_attention_backward(
    const AttentionShape* shape, const float* q, const float* k, const float* v, const uint8_t* mask, const Normalizer* normalizers,
    const float* grad, float* dq, float* dk, float* dv, float* work, int64_t floats, int threads) {
    const Gradients gradients{grad, dq, dk, dv};
    for_each_head(*shape, work, floats, threads, [=](int64_t b, int64_t kv, float* own) {
        attend_backward(*shape, q, k, v, mask, normalizers, gradients, b, kv, own);
    });
}

// gate: f(x), or f(x) * up; ``up`` is null for the first.
// norm: layer normalization, or RMS normalization if ``mean`` is null; ``inverse`` is 1 / sigma of each row.
// norm_backward: returns 1 if memory is short; ``dbeta`` is not written for RMS normalization.
// rotate: turns the pairs (x_k, x_{k + pairs}) of each vector by an angle; all tensors have the axes (batch, heads, length, d_head), and vectors
//   are contiguous. ``backward`` turns by the negative angle. Strides are in elements.
// dropout: x mask, or residual + x mask; ``sizes`` are the fields of WordRange after the seeds, the number of seeds first. ``bytes`` is the
//   size of an element's random number.
// softmax: in place, over the keys that ``mask`` does not hide, null for all; returns the number of rows without any, which get equal weights.
#define OPERATIONS(T, name)                                                                                                                              \
    void transom_gate_##name(int kind, const T* x, const T* up, T* out, int64_t n, int threads) { gate(kind, x, up, out, n, threads); }                  \
    void transom_gate_backward_##name(int kind, const T* grad, const T* x, const T* up, T* dx, T* dup, int64_t n, int threads) {                         \
        gate_backward(kind, grad, x, up, dx, dup, n, threads);                                                                                           \
    }                                                                                                                                                    \
    void transom_norm_##name(                                                                                                                            \
        const T* x, const float* gamma, const float* beta, T* out, float* mean, float* inverse, int64_t rows, int64_t width, float eps, int threads) {   \
        norm(x, gamma, beta, out, mean, inverse, Rows(rows, width), eps, threads);                                                                       \
    }                                                                                                                                                    \
    int transom_norm_backward_##name(                                                                                                                    \
        const T* grad, const T* x, const float* gamma, const float* mean, const float* inverse, T* dx, float* dgamma, float* dbeta, int64_t rows,        \
        int64_t width, int threads) {                                                                                                                    \
        return norm_backward(grad, x, gamma, mean, inverse, dx, dgamma, dbeta, Rows(rows, width), threads);                                              \
    }                                                                                                                                                    \
    void transom_rotate_##name(                                                                                                                          \
        const T* x, const float* cos, const float* sin, T* out, const int64_t* shape, const int64_t* x_strides, const int64_t* table_strides,            \
        const int64_t* out_strides, int64_t pairs, int backward, int threads) {                                                                          \
        rotate_vectors(x, cos, sin, out, shape, x_strides, table_strides, out_strides, pairs, backward != 0, threads);                                   \
    }                                                                                                                                                    \
    void transom_dropout_##name(                                                                                                                         \
        const T* x, const T* residual, T* out, const int64_t* seeds, const int64_t* sizes, int64_t kept_below, int bytes, float scale, int threads) {    \
        dropout(x, residual, out, seeds, sizes, kept_below, bytes, scale, threads);                                                                      \
    }                                                                                                                                                    \
    int64_t transom_softmax_##name(T* scores, const uint8_t* mask, const int64_t* shape, const int64_t* mask_strides, int threads) {                     \
        return softmax_rows(scores, mask, shape, mask_strides, threads);                                                                                 \
    }                                                                                                                                                    \
    void transom_softmax_backward_##name(T* grad, const T* p, int64_t rows, int64_t keys, int threads) {                                                 \
        softmax_backward_rows(grad, p, rows, keys, threads);                                                                                             \
    }

OPERATIONS(bf16, bfloat16)
OPERATIONS(float, float32)

}  // extern "C"
