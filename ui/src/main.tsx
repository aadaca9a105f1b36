import { render } from 'preact';
import { App } from './app';
import { holdWhilePressed } from './hold';
import { startTheme } from './parts/theme';
import './style.css';

startTheme();
holdWhilePressed(document);
const root = document.getElementById('app');
if (root !== null) render(<App />, root);
