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

static bool is_model(weir_model model) {
    return weir_is_kept(model.handle, give_back_model) ||
           weir_refuse(WEIR_INVALID_ARGUMENT, "there is no model where one is needed: it is empty, or was dropped");
}

void weir_model_drop(weir_model *model) {
    weir_drop(&model->handle, give_back_model);
}

void weir_pending_drop(weir_pending *run) {
    weir_drop(&run->handle, give_back_pending);
}

static const weir_port *ports(const weir_inference_models_list_port_t *described) {
    weir_port *made = weir_alloc(described->len * sizeof *made);
    for (size_t at = 0; at < described->len; at++) {
        const weir_inference_models_port_t *port = &described->ptr[at];
        uint32_t *shape = weir_alloc(port->shape.len * sizeof *shape);
        for (size_t axis = 0; axis < port->shape.len; axis++) {
            shape[axis] = port->shape.ptr[axis].is_some ? port->shape.ptr[axis].val : WEIR_ANY;
        }
        made[at] = (weir_port){weir_text(port->name.ptr, port->name.len), (weir_type)port->element_type, shape, port->shape.len};
    }
    return made;
}

bool weir_model_describe(weir_model model, weir_description *found) {
    if (!is_model(model)) return false;
    weir_inference_models_description_t got;
    weir_inference_models_method_model_describe((weir_inference_models_borrow_model_t){model.handle}, &got);
    *found = (weir_description){
        .name = weir_text(got.name.ptr, got.name.len),
        .version = weir_text(got.version.ptr, got.version.len),
        .inputs = ports(&got.inputs),
        .input_count = got.inputs.len,
        .outputs = ports(&got.outputs),
        .output_count = got.outputs.len,
    };
    return true;
}

/* Arguments that start a run, in the types of the generated code. */
typedef struct {
    weir_inference_models_borrow_model_t model;
    weir_inference_models_list_tuple2_string_borrow_tensor_t inputs;
    weir_inference_models_options_t options;
} prepared;

static bool prepare(weir_model model, const weir_tensors *inputs, const weir_options *options, prepared *run) {
    if (!is_model(model)) return false;
    *run = (prepared){.model = {model.handle}};
    weir_inference_models_tuple2_string_borrow_tensor_t *items = weir_alloc(inputs->count * sizeof *items);
    for (size_t at = 0; at < inputs->count; at++) {
        const weir_named *input = &inputs->items[at];
        if (!weir_is_tensor(input->tensor)) {
            return weir_refuse(WEIR_INVALID_ARGUMENT, "the input %s is no tensor: it is empty, or was dropped", input->name);
        }
        items[at].f0 = weir_abi_text(input->name);
        items[at].f1.__handle = input->tensor.handle;
    }
    run->inputs.ptr = items;
    run->inputs.len = inputs->count;
    if (options == NULL) return true;
    if (options->output_count > 0) {
        weir_abi_string_t *names = weir_alloc(options->output_count * sizeof *names);
        for (size_t at = 0; at < options->output_count; at++) names[at] = weir_abi_text(options->outputs[at]);
        run->options.outputs.is_some = true;
        run->options.outputs.val = (weir_abi_list_string_t){names, options->output_count};
    }
    run->options.deadline_ms = (weir_abi_option_u32_t){options->deadline_ms > 0, options->deadline_ms};
    run->options.priority = (weir_abi_option_u32_t){options->priority > 0, options->priority};
    return true;
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
    return weir_model_infer_with(model, inputs, NULL, outputs);
}

bool weir_model_infer_with(weir_model model, const weir_tensors *inputs, const weir_options *options, weir_tensors *outputs) {
    prepared run;
    if (!prepare(model, inputs, options, &run)) return weir_blame_function();
    weir_inference_models_list_tuple2_string_own_tensor_t got;
    weir_inference_models_error_t error;
    if (!weir_inference_models_method_model_infer(run.model, &run.inputs, &run.options, &got, &error)) return weir_run_failed(&error);
    *outputs = received(&got);
    return true;
}

bool weir_model_submit(weir_model model, const weir_tensors *inputs, weir_pending *started) {
    return weir_model_submit_with(model, inputs, NULL, started);
}

bool weir_model_submit_with(weir_model model, const weir_tensors *inputs, const weir_options *options, weir_pending *started) {
    prepared run;
    if (!prepare(model, inputs, options, &run)) return weir_blame_function();
    weir_inference_models_own_pending_t own;
    weir_inference_models_error_t error;
    if (!weir_inference_models_method_model_submit(run.model, &run.inputs, &run.options, &own, &error)) return weir_run_failed(&error);
    weir_keep(own.__handle, give_back_pending);
    *started = (weir_pending){own.__handle};
    return true;
}

bool weir_pending_wait(weir_pending run, weir_tensors *outputs) {
    if (!weir_is_kept(run.handle, give_back_pending)) {
        return weir_refuse(WEIR_INVALID_ARGUMENT, "there is no run where one is needed: it is empty, or was dropped");
    }
    weir_inference_models_borrow_pending_t self = {run.handle};
    weir_inference_models_list_tuple2_string_own_tensor_t got;
    weir_inference_models_error_t error;
    if (!weir_inference_models_method_pending_wait(self, &got, &error)) return weir_run_failed(&error);
    *outputs = received(&got);
    return true;
}

void weir_pending_cancel(weir_pending run) {
    if (!weir_is_kept(run.handle, give_back_pending)) return;
    weir_inference_models_method_pending_cancel((weir_inference_models_borrow_pending_t){run.handle});
}
