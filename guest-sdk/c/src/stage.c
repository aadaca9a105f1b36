/* The export of tensor functions, by the canonical ABI of `weir:inference/stage`. */

#include "../weir_stage.h"
#include "call.h"
#include <stdio.h>
#include <string.h>

/* A tensor function has the same input and output types as a model run. */
typedef weir_inference_models_tuple2_string_own_tensor_t named;
typedef weir_inference_models_result_list_tuple2_string_own_tensor_error_t result;

static result answer;

static void refuse(const weir_failure *failure) {
    answer.is_err = true;
    /* Invalid arguments of a model run are not the caller's. */
    bool is_own = failure->code == WEIR_INVALID_ARGUMENT && failure->status >= 500;
    answer.val.err.tag = (uint8_t)(is_own ? WEIR_INTERNAL : failure->code);
    answer.val.err.val.internal = weir_abi_text(failure->message);
}

static bool give(const weir_tensors *outputs) {
    named *items = weir_alloc(outputs->count * sizeof *items);
    for (size_t at = 0; at < outputs->count; at++) {
        const weir_named *output = &outputs->items[at];
        if (!weir_is_tensor(output->tensor)) {
            return weir_refuse(WEIR_INTERNAL, "the output %s is no tensor: it is empty, or was dropped", output->name);
        }
        for (size_t other = 0; other < at; other++) {
            if (strcmp(outputs->items[other].name, output->name) == 0) {
                return weir_refuse(WEIR_INTERNAL, "there are two outputs %s", output->name);
            }
            if (items[other].f1.__handle == output->tensor.handle) {
                return weir_refuse(WEIR_INTERNAL, "the outputs %s and %s are one tensor", outputs->items[other].name, output->name);
            }
        }
        items[at].f0 = weir_abi_text(output->name);
        items[at].f1.__handle = output->tensor.handle;
    }
    /* The caller takes ownership of the outputs. */
    for (size_t at = 0; at < outputs->count; at++) weir_let_go(items[at].f1.__handle, weir_give_back_tensor);
    answer.val.ok.ptr = items;
    answer.val.ok.len = outputs->count;
    return true;
}

__attribute__((export_name("weir:inference/stage@0.1.0#run"))) result *weir_stage_run(named *given, size_t count) {
    weir_tensors inputs = {weir_alloc(count * sizeof(weir_named)), count}, outputs = {NULL, 0};
    for (size_t at = 0; at < count; at++) {
        inputs.items[at].name = weir_text(given[at].f0.ptr, given[at].f0.len);
        inputs.items[at].tensor = weir_own_tensor(given[at].f1.__handle);
    }
    memset(&answer, 0, sizeof answer);
    if (!weir_run(&inputs, &outputs) || !give(&outputs)) refuse(weir_error());
    /* Flushes the log before the answer is returned. */
    fflush(NULL);
    weir_give_back_all();
    return &answer;
}

__attribute__((export_name("cabi_post_weir:inference/stage@0.1.0#run"))) void weir_stage_ran(result *ran) {
    (void)ran;
    weir_end_call();
}
