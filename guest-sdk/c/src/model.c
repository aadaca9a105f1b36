#include "call.h"

static void give_back_model(int32_t handle) {
    weir_inference_models_model_drop_own((weir_inference_models_own_model_t){handle});
}

static void give_back_pending(int32_t handle) {
    weir_inference_models_pending_drop_own((weir_inference_models_own_pending_t){handle});
}

bool weir_model_open(const char *name, weir_model *found) {
    weir_abi_string_t text = weir_abi_text(name);
    weir_inference_models_own_model_t own;
    weir_inference_models_error_t error;
    if (!weir_inference_models_static_model_open(&text, &own, &error)) return weir_failed(&error);
    weir_keep(own.__handle, give_back_model);
    *found = (weir_model){own.__handle};
    return true;
}

static weir_inference_models_list_tuple2_string_borrow_tensor_t lent(const weir_tensors *tensors) {
    weir_inference_models_tuple2_string_borrow_tensor_t *items = weir_alloc(tensors->count * sizeof *items);
    for (size_t at = 0; at < tensors->count; at++) {
        items[at].f0 = weir_abi_text(tensors->items[at].name);
        items[at].f1.__handle = tensors->items[at].tensor.handle;
    }
    return (weir_inference_models_list_tuple2_string_borrow_tensor_t){items, tensors->count};
}

static weir_tensors received(const weir_inference_models_list_tuple2_string_own_tensor_t *outputs) {
    weir_named *items = weir_alloc(outputs->len * sizeof *items);
    for (size_t at = 0; at < outputs->len; at++) {
        items[at].name = weir_text(outputs->ptr[at].f0.ptr, outputs->ptr[at].f0.len);
        items[at].tensor = weir_own_tensor(outputs->ptr[at].f1.__handle);
    }
    return (weir_tensors){items, outputs->len};
}

bool weir_model_infer(weir_model model, const weir_tensors *inputs, weir_tensors *outputs) {
    weir_inference_models_borrow_model_t self = {model.handle};
    weir_inference_models_list_tuple2_string_borrow_tensor_t given = lent(inputs);
    weir_inference_models_list_tuple2_string_own_tensor_t got;
    weir_inference_models_error_t error;
    if (!weir_inference_models_method_model_infer(self, &given, NULL, &got, &error)) return weir_failed(&error);
    *outputs = received(&got);
    return true;
}

bool weir_model_submit(weir_model model, const weir_tensors *inputs, weir_pending *started) {
    weir_inference_models_borrow_model_t self = {model.handle};
    weir_inference_models_list_tuple2_string_borrow_tensor_t given = lent(inputs);
    weir_inference_models_own_pending_t own;
    weir_inference_models_error_t error;
    if (!weir_inference_models_method_model_submit(self, &given, NULL, &own, &error)) return weir_failed(&error);
    weir_keep(own.__handle, give_back_pending);
    *started = (weir_pending){own.__handle};
    return true;
}

bool weir_pending_wait(weir_pending run, weir_tensors *outputs) {
    weir_inference_models_borrow_pending_t self = {run.handle};
    weir_inference_models_list_tuple2_string_own_tensor_t got;
    weir_inference_models_error_t error;
    if (!weir_inference_models_method_pending_wait(self, &got, &error)) return weir_failed(&error);
    *outputs = received(&got);
    return true;
}

void weir_pending_cancel(weir_pending run) {
    weir_inference_models_method_pending_cancel((weir_inference_models_borrow_pending_t){run.handle});
}
