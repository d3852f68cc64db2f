// The matrix unit of Intel processors (AMX): permission to use it, and its configuration in a thread.

#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include <immintrin.h>
#define MATRIX_UNIT
#endif

namespace {

constexpr int LANES = 16;   // floats per vector, rows and columns of a tile
constexpr int TILE = 1024;  // bytes per tile

#ifdef MATRIX_UNIT

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t columns[16] = {};
    uint8_t rows[16] = {};
    TileConfig() {
        for (int i = 0; i < 8; i++) columns[i] = 64, rows[i] = LANES;
    }
};

inline bool request_matrix_unit() {
#if defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
#else
    return true;
#endif
}

inline void configure_tiles() {
    static const TileConfig config;
    _tile_loadconfig(&config);
}

inline void release_tiles() { _tile_release(); }

#else

inline bool request_matrix_unit() { return true; }
inline void configure_tiles() {}
inline void release_tiles() {}

#endif

#ifdef SANITIZED  // by ``make sanitize``: sanitizers do not instrument tile instructions, so the bytes of a tile are read once more
inline void touch_tile(const void* from, size_t stride) {
    for (int line = 0; line < LANES; line++)
        for (int i = 0; i < 64; i++) (void)*((const volatile uint8_t*)from + line * stride + i);
}
#else
inline void touch_tile(const void*, size_t) {}
#endif

}  // namespace
