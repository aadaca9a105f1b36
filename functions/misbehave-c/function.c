/* Misbehaves on request, like ../misbehave: the path selects the fault. For tests of the
 * consequences. */

#include "weir_http.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void spin(void) {
    for (volatile int turn = 0;; turn = !turn) {
    }
}

/* Allocates and writes memory until none is left. */
static void hoard(void) {
    for (;;) memset(weir_alloc(MIB), 1, MIB);
}

/* A separate function, so that the log has its name. */
__attribute__((noinline)) static void fail(void) {
    fputs("on purpose\n", stderr);
    abort();
}

bool weir_handle(weir_request *request, weir_response *response) {
    weir_model model;
    const char *path = request->path;
    if (strcmp(path, "/behave") == 0) return weir_reply_text(response, 200, "ok\n");
    if (strcmp(path, "/spin") == 0) spin();
    if (strcmp(path, "/hoard") == 0) hoard();
    if (strcmp(path, "/trap") == 0) fail();
    if (strcmp(path, "/status") == 0) return weir_reply_text(response, 7, "");
    if (strcmp(path, "/exit") == 0) exit(3);
    if (strcmp(path, "/open") == 0) return weir_model_open("no-such-model", &model);
    return weir_fail(404, "no misbehaviour called %s", path);
}
