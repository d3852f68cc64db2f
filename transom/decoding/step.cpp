// One step of an encoder-decoder's decoder, all blocks in one call: what flat.py does with PyTorch's operations.
//
// A step of few rows reads every weight once and computes little with it, so its time is that of reading memory and of calling operations. Here
// weights lie as the processor's matrix units read them (bfloat16, or 8 bits with a scale an output), activations stay in float32 and in
// the nearest caches, nothing is copied when beams change places, and threads meet only behind a product.
//
// Needs AVX-512 with VNNI; where there is AMX, products use it. Compiled by native.py on the machine that runs it.

#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int LANES = 16;       // floats of a vector, rows and columns of a tile
constexpr int TILE = 1024;      // bytes of a tile
constexpr int STRIP = 4;        // tiles of rows that share one reading of the weights

enum Kind : int { BFLOAT16 = 0, INT8 = 1 };

inline int up_to(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int bytes_of(Kind kind) { return kind == INT8 ? 1 : 2; }
inline int inner_of_tile(Kind kind) { return 64 / bytes_of(kind); }

}  // namespace

// The layout of these two is known to compiled.py.
extern "C" struct Linear {
    const uint8_t* weight;  // tiles: blocks of 16 outputs, each over all inputs
    const float* scale;     // an output, 8 bits only
    const float* bias;      // an output, or null
    int32_t inner, outer;
};

extern "C" struct Norm {
    const float* gain;  // null: no norm
    const float* shift; // or null
    float eps;
};

extern "C" struct Block {
    Norm attn_before, attn_after, cross_before, cross_after, ff_before, ff_after;
    Linear qkv, o, q, cross_o, up, down;
};

extern "C" struct Decoder {
    int32_t kind, n_blocks, d_model, n_heads, d_head, d_value;
    const Block* blocks;
    Norm norm;
    Linear unembed;
};

extern "C" struct State {
    int32_t rows, length;         // rows of this step; tokens that stand before it
    int32_t capacity, max_length; // rows and tokens that there is room for
    int32_t longest;              // tokens of the longest source
    const int32_t* sources;       // which source each row reads
    const int32_t* lengths;       // tokens a source
    int32_t* slots;               // (rows, max_length): in which row of its time each earlier token was read
    uint16_t* tokens;             // (blocks, max_length, capacity, keys and values) in bfloat16
    const uint16_t* memory;       // (blocks, sources, longest, keys and values) in bfloat16
    int64_t memory_stride;        // from a block's memory to the next
    const float* x;               // (rows, d_model): the embedded tokens
    float* logits;                // (rows, vocabulary)
};

namespace {

// ---------------------------------------------------------------------------------------------------------------- numbers

inline __m512 wide(const uint16_t* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}

inline __m256i narrow(__m512 x) {  // to the nearest bfloat16, ties to even
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

inline __m512 exponential(__m512 x) {  // 2^(x log2 e), by a polynomial of the part behind the point
    __m512 t = _mm512_mul_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(1.44269504f));
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_mul_ps(_mm512_sub_ps(t, n), _mm512_set1_ps(0.693147181f));
    __m512 p = _mm512_set1_ps(1.0f / 720);
    for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

// ---------------------------------------------------------------------------------------------------------------- threads

// Threads that run the same function side by side and meet at barriers; between runs they wait, first awake, then asleep.
//
// Together they are quicker only while each has a processor: at a barrier all wait for the one that has none. So now and then a run is timed
// alone and the next one together, and those that follow go as the quicker of the two went.
class Team {
   public:
    explicit Team(int size) : full_(size) {
        for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
    }

    ~Team() {
        stop_ = true, size_ = full_;
        release();
        for (auto& thread : threads_) thread.join();
    }

    int size() const { return size_; }

    void run(void (*work)(void*, int), void* with) {
        using clock = std::chrono::steady_clock;
        const int turn = full_ == 1 ? -1 : n_runs_++ % TRIAL;
        size_ = turn == 0 || (turn > 1 && alone_ < together_) || turn < 0 ? 1 : full_;
        work_ = work, with_ = with;
        const auto start = clock::now();
        release();
        work(with, 0);
        meet();
        if (turn == 0) alone_ = clock::now() - start;
        if (turn == 1) together_ = clock::now() - start;
    }

    void meet() {
        if (size_ == 1) return;
        uint32_t turn = turn_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; spins++)
            if (spins < 20000) _mm_pause(); else std::this_thread::yield();
    }

   private:
    void release() {
        if (size_ == 1) return;
        { std::lock_guard<std::mutex> lock(mutex_); runs_.fetch_add(1, std::memory_order_release); }
        wake_.notify_all();
    }

    void serve(int place) {
        for (uint32_t seen = 0;;) {
            for (int spins = 0; runs_.load(std::memory_order_acquire) == seen && spins < 20000; spins++) _mm_pause();
            if (runs_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return runs_.load(std::memory_order_acquire) != seen; });
            }
            seen++;
            if (stop_) return;
            work_(with_, place);
            meet();
        }
    }

    static constexpr int TRIAL = 16;  // runs from one trial to the next
    const int full_;
    int size_ = 1, n_runs_ = 0;
    std::chrono::nanoseconds alone_{}, together_{};
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint32_t> runs_{0}, turn_{0};
    std::atomic<int> arrived_{0};
    bool stop_ = false;
    void (*work_)(void*, int) = nullptr;
    void* with_ = nullptr;
};

