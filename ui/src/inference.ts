// Requests of the Open Inference Protocol, prefilled from a signature.

import type { Port } from './types';

/** Elements that a form writes out for one input. */
const ELEMENTS_MAX = 4096;

export interface Draft {
  body: string;
  /** Inputs that are too large to write out. */
  tooLarge: string[];
}

/** A request with zeros for every input; variable dimensions have the size 1. */
export function draft(inputs: Port[]): Draft {
  const tooLarge: string[] = [];
  const tensors = inputs.map(({ name, datatype, shape }) => {
    const sizes = shape.map((size) => size ?? 1);
    const count = sizes.reduce((product, size) => product * size, 1);
    if (count > ELEMENTS_MAX) tooLarge.push(name);
    const data = count > ELEMENTS_MAX ? [] : new Array<unknown>(count).fill(zero(datatype));
    return { name, datatype, shape: sizes, data };
  });
  const lines = tensors.map((tensor) => `  ${JSON.stringify(tensor)}`).join(',\n');
  return { body: `{"inputs": [\n${lines}\n]}`, tooLarge };
}

function zero(datatype: string): unknown {
  if (datatype === 'BOOL') return false;
  return datatype === 'BYTES' ? '' : 0;
}
