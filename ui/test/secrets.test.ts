import { describe, expect, it } from 'vitest';
import { deleteQuestion, losesLines, valueOf } from '../src/secrets';

describe('secrets', () => {
  it('take a text or a file', () => {
    const file = new File(['a'], 'key.pem');
    expect(valueOf('text', undefined)).toBe('text');
    expect(valueOf('', file)).toBe(file);
    expect(() => valueOf('', undefined)).toThrow('Enter a value');
    expect(() => valueOf('text', file)).toThrow('not both');
  });
  it('keep the lines of a pasted value', () => {
    expect(['one', 'one\n', 'one\r\n', ''].map(losesLines)).toEqual([false, false, false, false]);
    expect(['one\ntwo', '\none', 'one\r\ntwo\r\n'].map(losesLines)).toEqual([true, true, true]);
  });
  it('are deleted after a question that names the functions', () => {
    expect(deleteQuestion('KEY', [])).toBe('Delete the secret KEY?');
    expect(deleteQuestion('KEY', ['a', 'b'])).toContain('Calls of a, b ');
  });
});
