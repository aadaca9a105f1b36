/* Declarations of classify-digits-c. */
#ifndef DIGITS_H
#define DIGITS_H

#include "weir.h"

/* Side of the model's input, in pixels. */
#define SIDE 8

/* Greyscale pixels from 0 to 1, row by row; at least one pixel. */
typedef struct {
    size_t width, height;
    float *grey;
} picture;

/* Parses `{"pixels": [[number, ...], ...]}`. Values up to 1 are used unchanged; if there are
 * larger values, the largest counts as 1. */
bool picture_of_rows(const char *text, picture *read);

/* Crops the digit, scales it to SIDE x SIDE and stretches its contrast. The picture's border
 * determines whether the drawing is dark on light or light on dark. Fails on a blank picture. */
bool prepare(const picture *picture, float cells[SIDE * SIDE]);

#endif
