// Loops on the threads of the OpenMP library that PyTorch has loaded; a second OpenMP library would compete with it for the cores.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel
Parallel parallel_ = nullptr;

// Runs body(chunk) for each chunk, on up to ``threads`` threads; one without an OpenMP library.
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

}  // namespace

extern "C" void transom_set_parallel(void* gomp_parallel) { parallel_ = (Parallel)gomp_parallel; }
