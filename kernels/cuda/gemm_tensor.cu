// Matrix products on tensor cores: f32 rounded to tf32, f16 and bf16, with sums in f32. Requires
// compute capability 8.0.
#include "gemm.cuh"

GEMMS(tf32_tensor, float, Tensor)
GEMMS(f16_tensor, f16, Tensor)
GEMMS(bf16_tensor, bf16, Tensor)
