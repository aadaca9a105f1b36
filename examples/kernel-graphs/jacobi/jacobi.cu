// Poisson's equation on a square of n x n points whose edge is held at zero: the sum of a point's four neighbours, less four times itself, is -source.

__device__ float at(const float* x, int row, int column, int n) {
    return row < 0 || column < 0 || row >= n || column >= n ? 0.0f : x[row * n + column];
}

__device__ float neighbours(const float* x, int row, int column, int n) {
    return at(x, row - 1, column, n) + at(x, row + 1, column, n) + at(x, row, column - 1, n) + at(x, row, column + 1, n);
}

// One sweep of Jacobi's iteration.
extern "C" __global__ void __launch_bounds__(256)
sweep(const float* __restrict__ x, const float* __restrict__ source, float* __restrict__ next, int n) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n && column < n) next[row * n + column] = 0.25f * (neighbours(x, row, column, n) + source[row * n + column]);
}

// How far from a solution x is: the largest error of each row.
extern "C" __global__ void __launch_bounds__(256)
error_of_rows(const float* __restrict__ x, const float* __restrict__ source, float* __restrict__ error, int n) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float largest = 0.0f;
    for (int column = 0; column < n; column++) {
        const float found = 4.0f * x[row * n + column] - neighbours(x, row, column, n);
        largest = fmaxf(largest, fabsf(found - source[row * n + column]));
    }
    error[row] = largest;
}
