// The threads of one decoding step.

#pragma once

#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "parallel.h"

namespace {

// Threads that run one function in parallel and synchronize at barriers.
//
// Several threads are faster only while each has a CPU: at a barrier all wait for a thread without one. So one run in TRIAL is timed with
// one thread and the next one with all threads; the following runs use the faster setting.
class Team {
   public:
    // At most ``most`` of ``threads`` threads work.
    Team(int threads, int most) : threads_(threads), full_(std::min(threads, most)) {}

    // Call work(thread's index, number of threads) on every thread.
    template <typename Work>
    void run(const Work& work) {
        using clock = std::chrono::steady_clock;
        const int turn = full_ == 1 ? -1 : n_runs_++ % TRIAL;
        const int size = turn == 0 || (turn > 1 && alone_ < together_) || turn < 0 ? 1 : full_;
        const auto start = clock::now();
        run_on_threads(threads_, size, work);
        if (turn == 0) alone_ = clock::now() - start;
        if (turn == 1) together_ = clock::now() - start;
    }

    // Wait until all threads of a run have arrived.
    void barrier(int n_threads) {
        if (n_threads == 1) return;
        const uint32_t turn = turn_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; spins++)
            if (spins < 20000) _mm_pause(); else std::this_thread::yield();
    }

   private:
    static constexpr int TRIAL = 16;  // runs from one trial to the next
    const int threads_, full_;
    int n_runs_ = 0;
    std::chrono::nanoseconds alone_{}, together_{};
    std::atomic<uint32_t> turn_{0};
    std::atomic<int> arrived_{0};
};

}  // namespace
