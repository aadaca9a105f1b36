// Products of matrices by the units for matrices: f32 rounded to tf32, f16 and bf16, summed up in f32. Compute capability 8.0 and up.
#include "gemm.cuh"

GEMMS(tf32_tensor, float, Tensor)
GEMMS(f16_tensor, f16, Tensor)
GEMMS(bf16_tensor, bf16, Tensor)