// --------------------------------------------------------------------------------------------------------------- products

// Rows as a product reads them: short numbers, and for 8 bits a scale a row.
struct Rows {
    std::vector<uint8_t> bytes;
    std::vector<float> scale;
    int stride = 0;

    void take(Kind kind, const float* x, int rows, int width) {
        int padded = up_to(width, inner_of_tile(kind)), needed = up_to(rows, LANES);
        stride = padded * bytes_of(kind);
        if (bytes.size() < size_t(needed) * stride) bytes.assign(size_t(needed) * stride, 0);
        if (scale.size() < size_t(needed)) scale.assign(needed, 0.0f);
        for (int row = 0; row < rows; row++) {
            const float* from = x + size_t(row) * width;
            uint8_t* to = bytes.data() + size_t(row) * stride;
            float factor = 1.0f;
            if (kind == INT8) {
                __m512 most = _mm512_setzero_ps();
                for (int i = 0; i < width; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(part(from, i, width)));
                scale[row] = _mm512_reduce_max_ps(most) / 127.0f;
                factor = scale[row] > 0 ? 1.0f / scale[row] : 0.0f;
            }
            for (int i = 0; i < padded; i += LANES) {
                __m512 v = part(from, i, width);
                if (kind == INT8)
                    _mm_storeu_si128((__m128i*)(to + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(factor)))));
                else
                    _mm256_storeu_si256((__m256i*)(to + 2 * i), narrow(v));
            }
        }
    }

    static __m512 part(const float* x, int i, int width) {
        int left = width - i;
        return left >= LANES ? _mm512_loadu_ps(x + i) : _mm512_maskz_loadu_ps(left > 0 ? (1u << left) - 1 : 0, x + i);
    }
};

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t columns[16] = {};
    uint8_t rows[16] = {};
    TileConfig() {
        for (int i = 0; i < 8; i++) columns[i] = 64, rows[i] = LANES;
    }
};

bool may_multiply() {
#if defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
#else
    return true;
#endif
}

void begin_products() {
    static const TileConfig config;
    _tile_loadconfig(&config);
}

void end_products() { _tile_release(); }

