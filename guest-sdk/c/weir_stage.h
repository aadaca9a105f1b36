/* Functions from tensors to tensors, which can be called like models. */
#ifndef WEIR_STAGE_H
#define WEIR_STAGE_H

#include "weir.h"

/* Maps tensors to tensors: puts into `outputs`, which is empty at first. The function's author writes it. Where it gives false,
 * weir_error() is what the caller gets. */
bool weir_run(const weir_tensors *inputs, weir_tensors *outputs);

#endif
