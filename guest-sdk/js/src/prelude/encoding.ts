/** Text encoding and decoding. */

/** TextEncoder of the Encoding standard. */
export class TextEncoder {
  readonly encoding = "utf-8";

  /** Encodes `text` as UTF-8; unpaired surrogates are replaced. */
  encode(text = ""): Uint8Array {
    // Each UTF-16 unit takes at most three bytes.
    const bytes = new Uint8Array(text.length * 3);
    let length = 0;
    for (let at = 0; at < text.length; at++) {
      let code = text.charCodeAt(at);
      if (code < 0x80) {
        bytes[length++] = code;
        continue;
      }
      if (code >= 0xd800 && code < 0xe000) {
        code = text.codePointAt(at)!;
        if (code < 0x10000) code = 0xfffd;
        else at++;
      }
      if (code < 0x800) {
        bytes[length++] = 0xc0 | (code >> 6);
      } else {
        if (code < 0x10000) {
          bytes[length++] = 0xe0 | (code >> 12);
        } else {
          bytes[length++] = 0xf0 | (code >> 18);
          bytes[length++] = 0x80 | ((code >> 12) & 0x3f);
        }
        bytes[length++] = 0x80 | ((code >> 6) & 0x3f);
      }
      bytes[length++] = 0x80 | (code & 0x3f);
    }
    return bytes.slice(0, length);
  }
}

/** Labels of the encoding for Latin 1, and its characters for the bytes 0x80 to 0x9f. */
const LATIN = /^(latin-?1|iso-?8859-1|windows-1252|cp1252|(us-)?ascii)$/i;
const LATIN_CONTROLS = "€\x81‚ƒ„…†‡ˆ‰Š‹Œ\x8dŽ\x8f\x90‘’“”•–—˜™š›œ\x9džŸ";

/** TextDecoder of the Encoding standard, for UTF-8 and Latin 1. */
export class TextDecoder {
  readonly encoding: "utf-8" | "windows-1252";
  readonly fatal: boolean;
  readonly ignoreBOM: boolean;

  constructor(label = "utf-8", { fatal = false, ignoreBOM = false }: { fatal?: boolean; ignoreBOM?: boolean } = {}) {
    const name = label.trim();
    if (!/^utf-?8$/i.test(name) && !LATIN.test(name)) throw new RangeError(`the encoding ${label} is not supported`);
    this.encoding = LATIN.test(name) ? "windows-1252" : "utf-8";
    this.fatal = fatal;
    this.ignoreBOM = ignoreBOM;
  }

  /**
   * Decodes `input`, without a byte order mark at its start unless `ignoreBOM` is set. Replaces
   * invalid UTF-8, or throws a TypeError if the decoder is fatal.
   */
  decode(input: Uint8Array | ArrayBuffer = new Uint8Array()): string {
    if (this.encoding !== "utf-8") return latin(new Uint8Array(input));
    const bytes = input instanceof ArrayBuffer ? new Uint8Array(input) : input;
    const parts: string[] = [];
    let units: number[] = [];
    const hasMark = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
    let at = hasMark && !this.ignoreBOM ? 3 : 0;
    while (at < bytes.length) {
      const [code, length] = character(bytes, at);
      if (code === BAD && this.fatal) throw new TypeError("the bytes are not UTF-8");
      if (code < 0x10000) units.push(code === BAD ? 0xfffd : code);
      else units.push(0xd7c0 + (code >> 10), 0xdc00 | (code & 0x3ff));
      at += length;
      if (units.length > 8000) {
        parts.push(String.fromCharCode(...units));
        units = [];
      }
    }
    return parts.join("") + String.fromCharCode(...units);
  }
}

function latin(bytes: Uint8Array): string {
  const character = (byte: number) => LATIN_CONTROLS[byte - 0x80] ?? String.fromCharCode(byte);
  return Array.from(bytes, character).join("");
}

const BAD = -1;

/**
 * Decodes the character at `at`: its code point and length in bytes. For invalid bytes, the
 * length is the number of bytes to skip.
 */
function character(bytes: Uint8Array, at: number): [code: number, length: number] {
  const first = bytes[at]!;
  if (first < 0x80) return [first, 1];
  const length = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  if (length === 0) return [BAD, 1];
  let code = first & (0x7f >> length);
  for (let next = 1; next < length; next++) {
    const byte = bytes[at + next];
    // The range of the second byte excludes surrogates, overlong encodings and code points above
    // U+10FFFF.
    const least = next > 1 ? 0x80 : first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
    const most = next > 1 ? 0xbf : first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
    if (byte === undefined || byte < least || byte > most) return [BAD, next];
    code = (code << 6) | (byte & 0x3f);
  }
  return [code, length];
}
