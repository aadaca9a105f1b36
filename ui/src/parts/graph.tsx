// The graph of a workflow.

import { ns } from '../format';
import { layOut } from '../graph';
import type { StepTime } from '../spans';
import type { WorkflowVersion } from '../types';

const WIDTH = 178;
const HEIGHT = 62;
const GAP_X = 44;
const GAP_Y = 22;
/** Characters of a line in a box. */
const CHARS_MAX = 25;
/** Characters of a name beside a time. */
const CHARS_BESIDE_TIME = 13;

export function Graph({ workflow, times }: { workflow: WorkflowVersion; times?: Map<string, StepTime> }) {
  const layout = layOut(
    workflow.inputs.map(({ name }) => name),
    workflow.steps,
  );
  const steps = new Map(workflow.steps.map((step) => [step.name, step]));
  const x = (column: number): number => column * (WIDTH + GAP_X) + 4;
  const y = (row: number): number => row * (HEIGHT + GAP_Y) + 4;
  const places = new Map(layout.vertices.map((vertex) => [vertex.name, vertex]));
  const width = x(layout.columns) - GAP_X;
  const height = y(layout.rows) - GAP_Y + 4;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Graph">
      <svg class="graph" width={width} height={height} role="img" aria-label={description(workflow, times)}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0 L8 4 L0 8 z" />
          </marker>
        </defs>
        {layout.edges.map(({ from, to, via }) => {
          const one = places.get(from);
          const other = places.get(to);
          if (one === undefined || other === undefined) return null;
          const middle = (row: number): number => y(row) + HEIGHT / 2;
          const points: [number, number][] = [[x(one.column) + WIDTH, middle(one.row)]];
          for (const { column, row } of via) {
            points.push([x(column), middle(row)], [x(column) + WIDTH, middle(row)]);
          }
          points.push([x(other.column) - 2, middle(other.row)]);
          return <path key={`${from} ${to}`} class="edge" d={curve(points)} marker-end="url(#arrow)" />;
        })}
        {layout.vertices.map((vertex) => {
          const step = steps.get(vertex.name);
          const when = step?.when;
          const ran = times?.get(vertex.name);
          const isIdle = times !== undefined && !vertex.isInput && ran === undefined;
          return (
            <g key={vertex.name} class={isIdle ? 'idle' : undefined} transform={`translate(${x(vertex.column)} ${y(vertex.row)})`}>
              <rect class={vertex.isInput ? 'input' : when === undefined ? 'step' : 'step conditional'} width={WIDTH} height={HEIGHT} rx={6} />
              <text class="name" x={10} y={19}>
                {short(vertex.name, ran === undefined ? CHARS_MAX : CHARS_BESIDE_TIME)}
              </text>
              {ran !== undefined && (
                <text class={ran.error === undefined ? 'time' : 'time bad'} x={WIDTH - 10} y={19}>
                  {ns(ran.durationNs)}
                </text>
              )}
              <text x={10} y={36}>
                {short(step?.action ?? 'input')}
              </text>
              {when !== undefined && (
                <text class="when" x={10} y={53}>
                  {short(`when ${when}`)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

/** A line through the points, which leaves and enters each of them horizontally. */
function curve(points: [number, number][]): string {
  const bend = GAP_X * 0.6;
  return points
    .map(([toX, toY], at) => {
      const from = points[at - 1];
      return from === undefined ? `M${toX} ${toY}` : `C${from[0] + bend} ${from[1]} ${toX - bend} ${toY} ${toX} ${toY}`;
    })
    .join(' ');
}

function short(text: string, max = CHARS_MAX): string {
  return text.length > max ? `${text.slice(0, max - 1)}…` : text;
}

function description(workflow: WorkflowVersion, times: Map<string, StepTime> | undefined): string {
  const steps = workflow.steps.map(({ name, reads }) => {
    const ran = times?.get(name);
    const took = times === undefined ? '' : ran === undefined ? ', and did not run' : `, and took ${ns(ran.durationNs)}`;
    return `${name} reads ${reads.join(' and ') || 'nothing'}${took}`;
  });
  return `Graph of ${workflow.steps.length} steps: ${steps.join('; ')}`;
}
