// Linear maps of few rows: quantization of the inputs, weights in tiles, and their product.
//
// A tile is the operand of a matrix unit: 16 lines of 64 bytes. A tile of rows has one line per row, with its next 64 bytes of inputs (16
// in float32, 32 in bfloat16, 64 in int8). A tile of weights has the same inputs of 16 outputs, four bytes per output in each line, as the
// instructions require: byte 4 o + b of line l is byte 4 l + b of output o's inputs. The tiles of 16 outputs, over all inputs, form a block
// and are contiguous.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <vector>

#include "matrix_unit.h"
#include "numbers.h"

// native_structs.py mirrors this layout.
extern "C" struct Linear {
    const uint8_t* weight;  // tiles: blocks of 16 outputs, each over all inputs
    const float* scale;     // per output, int8 only
    const float* bias;      // per output, or null
    int32_t in_features, out_features;
    int32_t activation;          // code of the activation
};

namespace {


enum Kind : int { BFLOAT16 = 0, INT8 = 1, FLOAT32 = 2 };  // codes as in packed_linear.py
enum Activation : int { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4, SIGMOID = 5, SQUARED_RELU = 6 };  // codes as in packed_linear.py

inline int up_to(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int bytes_of(Kind kind) { return kind == INT8 ? 1 : kind == BFLOAT16 ? 2 : 4; }
inline int inner_of_tile(Kind kind) { return 64 / bytes_of(kind); }

inline __m512 wide(const uint16_t* x, __mmask16 mask) {
    alignas(32) uint16_t numbers[LANES] = {};
    if (mask == 0xffff) return wide(x);
    for (int i = 0; mask >> i & 1; i++) numbers[i] = x[i];
    return wide(numbers);
}

inline __m512 wide(const float* x) { return _mm512_loadu_ps(x); }

inline __m256i narrow(__m512 x) {  // to the nearest bfloat16, ties to even
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

inline __mmask16 first(int n) { return n >= LANES ? 0xffff : n > 0 ? (1u << n) - 1 : 0; }

#ifdef SANITIZED  // by ``make sanitize``

// Sanitizers do not instrument masked instructions, so each lane is moved separately.
inline __m512 masked_load(__mmask16 mask, const float* x) {
    alignas(64) float lanes[LANES] = {};
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1) lanes[i] = x[i];
    return _mm512_load_ps(lanes);
}

inline void masked_store(float* to, __mmask16 mask, __m512 x) {
    alignas(64) float lanes[LANES];
    _mm512_store_ps(lanes, x);
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1) to[i] = lanes[i];
}

#else

inline __m512 masked_load(__mmask16 mask, const float* x) { return _mm512_maskz_loadu_ps(mask, x); }
inline void masked_store(float* to, __mmask16 mask, __m512 x) { _mm512_mask_storeu_ps(to, mask, x); }

#endif

inline __m512 part(const float* x, int i, int width) { return i + LANES <= width ? _mm512_loadu_ps(x + i) : masked_load(first(width - i), x + i); }

// Sum the vectors at(0), at(16), ... of a row, in four sums that do not wait for one another.
template <typename At>
inline float sum_of(int width, At at) {
    __m512 sums[4] = {};
    int i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int k = 0; k < 4; k++) sums[k] = _mm512_add_ps(sums[k], at(i + k * LANES));
    for (; i < width; i += LANES) sums[0] = _mm512_add_ps(sums[0], at(i));
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

inline __m512 polynomial(__m512 x, std::initializer_list<float> coefficients) {  // Horner's rule, highest power first
    __m512 sum = _mm512_setzero_ps();
    for (float c : coefficients) sum = _mm512_fmadd_ps(sum, x, _mm512_set1_ps(c));
    return sum;
}

inline __m512 exponential(__m512 x) {  // 2^(x log2 e), with a polynomial for the fractional part
    __m512 t = _mm512_mul_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(1.44269504f));
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_mul_ps(_mm512_sub_ps(t, n), _mm512_set1_ps(0.693147181f));
    return _mm512_scalef_ps(polynomial(f, {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}), n);
}

