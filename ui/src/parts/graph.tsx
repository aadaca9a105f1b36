// The graph of a workflow.

import { layOut } from '../graph';
import type { WorkflowVersion } from '../types';

const WIDTH = 178;
const HEIGHT = 62;
const GAP_X = 44;
const GAP_Y = 22;
/** Characters of a line in a box. */
const CHARS_MAX = 25;

export function Graph({ workflow }: { workflow: WorkflowVersion }) {
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
      <svg class="graph" width={width} height={height} role="img" aria-label={description(workflow)}>
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
          return (
            <g key={vertex.name} transform={`translate(${x(vertex.column)} ${y(vertex.row)})`}>
              <rect class={vertex.isInput ? 'input' : when === undefined ? 'step' : 'step conditional'} width={WIDTH} height={HEIGHT} rx={6} />
              <text class="name" x={10} y={19}>
                {short(vertex.name)}
              </text>
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

function short(text: string): string {
  return text.length > CHARS_MAX ? `${text.slice(0, CHARS_MAX - 1)}…` : text;
}

function description(workflow: WorkflowVersion): string {
  const steps = workflow.steps.map(({ name, reads }) => `${name} reads ${reads.join(' and ') || 'nothing'}`);
  return `Graph of ${workflow.steps.length} steps: ${steps.join('; ')}`;
}
