//! The cluster after the faults: whether it heals, and what each node says.

use crate::clients::Shared;
use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use weir_torture::history::{Action, InvocationState, ItemState, NodeState, Outcome};

/// Time within which the cluster heals after the last fault: an election, the takeover of
/// invocations, and their pauses before further attempts.
pub(crate) const HEALED_WITHIN: Duration = Duration::from_secs(60);
/// Interval at which the nodes are asked.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// Concurrent requests of the audit.
const CONCURRENCY: usize = 16;
/// Invocations of a page of the list.
const PAGE: usize = 1_000;

/// Waits until the cluster has healed. Returns the time that it took.
pub(crate) async fn heal(shared: &Shared) -> Result<Duration> {
    let began = Instant::now();
    loop {
        match is_healed(shared).await {
            Ok(()) => return Ok(began.elapsed()),
            Err(error) if began.elapsed() > HEALED_WITHIN => {
                bail!("the cluster has not healed after {} s: {error:#}", HEALED_WITHIN.as_secs());
            }
            Err(_) => sleep(ASKED_EVERY).await,
        }
    }
}

/// Checks that all nodes are ready, have one dispatcher and no unfinished invocation, and list the
/// same versions. The error names the first condition that is not met.
async fn is_healed(shared: &Shared) -> Result<()> {
    let mut dispatchers = Vec::new();
    let mut lists = Vec::new();
    for node in 0..shared.requests.nodes() {
        text(shared.requests.request(node, Method::GET, "/readyz")).await?;
        let status = json(shared.requests.request(node, Method::GET, "/v1/status")).await?;
        let cluster = &status["cluster"];
        let members = cluster["nodes"].as_array().map_or(0, Vec::len);
        let asks = cluster["asks_dispatcher"] == true || cluster["dispatcher"] == cluster["node"];
        if members != shared.requests.nodes() || !asks {
            bail!("node {node} says {cluster}");
        }
        dispatchers.push(cluster["dispatcher"].clone());
        for status in ["queued", "running"] {
            let path = format!("/v1/invocations?status={status}&limit=1");
            let page = json(shared.requests.request(node, Method::GET, &path)).await?;
            if page["invocations"] != Value::Array(Vec::new()) {
                bail!("node {node} lists a {status} invocation: {page}");
            }
        }
        lists.push((items(shared, node, "functions").await?, items(shared, node, "models").await?));
    }
    if dispatchers.iter().any(|dispatcher| *dispatcher != dispatchers[0]) {
        bail!("the nodes have the dispatchers {dispatchers:?}");
    }
    if lists.iter().any(|list| *list != lists[0]) {
        bail!("the nodes list different versions");
    }
    Ok(())
}

/// Reads the state of all nodes. Everything is called on every node, and must be answered.
pub(crate) async fn states(shared: &Shared) -> Result<Vec<NodeState>> {
    let mut states = Vec::new();
    for node in 0..shared.requests.nodes() {
        let state = state(shared, node).await.with_context(|| format!("node {node} cannot be audited"));
        states.push(state?);
    }
    Ok(states)
}

async fn state(shared: &Shared, node: usize) -> Result<NodeState> {
    let requests = &shared.requests;
    let mut functions = items(shared, node, "functions").await?;
    for (name, item) in &mut functions {
        let action = Action::Call { function: name.clone() };
        item.value = value(requests.send(&action, requests.call(node, name, 0, "x")).await);
    }
    let mut models = items(shared, node, "models").await?;
    for (name, item) in &mut models {
        // Killed workers may have brought the version into quarantine.
        let path = format!("/v1/models/{name}/versions/{}/release", item.active);
        requests.request(node, Method::POST, &path).send().await?;
        let action = Action::Infer { model: name.clone(), version: None };
        item.value = value(requests.send(&action, requests.infer(node, name, None)).await);
    }
    let listed = json(requests.request(node, Method::GET, "/v1/objects")).await?;
    let mut objects = BTreeMap::new();
    for object in listed.as_array().context("no list of objects")? {
        let name = object["name"].as_str().context("an object without a name")?.to_owned();
        let action = Action::GetObject { object: name.clone() };
        let content = value(requests.send(&action, requests.get_object(node, &name)).await);
        objects.insert(name, content);
    }
    let invocations = invocations(shared, node).await?;
    Ok(NodeState { functions, models, objects, invocations })
}

/// The mark, output or content of an answer, or the error.
fn value(outcome: Outcome) -> String {
    match outcome {
        Outcome::Acknowledged(answer) => answer.value.unwrap_or_default(),
        other => format!("{other:?}"),
    }
}

/// Functions or models with their versions.
async fn items(shared: &Shared, node: usize, kind: &str) -> Result<BTreeMap<String, ItemState>> {
    let listed = json(shared.requests.request(node, Method::GET, &format!("/v1/{kind}"))).await?;
    let item = |listed: &Value| {
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let name = listed["name"].as_str().context("an item without a name")?.to_owned();
        let active = number(&listed["version"]).context("an item without a version")?;
        let versions = listed["versions"].as_array().context("an item without versions")?;
        let versions = versions.iter().filter_map(number).collect();
        Ok((name, ItemState { active, versions, value: String::new() }))
    };
    listed.as_array().context("no list")?.iter().map(item).collect()
}

/// All asynchronous invocations, with their results.
async fn invocations(shared: &Shared, node: usize) -> Result<BTreeMap<String, InvocationState>> {
    let mut all = BTreeMap::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/invocations?limit={PAGE}{after}");
        let page = json(shared.requests.request(node, Method::GET, &path)).await?;
        for invocation in page["invocations"].as_array().context("no list of invocations")? {
            let id = invocation["id"].as_str().context("an invocation without an id")?.to_owned();
            all.insert(id, invocation_state(invocation));
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let results = stream::iter(all.keys().cloned().collect::<Vec<_>>())
        .map(|id| async move {
            let response = shared.requests.fetch_result(node, &id).send().await?;
            let is_answered = response.status().is_success();
            let body = response.text().await?;
            anyhow::Ok((id, is_answered.then_some(body)))
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<Vec<_>>()
        .await?;
    for (id, result) in results {
        if let Some(state) = all.get_mut(&id) {
            state.result = result;
        }
    }
    Ok(all)
}

fn invocation_state(invocation: &Value) -> InvocationState {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    InvocationState {
        status: invocation["status"].as_str().unwrap_or_default().to_owned(),
        version: number(&invocation["version"]),
        attempts: number(&invocation["attempts"]).unwrap_or_default(),
        error: invocation["error"]["code"].as_str().map(str::to_owned),
        result: None,
    }
}

async fn text(request: RequestBuilder) -> Result<String> {
    let response = request.send().await?;
    let status = response.status();
    let body = response.text().await?;
    if !status.is_success() {
        bail!("the answer is {status}: {body}");
    }
    Ok(body)
}

async fn json(request: RequestBuilder) -> Result<Value> {
    Ok(serde_json::from_str(&text(request).await?)?)
}
