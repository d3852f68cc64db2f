// Thread team for one decoding step.

#pragma once

#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace {

// Threads that run one function in parallel and synchronize at barriers; between runs they wait, first spinning, then sleeping.
//
// Several threads are faster only while each has a CPU: at a barrier all wait for a thread without one. So one run in TRIAL is timed with
// one thread and the next one with all threads; the following runs use the faster setting.
class Team {
   public:
    explicit Team(int size) : full_(size) {
        try {
            for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
        } catch (...) {  // destroying a running thread would terminate the process
            dismiss();
            throw;
        }
    }

    ~Team() { dismiss(); }

    int size() const { return size_; }

    void run(void (*work)(void*, int), void* with) {
        using clock = std::chrono::steady_clock;
        const int turn = full_ == 1 ? -1 : n_runs_++ % TRIAL;
        size_ = turn == 0 || (turn > 1 && alone_ < together_) || turn < 0 ? 1 : full_;
        work_ = work, with_ = with;
        const auto start = clock::now();
        release();
        work(with, 0);
        barrier();
        if (turn == 0) alone_ = clock::now() - start;
        if (turn == 1) together_ = clock::now() - start;
    }

    void barrier() {
        const int size = size_;  // read before arriving: the last thread to arrive may start the next run, with another size
        if (size == 1) return;
        uint32_t turn = turn_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; spins++)
            if (spins < 20000) _mm_pause(); else std::this_thread::yield();
    }

   private:
    void dismiss() {
        stop_ = true, size_ = 2;  // more than one, so that release() wakes them
        release();
        for (auto& thread : threads_) thread.join();
    }

    void release() {
        if (size_ == 1) return;
        { std::lock_guard<std::mutex> lock(mutex_); runs_.fetch_add(1, std::memory_order_release); }
        wake_.notify_all();
    }

    void serve(int thread_index) {
        for (uint32_t seen = 0;;) {
            for (int spins = 0; runs_.load(std::memory_order_acquire) == seen && spins < 20000; spins++) _mm_pause();
            if (runs_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return runs_.load(std::memory_order_acquire) != seen; });
            }
            seen++;
            if (stop_) return;
            work_(with_, thread_index);
            barrier();
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

}  // namespace
