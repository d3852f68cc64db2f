// One decoding step, all blocks in one call; equivalent to the PyTorch operations of the model. Exports the blocks of encoders too (encoder.h).
//
// A step of few rows reads every weight once and computes little with it, so memory traffic and operation calls dominate its time. Here weights
// are stored in the layout of the CPU's matrix units (float32, bfloat16, or int8 with one scale per output), activations stay in float32 in the
// nearest caches, and nothing is copied when beams are reordered. Threads divide the rows, or share each product and wait for one another after it.
//
// Requires AVX-512 with VNNI; products use AMX if available. Compiled by native_build.py on the machine that runs it.

#include <cmath>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "cached_attention.h"
#include "encoder.h"
#include "next_token.h"
#include "team.h"

// native_structs.py mirrors the layout of these structures.
extern "C" struct Embedding {
    const void* table;       // (vocabulary, d_model): bfloat16 or float32
    int32_t is_bfloat16, vocabulary;
    const float* positions;  // (n_positions, d_model), added to the embeddings; or null
    int32_t n_positions;
    float scale;
    Norm norm;
};

extern "C" struct Decoder {
    int32_t kind, n_blocks, d_model, n_heads, n_kv_heads, d_head, d_value;
    int32_t rotary_pairs;    // pairs of a query or key that are rotated (RoPE)
    int32_t n_rotations;     // positions of the tables
    const float *cos, *sin;  // (n_rotations, rotary_pairs)
    Embedding embedding;
    const Block* blocks;
    Norm norm;
    Linear unembed;
};

extern "C" struct MemoryShape {
    int32_t sources, length, n_heads, width;  // width: numbers of a key and its value
};

extern "C" struct State {
    int32_t rows, length;         // rows of this step; tokens before it
    int32_t capacity, max_length; // maximum rows and tokens
    int32_t max_source_length;    // tokens of the longest source
    int32_t log_softmax;          // 1: write log probabilities in place of logits
    int32_t* sources;             // source index of each row
    const int32_t* lengths;       // tokens per source
    int32_t* slots;               // (rows, max_length): the row in which each earlier token was written
    void* tokens;                 // (blocks, capacity, heads, max_length, key and value): float32 for weights in float32, else bfloat16
    const void* memory;           // (blocks, sources, heads, longest, key and value) in the same type
    int64_t memory_stride;        // distance between the memories of two blocks, in numbers
    const int64_t* inputs;        // token of each row
    int64_t input_stride;         // distance between the tokens of two rows
    float* logits;                // (rows, vocabulary): the result
    const Greedy* greedy;         // only for a whole search, else null
};

