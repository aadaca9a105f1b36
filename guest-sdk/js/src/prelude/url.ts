/**
 * `URL` and base64 functions of the URL and HTML standards, from core-js. They add a megabyte to
 * a component and so are not part of the prelude: the build adds them to programs that use their
 * names (esbuild's `--inject`).
 */

import atob from "core-js-pure/actual/atob";
import btoa from "core-js-pure/actual/btoa";
import URL from "core-js-pure/actual/url";

export { atob, btoa, URL };
