/* Recognises one handwritten digit: takes rows of grey, returns JSON. `../classify-digits` is
 * the same function in Rust, with the same answers, and reads PNGs. */

#include "digits.h"
#include "weir_http.h"
#include <math.h>
#include <string.h>

#define DIGITS 10

static const char USAGE[] =
    "classify-digits reads one handwritten digit.\n"
    "\n"
    "  curl -d '{\"pixels\": [[0, 9, 3, ...], ...]}' URL               rows of grey, of any scale and size\n";

/* Probability of each digit from 0 to 9. */
static bool probabilities(const float cells[SIDE * SIDE], const float **found) {
    weir_model model;
    weir_tensor image, output;
    weir_tensors inputs = {NULL, 0}, outputs;
    const void *values;
    size_t count;
    const uint32_t shape[] = {1, 1, SIDE, SIDE};
    if (!weir_tensor_new(WEIR_FP32, shape, 4, cells, &image)) return false;
    weir_put(&inputs, "image", image);
    if (!weir_model_open("digits", &model) || !weir_model_infer(model, &inputs, &outputs)) return false;
    if (!weir_get(&outputs, "probabilities", &output) || !weir_tensor_values(output, WEIR_FP32, &values, &count)) return false;
    if (count != DIGITS) return weir_fail(500, "the model gave %zu numbers, not ten", count);
    *found = values;
    return true;
}

/* Rounds to six decimals: further digits are noise, and hard to read. */
static const char *rounded(float probability) {
    unsigned millionths = (unsigned)floor((double)(probability * 1e6f) + 0.5);
    return weir_format("%u.%06u", millionths / 1000000, millionths % 1000000);
}

static bool classify(weir_request *request, weir_response *response) {
    if (strcmp(request->path, "/") != 0 && strcmp(request->path, "/classify") != 0) {
        return weir_fail(404, "there is nothing at this path; send the picture to /");
    }
    if (strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0) return weir_reply_text(response, 200, USAGE);
    if (strcmp(request->method, "POST") != 0 && strcmp(request->method, "PUT") != 0) {
        return weir_fail(405, "use POST with a picture, or GET for help");
    }
    const uint8_t *body;
    size_t size;
    picture picture;
    float cells[SIDE * SIDE];
    const float *found;
    if (!weir_request_bytes(request, &body, &size)) return false;
    const char *text = (const char *)body;
    text += strspn(text, " \t\r\n");
    if (size == (size_t)(text - (const char *)body)) return weir_fail(400, "the body is empty: send JSON like {\"pixels\": [[0, 1], [1, 0]]}");
    if (*text != '{' || strlen((const char *)body) != size) return weir_fail(415, "the body is no JSON object");
    if (!picture_of_rows(text, &picture) || !prepare(&picture, cells)) return false;
    if (!probabilities(cells, &found)) {
        /* The function chooses the model's input, so a rejected input is not the client's fault. */
        const weir_failure *why = weir_error();
        return weir_fail(why->status < 500 ? 500 : why->status, "the model `digits` cannot be run: %s", why->message);
    }
    int digit = 0;
    const char *list = rounded(found[0]);
    for (int at = 1; at < DIGITS; at++) {
        /* Of equally likely digits, the last. */
        if (found[at] >= found[digit]) digit = at;
        list = weir_format("%s,%s", list, rounded(found[at]));
    }
    const char *json = weir_format("{\"digit\":%d,\"confidence\":%s,\"probabilities\":[%s]}", digit, rounded(found[digit]), list);
    return weir_reply(response, 200, "application/json", json, strlen(json));
}

/* `text` as a JSON string. */
static const char *quoted(const char *text) {
    char *json = weir_alloc(6 * strlen(text) + 3), *at = json;
    *at++ = '"';
    for (; *text != 0; text++) {
        unsigned char sign = (unsigned char)*text;
        if (sign == '"' || sign == '\\') *at++ = '\\';
        if (sign < 0x20) {
            const char *escape = weir_format("\\u%04x", sign);
            memcpy(at, escape, 6);
            at += 6;
        } else {
            *at++ = *text;
        }
    }
    *at = '"';
    return json;
}

bool weir_handle(weir_request *request, weir_response *response) {
    if (classify(request, response)) return true;
    const weir_failure *why = weir_error();
    const char *json = weir_format("{\"error\":%s}", quoted(why->message));
    return weir_reply(response, why->status, "application/json", json, strlen(json));
}
