// Element-wise operations of a training step in bfloat16 or float32, forward and backward, each in one pass over memory.
//
// Arithmetic is in float32 (T is the type in memory). Loops are plain, so that the compiler vectorizes them for the machine on which it runs. Rows are divided into
// chunks that do not depend on the number of threads, and partial sums are added in the order of the chunks, so results do not either.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "activation.h"
#include "bfloat16_products.h"
#include "float_products.h"
#include "norm.h"
#include "numbers.h"
#include "parallel.h"
#include "rows.h"
#include "weight_gradient.h"

namespace {

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
    std::atomic<int64_t> n_empty{0};
    Rows(rows, keys).for_each(threads, [&](int64_t i, int64_t) {
        const int64_t b = i / (heads * queries), h = i / queries % heads, q = i % queries;
        const uint8_t* of_row = mask == nullptr ? nullptr : mask + b * mask_strides[0] + h * mask_strides[1] + q * mask_strides[2];
        if (!softmax_row(s + i * keys, of_row, keys)) n_empty.fetch_add(1);
    });
    return n_empty;
}

// Replaces a row of logits by their softmax; returns log(sum(exp(logits))). In bfloat16 each exponential is computed twice, not rounded twice.
template <typename T>
float softmax_of_logits(T* __restrict z, int64_t width) {
    float largest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < width; j++) largest = wide(z[j]) > largest ? wide(z[j]) : largest;
    if constexpr (sizeof(T) == sizeof(float)) {
        sum = exponentiate(z, width, largest);
        const float inverse = 1.0f / sum;
#pragma omp simd
        for (int64_t j = 0; j < width; j++) z[j] *= inverse;
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++) sum += numerator(wide(z[j]) - largest);
        const float inverse = 1.0f / sum;
        float block[BLOCK];
        for (int64_t start = 0; start < width; start += BLOCK) {
            const int64_t n = std::min(BLOCK, width - start);
#pragma omp simd
            for (int64_t k = 0; k < n; k++) block[k] = numerator(wide(z[start + k]) - largest) * inverse;
            finish_block(z + start, block, n);
        }
    }
    return std::log(sum) + largest;
}

// Runs body(row) for each row of logits. The rows are divided as in a decoding step of many rows, whose thread may still have them in its caches.
template <typename Body>
void for_each_row_of_parts(int64_t rows, int threads, const Body& body) {
    run_on_threads(threads, rows, [&](int64_t index, int64_t n) {
        for (int64_t i = rows * index / n; i < rows * (index + 1) / n; i++) body(i);
    });
}

// Replaces a row of logits by log p = z - log(sum(exp(z))).
inline void log_softmax_row(float* __restrict z, int64_t width) {
    const float largest = largest_of(z, width);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < width; j++) sum += numerator(z[j] - largest);
    const float log_sum = std::log(sum) + largest;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) z[j] -= log_sum;
}

