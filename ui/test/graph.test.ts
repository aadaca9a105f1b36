import { describe, expect, it } from 'vitest';
import { layOut } from '../src/graph';

const cascade = [
  { name: 'prepare', reads: ['pixels'] },
  { name: 'small', reads: ['prepare'] },
  { name: 'large', reads: ['prepare', 'small'] },
  { name: 'surer', reads: ['small', 'large'] },
];

const step = (name: string, ...reads: string[]) => ({ name, reads });

describe('layOut', () => {
  it('puts each step right of what it reads', () => {
    const { vertices, edges, columns } = layOut(['pixels'], cascade);
    const column = new Map(vertices.map((vertex) => [vertex.name, vertex.column]));
    expect([...column]).toEqual([['pixels', 0], ['prepare', 1], ['small', 2], ['large', 3], ['surer', 4]]);
    for (const { from, to } of edges) expect(column.get(from)).toBeLessThan(column.get(to) ?? 0);
    expect(edges).toHaveLength(6);
    expect(columns).toBe(5);
  });

  it('gives no place to two vertices, or to a vertex and an edge that passes', () => {
    for (const steps of [cascade, [step('a', 'x'), step('b', 'x'), step('c', 'a', 'x'), step('d', 'b', 'c', 'y')]]) {
      const { vertices, edges, rows } = layOut(['x', 'y', 'pixels'], steps);
      const places = [...vertices, ...edges.flatMap(({ via }) => via)].map(({ column, row }) => `${column}/${row}`);
      expect(new Set(places).size).toBe(places.length);
      expect(Math.max(...vertices.map(({ row }) => row))).toBeLessThan(rows);
    }
  });

  it('routes an edge through every column between its ends', () => {
    const long = layOut(['pixels'], cascade).edges.find(({ from, to }) => from === 'prepare' && to === 'large');
    expect(long?.via.map(({ column }) => column)).toEqual([2]);
    const chain = [step('a', 'x'), step('b', 'a'), step('c', 'b'), step('d', 'c', 'x')];
    const longest = layOut(['x'], chain).edges.find(({ from, to }) => from === 'x' && to === 'd');
    expect(longest?.via.map(({ column }) => column)).toEqual([1, 2, 3]);
  });

  it('draws one edge for a source that is read twice', () => {
    expect(layOut(['x'], [step('a', 'x', 'x')]).edges).toEqual([{ from: 'x', to: 'a', via: [] }]);
  });

  it('ends on circles, and leaves unknown sources out', () => {
    const { vertices, edges } = layOut([], [step('a', 'b', 'nowhere'), step('b', 'a'), step('c', 'c')]);
    expect(vertices.map(({ name }) => name).sort()).toEqual(['a', 'b', 'c']);
    expect(edges.some(({ from }) => from === 'nowhere')).toBe(false);
  });

  it('lays an empty graph out', () => {
    expect(layOut([], [])).toEqual({ vertices: [], edges: [], columns: 0, rows: 0 });
  });
});
