// Convolution on tensor cores: f32 rounded to tf32, f16 and bf16, with sums in f32. Requires
// compute capability 8.0.
#include "conv.cuh"
#include "windows.cuh"

CONVS(tf32_tensor, float, Tensor)
CONVS(f16_tensor, f16, Tensor)
CONVS(bf16_tensor, bf16, Tensor)

CONVS_WINDOWS_TENSOR(tf32_tensor, float)
CONVS_WINDOWS_TENSOR(f16_tensor, f16)
CONVS_WINDOWS_TENSOR(bf16_tensor, bf16)
