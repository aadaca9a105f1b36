// Fields that select which rows of a list are shown.

/** One of `options`, or '' for any. */
export function Choice(props: { label: string; value: string; options: readonly string[]; onChange: (value: string) => void }) {
  return (
    <label>
      {props.label}
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        <option value="">any</option>
        {props.options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    </label>
  );
}

/** A name, or '' for any. */
export function NameField(props: { label: string; value: string; onChange: (value: string) => void }) {
  return (
    <label>
      {props.label}
      {/* With each letter: a refresh of the list resets the field to `value`. */}
      <input value={props.value} onInput={(event) => props.onChange(event.currentTarget.value.trim())} />
    </label>
  );
}
