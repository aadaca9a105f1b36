/* Tests of the SDK without a node. From the repository's root, with any C compiler:
 *
 *     mkdir -p target && cc -std=c11 -Wall -Wextra -Werror -Wno-attributes -Iguest-sdk/c guest-sdk/c/tests/main.c guest-sdk/c/tests/node.c \
 *         guest-sdk/c/src/call.c guest-sdk/c/src/tensor.c guest-sdk/c/src/model.c guest-sdk/c/src/object.c guest-sdk/c/src/image.c guest-sdk/c/src/stage.c -o target/weir-c-tests && \
 *         target/weir-c-tests
 */

#include "../src/call.h"
#include "node.h"
#include "weir_stage.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds)                                                                   \
    do {                                                                               \
        if (!(holds)) {                                                                \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #holds);                 \
            printf("the last failure: %s\n", weir_error()->message);                   \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Whether the latest failure has that code, and a message with these words. */
#define SAYS(wanted, words) (weir_error()->code == (wanted) && strstr(weir_error()->message, words) != NULL)

static const float NUMBERS[] = {1, 2, 4};
static const uint32_t THREE[] = {3};

static weir_tensor numbers(void) {
    weir_tensor made;
    CHECK(weir_tensor_new(WEIR_FP32, THREE, 1, NUMBERS, &made));
    return made;
}

static weir_model twice(void) {
    weir_model model;
    CHECK(weir_model_open("twice", &model));
    return model;
}

static void tensors_are_released(void) {
    weir_tensor made, copy, empty = {0};
    for (int turn = 0; turn < 1000; turn++) {
        made = numbers();
        weir_tensor_drop(&made);
    }
    CHECK(node_held() == 0);
    weir_tensor_drop(&made);
    weir_tensor_drop(&empty);
    copy = made = numbers();
    weir_tensor_drop(&made);
    weir_tensor_drop(&copy);
    CHECK(node_held() == 0 && made.handle == 0);
    /* Drops in any order. */
    weir_tensor all[5];
    for (int at = 0; at < 5; at++) all[at] = numbers();
    for (int at = 0; at < 5; at++) weir_tensor_drop(&all[at * 2 % 5]);
    CHECK(node_held() == 0);
    /* The end of the call releases tensors that were not dropped. */
    numbers();
    CHECK(node_held() == 1);
}

static void dropped_tensor_is_rejected(void) {
    weir_tensor made = numbers(), copy = made;
    const uint8_t *bytes;
    const void *values;
    const weir_string *strings;
    size_t count;
    float first;
    weir_tensor_drop(&made);
    CHECK(!weir_tensor_bytes(copy, &bytes) && SAYS(WEIR_INVALID_ARGUMENT, "was dropped"));
    CHECK(!weir_tensor_values(copy, WEIR_FP32, &values, &count) && !weir_tensor_strings(copy, &strings, &count));
    CHECK(!weir_tensor_read(made, 0, &first, sizeof first));
    weir_tensors inputs = {0}, outputs;
    weir_pending run;
    weir_put(&inputs, "x", copy);
    CHECK(!weir_model_infer(twice(), &inputs, &outputs) && SAYS(WEIR_INVALID_ARGUMENT, "the input x is no tensor"));
    CHECK(weir_error()->status == 500);
    CHECK(!weir_model_submit(twice(), &inputs, &run));
}

static void node_limits_are_reported(void) {
    weir_tensor made;
    for (int turn = 0; turn < 63; turn++) numbers();
    CHECK(!weir_tensor_new(WEIR_FP32, THREE, 1, NUMBERS, &made) && SAYS(WEIR_RESOURCE_EXHAUSTED, "no handle"));
    CHECK(weir_error()->status == 503);
}

static void models_and_runs_are_released(void) {
    weir_model model = twice(), empty = {0};
    weir_tensors inputs = {0}, outputs;
    weir_pending run, none = {0};
    weir_put(&inputs, "x", numbers());
    CHECK(weir_model_submit(model, &inputs, &run) && weir_pending_wait(run, &outputs) && outputs.count == 2);
    CHECK(!weir_pending_wait(run, &outputs) && SAYS(WEIR_INVALID_ARGUMENT, "handed over"));
    weir_tensors none_given = {0}, unread;
    CHECK(!weir_model_infer(model, &none_given, &unread) && SAYS(WEIR_INVALID_ARGUMENT, "one input"));
    CHECK(weir_error()->status == 500);
    weir_tensors_drop(&outputs);
    weir_tensors_drop(&outputs);
    CHECK(outputs.count == 0 && node_held() == 3);
    weir_pending_drop(&run);
    weir_pending_drop(&run);
    weir_pending_drop(&none);
    weir_pending_cancel(run);
    CHECK(!weir_pending_wait(run, &outputs) && SAYS(WEIR_INVALID_ARGUMENT, "no run"));
    weir_model_drop(&model);
    weir_model_drop(&model);
    weir_model_drop(&empty);
    CHECK(node_held() == 1);
    CHECK(!weir_model_infer(model, &inputs, &outputs) && SAYS(WEIR_INVALID_ARGUMENT, "no model"));
    CHECK(!weir_model_open("thrice", &model) && SAYS(WEIR_NOT_FOUND, "no such model"));
}

static void model_is_described(void) {
    weir_description found;
    weir_model model = twice();
    CHECK(weir_model_describe(model, &found) && strcmp(found.name, "twice") == 0 && strcmp(found.version, "v1") == 0);
    CHECK(found.input_count == 1 && strcmp(found.inputs[0].name, "x") == 0 && found.inputs[0].type == WEIR_FP32);
    CHECK(found.inputs[0].rank == 2 && found.inputs[0].shape[0] == WEIR_ANY && found.inputs[0].shape[1] == 3);
    CHECK(found.output_count == 2 && strcmp(found.outputs[1].name, "size") == 0);
    CHECK(found.outputs[1].type == WEIR_INT64 && found.outputs[1].rank == 0);
    weir_model_drop(&model);
    CHECK(!weir_model_describe(model, &found));
}

static void options_reach_the_node(void) {
    const char *const wanted[] = {"size", "y"};
    weir_options options = {.outputs = wanted, .output_count = 2, .deadline_ms = 50, .priority = 1};
    weir_tensors inputs = {0}, outputs;
    weir_pending run;
    weir_put(&inputs, "x", numbers());
    const weir_inference_models_options_t *got = node_options();
    CHECK(weir_model_infer_with(twice(), &inputs, &options, &outputs));
    CHECK(got->outputs.is_some && got->outputs.val.len == 2 && memcmp(got->outputs.val.ptr[0].ptr, "size", 4) == 0);
    CHECK(got->deadline_ms.is_some && got->deadline_ms.val == 50 && got->priority.is_some && got->priority.val == 1);
    CHECK(weir_model_infer(twice(), &inputs, &outputs));
    CHECK(!got->outputs.is_some && !got->deadline_ms.is_some && !got->priority.is_some);
    options = (weir_options){.deadline_ms = 7};
    CHECK(weir_model_submit_with(twice(), &inputs, &options, &run));
    CHECK(!got->outputs.is_some && got->deadline_ms.val == 7 && !got->priority.is_some);
}

static void object_exists_until_deleted(void) {
    weir_tensor kept = numbers(), found, gone = numbers();
    const void *values;
    size_t count;
    CHECK(weir_object_put("kept", kept, 0) && node_ttl_ms() == 0);
    CHECK(weir_object_put("kept", kept, 60000) && node_ttl_ms() == 60000);
    weir_tensor_drop(&kept);
    CHECK(weir_object_get("kept", &found));
    CHECK(weir_tensor_values(found, WEIR_FP32, &values, &count) && count == 3 && memcmp(values, NUMBERS, sizeof NUMBERS) == 0);
    CHECK(weir_object_delete("kept"));
    CHECK(!weir_object_get("kept", &found) && weir_error()->code == WEIR_NOT_FOUND);
    CHECK(!weir_object_delete("kept") && weir_error()->code == WEIR_NOT_FOUND);
    weir_tensor_drop(&gone);
    CHECK(!weir_object_put("kept", gone, 0) && weir_error()->code == WEIR_INVALID_ARGUMENT);
}

static void image_options_have_the_format_of_the_node(void) {
    weir_tensor encoded, made;
    weir_image_info info;
    const uint32_t *shape, length[] = {4};
    CHECK(weir_tensor_new(WEIR_UINT8, length, 1, "\x89PNG", &encoded));
    const weir_inference_image_options_t *got = node_image_options();
    CHECK(weir_image_decode(encoded, NULL, &made) && weir_tensor_shape(made, &shape) == 4);
    CHECK(got->channels == WEIR_INFERENCE_IMAGE_CHANNELS_RGB && got->layout == WEIR_INFERENCE_IMAGE_LAYOUT_NCHW);
    CHECK(got->element_type == WEIR_FP32 && got->mean.len == 0 && got->std.len == 0 && !got->ignore_orientation);
    CHECK(!got->resize.is_some && !got->crop.is_some && !got->scale.is_some && !got->background.is_some);
    const weir_colour grey = {114, 115, 116};
    weir_image_options options = {
        .resize = {256, 128}, .fit = WEIR_OUTSIDE, .filter = WEIR_NEAREST, .crop = {224, 112}, .channels = WEIR_BGR, .layout = WEIR_NHWC,
        .type = WEIR_FP16, .scale = 2, .mean = {0.5f, 0, 0}, .std = {1, 2, 3}, .background = &grey, .ignore_orientation = true,
    };
    CHECK(weir_image_decode(encoded, &options, &made));
    CHECK(got->resize.is_some && got->resize.val.to.width == 256 && got->resize.val.to.height == 128);
    CHECK(got->resize.val.fit == WEIR_INFERENCE_IMAGE_FIT_OUTSIDE && got->resize.val.filter == WEIR_INFERENCE_IMAGE_FILTER_NEAREST);
    CHECK(got->crop.is_some && got->crop.val.width == 224 && got->crop.val.height == 112);
    CHECK(got->channels == WEIR_INFERENCE_IMAGE_CHANNELS_BGR && got->layout == WEIR_INFERENCE_IMAGE_LAYOUT_NHWC);
    CHECK(got->element_type == WEIR_FP16 && got->scale.is_some && got->scale.val == 2 && got->ignore_orientation);
    CHECK(got->mean.len == 3 && got->mean.ptr[0] == 0.5f && got->std.len == 3 && got->std.ptr[2] == 3);
    CHECK(got->background.is_some && got->background.val.red == 114 && got->background.val.blue == 116);
    options = (weir_image_options){.channels = WEIR_GREY, .std = {2}};
    CHECK(weir_image_decode(encoded, &options, &made) && got->mean.len == 0 && got->std.len == 1);
    CHECK(weir_image_inspect(encoded, &info) && strcmp(info.format, "webp") == 0 && info.width == 3 && info.height == 2);
    options = (weir_image_options){.fit = (weir_fit)9};
    CHECK(!weir_image_decode(encoded, &options, &made) && SAYS(WEIR_INVALID_ARGUMENT, "unknown fit"));
    weir_tensor_drop(&encoded);
    CHECK(!weir_image_decode(encoded, NULL, &made) && weir_error()->code == WEIR_INVALID_ARGUMENT);
    CHECK(!weir_image_inspect(encoded, &info) && weir_error()->code == WEIR_INVALID_ARGUMENT);
}

static void tensors_support_partial_reads(void) {
    weir_tensor made = numbers();
    float part[2] = {0};
    CHECK(weir_tensor_read(made, 4, part, 8) && part[0] == 2 && part[1] == 4);
    CHECK(weir_tensor_read(made, 12, NULL, 0));
    CHECK(!weir_tensor_read(made, 8, part, 8) && SAYS(WEIR_INVALID_ARGUMENT, "past the end"));
    /* Memory allocated by the node is freed: the latest allocation is the earlier one. */
    void *before = weir_alloc(1);
    CHECK(weir_tensor_read(made, 0, part, 8));
    CHECK(weir_free_last(before));
}

static void byte_strings_round_trip(void) {
    const uint32_t shape[] = {2, 2};
    const weir_string given[] = {{"", 0}, {"gr\xc3\xbc" "ezi", 7}, {"a\0b", 3}, {"last", 4}};
    const weir_string *got;
    weir_tensor made;
    size_t count;
    CHECK(weir_tensor_of_strings(shape, 2, given, &made) && weir_tensor_type(made) == WEIR_BYTES);
    CHECK(weir_tensor_size(made) == 4 * 4 + 14 && weir_tensor_strings(made, &got, &count) && count == 4);
    for (size_t at = 0; at < count; at++) {
        CHECK(got[at].size == given[at].size && memcmp(got[at].text, given[at].text, got[at].size) == 0);
        CHECK(got[at].text[got[at].size] == 0);
    }
    const uint32_t none[] = {0};
    CHECK(weir_tensor_of_strings(none, 1, NULL, &made) && weir_tensor_strings(made, &got, &count) && count == 0);
    static const weir_string CUT[] = {{"\1", 1}, {"\2\0\0\0a", 5}, {"\xff\xff\xff\xff", 4}, {"\0\0\0\0\1\0\0", 7}};
    for (size_t at = 0; at < sizeof CUT / sizeof *CUT; at++) {
        CHECK(weir_tensor_of_bytes(WEIR_BYTES, NULL, 0, CUT[at].text, CUT[at].size, &made));
        CHECK(!weir_tensor_strings(made, &got, &count) && SAYS(WEIR_INVALID_ARGUMENT, "inside a byte string"));
    }
    CHECK(!weir_tensor_strings(numbers(), &got, &count) && SAYS(WEIR_INVALID_ARGUMENT, "the tensor holds fp32 and not bytes"));
    CHECK(!weir_tensor_new(WEIR_BYTES, shape, 2, given, &made) && SAYS(WEIR_INVALID_ARGUMENT, "weir_tensor_of_strings"));
}

static void values_round_trip(void) {
    const void *values;
    const uint32_t *shape;
    size_t count;
    weir_tensor made = numbers();
    CHECK(weir_tensor_values(made, WEIR_FP32, &values, &count) && count == 3 && memcmp(values, NUMBERS, sizeof NUMBERS) == 0);
    CHECK(weir_tensor_shape(made, &shape) == 1 && shape[0] == 3);
    CHECK(!weir_tensor_values(made, WEIR_INT64, &values, &count) && SAYS(WEIR_INVALID_ARGUMENT, "the tensor holds fp32 and not int64"));
    const uint32_t two[] = {2}, huge[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    CHECK(!weir_tensor_new(WEIR_FP64, huge, 3, NULL, &made) && SAYS(WEIR_INVALID_ARGUMENT, "more elements than"));
    CHECK(!weir_tensor_of_bytes(WEIR_FP32, two, 1, NUMBERS, 12, &made) && weir_error()->status == 400);
}

/* Implementation of the tensor function below. */
static bool (*stage)(const weir_tensors *inputs, weir_tensors *outputs);

bool weir_run(const weir_tensors *inputs, weir_tensors *outputs) {
    return stage(inputs, outputs);
}

/* Same types as in src/stage.c. */
typedef weir_inference_models_tuple2_string_own_tensor_t named;
typedef weir_inference_models_result_list_tuple2_string_own_tensor_error_t result;

/* Exports, called as by the node. */
result *weir_stage_run(named *given, size_t count);
void weir_stage_ran(result *ran);

static result *call(bool (*does)(const weir_tensors *, weir_tensors *)) {
    named *given = cabi_realloc(NULL, 0, sizeof(void *), sizeof *given);
    given->f0 = weir_abi_text("x");
    given->f1.__handle = node_tensor(NUMBERS, 3);
    stage = does;
    return weir_stage_run(given, 1);
}

static bool refused(result *ran, const char *words) {
    const weir_abi_string_t *text = &ran->val.err.val.internal;
    bool is = ran->is_err && ran->val.err.tag == WEIR_INTERNAL && text->len == strlen(words) && memcmp(text->ptr, words, text->len) == 0;
    if (!is) printf("%.*s\n", ran->is_err ? (int)text->len : 0, (const char *)text->ptr);
    return is && node_held() == 0;
}

static bool pass_on(const weir_tensors *inputs, weir_tensors *outputs) {
    weir_tensor x;
    if (!weir_get(inputs, "x", &x)) return false;
    weir_put(outputs, "y", x);
    numbers();
    return true;
}

static bool give_nothing(const weir_tensors *inputs, weir_tensors *outputs) {
    (void)inputs;
    weir_put(outputs, "a", numbers());
    weir_put(outputs, "y", (weir_tensor){0});
    return true;
}

static bool give_dropped(const weir_tensors *inputs, weir_tensors *outputs) {
    (void)inputs;
    weir_tensor made = numbers();
    weir_put(outputs, "y", made);
    weir_tensor_drop(&made);
    return true;
}

static bool give_twice(const weir_tensors *inputs, weir_tensors *outputs) {
    pass_on(inputs, outputs);
    return weir_put(outputs, "z", outputs->items[0].tensor), true;
}

static bool give_two_of_a_name(const weir_tensors *inputs, weir_tensors *outputs) {
    pass_on(inputs, outputs);
    return weir_put(outputs, "y", numbers()), true;
}

static bool say_no(const weir_tensors *inputs, weir_tensors *outputs) {
    (void)inputs, (void)outputs;
    return weir_fail(500, "on %s", "purpose");
}

static bool run_wrongly(const weir_tensors *inputs, weir_tensors *outputs) {
    (void)inputs;
    weir_tensors none = {0};
    return weir_model_infer(twice(), &none, outputs);
}

static bool say_nothing(const weir_tensors *inputs, weir_tensors *outputs) {
    (void)inputs, (void)outputs;
    return false;
}

static void tensor_function_is_called(void) {
    result *ran = call(pass_on);
    CHECK(!ran->is_err && ran->val.ok.len == 1 && memcmp(ran->val.ok.ptr[0].f0.ptr, "y", 1) == 0);
    CHECK(node_held() == 1 && node_take(ran->val.ok.ptr[0].f1.__handle) >= 0);
    weir_stage_ran(ran);
    CHECK(refused(call(give_nothing), "the output y is no tensor: it is empty, or was dropped"));
    CHECK(refused(call(give_dropped), "the output y is no tensor: it is empty, or was dropped"));
    CHECK(refused(call(give_twice), "the outputs y and z are one tensor"));
    CHECK(refused(call(give_two_of_a_name), "there are two outputs y"));
    CHECK(refused(call(run_wrongly), "there is one input"));
    ran = call(say_no);
    CHECK(refused(ran, "on purpose"));
    weir_stage_ran(ran);
    /* A later call in the same memory does not see the previous failure. */
    CHECK(refused(call(say_nothing), "the function failed without a reason"));
}

/* Runs one test as its own call, and checks that it leaves nothing behind. */
static void test(const char *name, void (*run)(void)) {
    run();
    weir_give_back_all();
    weir_end_call();
    CHECK(node_held() == 0);
    printf("ok %s\n", name);
}

#define TEST(name) test(#name, name)

int main(void) {
    TEST(tensors_are_released);
    TEST(dropped_tensor_is_rejected);
    TEST(node_limits_are_reported);
    TEST(models_and_runs_are_released);
    TEST(model_is_described);
    TEST(options_reach_the_node);
    TEST(object_exists_until_deleted);
    TEST(image_options_have_the_format_of_the_node);
    TEST(tensors_support_partial_reads);
    TEST(byte_strings_round_trip);
    TEST(values_round_trip);
    TEST(tensor_function_is_called);
    return 0;
}