inline __m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

inline __m512 normal_distribution(__m512 x) {  // P(X <= x), with the error function of Abramowitz & Stegun 7.1.26; error at most 1e-7
    const __m512 one = _mm512_set1_ps(1.0f), size = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.707106781f));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f), one));
    const __m512 p = polynomial(t, {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f});
    const __m512 tail = _mm512_mul_ps(_mm512_set1_ps(0.5f), _mm512_mul_ps(p, exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(size, size)))));
    return _mm512_mask_sub_ps(tail, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ), one, tail);
}

// GELU for results that are quantized: an odd polynomial for P(X <= x) - 1/2, with an error of GELU below 7e-5 for |x| < 12.
inline __m512 coarse_gelu(__m512 x) {
    const __m512 near = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-4.2f)), _mm512_set1_ps(4.2f));
    const __m512 p = polynomial(_mm512_mul_ps(near, near), {
        4.92381622e-11f, -4.79565987e-09f, 2.07247567e-07f, -5.28956343e-06f, 8.98359358e-05f, -0.00108645891f, 0.0097409403f, -0.0662220791f, 0.398834586f});
    return _mm512_mul_ps(x, _mm512_fmadd_ps(near, p, _mm512_set1_ps(0.5f)));
}

inline __m512 activated(int activation, __m512 x) {
    switch (activation) {
        case RELU: return _mm512_max_ps(x, _mm512_setzero_ps());
        case GELU: return _mm512_mul_ps(x, normal_distribution(x));
        case GELU_TANH: {  // x (1 + tanh y) / 2 = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3)
            const __m512 y = _mm512_mul_ps(x, polynomial(_mm512_mul_ps(x, x), {0.044715f, 1.0f}));
            return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(y, _mm512_set1_ps(1.595769122f))));
        }
        case SILU: return _mm512_mul_ps(x, sigmoid(x));
        case SIGMOID: return sigmoid(x);
        case SQUARED_RELU: return _mm512_mul_ps(x, _mm512_max_ps(x, _mm512_setzero_ps()));
        default: return x;
    }
}

// Quantization scale: max |x| / 127.
float scale_of(const float* x, int width) {
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < width; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(part(x, i, width)));
    return _mm512_reduce_max_ps(most) / 127.0f;
}

// Write x, starting at index ``from``, as ``bytes`` bytes of numbers of a kind, with zeros after its end; return the sum of int8 numbers.
inline int32_t shorten(Kind kind, const float* x, int from, int width, float scale, uint8_t* to, int bytes) {
    const __m512 factor = _mm512_set1_ps(scale > 0 ? 1.0f / scale : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int at = 0; at < bytes; at += LANES * bytes_of(kind), from += LANES) {
        const __m512 v = part(x, from, width);
        if (kind == INT8) {
            const __m512i numbers = _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(v, factor)), _mm512_set1_epi32(-128));  // NaN is -2^31
            _mm_storeu_si128((__m128i*)(to + at), _mm512_cvtsepi32_epi8(numbers));
            sum = _mm512_add_epi32(sum, numbers);
        } else if (kind == BFLOAT16)
            _mm256_storeu_si256((__m256i*)(to + at), narrow(v));
        else
            _mm512_storeu_ps(to + at, v);
    }
    return _mm512_reduce_add_epi32(sum);
}

#ifdef MATRIX_UNIT
constexpr bool HAS_MATRIX_UNIT = true;
#else
constexpr bool HAS_MATRIX_UNIT = false;
#endif

// The instruction multiplies unsigned by signed numbers. Without a matrix unit, weights are stored as w + 128, and 128 times the sum of a row's
// numbers is subtracted from each of its products.
constexpr uint8_t INT8_OFFSET = HAS_MATRIX_UNIT ? 0 : 128;