// Multiply up to four tiles of rows with one block of 16 outputs; accumulators are tiles 0 to 3.
template <Kind kind, int N>
void multiply(const uint8_t* a, int stride, const uint8_t* b, int n_tiles, void* sums) {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (N > 2) _tile_zero(2);
    if constexpr (N > 3) _tile_zero(3);
    for (int k = 0; k < n_tiles; k++, a += 64, b += TILE) {
        for (int line = 0; line < TILE; line += 64) _mm_prefetch((const char*)b + 8 * TILE + line, _MM_HINT_T0);
        _tile_loadd(6, b, 64);
#define TIMES(sums, rows)                                                                    \
    if constexpr (N > sums) {                                                               \
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

#else

bool may_multiply() { return true; }
void begin_products() {}
void end_products() {}

template <Kind kind, int N>
void multiply(const uint8_t* a, int stride, const uint8_t* b, int n_tiles, void* sums) {
    for (int row = 0; row < N * LANES; row++) {
        const uint8_t* x = a + size_t(row) * stride;
        if constexpr (kind == INT8) {
            __m512i sum = _mm512_setzero_si512(), offset = _mm512_setzero_si512();
            for (int k = 0; k < n_tiles * LANES; k++) {  // the instruction wants unsigned times signed: x + 128, and 128 times the weights back
                __m512i w = _mm512_loadu_si512(b + k * 64);
                int32_t four;
                std::memcpy(&four, x + 4 * k, 4);
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(four ^ int32_t(0x80808080)), w);
                offset = _mm512_dpbusd_epi32(offset, _mm512_set1_epi8(char(128)), w);
            }
            _mm512_storeu_si512((int32_t*)sums + row * LANES, _mm512_sub_epi32(sum, offset));
        } else {
            __m512 sum = _mm512_setzero_ps();
            for (int k = 0; k < n_tiles * LANES; k++) {  // two inputs at a time: a bfloat16 is the upper half of a float
                uint32_t two;
                std::memcpy(&two, x + 4 * k, 4);
                __m512i w = _mm512_loadu_si512(b + k * 64), upper = _mm512_set1_epi32(int32_t(0xffff0000));
                sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(two << 16)), _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), sum);
                sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(two & 0xffff0000)), _mm512_castsi512_ps(_mm512_and_si512(w, upper)), sum);
            }
            _mm512_storeu_ps((float*)sums + row * LANES, sum);
        }
    }
}

#endif

// y[row, outputs of blocks first to last] = x W^T + b, rectified where asked.
template <Kind kind>
void product(const Linear& map, const Rows& x, int rows, int first, int last, float* y, bool relu) {
    alignas(64) float sums[STRIP * LANES * LANES];
    int n_tiles = up_to(map.inner, inner_of_tile(kind)) / inner_of_tile(kind);
    for (int block = first; block < last; block++) {
        const uint8_t* b = map.weight + size_t(block) * n_tiles * TILE;
        int column = block * LANES;
        __mmask16 mask = map.outer - column >= LANES ? 0xffff : (1u << (map.outer - column)) - 1;
        __m512 bias = map.bias ? _mm512_maskz_loadu_ps(mask, map.bias + column) : _mm512_setzero_ps();
        __m512 scale = kind == INT8 ? _mm512_maskz_loadu_ps(mask, map.scale + column) : _mm512_set1_ps(1.0f);
        for (int from = 0; from < rows; from += STRIP * LANES) {
            const uint8_t* a = x.bytes.data() + size_t(from) * x.stride;
            int here = rows - from < STRIP * LANES ? rows - from : STRIP * LANES;
            switch (up_to(here, LANES) / LANES) {
                case 1: multiply<kind, 1>(a, x.stride, b, n_tiles, sums); break;
                case 2: multiply<kind, 2>(a, x.stride, b, n_tiles, sums); break;
                case 3: multiply<kind, 3>(a, x.stride, b, n_tiles, sums); break;
                default: multiply<kind, 4>(a, x.stride, b, n_tiles, sums);
            }
            for (int row = 0; row < here; row++) {
                __m512 sum;
                if constexpr (kind == INT8)
                    sum = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512((int32_t*)sums + row * LANES)), _mm512_set1_ps(x.scale[from + row]));
                else
                    sum = _mm512_load_ps(sums + row * LANES);
                sum = _mm512_fmadd_ps(sum, scale, bias);
                if (relu) sum = _mm512_max_ps(sum, _mm512_setzero_ps());
                _mm512_mask_storeu_ps(y + size_t(from + row) * map.outer + column, mask, sum);
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------- norm and attention

void normalise(const Norm& norm, const float* x, int rows, int width, float* y) {
    for (int row = 0; row < rows; row++, x += width, y += width) {
        __m512 total = _mm512_setzero_ps();
        for (int i = 0; i < width; i += LANES) total = _mm512_add_ps(total, Rows::part(x, i, width));
        __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
        __m512 squares = _mm512_setzero_ps();
        for (int i = 0; i < width; i += LANES) {
            __mmask16 mask = width - i >= LANES ? 0xffff : (1u << (width - i)) - 1;
            __m512 d = _mm512_maskz_sub_ps(mask, Rows::part(x, i, width), mean);
            squares = _mm512_fmadd_ps(d, d, squares);
        }
        __m512 over = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / width + norm.eps));
        for (int i = 0; i < width; i += LANES) {
            __mmask16 mask = width - i >= LANES ? 0xffff : (1u << (width - i)) - 1;
            __m512 v = _mm512_mul_ps(_mm512_sub_ps(Rows::part(x, i, width), mean), over);
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, norm.gain + i));
            if (norm.shift) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, norm.shift + i));
            _mm512_mask_storeu_ps(y + i, mask, v);
        }
    }
}

