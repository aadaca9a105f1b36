// Convolution by the units for matrices: f32 rounded to tf32, f16 and bf16, summed up in f32. Compute capability 8.0 and up.
#include "conv.cuh"

CONVS(tf32_tensor, float, Tensor)
CONVS(f16_tensor, f16, Tensor)
CONVS(bf16_tensor, bf16, Tensor)
