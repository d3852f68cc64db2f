// Loops over the rows of a tensor by chunks that do not depend on the number of threads, and sums over the rows, added in the order of the chunks.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel.h"

namespace {

constexpr int64_t CHUNK = 1 << 14;  // elements
constexpr int64_t MAX_CHUNKS = 32;  // of rows, each with its own sums

struct Rows {
    int64_t n, width, per_chunk, n_chunks;
    Rows(int64_t n, int64_t width, int64_t per_chunk) : n(n), width(width), per_chunk(per_chunk), n_chunks((n + per_chunk - 1) / per_chunk) {}
    Rows(int64_t n, int64_t width) : Rows(n, width, std::max<int64_t>(1, CHUNK / std::max<int64_t>(1, width))) {}

    // Rows in at most MAX_CHUNKS chunks.
    static Rows in_few_chunks(int64_t n, int64_t width) { return Rows(n, width, std::max<int64_t>((n + MAX_CHUNKS - 1) / MAX_CHUNKS, 16)); }

    // Call body(row, its chunk) for each row.
    template <typename Body>
    void for_each(int threads, const Body& body) const {
        for_each_chunk(n_chunks, threads, [&](int64_t chunk) {
            for (int64_t i = chunk * per_chunk; i < std::min(n, (chunk + 1) * per_chunk); i++) body(i, chunk);
        });
    }
};

// Let work(sums) add to ``n`` sums of ``width`` numbers per chunk (null if ``n`` is 0), and write their totals to totals[0], ... Returns false if memory is short.
template <typename Work>
bool with_chunk_sums(const Rows& rows, int n, float* const* totals, const Work& work) {
    const int64_t width = rows.width;
    std::vector<float> sums;
    try {
        sums.assign(n * rows.n_chunks * width, 0.0f);
    } catch (...) {
        return false;
    }
    work(n == 0 ? nullptr : sums.data());
    for (int k = 0; k < n; k++) {
        std::fill(totals[k], totals[k] + width, 0.0f);
        for (int64_t chunk = 0; chunk < rows.n_chunks; chunk++) {
            const float* part = sums.data() + (k * rows.n_chunks + chunk) * width;
#pragma omp simd
            for (int64_t j = 0; j < width; j++) totals[k][j] += part[j];
        }
    }
    return true;
}

}  // namespace
