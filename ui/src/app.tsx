// The frame of all pages: navigation, and the question for the token.

import { useState } from 'preact/hooks';
import { ApiError, hasToken, setToken } from './api';
import { useJson } from './hooks';
import { EventsPage } from './pages/events';
import { FunctionPage } from './pages/function';
import { FunctionsPage } from './pages/functions';
import { InvocationPage } from './pages/invocation';
import { InvocationsPage } from './pages/invocations';
import { ModelPage } from './pages/model';
import { ModelsPage } from './pages/models';
import { OverviewPage } from './pages/overview';
import { RequestPage } from './pages/request';
import { SecretsPage } from './pages/secrets';
import { TenantsPage } from './pages/tenants';
import { TriggerPage } from './pages/trigger';
import { TriggersPage } from './pages/triggers';
import { WorkflowPage } from './pages/workflow';
import { WorkflowsPage } from './pages/workflows';
import { ErrorBox, Loading, Page } from './parts/ui';
import { ThemeSwitch } from './parts/theme';
import { type Route, link, useRoute } from './router';
import type { Status } from './types';

const SECTIONS = [
  'overview',
  'functions',
  'models',
  'workflows',
  'triggers',
  'invocations',
  'secrets',
  'tenants',
  'events',
] as const;

const OPERATOR_SECTIONS = ['tenants'] as const;

/** Sections whose pages belong to another entry of the navigation. */
const WITHIN: Record<string, string> = { 'kernel-graphs': 'models', requests: 'invocations', usage: 'tenants' };

export function App() {
  const route = useRoute();
  const status = useJson<Status>('/v1/status', 5000);
  // The operator's token reads metrics and the use of quotas only.
  const isOperator = status.error instanceof ApiError && status.error.code === 'not-granted';
  const needsToken = !isOperator && status.error instanceof ApiError && [401, 403].includes(status.error.status);
  const section = route[0] ?? 'overview';
  return (
    <>
      <a class="skip" href="#main" onClick={focusMain}>
        Skip to the content
      </a>
      <nav aria-label="Pages">
        <a class="brand" href={link('overview')}>
          Weir
        </a>
        {(isOperator ? OPERATOR_SECTIONS : SECTIONS).map((name) => (
          <a
            key={name}
            href={link(name)}
            aria-current={isOperator || (WITHIN[section] ?? section) === name ? 'page' : undefined}
          >
            {name[0]?.toUpperCase()}
            {name.slice(1)}
          </a>
        ))}
        <span class="rest">
          <ThemeSwitch />
          {hasToken() && !needsToken && (
            <button
              type="button"
              onClick={() => {
                setToken(undefined);
                status.reload();
              }}
            >
              Forget the token
            </button>
          )}
        </span>
      </nav>
      <main id="main" tabIndex={-1}>
        {isOperator ? (
          <TenantsPage />
        ) : needsToken ? (
          <TokenForm error={hasToken() ? status.error : undefined} onToken={status.reload} />
        ) : status.value === undefined ? (
          status.error === undefined ? <Loading /> : <ErrorBox error={status.error} />
        ) : (
          <>
            <ErrorBox error={status.error} />
            <Content route={route} status={status.value} />
          </>
        )}
      </main>
    </>
  );
}

/** The fragment is the address of the page, so that a link cannot lead to the content. */
function focusMain(event: Event): void {
  event.preventDefault();
  document.getElementById('main')?.focus();
}

function Content({ route, status }: { route: Route; status: Status }) {
  const [section, name] = route;
  switch (section) {
    case undefined:
    case 'overview':
      return <OverviewPage status={status} />;
    case 'functions':
      return name === undefined ? <FunctionsPage /> : <FunctionPage key={name} name={name} />;
    case 'models':
    case 'kernel-graphs':
      return name === undefined ? <ModelsPage /> : <ModelPage key={name} collection={section} name={name} />;
    case 'workflows':
      return name === undefined ? <WorkflowsPage /> : <WorkflowPage key={name} name={name} />;
    case 'triggers':
      return name === undefined ? <TriggersPage /> : <TriggerPage key={name} name={name} />;
    case 'secrets':
      return <SecretsPage />;
    case 'invocations':
      return name === undefined ? <InvocationsPage /> : <InvocationPage key={name} id={name} />;
    case 'requests':
      return <RequestPage key={name} id={name ?? ''} />;
    case 'events':
      return <EventsPage />;
    case 'tenants':
    case 'usage':
      return <TenantsPage />;
    default:
      return (
        <Page title="Not found">
          <p>
            There is no page at this address. <a href={link('overview')}>Overview</a>
          </p>
        </Page>
      );
  }
}

function TokenForm(props: { error: Error | undefined; onToken: () => void }) {
  const [text, setText] = useState('');
  return (
    <Page title="Token">
      <form
        class="card narrow"
        onSubmit={(event) => {
          event.preventDefault();
          setToken(text.trim());
          setText('');
          props.onToken();
        }}
      >
        <p>This node needs the token of a tenant, or of the operator, which shows the quotas of all tenants. It stays in the memory of this page until you close or reload it.</p>
        <label>
          Token
          <input
            type="password"
            required
            autocomplete="off"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <button class="primary">Use the token</button>
        <ErrorBox error={props.error} />
      </form>
    </Page>
  );
}
