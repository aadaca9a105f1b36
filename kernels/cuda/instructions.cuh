// Instructions that CUDA C++ does not express without headers, as PTX: conversions, matrix
// instructions and asynchronous copies. The emulator has the same functions in C++
// (kernels/emulator/cpp/instructions.h).
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;

// A kernel, its launch bounds in parentheses, and its parameters.
#define KERNEL(name, bounds, ...) extern "C" __global__ void __launch_bounds__ bounds name(__VA_ARGS__)

// A variable that the threads of a block share, and the dynamic shared memory of the launch.
#define SHARED(type, name) __shared__ __align__(16) type name
#define DYNAMIC_SHARED(type, name)                        \
    extern __shared__ __align__(16) char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)

// binary16, to the nearest, ties to even.
__device__ __forceinline__ float f16_to_f32(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ __forceinline__ u16 f32_to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// bfloat16, to the nearest, ties to even.
__device__ __forceinline__ float bf16_to_f32(u16 bits) { return __uint_as_float(u32(bits) << 16); }
__device__ __forceinline__ u16 f32_to_bf16(float value) {
#if __CUDA_ARCH__ >= 800
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    if (value != value) return 0x7fff;
    const u32 bits = __float_as_uint(value);
    return u16((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
#endif
}

__device__ __forceinline__ u32 shared_address(const void* address) { return u32(__cvta_generic_to_shared(address)); }

#if __CUDA_ARCH__ >= 800

// To the nearest of 10 bits of fraction, ties away from zero.
__device__ __forceinline__ u32 f32_to_tf32(float value) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// d += a b by a warp, for 16 rows, 8 columns, and an inner dimension of 8 (tf32) or 16 (f16, bf16).
#define WEIR_MMA(name, shape)                                                                            \
    __device__ __forceinline__ void name(float(&d)[4], const u32(&a)[4], const u32(&b)[2]) {             \
        asm volatile("mma.sync.aligned." shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                \
    }
WEIR_MMA(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
WEIR_MMA(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
WEIR_MMA(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
#undef WEIR_MMA

// Load four matrices of 8 rows of 8 halves: lane l supplies row l % 8 of matrix l / 8, and receives
// two neighbours of a row of each matrix.
__device__ __forceinline__ void ldmatrix(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copy asynchronously to shared memory, or write zeroes if `from` is not `valid`. The data is
// visible after the wait for its group.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
    const int from_bytes = valid ? bytes : 0;
    // Copies of 16 bytes can bypass the first-level cache, since other threads of the block do not
    // read these lines.
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(from_bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(bytes), "r"(from_bytes)
                     : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups_left>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

#else

// Before compute capability 8.0, the thread copies synchronously.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
    if (bytes == 16) {
        *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    } else if (bytes == 8) {
        *static_cast<uint2*>(to) = valid ? *static_cast<const uint2*>(from) : make_uint2(0, 0);
    } else {
        *static_cast<u32*>(to) = valid ? *static_cast<const u32*>(from) : 0;
    }
}
__device__ __forceinline__ void copy_async_commit() {}
template <int groups_left>
__device__ __forceinline__ void copy_async_wait() {}

#endif