// One head's query: z = softmax(q K^T / sqrt(d_head)) V; key i stands at keys(i), its value after all heads' keys.
template <typename Place>
void attend(const Decoder& d, int head, const float* q, int n_keys, Place place, float* scores, float* z) {
    float most = -INFINITY;
    const float over = 1.0f / std::sqrt(float(d.d_head));
    for (int i = 0; i < n_keys; i++) {
        const uint16_t* key = place(i) + head * d.d_head;
        __m512 sum = _mm512_setzero_ps();
        for (int c = 0; c < d.d_head; c += LANES) sum = _mm512_fmadd_ps(_mm512_loadu_ps(q + c), wide(key + c), sum);
        scores[i] = _mm512_reduce_add_ps(sum) * over;
        if (scores[i] > most) most = scores[i];
    }
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < n_keys; i += LANES) {
        __mmask16 mask = n_keys - i >= LANES ? 0xffff : (1u << (n_keys - i)) - 1;
        __m512 weight = _mm512_maskz_mov_ps(mask, exponential(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, scores + i), _mm512_set1_ps(most))));
        _mm512_mask_storeu_ps(scores + i, mask, weight);
        total = _mm512_add_ps(total, weight);
    }
    const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    const int values = d.n_heads * d.d_head + head * d.d_value;
    for (int c = 0; c < d.d_value; c += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < n_keys; i++) sum = _mm512_fmadd_ps(_mm512_set1_ps(scores[i]), wide(place(i) + values + c), sum);
        _mm512_storeu_ps(z + c, _mm512_mul_ps(sum, share));
    }
}

// ------------------------------------------------------------------------------------------------------------------- a step

// What threads share: the output of each product, each in room of its own, so that a slow reader never meets a fast writer.
struct Shared {
    std::vector<float> qkv, z, o, q, cross_z, cross_o, up, down;
};

// What each thread has for itself: every thread normalises all rows, which is cheaper than to wait for others.
struct Own {
    std::vector<float> x, normed, scores;
    Rows rows;
};

struct Step {
    const Decoder& d;
    State& s;
    Shared& shared;
    std::vector<Own>& own;
    Team& team;
};

template <Kind kind>
class Hand {
   public:
    Hand(Step& step, int place) : d(step.d), s(step.s), shared(step.shared), own(step.own[place]), team(step.team), place_(place) {}

    void run() {
        begin_products();
        own.x.assign(s.x, s.x + size_t(s.rows) * d.d_model);
        for (int i = 0; i < d.n_blocks; i++) {
            const Block& block = d.blocks[i];
            self_attention(block, i);
            cross_attention(block, i);
            apply(block.up, before(block.ff_before), shared.up, true);
            apply(block.down, shared.up.data(), shared.down);
            add(shared.down, block.ff_after);
        }
        own.rows.take(kind, before(d.norm), s.rows, d.d_model);
        multiply_into(d.unembed, s.logits, false);
        end_products();
    }

