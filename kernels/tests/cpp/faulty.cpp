// Kernels that are wrong in one way each: what the emulator is there to find. Compiled like a .cu file.
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

// Half of the block does not come to the barrier before it waits for its warp, which never comes.
KERNEL(faulty_wait, (64), float* to) {
    if (threadIdx.x % 2 == 0)
        __syncthreads();
    else
        __syncwarp();
    to[threadIdx.x] = 1.0f;
}

// Some lanes are gone when the others shuffle.
KERNEL(faulty_shuffle, (32), float* to) {
    if (threadIdx.x >= 20) return;
    to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, float(threadIdx.x), 16);
}

// Each thread reads what its neighbour wrote, without a barrier between.
KERNEL(faulty_race, (64), float* to) {
    typedef float Values[64];
    SHARED(Values, values);
    values[threadIdx.x] = float(threadIdx.x);
    to[threadIdx.x] = values[63 - threadIdx.x];
}

// What has been asked for is read before it is waited for.
KERNEL(faulty_copy, (32), float* to, const float* from) {
    typedef float Values[32];
    SHARED(Values, values);
    copy_async<4>(&values[threadIdx.x], from + threadIdx.x, true);
    copy_async_commit();
    to[threadIdx.x] = values[threadIdx.x];
}

// One element too many: of a buffer, and of a shared variable.
KERNEL(faulty_store, (64), float* to) { to[threadIdx.x + 1] = 1.0f; }
KERNEL(faulty_shared, (64), float* to) {
    typedef float Values[64];
    SHARED(Values, values);
    values[threadIdx.x + 1] = 1.0f;
    to[threadIdx.x] = 1.0f;
}

}  // namespace faulty
