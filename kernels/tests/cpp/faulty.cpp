// Kernels with one error each, which the emulator must detect. Compiled like a .cu file.
#include "cuda.h"

namespace faulty {

// Half of the block waits at one barrier, half at another.
KERNEL(faulty_barriers, (64), float* to) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    to[threadIdx.x] = 1.0f;
}

// Half of the block does not reach the barrier, and waits for its warp instead, which never
// completes.
KERNEL(faulty_wait, (64), float* to) {
    if (threadIdx.x % 2 == 0)
        __syncthreads();
    else
        __syncwarp();
    to[threadIdx.x] = 1.0f;
}

// Some lanes have exited when the others shuffle.
KERNEL(faulty_shuffle, (32), float* to) {
    if (threadIdx.x >= 20) return;
    to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, float(threadIdx.x), 16);
}

// Each thread reads its neighbour's value, without a barrier after the write.
KERNEL(faulty_race, (64), float* to) {
    typedef float Values[64];
    SHARED(Values, values);
    values[threadIdx.x] = float(threadIdx.x);
    to[threadIdx.x] = values[63 - threadIdx.x];
}

// An asynchronous copy is read without a wait.
KERNEL(faulty_copy, (32), float* to, const float* from) {
    typedef float Values[32];
    SHARED(Values, values);
    copy_async<4>(&values[threadIdx.x], from + threadIdx.x, true);
    copy_async_commit();
    to[threadIdx.x] = values[threadIdx.x];
}

// Accesses one element past a buffer, and past a shared variable.
KERNEL(faulty_store, (64), float* to) { to[threadIdx.x + 1] = 1.0f; }
KERNEL(faulty_shared, (64), float* to) {
    typedef float Values[64];
    SHARED(Values, values);
    values[threadIdx.x + 1] = 1.0f;
    to[threadIdx.x] = 1.0f;
}

}  // namespace faulty