   private:
    const Decoder& d;
    State& s;
    Shared& shared;
    Own& own;
    Team& team;
    int place_;

    const float* before(const Norm& norm) {
        if (!norm.gain) return own.x.data();
        normalise(norm, own.x.data(), s.rows, d.d_model, own.normed.data());
        return own.normed.data();
    }

    void add(const std::vector<float>& y, const Norm& after) {
        const size_t n = size_t(s.rows) * d.d_model;
        for (size_t i = 0; i < n; i++) own.x[i] += y[i];
        if (after.gain) normalise(after, own.x.data(), s.rows, d.d_model, own.x.data());
    }

    void apply(const Linear& map, const float* x, std::vector<float>& y, bool relu = false) {
        own.rows.take(kind, x, s.rows, map.inner);
        multiply_into(map, y.data(), relu);
        team.meet();
    }

    void multiply_into(const Linear& map, float* y, bool relu) {
        const int n_blocks = up_to(map.outer, LANES) / LANES;
        product<kind>(map, own.rows, s.rows, n_blocks * place_ / team.size(), n_blocks * (place_ + 1) / team.size(), y, relu);
    }

    // Let ``work`` have each of this thread's (row, head).
    template <typename Work>
    void each_head(Work work) {
        const int n = s.rows * d.n_heads;
        for (int i = n * place_ / team.size(); i < n * (place_ + 1) / team.size(); i++) work(i / d.n_heads, i % d.n_heads);
    }

    void self_attention(const Block& block, int index) {
        const int keys = d.n_heads * d.d_head, width = keys + d.n_heads * d.d_value;
        const size_t line = size_t(s.capacity) * width;
        uint16_t* tokens = s.tokens + index * line * s.max_length;
        apply(block.qkv, before(block.attn_before), shared.qkv);
        each_head([&](int row, int head) {
            const float* q = shared.qkv.data() + size_t(row) * (keys + width);
            const float *k = q + keys + head * d.d_head, *v = q + 2 * keys + head * d.d_value;
            uint16_t* now = tokens + s.length * line + size_t(row) * width;
            for (int c = 0; c < d.d_head; c += LANES) _mm256_storeu_si256((__m256i*)(now + head * d.d_head + c), narrow(_mm512_loadu_ps(k + c)));
            for (int c = 0; c < d.d_value; c += LANES) _mm256_storeu_si256((__m256i*)(now + keys + head * d.d_value + c), narrow(_mm512_loadu_ps(v + c)));
            const int32_t* slots = s.slots + size_t(row) * s.max_length;
            auto place = [&](int i) { return i == s.length ? now : tokens + i * line + size_t(slots[i]) * width; };
            attend(d, head, q + head * d.d_head, s.length + 1, place, own.scores.data(), shared.z.data() + (size_t(row) * d.n_heads + head) * d.d_value);
        });
        team.meet();
        apply(block.o, shared.z.data(), shared.o);
        add(shared.o, block.attn_after);
    }

    void cross_attention(const Block& block, int index) {
        const int keys = d.n_heads * d.d_head, width = keys + d.n_heads * d.d_value;
        const uint16_t* memory = s.memory + index * s.memory_stride;
        apply(block.q, before(block.cross_before), shared.q);
        each_head([&](int row, int head) {
            const uint16_t* source = memory + size_t(s.sources[row]) * s.longest * width;
            auto place = [&](int i) { return source + size_t(i) * width; };
            const float* q = shared.q.data() + size_t(row) * keys + head * d.d_head;
            attend(d, head, q, s.lengths[s.sources[row]], place, own.scores.data(), shared.cross_z.data() + (size_t(row) * d.n_heads + head) * d.d_value);
        });
        team.meet();
        apply(block.cross_o, shared.cross_z.data(), shared.cross_o);
        add(shared.cross_o, block.cross_after);
    }
};

struct Workspace {
    explicit Workspace(int threads) : team(threads), own(threads) {}
    Team team;
    std::vector<Own> own;
    Shared shared;
};

