/* Parser of the one JSON format that represents a picture. */

#include "digits.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Largest number of pixels of a picture: 2048 x 2048. */
#define PIXELS_MAX ((size_t)1 << 22)

static void skip_space(const char **at) {
    *at += strspn(*at, " \t\r\n");
}

/* Consumes `token` if it is next; returns whether it was. */
static bool take(const char **at, const char *token) {
    skip_space(at);
    size_t size = strlen(token);
    if (strncmp(*at, token, size) != 0) return false;
    *at += size;
    return true;
}

static size_t digits(const char *at) {
    return strspn(at, "0123456789");
}

/* Parses a JSON number: `strtof` alone also accepts hexadecimal numbers and words. */
static bool take_number(const char **at, float *value) {
    skip_space(at);
    const char *end = *at;
    if (*end == '-') end++;
    size_t whole = digits(end);
    if (whole == 0 || (*end == '0' && whole > 1)) return false;
    end += whole;
    if (*end == '.') {
        if (digits(end + 1) == 0) return false;
        end += 1 + digits(end + 1);
    }
    if (*end == 'e' || *end == 'E') {
        end++;
        if (*end == '+' || *end == '-') end++;
        if (digits(end) == 0) return false;
        end += digits(end);
    }
    *value = (float)strtod(*at, NULL);
    *at = end;
    return true;
}

static bool malformed(void) {
    return weir_fail(400, "the JSON cannot be used: it is not of the form {\"pixels\": [[number, ...], ...]}");
}

/* Each number takes at least two bytes of text, which bounds the picture before its size is
 * known. */
static bool take_row(const char **at, picture *read, size_t room) {
    size_t width = 0;
    if (!take(at, "[")) return malformed();
    if (!take(at, "]")) {
        do {
            float value;
            if (!take_number(at, &value)) return malformed();
            size_t index = read->height * read->width + width++;
            if (index >= PIXELS_MAX) return weir_fail(413, "the picture has too many pixels; at most %zu in all are taken", PIXELS_MAX);
            if (index >= room) return malformed();
            if (!(value >= 0 && value < INFINITY)) {
                return weir_fail(400, "row %zu of `pixels` has a number that is negative or not finite", read->height);
            }
            read->grey[index] = value;
        } while (take(at, ","));
        if (!take(at, "]")) return malformed();
    }
    if (read->height == 0) read->width = width;
    if (width == 0) return weir_fail(400, "`pixels` is empty");
    if (width != read->width) {
        return weir_fail(400, "row %zu of `pixels` has %zu numbers and the first row has %zu", read->height, width, read->width);
    }
    read->height++;
    return true;
}

bool picture_of_rows(const char *text, picture *read) {
    const char *at = text;
    size_t room = strlen(text) / 2 + 1;
    *read = (picture){0, 0, weir_alloc(room * sizeof(float))};
    if (!take(&at, "{") || !take(&at, "\"pixels\"") || !take(&at, ":") || !take(&at, "[")) return malformed();
    if (take(&at, "]")) return weir_fail(400, "`pixels` is empty");
    do {
        if (!take_row(&at, read, room)) return false;
    } while (take(&at, ","));
    if (!take(&at, "]") || !take(&at, "}")) return malformed();
    skip_space(&at);
    if (*at != 0) return malformed();
    float largest = 1;
    for (size_t pixel = 0; pixel < read->width * read->height; pixel++) largest = fmaxf(largest, read->grey[pixel]);
    for (size_t pixel = 0; pixel < read->width * read->height; pixel++) read->grey[pixel] /= largest;
    return true;
}
