/* A stand-in for the node, in memory: what weir_abi.h declares, for tests that run without one. */
#ifndef WEIR_TESTS_NODE_H
#define WEIR_TESTS_NODE_H

#include "../abi/weir_abi.h"
#include <stdbool.h>

/* How many tensors, models and runs the function has not given back. */
int node_held(void);

/* Give a tensor function a tensor of numbers, as a caller does. */
int32_t node_tensor(const float *values, uint32_t count);

/* The first byte of a tensor that the function has given away, which is then gone; -1 where there is none. */
int node_take(int32_t handle);

/* The options of the last run. */
const weir_inference_models_options_t *node_options(void);

/* How long the object is kept that was put last; 0 where nobody said. */
uint64_t node_ttl_ms(void);

#endif
