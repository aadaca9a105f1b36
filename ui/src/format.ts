// Numbers and times as text.

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} B` : `${value.toFixed(value < 10 ? 2 : 1)} ${BYTE_UNITS[unit]}`;
}

/** Three significant digits. */
export function number(value: number): string {
  if (value === 0) return '0';
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(3)));
}

export function seconds(value: number): string {
  if (value === 0) return '0 s';
  if (value < 1e-6) return `${number(value * 1e9)} ns`;
  if (value < 1e-3) return `${number(value * 1e6)} µs`;
  if (value < 1) return `${number(value * 1e3)} ms`;
  if (value < 120) return `${number(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 120) return `${minutes} min ${Math.floor(value % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const ns = (value: number): string => seconds(value / 1e9);
export const ms = (value: number): string => seconds(value / 1e3);
export const us = (value: number): string => seconds(value / 1e6);

export function time(unixMs: number): string {
  return new Date(unixMs).toLocaleString('sv', { hour12: false });
}

export function clock(unixMs: number): string {
  const date = new Date(unixMs);
  return `${date.toLocaleTimeString('sv', { hour12: false })}.${String(date.getMilliseconds()).padStart(3, '0')}`;
}

export function shape(dims: (number | null)[]): string {
  return `[${dims.map((size) => size ?? '?').join(', ')}]`;
}
