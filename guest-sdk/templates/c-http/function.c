/* `{{ name }}` answers HTTP requests. Every request runs on a fresh copy of the memory:
 * variables do not keep their values between requests. */

#include "weir_http.h"
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

static const char *shout(const char *text) {
    size_t size = strlen(text) + 1;
    wchar_t *wide = weir_alloc(size * sizeof *wide);
    mbstowcs(wide, text, size);
    for (size_t at = 0; wide[at] != 0; at++) wide[at] = (wchar_t)towupper((wint_t)wide[at]);
    char *loud = weir_alloc(4 * size);
    wcstombs(loud, wide, 4 * size);
    return loud;
}

bool weir_handle(weir_request *request, weir_response *response) {
    setlocale(LC_CTYPE, "C.UTF-8");
    if (weir_is(request, "GET", "/")) return weir_reply_text(response, 200, "hello from {{ name }}\n");
    if (weir_is(request, "POST", "/shout")) {
        const char *text;
        if (!weir_request_text(request, &text)) return false;
        /* Standard output and error go to `weir logs {{ name }}`. */
        printf("shouted %zu bytes\n", strlen(text));
        return weir_reply_text(response, 200, shout(text));
    }
    return weir_fail(404, "there are GET / and POST /shout");
}
