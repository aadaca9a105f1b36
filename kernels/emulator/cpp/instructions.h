// The instructions that kernels/cuda/instructions.cuh writes as PTX, executed on the CPU. Lanes
// hold the fragments of matrices that the PTX ISA defines (warp-level matrix instructions): `group`
// is the lane's index divided by 4, `at` the remainder.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"

typedef unsigned short u16;
typedef unsigned int u32;

// binary16, to the nearest, ties to even.
inline float f16_to_f32(u16 bits) {
    _Float16 x;
    std::memcpy(&x, &bits, 2);
    return static_cast<float>(x);
}
inline u16 f32_to_f16(float value) {
    const _Float16 x = static_cast<_Float16>(value);
    u16 bits;
    std::memcpy(&bits, &x, 2);
    return bits;
}

// bfloat16, to the nearest, ties to even.
inline float bf16_to_f32(u16 bits) { return __uint_as_float(u32(bits) << 16); }
inline u16 f32_to_bf16(float value) {
    if (value != value) return 0x7fff;
    const u32 bits = __float_as_uint(value);
    return u16((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// cvt.rna.tf32.f32: to the nearest of 10 bits of fraction, ties away from zero.
inline u32 f32_to_tf32(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
    return (bits + 0x1000u) & 0xffffe000u;
}

namespace emulator {

struct Multiply {
    float* d;
    const u32* a;
    const u32* b;
};

// d += a b for 16 rows, 8 columns and an inner dimension of `depth`; each register of `a` and `b`
// holds `packed` elements.
template <int depth, int packed, class Value>
inline void multiply(const char* site, float* d, const u32* a, const u32* b, Value value) {
    Multiply mine{d, a, b};
    Block& block = *current->block;
    block.together(site, &mine, [&](Warp& warp) {
        whole(block, warp, site);
        float rows[16][depth], columns[depth][8], sums[16][8];
        const int half = depth / 2, pieces = half / 4;
        for (int lane = 0; lane < 32; lane++) {
            const auto& of = *static_cast<Multiply*>(warp.operands[lane]);
            const int group = lane / 4, at = lane % 4;
            for (int r = 0; r < 4; r++)
                for (int i = 0; i < packed; i++)
                    rows[group + r % 2 * 8][at * pieces + i + r / 2 * half] = value(of.a[r], i);
            for (int r = 0; r < 2; r++)
                for (int i = 0; i < packed; i++) columns[at * pieces + i + r * half][group] = value(of.b[r], i);
            for (int i = 0; i < 4; i++) sums[group + i / 2 * 8][at * 2 + i % 2] = of.d[i];
        }
        for (int m = 0; m < 16; m++)
            for (int k = 0; k < depth; k++)
                for (int n = 0; n < 8; n++) sums[m][n] += rows[m][k] * columns[k][n];
        for (int lane = 0; lane < 32; lane++) {
            const auto& of = *static_cast<Multiply*>(warp.operands[lane]);
            const int group = lane / 4, at = lane % 4;
            for (int i = 0; i < 4; i++) of.d[i] = sums[group + i / 2 * 8][at * 2 + i % 2];
        }
    });
}

struct Rows {
    const void* row;
    u32* registers;
};

// Load four matrices of 8 rows of 8 halves: lane l supplies row l % 8 of matrix l / 8, and receives
// two neighbours of a row of each matrix.
inline void load_matrices(const char* site, u32* registers, const void* row, bool transposed) {
    Rows mine{row, registers};
    Block& block = *current->block;
    block.together(site, &mine, [&](Warp& warp) {
        whole(block, warp, site);
        for (int matrix = 0; matrix < 4; matrix++) {
            u16 halves[8][8];
            for (int r = 0; r < 8; r++) {
                const void* from = static_cast<Rows*>(warp.operands[matrix * 8 + r])->row;
                if (reinterpret_cast<uintptr_t>(from) % 16 != 0) block.fail("ldmatrix: a row is not aligned to 16 bytes");
                std::memcpy(halves[r], from, 16);
            }
            for (int lane = 0; lane < 32; lane++) {
                const int group = lane / 4, at = lane % 4 * 2;
                const u16 low = transposed ? halves[at][group] : halves[group][at];
                const u16 high = transposed ? halves[at + 1][group] : halves[group][at + 1];
                static_cast<Rows*>(warp.operands[lane])->registers[matrix] = u32(low) | u32(high) << 16;
            }
        }
    });
}

}  // namespace emulator

inline void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    // The instruction ignores the lowest 13 bits of an operand.
    emulator::multiply<8, 1>("mma.m16n8k8.tf32", d, a, b, [](u32 bits, int) { return __uint_as_float(bits & 0xffffe000u); });
}
inline void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::multiply<16, 2>("mma.m16n8k16.f16", d, a, b, [](u32 bits, int i) { return f16_to_f32(u16(bits >> (i * 16))); });
}
inline void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::multiply<16, 2>("mma.m16n8k16.bf16", d, a, b, [](u32 bits, int i) { return bf16_to_f32(u16(bits >> (i * 16))); });
}
inline void ldmatrix(u32 (&registers)[4], const void* row) { emulator::load_matrices("ldmatrix", registers, row, false); }
inline void ldmatrix_transposed(u32 (&registers)[4], const void* row) {
    emulator::load_matrices("ldmatrix.trans", registers, row, true);
}

template <int bytes>
inline void copy_async(void* to, const void* from, bool valid) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    emulator::Thread& self = *emulator::current;
    const auto misaligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % bytes != 0; };
    if (misaligned(to) || (valid && misaligned(from))) self.block->fail("cp.async: an address is not aligned to what is copied");
    self.copies.push_back({to, valid ? from : nullptr, bytes, self.group});
}
inline void copy_async_commit() { emulator::current->group++; }
template <int groups_left>
inline void copy_async_wait() {
    emulator::finish_copies(groups_left);
}
