/* In-memory fake of the node: implements weir_abi.h for tests without a node. */
#ifndef WEIR_TESTS_NODE_H
#define WEIR_TESTS_NODE_H

#include "../abi/weir_abi.h"
#include <stdbool.h>

/* Number of tensors, models and runs that the function has not released. */
int node_held(void);

/* Creates an input tensor of numbers for a tensor function, as a caller does. */
int32_t node_tensor(const float *values, uint32_t count);

/* Returns the first byte of a tensor that the function has transferred, and releases the tensor;
 * -1 if there is none. */
int node_take(int32_t handle);

/* Options of the latest run. */
const weir_inference_models_options_t *node_options(void);

/* Lifetime of the latest object put; 0 if none was given. */
uint64_t node_ttl_ms(void);

/* Options of the latest decoding of an image. */
const weir_inference_image_options_t *node_image_options(void);

#endif
