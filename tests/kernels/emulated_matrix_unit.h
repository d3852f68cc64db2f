// AMX and the bfloat16 instructions of AVX-512 in plain C++, so that their paths run on any processor with AVX-512 and VNNI: compile with
// ``-include emulated_matrix_unit.h``. A tile that is used while its thread has not configured the unit aborts, as the processor would.

#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#undef __AMX_TILE__
#undef __AMX_INT8__
#undef __AMX_BF16__
#undef __AVX512BF16__
#define __AMX_TILE__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#define __AVX512BF16__ 1
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::configure
#define _tile_release emulated::release
#define _tile_zero(to) std::memset(emulated::tile(to), 0, 1024)
#define _tile_loadd(to, from, stride) emulated::load(to, from, stride)
#define _tile_stored(from, to, stride) emulated::store(from, to, stride)
#define _tile_dpbssd(sums, a, b) emulated::multiply_int8(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) emulated::multiply_bfloat16(sums, a, b)
#define _mm512_dpbf16_ps emulated::multiply_pairs
#define _mm512_cvtneps_pbh emulated::narrow
#define UNWATCHED __attribute__((no_sanitize("address", "undefined")))  // sees registers and tiles only; gcc 12 misaligns vectors in watched frames
#define syscall(...) 0L  // the request for permission succeeds

namespace emulated {

inline thread_local bool configured = false;
alignas(64) inline thread_local uint8_t tiles[8][16][64];

inline void configure(const void* config) {
    const auto* bytes = (const uint8_t*)config;
    for (int i = 0; i < 8; i++)
        if (bytes[0] != 1 || bytes[16 + 2 * i] != 64 || bytes[48 + i] != 16) std::abort();  // palette 1, and 16 rows of 64 bytes
    configured = true;
}

inline void release() { configured = false; }

inline uint8_t (*tile(int index))[64] {
    if (!configured) std::abort();
    return tiles[index];
}

inline void load(int to, const void* from, size_t stride) {
    for (int line = 0; line < 16; line++) std::memcpy(tile(to)[line], (const uint8_t*)from + line * stride, 64);
}

inline void store(int from, void* to, size_t stride) {
    for (int line = 0; line < 16; line++) std::memcpy((uint8_t*)to + line * stride, tile(from)[line], 64);
}

UNWATCHED inline float upper_half(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    float number;
    return std::memcpy(&number, &bits, 4), number;
}

// To the nearest bfloat16, ties to even; numbers without a normal form become 0.
UNWATCHED inline __m256i narrow(__m512 numbers) {
    uint32_t bits[16];
    uint16_t halves[16];
    std::memcpy(bits, &numbers, 64);
    for (int i = 0; i < 16; i++) {
        const uint32_t size = bits[i] & 0x7fffffff, sign = bits[i] & 0x80000000;
        const uint32_t rounded = size > 0x7f800000 ? bits[i] | 0x400000 : size < 0x800000 ? sign : bits[i] + 0x7fff + ((bits[i] >> 16) & 1);
        halves[i] = (uint16_t)(rounded >> 16);
    }
    __m256i result;
    return std::memcpy(&result, halves, 32), result;
}

UNWATCHED inline void multiply_int8(int sums, int a, int b) {
    const auto *left = (const int8_t*)tile(a), *right = (const int8_t*)tile(b);
    auto* to = (int32_t*)tile(sums);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 4; i++)
                for (int column = 0; column < 16; column++) to[16 * row + column] += left[64 * row + 4 * k + i] * right[64 * k + 4 * column + i];
}

UNWATCHED inline void multiply_bfloat16(int sums, int a, int b) {
    const auto *left = (const uint16_t*)tile(a), *right = (const uint16_t*)tile(b);
    auto* to = (float*)tile(sums);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 2; i++)
                for (int column = 0; column < 16; column++)
                    to[16 * row + column] += upper_half(left[32 * row + 2 * k + i]) * upper_half(right[32 * k + 2 * column + i]);
}

UNWATCHED inline __m512 multiply_pairs(__m512 sums, __m512bh a, __m512bh b) {
    uint16_t left[32], right[32];
    std::memcpy(left, &a, 64), std::memcpy(right, &b, 64);
    float lanes[16];
    std::memcpy(lanes, &sums, 64);
    for (int i = 0; i < 32; i++) lanes[i / 2] += upper_half(left[i]) * upper_half(right[i]);
    std::memcpy(&sums, lanes, 64);
    return sums;
}

}  // namespace emulated