// Returns the index of the first of the largest numbers; NaN is larger than all others, as in PyTorch. Only one part is searched for the index.
inline int64_t index_of_largest(const float* x, int64_t n) {
    constexpr int64_t PART = 1024;
    float most = -INFINITY;
    int64_t place = 0;
    for (int64_t start = 0; start < n; start += PART) {
        const int64_t end = std::min(n, start + PART);
        float largest = -INFINITY;
        int has_nan = 0;
#pragma omp simd reduction(max : largest) reduction(| : has_nan)
        for (int64_t j = start; j < end; j++) {
            largest = x[j] > largest ? x[j] : largest;
            has_nan |= x[j] != x[j];
        }
        if (has_nan) return std::find_if(x + start, x + end, [](float v) { return v != v; }) - x;
        if (largest > most) most = largest, place = start;
    }
    return std::find(x + place, x + n, most) - x;
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
    Rows(rows, keys).for_each(threads, [=](int64_t i, int64_t) { softmax_backward_row(grad + i * keys, p + i * keys, keys); });
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
    constexpr int64_t PER_WORD = 8 / sizeof(Random), MOST_WORDS = 64;  // at a time
    uint64_t block[MOST_WORDS];
    Random random[MOST_WORDS * PER_WORD];
    for (int64_t word = 0; word < words.n_words; word += MOST_WORDS) {
        const int64_t n = std::min(MOST_WORDS, words.n_words - word);
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
    const int64_t width = words.width;
    Rows(words.n_seeds * words.n_tokens, width).for_each(threads, [=](int64_t i, int64_t) {
        const uint64_t first = ((uint64_t)(words.first_token + i % words.n_tokens) << 32) + (uint64_t)words.first_word;
        const T* added = residual == nullptr ? nullptr : residual + i * width;
        dropout_row(x + i * width, added, out + i * width, (uint64_t)words.seeds[i / words.n_tokens], first, words, kept_below, scale);
    });
}

template <typename T>
void dropout(const T* x, const T* residual, T* out, const int64_t* seeds, const int64_t* sizes, int64_t kept_below, int bytes, float scale, int threads) {
    const Words words{seeds, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]};
    if (bytes == 1) dropout_rows<T, int8_t>(x, residual, out, words, (int8_t)kept_below, scale, threads);
    else dropout_rows<T, int32_t>(x, residual, out, words, (int32_t)kept_below, scale, threads);
}

#include "attention.h"
#include "bfloat16_attention.h"

}  // namespace