// Memory whose vectors of 64 bytes lie in one line of the caches each.
template <typename T>
struct LineAllocator {
    using value_type = T;
    LineAllocator() = default;
    template <typename U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t n) { return (T*)::operator new(n * sizeof(T), std::align_val_t(64)); }
    void deallocate(T* x, size_t) { ::operator delete(x, std::align_val_t(64)); }
    friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
    friend bool operator!=(const LineAllocator&, const LineAllocator&) { return false; }
};

template <typename T>
using Buffer = std::vector<T, LineAllocator<T>>;

// Rows as a product reads them: numbers of a kind; in int8 with one scale per row and what is to be subtracted from its products.
struct Rows {
    Buffer<uint8_t> bytes;
    Buffer<float> scale;
    Buffer<int32_t> total;
    int stride = 0;

    // Allocate memory for rows of at most ``width`` numbers; nothing else allocates, so that threads that quantize rows never throw.
    void reserve(Kind kind, int rows, int width) {
        const size_t n_rows = up_to(rows, LANES), needed = n_rows * up_to(width, inner_of_tile(kind)) * bytes_of(kind);
        if (bytes.size() < needed) bytes.assign(needed, 0);
        if (scale.size() < n_rows) scale.assign(n_rows, 0.0f), total.assign(n_rows, 0);
    }

    // Inlined, so that a constant kind is not looked up for each vector.
    [[gnu::always_inline]] void take(Kind kind, const float* x, int rows, int width) {
        stride = up_to(width, inner_of_tile(kind)) * bytes_of(kind);
        for (int row = 0; row < rows; row++, x += width) {
            uint8_t* const to = bytes.data() + size_t(row) * stride;
            if (kind == INT8) scale[row] = scale_of(x, width);
            const int32_t sum = shorten(kind, x, 0, width, scale[row], to, stride);
            if (kind == INT8) total[row] = INT8_OFFSET * sum;
        }
    }
};

#ifdef MATRIX_UNIT

// Multiply up to four tiles of rows with one block of 16 outputs; the accumulators are tiles 0 to 3. Rows that are missing are multiplied too.
template <Kind kind, int N>
void multiply_tiles(const uint8_t* a, int stride, const uint8_t* b, int n_tiles, void* sums) {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (N > 2) _tile_zero(2);
    if constexpr (N > 3) _tile_zero(3);
    for (int k = 0; k < n_tiles; k++, a += 64, b += TILE) {
        for (int line = 0; line < TILE; line += 64) _mm_prefetch((const char*)b + 8 * TILE + line, _MM_HINT_T0);
        touch_tile(b, 64);
        _tile_loadd(6, b, 64);
#define TIMES(sums, rows)                                                                    \
    if constexpr (N > sums) {                                                               \
        touch_tile(a + size_t(sums) * LANES * stride, stride);                               \
        _tile_loadd(rows, a + size_t(sums) * LANES * stride, stride);                        \
        if constexpr (kind == INT8) _tile_dpbssd(sums, rows, 6); else _tile_dpbf16ps(sums, rows, 6); \
    }
        TIMES(0, 4) TIMES(1, 5) TIMES(2, 4) TIMES(3, 5)
#undef TIMES
    }
    auto* to = (uint8_t*)sums;
    _tile_stored(0, to, 64);
    if constexpr (N > 1) _tile_stored(1, to + TILE, 64);
    if constexpr (N > 2) _tile_stored(2, to + 2 * TILE, 64);
    if constexpr (N > 3) _tile_stored(3, to + 3 * TILE, 64);
}

template <Kind kind>
void multiply_by_tiles(const uint8_t* a, int stride, const uint8_t* b, int n_tiles, int rows, void* sums) {
    switch (up_to(rows, LANES) / LANES) {
        case 1: return multiply_tiles<kind, 1>(a, stride, b, n_tiles, sums);
        case 2: return multiply_tiles<kind, 2>(a, stride, b, n_tiles, sums);
        case 3: return multiply_tiles<kind, 3>(a, stride, b, n_tiles, sums);
        default: return multiply_tiles<kind, 4>(a, stride, b, n_tiles, sums);
    }
}

