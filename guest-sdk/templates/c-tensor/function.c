/* `{{ name }}` maps tensors to tensors: it scales `x` into 0 to 1 as `y`. Call it with
 *
 *     curl -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 4]}]}' http://127.0.0.1:9347/fn/{{ name }}
 */

#include "weir_stage.h"
#include <math.h>

static void scale(const float *x, float *y, size_t count) {
    float low = INFINITY, high = -INFINITY;
    for (size_t at = 0; at < count; at++) {
        low = fminf(low, x[at]);
        high = fmaxf(high, x[at]);
    }
    for (size_t at = 0; at < count; at++) y[at] = high > low ? (x[at] - low) / (high - low) : 0;
}

bool weir_run(const weir_tensors *inputs, weir_tensors *outputs) {
    weir_tensor x, y;
    const void *values;
    const uint32_t *shape;
    size_t count;
    if (!weir_get(inputs, "x", &x) || !weir_tensor_values(x, WEIR_FP32, &values, &count)) return false;
    float *scaled = weir_alloc(count * sizeof *scaled);
    scale(values, scaled, count);
    size_t rank = weir_tensor_shape(x, &shape);
    if (!weir_tensor_new(WEIR_FP32, shape, rank, scaled, &y)) return false;
    /* Optional, since the end of the call drops it too. Large tensors should be dropped early. */
    weir_tensor_drop(&x);
    weir_put(outputs, "y", y);
    return true;
}
