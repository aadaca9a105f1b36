/* Converts a picture of one digit, of any size, to the model's input. The result equals that of
 * `../classify-digits/src/prepare.rs` bit by bit. */

#include "digits.h"
#include <math.h>

/* Ink threshold for cropping, from 0 to 1. */
#define INK 0.3f
/* A picture with a smaller range of grey is blank. */
#define BLANK (1.0f / 20.0f)

/* Pixels from `first` up to but not including `end`. */
typedef struct {
    size_t first, end;
} extent;

/* SIDE cells around the middle of an extent: their start, in pixels, and the length of each. */
typedef struct {
    double start, length;
    /* Pixels that overlap a cell. */
    extent pixels;
} grid;

static float border_mean(const float *ink, size_t width, size_t height) {
    double sum = 0, count = 0;
    for (size_t y = 0; y < height; y++) {
        size_t step = y == 0 || y + 1 == height || width < 2 ? 1 : width - 1;
        for (size_t x = 0; x < width; x += step) {
            sum += ink[y * width + x];
            count += 1;
        }
    }
    return (float)(sum / count);
}

/* The picture as ink from 0 to 1; NULL for a blank picture. */
static float *ink_of(const picture *picture) {
    size_t count = picture->width * picture->height;
    float low = picture->grey[0], high = picture->grey[0];
    for (size_t at = 0; at < count; at++) {
        low = fminf(low, picture->grey[at]);
        high = fmaxf(high, picture->grey[at]);
    }
    if (high - low < BLANK) return NULL;
    float scale = 1 / (high - low);
    float *ink = weir_alloc(count * sizeof *ink);
    for (size_t at = 0; at < count; at++) ink[at] = -low * scale + scale * picture->grey[at];
    if (border_mean(ink, picture->width, picture->height) > 0.5f) {
        for (size_t at = 0; at < count; at++) ink[at] = high * scale + -scale * picture->grey[at];
    }
    return ink;
}

static void take_in(extent *extent, size_t pixel) {
    if (pixel < extent->first) extent->first = pixel;
    if (pixel >= extent->end) extent->end = pixel + 1;
}

static grid laid_over(extent ink, size_t side, size_t pixels) {
    grid grid = {.start = ((double)(ink.first + ink.end) - (double)side) / 2, .length = (double)side / SIDE};
    double end = ceil(fmax(grid.start + grid.length * SIDE, 0));
    grid.pixels.first = (size_t)floor(fmax(grid.start, 0));
    grid.pixels.end = end < (double)pixels ? (size_t)end : pixels;
    return grid;
}

/* Overlap of `pixel` with each cell; returns the cells from `first` up to the end. */
static extent covered(const grid *grid, size_t pixel, double parts[SIDE]) {
    double left = (double)pixel - grid->start, right = (double)(pixel + 1) - grid->start;
    double last = ceil(fmax(right / grid->length, 0));
    extent cells = {(size_t)floor(fmax(left / grid->length, 0)), last < SIDE ? (size_t)last : SIDE};
    for (size_t cell = cells.first; cell < cells.end; cell++) {
        double part = fmin(right, (double)(cell + 1) * grid->length) - fmax(left, (double)cell * grid->length);
        parts[cell] = fmax(part, 0);
    }
    return cells;
}

bool prepare(const picture *picture, float cells[SIDE * SIDE]) {
    const float *ink = ink_of(picture);
    if (ink == NULL) return weir_fail(422, "the picture is blank: there is no digit on it");
    extent columns = {picture->width, 0}, rows = {picture->height, 0};
    for (size_t at = 0; at < picture->width * picture->height; at++) {
        if (ink[at] <= INK) continue;
        take_in(&columns, at % picture->width);
        take_in(&rows, at / picture->width);
    }
    size_t wide = columns.end - columns.first, high = rows.end - rows.first;
    size_t side = wide > high ? wide : high;
    grid across = laid_over(columns, side, picture->width), down = laid_over(rows, side, picture->height);
    double sums[SIDE * SIDE] = {0}, most = 0;
    for (size_t y = down.pixels.first; y < down.pixels.end; y++) {
        double heights[SIDE], widths[SIDE];
        extent over_y = covered(&down, y, heights);
        for (size_t x = across.pixels.first; x < across.pixels.end; x++) {
            double value = ink[y * picture->width + x];
            extent over_x = covered(&across, x, widths);
            for (size_t row = over_y.first; row < over_y.end; row++) {
                for (size_t column = over_x.first; column < over_x.end; column++) {
                    sums[row * SIDE + column] += value * heights[row] * widths[column];
                }
            }
        }
    }
    for (size_t cell = 0; cell < SIDE * SIDE; cell++) most = fmax(most, sums[cell]);
    for (size_t cell = 0; cell < SIDE * SIDE; cell++) cells[cell] = (float)(sums[cell] / most);
    return true;
}
