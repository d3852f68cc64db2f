// Steps and greedy searches of a small decoder without Python, for the thread sanitizer: every shape that sanitize_shapes.py names, by 1 to 4 threads.
// The library's source is included, so that its threads and its arithmetic are built with the same flags.

#include "../../transom/kernels/native/step.cpp"

#include <cstdio>
#include <cstdlib>

namespace {

thread_local int index_ = 0, n_threads_ = 1;

// What GOMP_parallel does, with threads that the sanitizer knows.
void run_in_parallel(void (*work)(void*), void* data, unsigned n_threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < n_threads; i++) others.emplace_back([=] { index_ = int(i), n_threads_ = int(n_threads), work(data); });
    index_ = 0, n_threads_ = int(n_threads);
    work(data);
    for (auto& thread : others) thread.join();
}

struct Weights {
    std::vector<std::vector<uint8_t>> packed;
    std::vector<std::vector<float>> floats;

    const float* numbers(size_t n) {
        floats.emplace_back(n);
        for (size_t i = 0; i < n; i++) floats.back()[i] = float(int((i * 2654435761u) >> 20) % 17 - 8) / 32;
        return floats.back().data();
    }

    Linear linear(int kind, int inner, int outer, int after = 0) {
        const float* weight = numbers(size_t(inner) * outer);
        packed.emplace_back(transom_packed_bytes(kind, inner, outer));
        floats.emplace_back(outer);
        transom_pack(kind, weight, inner, outer, packed.back().data(), floats.back().data());
        const float* scale = floats.back().data();
        return Linear{packed.back().data(), scale, numbers(outer), inner, outer, after};
    }

    Norm norm(int width) { return Norm{numbers(width), numbers(width), 1e-5f, 1}; }
};

int steps(int kind, int threads, int sources, int beams, int longest, bool padding, int max_length, int vocab) {
    const int d_model = 80, n_heads = 4, n_kv = 2, d_head = 16, d_ff = 72, n_blocks = 2, rows = sources * beams;
    const int width = n_kv * 2 * d_head;
    Weights w;
    w.packed.reserve(64), w.floats.reserve(256);
    std::vector<Block> blocks(n_blocks);
    for (Block& b : blocks) {
        b = Block{};
        b.attn_post_norm = w.norm(d_model), b.cross_post_norm = w.norm(d_model), b.ff_post_norm = w.norm(d_model);
        b.qkv = w.linear(kind, d_model, n_heads * d_head + width), b.o = w.linear(kind, n_heads * d_head, d_model);
        b.q = w.linear(kind, d_model, n_heads * d_head), b.cross_o = w.linear(kind, n_heads * d_head, d_model);
        b.up = w.linear(kind, d_model, d_ff, 1), b.down = w.linear(kind, d_ff, d_model);
    }
    const Embedding embedding{w.numbers(size_t(vocab) * d_model), 0, vocab, w.numbers(size_t(max_length) * d_model), max_length, 2.0f, w.norm(d_model)};
    Decoder decoder{kind, n_blocks, d_model, n_heads, n_kv, d_head, d_head, 0, 0, nullptr, nullptr, embedding, blocks.data(), Norm{},
                    w.linear(kind, d_model, vocab)};
    std::vector<int32_t> of(rows), lengths(sources, padding ? 0 : longest), slots(size_t(rows) * max_length);
    for (int row = 0; row < rows; row++) of[row] = row / beams;
    std::vector<float> tokens(size_t(n_blocks) * max_length * rows * width), memory(size_t(n_blocks) * sources * longest * width + 1);
    std::vector<float> logits(size_t(rows) * vocab);
    std::vector<int64_t> inputs(rows, vocab - 1);
    State state{rows, 0, rows, max_length, longest, 0, of.data(), lengths.data(), slots.data(), tokens.data(), memory.data(),
                int64_t(sources) * longest * width, inputs.data(), 1, logits.data(), nullptr};
    void* workspace = transom_create_workspace(threads, 3);
    if (!workspace) return 1;
    int failed = 0;
    for (int i = 0; i < max_length; i++) failed |= transom_step(&decoder, &state, workspace), state.log_softmax ^= 1;
    failed |= transom_step(&decoder, &state, workspace) != OUT_OF_BOUNDS;  // the cache is full
    if (beams == 1) {  // greedy search, whose rows end one after another
        std::vector<int64_t> found(size_t(rows) * (max_length + 1), 1), least(rows), most(rows);
        for (int row = 0; row < rows; row++) most[row] = 1 + row * max_length / rows;
        const int64_t suppressed = 0;
        std::vector<int32_t> places(rows);
        for (int row = 0; row < rows; row++) places[row] = row;
        std::vector<float> log_p(rows), overwritten(logits.size());
        Greedy greedy{found.data(), log_p.data(), least.data(), most.data(), &suppressed, places.data(), max_length + 1, 0, 1, vocab - 1};
        state.rows = rows, state.length = 0, state.logits = overwritten.data();
        while (state.rows && !failed) failed |= transom_greedy_search(&decoder, &state, workspace, &greedy, 3);
    }
    transom_free_workspace(workspace);
    for (float logit : logits) failed |= !std::isfinite(logit);
    return failed;
}

}  // namespace

int main() {
    if (!transom_is_supported()) return std::puts("the system does not let programs use the matrix unit"), 0;
    transom_set_openmp((void*)run_in_parallel, (void*)+[] { return n_threads_; }, (void*)+[] { return index_; });
    int n = 0, failed = 0;
    for (int kind : {int(BFLOAT16), int(INT8), int(FLOAT32)})
        for (int threads : {1, 2, 3, 4})
            for (int sources : {1, 3, 17})
                for (int beams : {1, 5, 20})  // more beams than the 7 symbols, too
                    for (int longest : {0, 1, 9})
                        for (int max_length : {1, 40})
                            failed += steps(kind, threads, sources, beams, longest, false, max_length, 7), n++;
    for (int kind : {int(BFLOAT16), int(INT8), int(FLOAT32)}) failed += steps(kind, 2, 2, 3, 4, true, 20, 33), n++;
#if defined(PLANTED)
    static volatile int shared = 0;  // a race that must be found; of one access on each side, at the very same time, the sanitizer sees none
    std::thread other([] { for (int i = 0; i < 10000; i++) shared = shared + 1; });
    for (int i = 0; i < 10000; i++) shared = shared + 1;
    other.join();
#endif
    std::printf("%d runs, %d failed\n", n, failed);
    return failed != 0;
}
