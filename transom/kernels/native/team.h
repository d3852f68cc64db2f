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
// Either each thread computes some of the rows, without a barrier, or all threads share each product of all rows. The first way reads all weights
// once per thread, so which way is faster depends on the caches. With few rows, the choice is between one thread and all: several are faster only
// while each has a CPU, since at a barrier all wait for a thread without one. Of TRIAL runs, two time each way, or one the way that is clearly slower;
// the other runs use the faster one.
class Team {
   public:
    // At most ``most`` of ``threads`` threads share a product.
    Team(int threads, int most) : threads_(threads), sharing_(std::min(threads, most)) {}

    int sharing() const { return sharing_; }

    // Return into how many parts the threads divide the rows.
    int parts(int rows) const { return std::max(1, std::min(threads_, rows / MIN_ROWS)); }

    // Call work(thread's index, number of threads, number of parts of the rows) on every thread.
    template <typename Work>
    void run(int rows, const Work& work) {
        using clock = std::chrono::steady_clock;
        const int n_parts = parts(rows);
        if (n_parts != n_parts_) n_parts_ = n_parts, n_runs_ = 0, apart_ = together_ = {};
        const int turn = n_runs_++ % TRIAL;
        const bool clear = turn == 4 && together_ > CLEAR * apart_, timed = turn >= 1 && turn <= 4 && !clear, untried = apart_ == together_;
        const bool apart = threads_ == 1 || (timed ? turn % 2 == 1 : untried ? n_parts > 1 : apart_ < together_);
        const auto start = clock::now();
        run_on_threads(threads_, apart ? n_parts : sharing_, [&](int index, int n_threads) { work(index, n_threads, apart ? n_parts : 1); });
        if (!timed) return;
        auto& fastest = apart ? apart_ : together_;
        const std::chrono::nanoseconds duration = clock::now() - start;
        fastest = turn <= 2 ? duration : std::min(fastest, duration);
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
    static constexpr int TRIAL = 32;    // runs from one trial to the next
    static constexpr double CLEAR = 1.15;  // times as long as apart: sharing is not timed again
    static constexpr int MIN_ROWS = 4;  // of a part
    const int threads_, sharing_;
    int n_runs_ = 0, n_parts_ = 0;
    std::chrono::nanoseconds apart_{}, together_{};
    std::atomic<uint32_t> turn_{0};
    std::atomic<int> arrived_{0};
};

}  // namespace