extern "C" {

// ``work`` has ``floats`` floats per thread.
void transom_attention_float32(
    const AttentionShape* shape, const float* q, const float* k, const float* v, const uint8_t* mask, float* z, Normalizer* normalizers, float* work,
    int64_t floats, int threads) {
    for_each_head(*shape, work, floats, threads, [=](const Head& head) { attend(*shape, q, k, v, mask, z, normalizers, head); });
}

void transom_attention_backward_float32(
    const AttentionShape* shape, const float* q, const float* k, const float* v, const uint8_t* mask, const Normalizer* normalizers,
    const float* grad, float* dq, float* dk, float* dv, float* work, int64_t floats, int threads) {
    const Gradients gradients{grad, dq, dk, dv};
    for_each_head(*shape, work, floats, threads, [=](const Head& head) { attend_backward(*shape, q, k, v, mask, normalizers, gradients, head); });
}

int transom_can_use_matrix_unit() {
#ifdef MATRIX_UNIT
    return request_matrix_unit();
#else
    return 0;
#endif
}

#ifdef MATRIX_UNIT

// For each of ``n`` layers that read x: dW = G^T X, or dW += G^T X with ``add``, and db = the sum of G over the rows unless it is null.
void transom_weight_gradients(
    const weight_gradient::Gradient* gradients, int n, const bf16* x, int add, int64_t rows, int64_t inputs, int64_t x_stride, uint8_t* work,
    int threads) {
    weight_gradient::compute(gradients, n, {x, inputs, x_stride}, rows, add != 0, work, threads);
}

// Bytes of ``work`` per thread of the two functions below.
int64_t transom_attention_bytes(const AttentionShape* shape, int backward) { return bfloat16_attention::Work(*shape, backward != 0, nullptr).bytes; }

void transom_attention_bfloat16(
    const AttentionShape* shape, const bf16* q, const bf16* k, const bf16* v, const uint8_t* mask, bf16* z, Normalizer* normalizers, float* work,
    int64_t floats, int threads) {
    for_each_head(*shape, work, floats, threads, [=](const Head& head) {
        configure_tiles();
        bfloat16_attention::attend(*shape, q, k, v, mask, z, normalizers, head);
        release_tiles();
    });
}

void transom_attention_backward_bfloat16(
    const AttentionShape* shape, const bf16* q, const bf16* k, const bf16* v, const uint8_t* mask, const Normalizer* normalizers, const bf16* grad,
    bf16* dq, bf16* dk, bf16* dv, float* work, int64_t floats, int threads) {
    const bfloat16_attention::Gradients gradients{grad, dq, dk, dv};
    for_each_head(*shape, work, floats, threads, [=](const Head& head) {
        configure_tiles();
        bfloat16_attention::attend_backward(*shape, q, k, v, mask, normalizers, gradients, head);
        release_tiles();
    });
}

#endif

void transom_log_softmax(float* z, int64_t rows, int64_t width, int threads) {
    for_each_row_of_parts(rows, threads, [=](int64_t i) { log_softmax_row(z + i * width, width); });
}

void transom_largest(const float* x, float* values, int64_t* indices, int64_t rows, int64_t width, int threads) {
    for_each_row_of_parts(rows, threads, [=](int64_t i) {
        indices[i] = index_of_largest(x + i * width, width);
        values[i] = x[i * width + indices[i]];
    });
}

// activate: f(x), f(x + bias) or f(x) * up; ``bias`` and ``up`` may be null. Rows of all tensors begin ``stride`` elements after one another.
// activate_backward: writes dx, which may be ``grad``; dup if ``up`` is given; dbias unless it is null, which it is not if ``bias`` is given; and the result of the forward pass
//   to ``recomputed`` unless that is null. Returns 1 if memory is short.
// norm: layer normalization, or RMS normalization if ``mean`` is null; ``inverse`` is 1 / sigma of each row.
// norm_backward: returns 1 if memory is short; ``dbeta`` is not written for RMS normalization.
// rotate: turns the pairs (x_k, x_{k + pairs}) of each vector by an angle; all tensors have the axes (batch, heads, length, d_head), and vectors
//   are contiguous. ``backward`` turns by the negative angle. Strides are in elements.
// dropout: x mask, or residual + x mask; ``sizes`` are the fields of WordRange after the seeds, the number of seeds first. ``bytes`` is the
//   size of an element's random number.
// logits_softmax: in place; ``log_sums`` are the logarithms of the sums of exp(logits).
// softmax: in place, over the keys that ``mask`` does not hide, null for all; returns the number of rows without any, which get equal weights.
#define OPERATIONS(T, name)                                                                                                                              \
    void transom_activate_##name(                                                                                                                        \
        int kind, const T* x, const float* bias, const T* up, T* out, int64_t rows, int64_t width, int64_t stride, int threads) {                        \
        activate(kind, x, bias, up, out, Rows(rows, width), stride, threads);                                                                            \
    }                                                                                                                                                    \
    int transom_activate_backward_##name(                                                                                                                \
        int kind, const T* grad, const T* x, const float* bias, const T* up, T* dx, T* dup, T* recomputed, float* dbias, int64_t rows, int64_t width,    \
        int64_t stride, int threads) {                                                                                                                   \
        const ActivationTensors<T> tensors{grad, x, bias, up, dx, dup, recomputed, stride};                                                              \
        return activate_backward(kind, tensors, dbias, Rows::in_few_chunks(rows, width), threads) ? 0 : 1;                                               \
    }                                                                                                                                                    \
    void transom_norm_##name(                                                                                                                            \
        const T* x, const float* gamma, const float* beta, T* out, float* mean, float* inverse, int64_t rows, int64_t width, float eps, int threads) {   \
        norm(x, gamma, beta, out, mean, inverse, Rows(rows, width), eps, threads);                                                                       \
    }                                                                                                                                                    \
    int transom_norm_backward_##name(                                                                                                                    \
        const T* grad, const T* x, const float* gamma, const float* mean, const float* inverse, T* dx, float* dgamma, float* dbeta, int64_t rows,        \
        int64_t width, int threads) {                                                                                                                    \
        return norm_backward(grad, x, gamma, mean, inverse, dx, dgamma, dbeta, Rows::in_few_chunks(rows, width), threads) ? 0 : 1;                       \
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
    void transom_logits_softmax_##name(T* z, float* log_sums, int64_t rows, int64_t width, int threads) {                                                \
        Rows(rows, width).for_each(threads, [=](int64_t i, int64_t) { log_sums[i] = softmax_of_logits(z + i * width, width); });                         \
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
