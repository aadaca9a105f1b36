/** Time that the charts show, in seconds. */
export const SPAN_S = 240;
