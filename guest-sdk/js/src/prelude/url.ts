/**
 * Addresses and base64, as the URL and HTML standards have them, from core-js. They take a megabyte of a component, so that they are no part of
 * the prelude: builds put them in where a program names them (esbuild's `--inject`).
 */

import atob from "core-js-pure/actual/atob";
import btoa from "core-js-pure/actual/btoa";
import URL from "core-js-pure/actual/url";

export { atob, btoa, URL };