#else

template <Kind kind>
void multiply_by_tiles(const uint8_t*, int, const uint8_t*, int, int, void*) {}

#endif

template <Kind kind>
constexpr bool BY_TILES = HAS_MATRIX_UNIT && kind != FLOAT32;

// Rows and blocks of outputs of one product in registers.
template <Kind kind>
constexpr int STRIP = BY_TILES<kind> ? 4 * LANES : 12;
template <Kind kind>
constexpr int BLOCKS = BY_TILES<kind> ? 1 : 2;

// Add the products of the numbers in each lane's four bytes; x is a row's, w one of each output.
template <Kind kind>
inline __m512 add_products(__m512 sum, int32_t x, __m512i w) {
    if constexpr (kind == FLOAT32) {
        float number;
        std::memcpy(&number, &x, 4);
        return _mm512_fmadd_ps(_mm512_set1_ps(number), _mm512_castsi512_ps(w), sum);
    } else if constexpr (kind == INT8) {
        return _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sum), w, _mm512_set1_epi32(x)));
    } else {
#if defined(__AVX512BF16__)
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)w);
#else  // a bfloat16 is the upper half of a float
        const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000)), both = _mm512_set1_epi32(x);
        sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), sum);
        return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(both, upper)), _mm512_castsi512_ps(_mm512_and_si512(w, upper)), sum);
#endif
    }
}

// Weights that are fetched during a product, ``step`` bytes for every 64 of its own.
struct Fetched {
    const uint8_t* from;
    size_t step;
};

// Multiply N rows with M blocks of 16 outputs, ``block_bytes`` apart; the sum of a row does not depend on the other rows.
template <Kind kind, int N, int M>
void multiply_rows(const uint8_t* a, int stride, const uint8_t* b, size_t block_bytes, Fetched next, void* sums) {
    __m512 sum[M][N] = {};  // in int8: the bits of int32 sums
    for (const uint8_t* const end = b + block_bytes; b < end; a += 4, b += 64, next.from += next.step) {
        _mm_prefetch((const char*)next.from, _MM_HINT_T0);
        __m512i w[M];
        for (int block = 0; block < M; block++) w[block] = _mm512_loadu_si512(b + block * block_bytes);
        for (int row = 0; row < N; row++) {
            int32_t x;
            std::memcpy(&x, a + size_t(row) * stride, 4);
            for (int block = 0; block < M; block++) sum[block][row] = add_products<kind>(sum[block][row], x, w[block]);
        }
    }
    for (int block = 0; block < M; block++)
        for (int row = 0; row < N; row++) _mm512_storeu_ps((float*)sums + (block * STRIP<kind> + row) * LANES, sum[block][row]);
}

template <Kind kind, int M>
void multiply_by_vectors(const uint8_t* a, int stride, const uint8_t* b, size_t block_bytes, int rows, Fetched next, void* sums) {
    switch (rows) {
#define ROWS(n) case n: return multiply_rows<kind, n, M>(a, stride, b, block_bytes, next, sums);
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
#undef ROWS
    }
}

// Multiply at most STRIP rows with at most BLOCKS blocks of outputs; ``next`` are weights to be fetched.
template <Kind kind>
void multiply(const uint8_t* a, int stride, const uint8_t* b, int n_tiles, int rows, int blocks, Fetched next, void* sums) {
    if constexpr (BY_TILES<kind>)
        multiply_by_tiles<kind>(a, stride, b, n_tiles, rows, sums);
    else if (blocks == 2)
        multiply_by_vectors<kind, 2>(a, stride, b, size_t(n_tiles) * TILE, rows, next, sums);
    else
        multiply_by_vectors<kind, 1>(a, stride, b, size_t(n_tiles) * TILE, rows, next, sums);
}

