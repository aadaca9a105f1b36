import { render } from 'preact';
import { App } from './app';
import { startTheme } from './parts/theme';
import './style.css';

startTheme();
const root = document.getElementById('app');
if (root !== null) render(<App />, root);
