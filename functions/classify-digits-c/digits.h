/* The parts of classify-digits-c. */
#ifndef DIGITS_H
#define DIGITS_H

#include "weir.h"

/* The model takes SIDE x SIDE pixels. */
#define SIDE 8

/* Grey from 0 to 1, at least one pixel, row by row. */
typedef struct {
    size_t width, height;
    float *grey;
} picture;

/* Reads `{"pixels": [[number, ...], ...]}`. Numbers up to 1 are taken as they are; where there are larger ones, the largest counts as 1. */
bool picture_of_rows(const char *text, picture *read);

/* Cuts the digit out, brings it to SIDE x SIDE and stretches its contrast. Dark on light and light on dark are told apart by the picture's
 * border. Fails on a blank picture. */
bool prepare(const picture *picture, float cells[SIDE * SIDE]);

#endif