// Operands and result of a product: y = f(x W^T + b), times ``times`` elementwise, plus ``residual``, if they are given. All have rows of
// ``width`` numbers, the number of outputs if it is 0. ``then`` are the weights of the next product, the first of which are fetched at the end.
struct Output {
    float* y;
    const float *times = nullptr, *residual = nullptr;
    size_t width = 0;
    const uint8_t* then = nullptr;
};

// Write the results of 16 outputs for the rows from ``from`` on, given their sums.
template <Kind kind>
void finish(const Linear& map, const Rows& x, int from, int rows, int block, const float* sums, const Output& out) {
    const int column = block * LANES;
    const __mmask16 mask = first(map.out_features - column);
    const __m512 bias = map.bias ? masked_load(mask, map.bias + column) : _mm512_setzero_ps();
    const __m512 scale = kind == INT8 ? masked_load(mask, map.scale + column) : _mm512_set1_ps(1.0f);
    // Stores to y could change what is read through a reference, for all that the compiler knows.
    const int activation = map.activation;
    const size_t width = out.width ? out.width : map.out_features;
    const float *const scales = x.scale.data() + from, *const times = out.times, *const residual = out.residual;
    const int32_t* const totals = x.total.data() + from;
    float* const y = out.y;
    size_t place = size_t(from) * width + column;
    for (int row = 0; row < rows; row++, place += width) {
        __m512 sum = _mm512_load_ps(sums + row * LANES);
        if constexpr (kind == INT8) {
            __m512i whole = _mm512_castps_si512(sum);
            if constexpr (!BY_TILES<kind>) whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(totals[row]));
            sum = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(scales[row]));
        }
        sum = _mm512_fmadd_ps(sum, scale, bias);
        if (activation) sum = kind == INT8 && activation == GELU ? coarse_gelu(sum) : activated(activation, sum);
        if (times) sum = _mm512_mul_ps(sum, masked_load(mask, times + place));
        if (residual) sum = _mm512_add_ps(sum, masked_load(mask, residual + place));
        masked_store(y + place, mask, sum);
    }
}

// Compute the outputs of blocks ``begin`` to ``end``. The strips of rows share the weights of two blocks, and each fetches a part of those of the
// next two. Otherwise the first strip would wait for all of them.
template <Kind kind>
void product(const Linear& map, const Rows& x, int rows, int begin, int end, const Output& out) {
    alignas(64) float sums[BLOCKS<kind> * STRIP<kind> * LANES];
    const int n_tiles = up_to(map.in_features, inner_of_tile(kind)) / inner_of_tile(kind);
    const size_t block_bytes = size_t(n_tiles) * TILE;
    for (int block = begin; block < end; block += BLOCKS<kind>) {
        const int blocks = end - block < BLOCKS<kind> ? end - block : BLOCKS<kind>;
        const bool ends = block + blocks == end;
        const uint8_t* const next = ends && out.then ? out.then : map.weight + (ends ? block : block + blocks) * block_bytes;
        for (int from = 0, here; from < rows; from += here) {
            const int strips = (rows - from + STRIP<kind> - 1) / STRIP<kind>;
            here = (rows - from + strips - 1) / strips;  // strips of equal height: those of few rows are slower
            if (BY_TILES<kind>) here = std::min(up_to(here, LANES), rows - from);
            const int step = std::min(64, (64 * blocks * here + rows - 1) / rows);  // a single strip fetches one block: two would take longer
            const Fetched fetched{next + blocks * block_bytes * from / rows, size_t(step)};
            const uint8_t* const a = x.bytes.data() + size_t(from) * x.stride;
            multiply<kind>(a, x.stride, map.weight + block * block_bytes, n_tiles, here, blocks, fetched, sums);
            for (int i = 0; i < blocks; i++) finish<kind>(map, x, from, here, block + i, sums + i * STRIP<kind> * LANES, out);
        }
    }
}

}  // namespace
