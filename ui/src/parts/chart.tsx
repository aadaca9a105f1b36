// Series over time, drawn by uPlot.

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { SPAN_S } from './span';
import { useTheme } from './theme';

export interface Series {
  label: string;
  /** Custom property of the style sheet with the colour. */
  colour: string;
  values: (number | null)[];
}

const HEIGHT = 150;
/** Room right of the latest point, in seconds. */
const EDGE_S = 2;

export function Chart(props: { label: string; times: number[]; series: Series[]; format: (value: number) => string }) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const theme = useTheme();
  const names = props.series.map(({ label }) => label).join('|');
  useEffect(() => {
    const element = host.current;
    if (element === null) return undefined;
    const made = new uPlot(options(element, props.series, props.format), data(props), element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = undefined;
    };
    // The series of a chart keep their names; new values arrive below.
  }, [names, theme]);
  useEffect(() => plot.current?.setData(data(props)), [props.times]);

  const latest = props.series.map(({ label, values }) => {
    const value = values.at(-1);
    return { label, text: value === null || value === undefined ? '–' : props.format(value) };
  });
  const spoken = latest.map(({ label, text }) => `${label} ${text === '–' ? 'no value' : text}`).join(', ');
  return (
    <figure class="chart">
      <figcaption>
        <strong>{props.label}</strong>
        {latest.map(({ label, text }, at) => (
          <span key={label} class={`key key-${props.series[at]?.colour}`}>
            {label} <b>{text}</b>
          </span>
        ))}
      </figcaption>
      <div ref={host} role="img" aria-label={`${props.label}: ${spoken}`} />
    </figure>
  );
}

function data(props: { times: number[]; series: Series[] }): uPlot.AlignedData {
  return [props.times, ...props.series.map(({ values }) => values)];
}

function options(element: HTMLElement, series: Series[], format: (value: number) => string): uPlot.Options {
  // A canvas does not know `light-dark()`, which the custom properties contain.
  const colour = (name: string): string => {
    element.style.color = `var(--${name})`;
    const resolved = getComputedStyle(element).color;
    element.style.color = '';
    return resolved;
  };
  const axis = { stroke: colour('dim'), grid: { stroke: colour('line'), width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: {
        range: (_, __, last) => {
          // Without points, the chart ends now.
          const end = last ? last + EDGE_S : Date.now() / 1000;
          return [end - SPAN_S, end];
        },
      },
      y: { range: (_, __, top) => [0, top > 0 ? top * 1.1 : 1] },
    },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString('sv')), space: 90 },
      { ...axis, values: (_, ticks) => ticks.map(format), size: 66 },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        width: 2,
        points: { show: true, size: 5, fill: colour(one.colour) },
        spanGaps: false,
      })),
    ],
  };
}
