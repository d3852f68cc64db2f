// Loops on the threads of the OpenMP library that PyTorch has loaded; a second OpenMP library would compete with it for the cores.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

// Functions of the OpenMP library; all null without one.
struct OpenMp {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;  // GOMP_parallel
    int (*n_threads)() = nullptr;                                            // omp_get_num_threads
    int (*thread_index)() = nullptr;                                         // omp_get_thread_num
};
OpenMp openmp_;

// Call work(thread's index, number of threads) on at most ``most`` of ``threads`` threads; on one without an OpenMP library. All ``threads`` take
// part, as in PyTorch's own operations: an OpenMP library ends the threads that a smaller team leaves out, and starts others for the next one.
template <typename Work>
void run_on_threads(int threads, int64_t most, const Work& work) {
    if (openmp_.parallel == nullptr || threads < 2 || most < 2) return work(0, 1);
    struct Run {
        const Work& work;
        int64_t most;
    } both{work, most};
    const auto run = [](void* data) {
        const Run& mine = *(const Run*)data;
        const int index = openmp_.thread_index();
        if (index < mine.most) mine.work(index, (int)std::min<int64_t>(openmp_.n_threads(), mine.most));
    };
    openmp_.parallel(run, &both, (unsigned)threads, 0);
}

// Call body(chunk) for each chunk, on up to ``threads`` threads.
template <typename Body>
void for_each_chunk(int64_t n_chunks, int threads, const Body& body) {
    std::atomic<int64_t> next{0};
    run_on_threads(threads, n_chunks, [&](int, int) {
        for (int64_t i; (i = next.fetch_add(1)) < n_chunks;) body(i);
    });
}

}  // namespace

extern "C" void transom_set_openmp(void* parallel, void* n_threads, void* thread_index) {
    openmp_ = {(void (*)(void (*)(void*), void*, unsigned, unsigned))parallel, (int (*)())n_threads, (int (*)())thread_index};
}