namespace {

// ---------------------------------------------------------------------------------------------------------------- attention

// RoPE: rotate the pairs (x_k, x_{k + pairs}) by a position's angles.
void apply_rotary(float* x, const float* cos, const float* sin, int pairs) {
    for (int i = 0; i < pairs; i += LANES) {
        const __mmask16 mask = first(pairs - i);
        const __m512 a = part(x, i, pairs), b = part(x + pairs, i, pairs), c = part(cos, i, pairs), s = part(sin, i, pairs);
        masked_store(x + i, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        masked_store(x + pairs + i, mask, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

// Numbers of cached keys and values.
template <Kind kind>
using Cached = std::conditional_t<kind == FLOAT32, float, uint16_t>;

inline void store_cached(float* to, __m512 x) { _mm512_storeu_ps(to, x); }
inline void store_cached(uint16_t* to, __m512 x) { _mm256_storeu_si256((__m256i*)to, narrow(x)); }

// ------------------------------------------------------------------------------------------------------------------- a step

// Results of the products of some rows: a buffer per product, so that a fast thread never overwrites what a slow one still reads.
struct SharedBuffers {
    Buffer<float> qkv, z, o, q, cross_z, cross_o, gate, up, down;
};

// Buffers of one thread: threads that share a product all normalize all of its rows, which is cheaper than waiting for one another.
struct ThreadBuffers {
    Buffer<float> x, normed, scores;
    Rows rows;
};

// One thread's part of a step: its blocks of every product, its (row, head) pairs of attention, and all norms and residual sums.
template <Kind kind>
class StepThread {
    using Number = Cached<kind>;

   public:
    // The rows of ``state``, the first of which is row ``first_row`` of the cache, are computed by ``n_threads`` threads.
    StepThread(const Decoder& decoder, State state, int first_row, SharedBuffers& shared, ThreadBuffers& own, Team& team, int index, int n_threads)
        : d(decoder), s(state), first_row_(first_row), shared(shared), own(own), team(team), index_(index), n_threads_(n_threads) {}

    void run() {
        configure_tiles();
        embed();
        for (int i = 0; i < d.n_blocks; i++) {
            const Block& block = d.blocks[i];
            self_attention(block, i);
            if (block.q.weight) cross_attention(block, i);
            feed_forward(block, i + 1 < d.n_blocks ? d.blocks[i + 1].qkv : d.unembed);
        }
        own.rows.take(kind, before(d.norm), s.rows, d.d_model);
        multiply_into(d.unembed, s.logits, d.blocks[0].qkv);
        release_tiles();
        if (s.greedy || s.log_softmax) finish_logits();
    }

   private:
    const Decoder& d;
    const State s;
    const int first_row_;
    SharedBuffers& shared;
    ThreadBuffers& own;
    Team& team;
    const int index_, n_threads_;

    // Start the residual stream with scale E[token] + p, normalized if there is a norm.
    void embed() {
        const Embedding& e = d.embedding;
        const __m512 scale = _mm512_set1_ps(e.scale);
        const float* position = e.positions ? e.positions + size_t(s.length) * d.d_model : nullptr;
        for (int row = 0; row < s.rows; row++) {
            const size_t place = size_t(s.inputs[row * s.input_stride]) * d.d_model;
            float* x = own.x.data() + size_t(row) * d.d_model;
            for (int i = 0; i < d.d_model; i += LANES) {
                const __mmask16 mask = first(d.d_model - i);
                __m512 v = e.is_bfloat16 ? wide((const uint16_t*)e.table + place + i, mask) : masked_load(mask, (const float*)e.table + place + i);
                v = _mm512_mul_ps(v, scale);
                if (position) v = _mm512_add_ps(v, masked_load(mask, position + i));
                masked_store(x + i, mask, v);
            }
        }
        if (e.norm.gain) normalize(e.norm, own.x.data(), s.rows, d.d_model, own.x.data());
    }

    // Take the next tokens of greedy search, or replace the logits by log probabilities.
    void finish_logits() {
        team.barrier(n_threads_);
        const int begin = s.rows * index_ / n_threads_, end = s.rows * (index_ + 1) / n_threads_, width = d.unembed.out_features;
        for (int row = begin; row < end; row++) {
            float* const z = s.logits + size_t(row) * width;
            if (s.greedy) s.greedy->append(first_row_ + row, z, width);
            else apply_log_softmax(z, width);
        }
    }

    // Return the sub-layer input: the residual stream, normalized for pre-norm.
    const float* before(const Norm& norm) {
        if (!norm.gain) return own.x.data();
        normalize(norm, own.x.data(), s.rows, d.d_model, own.normed.data());
        return own.normed.data();
    }

    // Add a sub-layer's output to the residual stream, then normalize for post-norm.
    void add(const Buffer<float>& y, const Norm& after) {
        const size_t n = size_t(s.rows) * d.d_model;
        for (size_t i = 0; i < n; i++) own.x[i] += y[i];
        if (after.gain) normalize(after, own.x.data(), s.rows, d.d_model, own.x.data());
    }

    // Compute y = map(x) with all threads: each quantizes x, writes its blocks of y, and waits until all blocks are written. ``then`` is the map
    // that follows.
    void apply(const Linear& map, const float* x, Buffer<float>& y, const Linear& then) {
        own.rows.take(kind, x, s.rows, map.in_features);
        multiply_into(map, y.data(), then);
        team.barrier(n_threads_);
    }

    void multiply_into(const Linear& map, float* y, const Linear& then, const float* times = nullptr) {
        product<kind>(map, own.rows, s.rows, first_block(map, index_), first_block(map, index_ + 1), {y, times, nullptr, 0, weights_of(then)});
    }

    int first_block(const Linear& map, int thread) const { return up_to(map.out_features, LANES) / LANES * thread / n_threads_; }

    // Return the weights with which this thread begins a product.
    const uint8_t* weights_of(const Linear& map) const {
        return map.weight + size_t(first_block(map, index_)) * LANES * up_to(map.in_features, inner_of_tile(kind)) * bytes_of(kind);
    }

    // Call ``work`` for each of this thread's (row, key-value head).
    template <typename Work>
    void each_head(Work work) {
        const int n = s.rows * d.n_kv_heads;
        for (int i = n * index_ / n_threads_; i < n * (index_ + 1) / n_threads_; i++) work(i / d.n_kv_heads, i % d.n_kv_heads);
    }

    // Compute attention for all query heads that share a key-value head.
    template <typename KeyAt>
    void each_query(int row, int head, float* q, Buffer<float>& z, int n_keys, size_t next_head, KeyAt key_at) {
        const int group = d.n_heads / d.n_kv_heads;
        for (int i = head * group; i < (head + 1) * group; i++)
            attend(d.d_head, d.d_value, next_head, q + i * d.d_head, n_keys, key_at, own.scores.data(), z.data() + (size_t(row) * d.n_heads + i) * d.d_value);
    }

    static const Linear& first_of_feed_forward(const Block& block) { return block.gate.weight ? block.gate : block.up; }

    void feed_forward(const Block& block, const Linear& then) {
        own.rows.take(kind, before(block.ff_pre_norm), s.rows, d.d_model);
        if (block.gate.weight) multiply_into(block.gate, shared.gate.data(), block.up);
        multiply_into(block.up, shared.up.data(), block.down, block.gate.weight ? shared.gate.data() : nullptr);
        team.barrier(n_threads_);
        apply(block.down, shared.up.data(), shared.down, then);
        add(shared.down, block.ff_post_norm);
    }

    void self_attention(const Block& block, int index) {
        const int queries = d.n_heads * d.d_head, keys = d.n_kv_heads * d.d_head, width = keys + d.n_kv_heads * d.d_value;
        const int token = d.d_head + d.d_value;
        const size_t line = size_t(s.max_length) * token;
        Number* tokens = (Number*)s.tokens + index * line * s.capacity * d.n_kv_heads;
        apply(block.qkv, before(block.attn_pre_norm), shared.qkv, block.o);
        each_head([&](int row, int head) {
            float* q = shared.qkv.data() + size_t(row) * (queries + width);
            float *k = q + queries + head * d.d_head, *v = q + queries + keys + head * d.d_value;
            if (d.rotary_pairs) {
                const float *cos = d.cos + size_t(s.length) * d.rotary_pairs, *sin = d.sin + size_t(s.length) * d.rotary_pairs;
                const int group = d.n_heads / d.n_kv_heads;
                for (int i = head * group; i < (head + 1) * group; i++) apply_rotary(q + i * d.d_head, cos, sin, d.rotary_pairs);
                apply_rotary(k, cos, sin, d.rotary_pairs);
            }
            const auto slot = [&](int of_row) { return tokens + (size_t(of_row) * d.n_kv_heads + head) * line; };
            Number* now = slot(first_row_ + row) + size_t(s.length) * token;
            for (int c = 0; c < d.d_head; c += LANES) store_cached(now + c, _mm512_loadu_ps(k + c));
            for (int c = 0; c < d.d_value; c += LANES) store_cached(now + d.d_head + c, _mm512_loadu_ps(v + c));
            const int32_t* slots = s.slots + size_t(row) * s.max_length;
            const auto key_at = [&](int i) { return i == s.length ? now : slot(slots[i]) + size_t(i) * token; };
            each_query(row, head, q, shared.z, s.length + 1, line, key_at);
        });
        team.barrier(n_threads_);
        apply(block.o, shared.z.data(), shared.o, block.q.weight ? block.q : first_of_feed_forward(block));
        add(shared.o, block.attn_post_norm);
    }

    void cross_attention(const Block& block, int index) {
        const int queries = d.n_heads * d.d_head, token = d.d_head + d.d_value;
        const size_t line = size_t(s.max_source_length) * token;
        const Number* memory = (const Number*)s.memory + index * s.memory_stride;
        apply(block.q, before(block.cross_pre_norm), shared.q, block.cross_o);
        each_head([&](int row, int head) {
            const Number* source = memory + (size_t(s.sources[row]) * d.n_kv_heads + head) * line;
            const auto key_at = [&](int i) { return source + size_t(i) * token; };
            each_query(row, head, shared.q.data() + size_t(row) * queries, shared.cross_z, s.lengths[s.sources[row]], line, key_at);
        });
        team.barrier(n_threads_);
        apply(block.cross_o, shared.cross_z.data(), shared.cross_o, first_of_feed_forward(block));
        add(shared.cross_o, block.cross_post_norm);
    }
};

struct Workspace {
    Workspace(int threads, int most) : team(threads, most), own(threads), shared(threads) {}
    Team team;
    std::vector<ThreadBuffers> own;     // of each thread, or of each part of the rows
    std::vector<SharedBuffers> shared;  // of each part of the rows; the first one also of all rows
};

void reserve(Buffer<float>& x, size_t n) {
    if (x.size() < n) x.resize(n);
}

constexpr int CHUNK_ROWS = 192;  // their inputs, and a block of weights, fit in the second-level cache

// A thread's rows of a linear map, as the product reads them, and results of ``unit`` blocks of outputs.
struct MapBuffers {
    Rows rows;
    Buffer<float> y;
};

// Call work(kind, buffers, first row, number of rows, begin, end) for chunks of the rows of x, or, if these are few, of the outputs, whose blocks
// ``begin`` to ``end`` are whole groups of ``unit`` blocks.
template <typename Work>
int map_chunks(Kind kind, const Linear& map, const float* x, int rows, int unit, int threads, const Work& work) {
    const int n_units = up_to(map.out_features, unit * LANES) / (unit * LANES), per_thread = (rows + threads - 1) / threads;
    const bool by_rows = per_thread >= 2 * LANES;
    const int chunk_rows = by_rows ? std::min(CHUNK_ROWS, up_to(per_thread, LANES)) : rows;
    const int chunk_units = by_rows ? n_units : (n_units + threads - 1) / threads;
    std::atomic<int> status{DONE};
    const int n_chunks = by_rows ? (rows + chunk_rows - 1) / chunk_rows : (n_units + chunk_units - 1) / chunk_units;
    for_each_chunk(n_chunks, threads, [&](int64_t chunk) {
        const int from = by_rows ? int(chunk) * chunk_rows : 0, here = std::min(chunk_rows, rows - from);
        const int begin = by_rows ? 0 : int(chunk) * chunk_units, end = std::min(n_units, begin + chunk_units);
        thread_local MapBuffers buffers;  // allocating anew in each call costs as much as quantizing
        MapBuffers& own = buffers;
        const int failed = guarded([&] {
            own.rows.reserve(kind, here, map.in_features);
            reserve(own.y, size_t(here) * unit * LANES);
            return DONE;
        });
        if (failed) return status.store(failed);
        configure_tiles();
        with_kind(kind, [&](auto constant) {
            own.rows.take(constant, x + size_t(from) * map.in_features, here, map.in_features);
            work(constant, own, from, here, begin * unit, end * unit);
        });
        release_tiles();
    });
    return status;
}

// Write keys and values, ``width`` numbers per token and head, to the memory of a cache (blocks, sources, n_heads, length, width), for ``n`` tokens
// from token ``from`` of all sources on, and for the heads of some blocks of outputs.
template <Kind kind>
void project_memory(const Linear& map, MapBuffers& own, int from, int n, int begin, int end, const MemoryShape& shape, Cached<kind>* memory) {
    const int unit = shape.width / LANES, n_tiles = up_to(map.in_features, inner_of_tile(kind)) / inner_of_tile(kind);
    for (int first = begin; first < end; first += unit) {
        const int output = first * LANES, block = first / unit / shape.n_heads, head = first / unit % shape.n_heads;
        const Linear part{map.weight + size_t(first) * n_tiles * TILE, map.scale + output, map.bias ? map.bias + output : nullptr, map.in_features, shape.width, NONE};
        product<kind>(part, own.rows, n, 0, unit, {own.y.data()});
        for (int i = 0; i < n; i++) {
            const int source = (from + i) / shape.length, token = (from + i) % shape.length;
            const size_t place = ((size_t(block) * shape.sources + source) * shape.n_heads + head) * shape.length + token;
            for (int c = 0; c < shape.width; c += LANES) store_cached(memory + place * shape.width + c, _mm512_loadu_ps(own.y.data() + size_t(i) * shape.width + c));
        }
    }
}

bool within_bounds(const Decoder& d, const State& s) {
    const bool state = s.rows >= 1 && s.rows <= s.capacity && s.length >= 0 && s.length < s.max_length && s.max_source_length >= 0;
    const bool heads = d.n_kv_heads >= 1 && d.n_heads % d.n_kv_heads == 0 && d.d_head % LANES == 0 && d.d_value % LANES == 0;
    const bool added = d.embedding.positions == nullptr || s.length < d.embedding.n_positions;
    const bool rotated = d.rotary_pairs == 0 || (s.length < d.n_rotations && 2 * d.rotary_pairs <= d.d_head);
    return state && heads && added && rotated;
}

bool are_tokens(const Decoder& d, const State& s) {
    const auto is_token = [&](int row) { return s.inputs[row * s.input_stride] >= 0 && s.inputs[row * s.input_stride] < d.embedding.vocabulary; };
    for (int row = 0; row < s.rows; row++)
        if (!is_token(row)) return false;
    return true;
}

// Allocate all buffers of a step before its threads start.
void reserve_buffers(const Decoder& d, const State& s, Workspace& work) {
    const size_t queries = size_t(d.n_heads) * d.d_head, width = size_t(d.n_kv_heads) * (d.d_head + d.d_value);
    int widest = d.d_model;
    for (int i = 0; i < d.n_blocks; i++)
        for (const Linear* map : {&d.blocks[i].o, &d.blocks[i].cross_o, &d.blocks[i].down}) widest = std::max(widest, map->in_features);
    const int n_parts = work.team.parts(s.rows), of_part = (s.rows + n_parts - 1) / n_parts;
    for (int i = 0; i < std::max(n_parts, work.team.sharing()); i++) {
        ThreadBuffers& own = work.own[i];
        SharedBuffers& shared = work.shared[i];
        const size_t own_rows = i < work.team.sharing() ? s.rows : of_part, rows = i == 0 ? s.rows : i < n_parts ? of_part : 0;
        for (auto* x : {&own.x, &own.normed}) reserve(*x, own_rows * d.d_model);
        reserve(own.scores, std::max(s.max_length, s.max_source_length) + LANES);
        own.rows.reserve(Kind(d.kind), int(own_rows), widest);
        reserve(shared.qkv, rows * (queries + width));
        for (auto* z : {&shared.z, &shared.cross_z}) reserve(*z, rows * d.n_heads * d.d_value);
        for (auto* y : {&shared.o, &shared.cross_o, &shared.down}) reserve(*y, rows * d.d_model);
        reserve(shared.q, rows * queries);
        for (int block = 0; block < d.n_blocks; block++)
            for (auto* hidden : {&shared.gate, &shared.up}) reserve(*hidden, rows * d.blocks[block].up.out_features);
    }
}

// The state of rows ``begin`` to ``end`` only.
State part_of(const State& s, int begin, int end, const Decoder& d) {
    State part = s;
    part.rows = end - begin;
    if (s.sources) part.sources += begin;
    part.slots += size_t(begin) * s.max_length;
    part.inputs += begin * s.input_stride;
    part.logits += size_t(begin) * d.unembed.out_features;
    return part;
}

// Process a token of each row.
int step(const Decoder& d, State& state, Workspace& work) {
    if (!within_bounds(d, state)) return OUT_OF_BOUNDS;
    reserve_buffers(d, state, work);
    if (!are_tokens(d, state)) return OUT_OF_BOUNDS;
    with_kind(Kind(d.kind), [&](auto kind) {
        work.team.run(state.rows, [&](int index, int n_threads, int n_parts) {
            if (n_parts == 1) return StepThread<kind>(d, state, 0, work.shared[0], work.own[index], work.team, index, n_threads).run();
            for (int i = index; i < n_parts; i += n_threads) {  // OpenMP may start fewer threads than requested
                const int begin = state.rows * i / n_parts, end = state.rows * (i + 1) / n_parts;
                StepThread<kind>(d, part_of(state, begin, end, d), begin, work.shared[i], work.own[i], work.team, 0, 1).run();
            }
        });
    });
    for (size_t row = 0; row < size_t(state.rows); row++) state.slots[row * state.max_length + state.length] = int32_t(row);
    state.length++;
    return DONE;
}

// Drop the rows whose last token is the end token.
void keep_unfinished(State& state, Greedy& greedy) {
    int n = 0;
    for (int row = 0; row < state.rows; row++) {
        if (*greedy.last(row) == greedy.end) continue;
        std::memmove(state.slots + size_t(n) * state.max_length, state.slots + size_t(row) * state.max_length, state.length * sizeof(int32_t));
        if (state.sources) state.sources[n] = state.sources[row];
        greedy.rows[n++] = greedy.rows[row];
    }
    state.rows = n;
}

}  // namespace

extern "C" {

// Return whether the operating system permits the instructions for which this file was compiled.
int transom_is_supported() { return request_matrix_unit(); }

int64_t transom_packed_bytes(int kind, int inner, int outer) {
    return int64_t(up_to(outer, LANES) / LANES) * (up_to(inner, inner_of_tile(Kind(kind))) / inner_of_tile(Kind(kind))) * TILE;
}

// Pack a weight (outer, inner) in tiles: each line of 64 bytes has 4 bytes of inputs for each of 16 outputs.
void transom_pack(int kind_, const float* weight, int inner, int outer, uint8_t* packed, float* scale) {
    const Kind kind = Kind(kind_);
    for (int begin = 0; begin < outer; begin += LANES) {
        const int here = outer - begin < LANES ? outer - begin : LANES;
        const float* rows = weight + size_t(begin) * inner;
        for (int o = 0; o < here; o++) scale[begin + o] = kind == INT8 ? scale_of(rows + size_t(o) * inner, inner) : 1.0f;
        for (int i = 0; i < inner; i += inner_of_tile(kind), packed += TILE) {
            uint32_t lines[LANES][LANES] = {};
            for (int o = 0; o < here; o++) shorten(kind, rows + size_t(o) * inner, i, inner, scale[begin + o], (uint8_t*)lines[o], 64);
            const uint32_t offset = kind == INT8 ? INT8_OFFSET * 0x01010101u : 0;  // w + 128 as an unsigned number: the sign bit flipped
            for (int line = 0; line < LANES; line++)
                for (int o = 0; o < LANES; o++) {
                    const uint32_t bytes = lines[o][line] ^ offset;
                    std::memcpy(packed + line * 64 + o * 4, &bytes, 4);
                }
        }
    }
}

// y = f(x W^T + b)
int transom_linear(int kind, const Linear* map, const float* x, int rows, float* y, int threads) {
    return map_chunks(Kind(kind), *map, x, rows, 1, threads, [&](auto constant, MapBuffers& own, int from, int n, int begin, int end) {
        product<constant>(*map, own.rows, n, begin, end, {y + size_t(from) * map->out_features});
    });
}

// Project encoder states x (sources, length, in_features) to the keys and values that a search reads.
int transom_project_memory(int kind, const Linear* map, const MemoryShape* shape, const float* x, void* memory, int threads) {
    const int rows = shape->sources * shape->length, unit = shape->width / LANES;
    return map_chunks(Kind(kind), *map, x, rows, unit, threads, [&](auto constant, MapBuffers& own, int from, int n, int begin, int end) {
        project_memory<constant>(*map, own, from, n, begin, end, *shape, (Cached<constant>*)memory);
    });
}

// Write the queries, keys and values of each row of x (rows, d_model), which the block normalizes first if it is pre-norm.
int transom_encoder_project(int kind, const Block* block, const float* x, int rows, int d_model, float* qkv, int threads) {
    const auto reserve = [&](ChunkBuffers& own, int n) { own.reserve(Kind(kind), *block, n, d_model); };
    return encoder_parts(Kind(kind), rows, ENCODER_ROWS, threads, reserve, [&](auto constant, ChunkBuffers& own, int begin, int end) {
        project_rows<constant>(*block, x + size_t(begin) * d_model, end - begin, d_model, qkv + size_t(begin) * block->qkv.out_features, 0, own);
    });
}

// Add the attention output z (rows, n_heads d_value), projected, and then the output of the feed-forward layer to x.
int transom_encoder_finish(int kind, const Block* block, const float* z, float* x, int rows, int d_model, int threads) {
    const auto reserve = [&](ChunkBuffers& own, int n) { own.reserve(Kind(kind), *block, n, d_model); };
    return encoder_parts(Kind(kind), rows, ENCODER_ROWS, threads, reserve, [&](auto constant, ChunkBuffers& own, int begin, int end) {
        finish_rows<constant>(*block, z + size_t(begin) * block->o.in_features, end - begin, d_model, x + size_t(begin) * d_model, own);
    });
}

// Pass the residual stream x (rows, length, d_model) through a block; heads have a multiple of 16 channels.
int transom_encoder_block(int kind, const Block* block, const Sequences* sequences, float* x, int d_model, int threads) {
    const int length = sequences->length;
    const auto reserve = [&](ChunkBuffers& own, int n) {
        own.reserve(Kind(kind), *block, std::min(ENCODER_ROWS, n * length), d_model);
        own.reserve_attention(*block, *sequences, n);
    };
    const int most = std::max(1, SEQUENCE_ROWS / length);
    return encoder_parts(Kind(kind), sequences->rows, most, threads, reserve, [&](auto constant, ChunkBuffers& own, int begin, int end) {
        read_sequences<constant>(*block, *sequences, begin, end, d_model, x + size_t(begin) * length * d_model, own);
    });
}

// Create the workspace of a cache; null if memory cannot be allocated.
void* transom_create_workspace(int threads, int most) {
    Workspace* workspace = nullptr;
    guarded([&] { return workspace = new Workspace(threads, most), DONE; });
    return workspace;
}

void transom_free_workspace(void* workspace) { delete (Workspace*)workspace; }

int transom_step(const Decoder* decoder, State* state, void* workspace) {
    return guarded([&] { return workspace ? step(*decoder, *state, *(Workspace*)workspace) : OUT_OF_BOUNDS; });
}

// Take at most ``n_steps`` steps of greedy search; rows that have ended leave the state.
int transom_greedy_search(const Decoder* decoder, State* state, void* workspace, Greedy* greedy, int n_steps) {
    return guarded([&] {
        int status = workspace ? DONE : OUT_OF_BOUNDS;
        for (int i = 0; i < n_steps && state->rows && status == DONE; i++) {
            std::vector<int64_t> tokens(state->rows);
            for (int row = 0; row < state->rows; row++) tokens[row] = *greedy->last(row);
            state->inputs = tokens.data(), state->input_stride = 1, state->greedy = greedy;
            status = step(*decoder, *state, *(Workspace*)workspace);
            greedy->n_tokens++;
            if (status == DONE) keep_unfinished(*state, *greedy);
        }
        state->inputs = nullptr, state->greedy = nullptr;
        return status;
    });
}

}  // extern "C"
