// Light and dark colours: as the system prefers, or as chosen.

import { useEffect, useState } from 'preact/hooks';

const KEY = 'weir-theme';
const CHOICES = ['system', 'light', 'dark'] as const;
type Choice = (typeof CHOICES)[number];
const system = matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set<() => void>();

function stored(): Choice {
  try {
    const value = localStorage.getItem(KEY);
    return value === 'light' || value === 'dark' ? value : 'system';
  } catch {
    return 'system';
  }
}

let choice = stored();

function apply(): void {
  if (choice === 'system') delete document.documentElement.dataset['theme'];
  else document.documentElement.dataset['theme'] = choice;
  listeners.forEach((listener) => listener());
}

export function startTheme(): void {
  system.addEventListener('change', apply);
  apply();
}

function current(): 'light' | 'dark' {
  if (choice !== 'system') return choice;
  return system.matches ? 'dark' : 'light';
}

/** The colours in use. */
export function useTheme(): 'light' | 'dark' {
  const [theme, setTheme] = useState(current());
  useEffect(() => {
    const update = (): void => setTheme(current());
    listeners.add(update);
    return () => void listeners.delete(update);
  }, []);
  return theme;
}

export function ThemeSwitch() {
  const [shown, setShown] = useState(choice);
  const choose = (next: Choice): void => {
    choice = next;
    setShown(next);
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
    apply();
  };
  return (
    <label class="theme">
      Colours
      <select value={shown} onChange={(event) => choose(event.currentTarget.value as Choice)}>
        {CHOICES.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
