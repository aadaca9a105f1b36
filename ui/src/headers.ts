// Headers in the text fields of forms.

/** Parses one NAME: VALUE per line. Throws an error for the user if a line has another form. */
export function parseHeaders(text: string): [string, string][] {
  const lines = text.split('\n').map((line) => line.trim());
  return lines
    .filter((line) => line !== '')
    .map((line) => {
      const colon = line.indexOf(':');
      if (colon < 1) throw new Error('A line of the headers is not NAME: VALUE.');
      return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
    });
}
