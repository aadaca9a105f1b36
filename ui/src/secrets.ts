// Rules for the values of secrets that a form takes.

/** Body of a request: the text of a field, or the content of a file. */
export type SecretValue = string | File;

/** Chooses the value to send. Throws an error for the user unless there is exactly one. */
export function valueOf(text: string, file: File | undefined): SecretValue {
  if (text !== '' && file !== undefined) throw new Error('Enter a value or choose a file, not both.');
  if (file !== undefined) return file;
  if (text === '') throw new Error('Enter a value, or choose a file.');
  return text;
}

/** Whether a password field would join lines of a pasted text, and so change the value. */
export function losesLines(pasted: string): boolean {
  return /[\r\n]/.test(pasted.replace(/[\r\n]+$/, ''));
}

/** The question before a deletion. */
export function deleteQuestion(name: string, functions: string[]): string {
  if (functions.length === 0) return `Delete the secret ${name}?`;
  return `Delete the secret ${name}? Calls of ${functions.join(', ')} that need a new instance fail then.`;
}
