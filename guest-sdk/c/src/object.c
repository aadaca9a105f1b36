#include "call.h"

bool weir_object_get(const char *name, weir_tensor *found) {
    weir_abi_string_t text = weir_abi_text(name);
    weir_inference_objects_own_tensor_t own;
    weir_inference_objects_error_t error;
    if (!weir_inference_objects_get(&text, &own, &error)) return weir_failed(&error);
    *found = weir_own_tensor(own.__handle);
    return true;
}

bool weir_object_put(const char *name, weir_tensor value, uint64_t ttl_ms) {
    if (!weir_is_tensor(value)) return false;
    weir_abi_string_t text = weir_abi_text(name);
    weir_inference_objects_error_t error;
    weir_inference_objects_borrow_tensor_t borrowed = {value.handle};
    return weir_inference_objects_put(&text, borrowed, ttl_ms > 0 ? &ttl_ms : NULL, &error) || weir_failed(&error);
}

bool weir_object_delete(const char *name) {
    weir_abi_string_t text = weir_abi_text(name);
    weir_inference_objects_error_t error;
    return weir_inference_objects_delete(&text, &error) || weir_failed(&error);
}
