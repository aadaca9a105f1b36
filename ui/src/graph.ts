// Layout of a workflow's graph: inputs at the left, and each step right of all that it reads.

export interface Source {
  name: string;
  reads: string[];
}

export interface Vertex {
  name: string;
  isInput: boolean;
  column: number;
  row: number;
}

export interface Place {
  column: number;
  row: number;
}

export interface Edge {
  from: string;
  to: string;
  /** Free places in the columns between, through which the edge passes. */
  via: Place[];
}

export interface Layout {
  vertices: Vertex[];
  edges: Edge[];
  columns: number;
  rows: number;
}

/** Lays a graph out. Steps that read unknown names or each other in a circle still get a place. */
export function layOut(inputs: string[], steps: Source[]): Layout {
  const columns = columnsOf(inputs, steps);
  const isKnown = (name: string): boolean => columns.has(name);
  const pairs = steps.flatMap(({ name, reads }) =>
    [...new Set(reads)].filter(isKnown).map((from) => ({ from, to: name })),
  );
  // Each column holds vertices, and the edges that pass through it.
  const cells: string[][] = [];
  const sources = new Map<string, string[]>();
  const put = (column: number, cell: string, source: string[]): void => {
    (cells[column] ??= []).push(cell);
    sources.set(cell, source);
  };
  for (const [name, column] of columns) {
    put(column, vertexCell(name), []);
  }
  const routes = pairs.map(({ from, to }) => {
    const passed: string[] = [];
    let last = vertexCell(from);
    for (let column = (columns.get(from) ?? 0) + 1; column < (columns.get(to) ?? 0); column += 1) {
      const cell = `edge ${from} ${to} ${column}`;
      put(column, cell, [last]);
      passed.push(cell);
      last = cell;
    }
    sources.get(vertexCell(to))?.push(last);
    return { from, to, passed };
  });
  const rows = rowsOf(cells, sources);
  const rowOf = (cell: string): number => rows.get(cell) ?? 0;
  const isInput = new Set(inputs);
  const vertices = [...columns].map(([name, column]) => ({
    name,
    isInput: isInput.has(name),
    column,
    row: rowOf(vertexCell(name)),
  }));
  const edges = routes.map(({ from, to, passed }) => {
    const first = (columns.get(from) ?? 0) + 1;
    return { from, to, via: passed.map((cell, at) => ({ column: first + at, row: rowOf(cell) })) };
  });
  return { vertices, edges, columns: cells.length, rows: Math.max(0, ...cells.map((column) => column?.length ?? 0)) };
}

const vertexCell = (name: string): string => `vertex ${name}`;

/** Inputs have column 0, and each step the column after the last column that it reads. */
function columnsOf(inputs: string[], steps: Source[]): Map<string, number> {
  const byName = new Map(steps.map((step) => [step.name, step]));
  const columns = new Map<string, number>(inputs.map((name) => [name, 0]));
  const columnOf = (name: string, path: Set<string>): number => {
    const done = columns.get(name);
    if (done !== undefined) return done;
    if (path.has(name)) return 0;
    path.add(name);
    const reads = (byName.get(name)?.reads ?? []).filter((read) => columns.has(read) || byName.has(read));
    const column = 1 + Math.max(0, ...reads.map((read) => columnOf(read, path)));
    path.delete(name);
    columns.set(name, column);
    return column;
  };
  for (const { name } of steps) columnOf(name, new Set());
  return columns;
}

/** Orders each column by the mean row of what its cells follow. */
function rowsOf(cells: string[][], sources: Map<string, string[]>): Map<string, number> {
  const rows = new Map<string, number>();
  for (const column of cells) {
    const centres = (column ?? []).map((cell) => {
      const from = (sources.get(cell) ?? []).map((source) => rows.get(source) ?? 0);
      return { cell, centre: from.length === 0 ? 0 : from.reduce((total, row) => total + row, 0) / from.length };
    });
    // The sort is stable: cells with equal centres keep the order of the document, vertices first.
    centres.sort((one, other) => one.centre - other.centre);
    centres.forEach(({ cell }, row) => rows.set(cell, row));
  }
  return rows;
}
