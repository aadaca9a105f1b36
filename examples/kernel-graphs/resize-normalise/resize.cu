// An image of bytes, row by row with three channels together, to the size that a network takes, channel by channel: each pixel between the four
// nearest (their centres half a pixel in), from 0 to 1, less the channel's mean and over its deviation.
extern "C" __global__ void __launch_bounds__(256)
resize_normalise(const unsigned char* __restrict__ image, const float* __restrict__ mean, const float* __restrict__ deviation,
                 float* __restrict__ to, int height, int width, int to_height, int to_width) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= to_height * to_width) return;
    const int row = at / to_width, column = at - row * to_width;
    const float y = fmaxf((row + 0.5f) * height / to_height - 0.5f, 0.0f);
    const float x = fmaxf((column + 0.5f) * width / to_width - 0.5f, 0.0f);
    const int top = min(int(y), height - 1), left = min(int(x), width - 1);
    const int bottom = min(top + 1, height - 1), right = min(left + 1, width - 1);
    const float down = y - top, over = x - left;
    for (int channel = 0; channel < 3; channel++) {
        const float a = image[(top * width + left) * 3 + channel], b = image[(top * width + right) * 3 + channel];
        const float c = image[(bottom * width + left) * 3 + channel], d = image[(bottom * width + right) * 3 + channel];
        const float upper = a + (b - a) * over, lower = c + (d - c) * over;
        const float value = (upper + (lower - upper) * down) / 255.0f;
        to[channel * to_height * to_width + at] = (value - mean[channel]) / deviation[channel];
    }
}
