/* Tensor functions: functions from tensors to tensors, which callers can run like models. */
#ifndef WEIR_STAGE_H
#define WEIR_STAGE_H

#include "weir.h"

/* Maps tensors to tensors: appends to `outputs`, which is initially empty. Implemented by the
 * author of the function. If it returns false, the caller gets weir_error(). */
bool weir_run(const weir_tensors *inputs, weir_tensors *outputs);

#endif
