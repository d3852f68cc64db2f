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

// Calls work(thread's index, number of threads) on each of up to ``threads`` threads; one without an OpenMP library.
template <typename Work>
void run_on_threads(int threads, const Work& work) {
    if (openmp_.parallel == nullptr || threads < 2) return work(0, 1);
    const auto run = [](void* data) { (*(const Work*)data)(openmp_.thread_index(), openmp_.n_threads()); };
    openmp_.parallel(run, (void*)&work, (unsigned)threads, 0);
}

// Calls body(chunk) for each chunk, on up to ``threads`` threads.
template <typename Body>
void for_each_chunk(int64_t n_chunks, int threads, const Body& body) {
    std::atomic<int64_t> next{0};
    run_on_threads((int)std::min<int64_t>(threads, n_chunks), [&](int, int) {
        for (int64_t i; (i = next.fetch_add(1)) < n_chunks;) body(i);
    });
}

}  // namespace

extern "C" void transom_set_openmp(void* parallel, void* n_threads, void* thread_index) {
    openmp_ = {(void (*)(void (*)(void*), void*, unsigned, unsigned))parallel, (int (*)())n_threads, (int (*)())thread_index};
}
