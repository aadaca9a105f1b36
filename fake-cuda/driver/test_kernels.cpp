// Kernels for tests of the device layer. The kernels of models are in kernels/cuda.
#include "cuda.h"


// y[i] = y[i] * by + x[i], for i below `count`.
KERNEL(weir_test_scale_add, (256), float* y, const float* x, float by, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = y[i] * by + x[i];
}

// to[i] = value, for i below `count`.
KERNEL(weir_test_fill, (256), unsigned* to, unsigned value, unsigned long long count) {
    const unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value;
}


// Writes to[0] repeatedly, and never ends.
KERNEL(weir_test_spin, (256), unsigned* to) {
    for (unsigned i = 0;; i++) *static_cast<volatile unsigned*>(to) = i;
}
