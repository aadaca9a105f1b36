// The memory of a device as one bar: models, intermediates, workspaces and free bytes.

import { bytes } from '../format';
import { memoryParts } from '../memory';
import { link } from '../router';
import type { Device } from '../types';

/** Smallest visible width of a part, of 1000. */
const WIDTH_MIN = 4;

export function MemoryMap({ device }: { device: Device }) {
  const parts = memoryParts(device);
  const total = Math.max(1, parts.reduce((sum, part) => sum + part.bytes, 0));
  const spoken = parts.map((part) => `${part.label} ${bytes(part.bytes)}`).join(', ');
  let at = 0;
  let models = 0;
  const drawn = parts.map((part) => {
    const width = Math.max(WIDTH_MIN, (1000 * part.bytes) / total);
    const from = at;
    at += width;
    // Neighbouring models differ in shade.
    const shade = part.kind === 'model' ? ` shade-${models++ % 3}` : '';
    return { ...part, from, width, style: `part-${part.kind}${shade}` };
  });
  return (
    <div class="memory-map">
      <svg
        viewBox={`0 0 ${Math.max(1, at)} 24`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`Memory of ${device.name}: ${spoken || 'nothing is known'}`}
      >
        {drawn.map(({ label, from, width, style }) => (
          <rect key={label} class={style} x={from} width={width} height={24} />
        ))}
      </svg>
      <ul class="parts">
        {drawn.map(({ label, bytes: size, model, style }) => (
          <li key={label} class={`key ${style}`}>
            {model === undefined ? label : <a href={link('models', model)}>{label}</a>} <b>{bytes(size)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
