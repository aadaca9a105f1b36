// The kernels of examples/kernel-graphs, written for NVIDIA's compiler without the macros of
// kernels/cuda. Their blocks run one after the other, in single-threaded workers, so a variable
// shared by the threads of a block is an ordinary variable.
#include "cuda.h"

#define __global__
#define __shared__ static

#define EXAMPLE(name, threads) static const emulator::Registration name##_registration(emulator::describe<name>(#name, threads))

namespace example_sgemm {
#include "../../examples/kernel-graphs/sgemm-chain/sgemm.cu"
EXAMPLE(sgemm, 256);
}  // namespace example_sgemm

namespace example_resize {
#include "../../examples/kernel-graphs/resize-normalise/resize.cu"
EXAMPLE(resize_normalise, 256);
}  // namespace example_resize

namespace example_jacobi {
#include "../../examples/kernel-graphs/jacobi/jacobi.cu"
EXAMPLE(sweep, 256);
EXAMPLE(error_of_rows, 256);
}  // namespace example_jacobi