void reserve(std::vector<float>& x, size_t n) {
    if (x.size() < n) x.resize(n);
}

}  // namespace

extern "C" {

// Whether this processor and system let a program use what this file was compiled for.
int transom_works() { return may_multiply(); }

int64_t transom_packed_bytes(int kind, int inner, int outer) {
    return int64_t(up_to(outer, LANES) / LANES) * (up_to(inner, inner_of_tile(Kind(kind))) / inner_of_tile(Kind(kind))) * TILE;
}

// Lay a weight (outer, inner) out in tiles; for 8 bits with a scale an output, so that its largest entry becomes 127.
void transom_pack(int kind, const float* weight, int inner, int outer, uint8_t* packed, float* scale) {
    const int each = 4 / bytes_of(Kind(kind)), per_tile = inner_of_tile(Kind(kind)), n_tiles = up_to(inner, per_tile) / per_tile;
    std::memset(packed, 0, transom_packed_bytes(kind, inner, outer));
    for (int o = 0; o < outer; o++) {
        const float* row = weight + size_t(o) * inner;
        float most = 0;
        for (int i = 0; i < inner; i++) most = std::fmax(most, std::fabs(row[i]));
        if (kind == INT8) scale[o] = most / 127.0f;
        uint8_t* block = packed + size_t(o / LANES) * n_tiles * TILE;
        for (int i = 0; i < inner; i++) {
            size_t at = size_t(i / per_tile) * TILE + (i % per_tile) / each * 64 + (o % LANES) * 4 + (i % each) * bytes_of(Kind(kind));
            if (kind == INT8) {
                block[at] = uint8_t(int8_t(most > 0 ? std::nearbyint(row[i] / scale[o]) : 0));
            } else {
                uint16_t two[LANES];
                _mm256_storeu_si256((__m256i*)two, narrow(_mm512_set1_ps(row[i])));
                std::memcpy(block + at, two, 2);
            }
        }
    }
}

// y = x W^T + b, rectified where asked, on the calling thread alone.
void transom_product(int kind, const Linear* map, const float* x, int rows, float* y, int relu) {
    Rows taken;
    taken.take(Kind(kind), x, rows, map->inner);
    begin_products();
    const int n_blocks = up_to(map->outer, LANES) / LANES;
    if (kind == INT8) product<INT8>(*map, taken, rows, 0, n_blocks, y, relu); else product<BFLOAT16>(*map, taken, rows, 0, n_blocks, y, relu);
    end_products();
}

void* transom_open(int threads) { return new Workspace(threads); }

void transom_close(void* workspace) { delete (Workspace*)workspace; }

void transom_step(const Decoder* decoder, State* state, void* workspace) {
    auto& work = *(Workspace*)workspace;
    const Decoder& d = *decoder;
    const size_t rows = state->rows, keys = d.n_heads * d.d_head, values = d.n_heads * d.d_value;
    Shared& shared = work.shared;
    reserve(shared.qkv, rows * (2 * keys + values));
    for (auto* z : {&shared.z, &shared.cross_z}) reserve(*z, rows * values);
    for (auto* y : {&shared.o, &shared.cross_o, &shared.down}) reserve(*y, rows * d.d_model);
    reserve(shared.q, rows * keys);
    for (int i = 0; i < d.n_blocks; i++) reserve(shared.up, rows * d.blocks[i].up.outer);
    const size_t longest = state->max_length > state->longest ? state->max_length : state->longest;
    for (Own& own : work.own) reserve(own.normed, rows * d.d_model), reserve(own.scores, longest);
    Step step{d, *state, shared, work.own, work.team};
    work.team.run(
        [](void* with, int place) {
            auto& step = *(Step*)with;
            if (step.d.kind == INT8) Hand<INT8>(step, place).run(); else Hand<BFLOAT16>(step, place).run();
        },
        &step);
    for (size_t row = 0; row < rows; row++) state->slots[row * state->max_length + state->length] = int32_t(row);
    state->length++;
}

}  // extern "C"
