/**
 * Recognises one handwritten digit: takes a PNG or rows of grey, returns JSON.
 * `../classify-digits` is the same function in Rust, with the same answers.
 */

import { Model, StatusError, Tensor, WeirError } from "weir";
import { httpFunction, type Request, Response } from "weir/http";
import { fromPng, fromRows, type Picture } from "./picture.ts";
import { prepare, SIDE } from "./prepare.ts";

const USAGE = `\
classify-digits reads one handwritten digit.

  curl --data-binary @3.png URL                                 a PNG of any size and colour
  curl -d '{"pixels": [[0, 9, 3, ...], ...]}' URL               rows of grey, of any scale and size
`;

export async function handle(request: Request): Promise<Response> {
  try {
    return await classify(request);
  } catch (error) {
    if (error instanceof WeirError) return Response.json({ error: error.message }, { status: error.status });
    throw error;
  }
}

async function classify(request: Request): Promise<Response> {
  if (!["/", "/classify"].includes(request.path)) throw new StatusError(404, "there is nothing at this path; send the picture to /");
  if (["GET", "HEAD"].includes(request.method)) return new Response(USAGE);
  if (!["POST", "PUT"].includes(request.method)) throw new StatusError(405, "use POST with a picture, or GET for help");
  const cells = prepare(picture(await request.bytes()));
  if (cells === undefined) throw new StatusError(422, "the picture is blank: there is no digit on it");
  const found = probabilities(cells);
  // Of equally likely digits, the last.
  const digit = found.lastIndexOf(found.reduce((most, value) => Math.max(most, value)));
  const readable = Array.from(found, rounded);
  return Response.json({ digit, confidence: readable[digit], probabilities: readable });
}

/** Detects the type of the body from its content. */
function picture(body: Uint8Array): Picture {
  const PNG = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
  if (PNG.every((byte, at) => body[at] === byte)) return fromPng(body);
  const text = new TextDecoder().decode(body).trimStart();
  if (text === "") throw new StatusError(400, 'the body is empty: send a PNG, or JSON like {"pixels": [[0, 1], [1, 0]]}');
  if (!text.startsWith("{")) throw new StatusError(415, "the body is neither a PNG nor a JSON object");
  return fromRows(rows(text));
}

/** The rows of `{"pixels": rows}`. */
function rows(text: string): number[][] {
  let value: any;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new StatusError(400, `the JSON cannot be used: ${(error as Error).message}`);
  }
  const isRow = (row: unknown) => Array.isArray(row) && row.every((pixel) => typeof pixel === "number");
  if (Object.keys(value).join() === "pixels" && Array.isArray(value.pixels) && value.pixels.every(isRow)) return value.pixels;
  throw new StatusError(400, 'the JSON cannot be used: it is not of the form {"pixels": [[number, ...], ...]}');
}

/** Probability of each digit from 0 to 9. */
function probabilities(cells: Float32Array): Float32Array {
  try {
    const image = Tensor.from(cells, [1, 1, SIDE, SIDE]);
    return Model.open("digits").infer({ image }).get("probabilities").values("fp32");
  } catch (error) {
    if (!(error instanceof WeirError)) throw error;
    // The function chooses the model's input, so a rejected input is not the client's fault.
    throw new StatusError(Math.max(error.status, 500), `the model \`digits\` cannot be run: ${error.message}`);
  }
}

/** Rounds to six decimals: further digits are noise, and hard to read. */
function rounded(probability: number): number {
  return Math.round(Math.fround(probability * 1e6)) / 1e6;
}

export const handler = httpFunction(handle);
