//! Visibility of deploys and pushes in a cluster: a node that has written one waits, for a limited
//! time, until the other live nodes serve it, and names the nodes that do and those that do not.
//!
//! Each node follows the registry. It answers `GET /cluster/v1/visible?of=functions&revision=N&wait_ms=N`
//! as soon as its memory reflects a revision, only to nodes that show the cluster's secret.

use crate::NodeState;
use crate::error::ApiError;
use axum::Json;
use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use http::{Method, Uri};
use serde::Deserialize;
use std::fmt;
use std::time::Duration;
use weir_datastore::Revision;
use weir_types::{ErrorCode, NodeId};

/// The path of the API.
pub(crate) const VISIBLE_PATH: &str = "/cluster/v1/visible";
/// Longest wait that another node may ask for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A part of the registry that nodes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Collection {
    Functions,
    Models,
    Workflows,
}

/// Query of [`VISIBLE_PATH`].
#[derive(Debug, Deserialize)]
struct VisibleQuery {
    of: Collection,
    revision: u64,
    wait_ms: u64,
}

/// The nodes that serve a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Visibility {
    pub(crate) visible_on: Vec<NodeId>,
    pub(crate) not_visible_on: Vec<NodeId>,
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Functions => "functions",
            Self::Models => "models",
            Self::Workflows => "workflows",
        })
    }
}

/// Responds to a node that has shown the cluster's secret: whether this node reflects a revision,
/// after a wait of limited time.
pub(crate) async fn answer_visible(
    node: &NodeState,
    method: &Method,
    uri: &Uri,
) -> Result<Response, ApiError> {
    if *method != Method::GET {
        return Err(ApiError::new(ErrorCode::MethodNotAllowed, "visibility is read (GET)"));
    }
    let Query(VisibleQuery { of, revision, wait_ms }) = Query::try_from_uri(uri).map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{uri} names no collection and revision: {error}"))
    })?;
    let heard = match of {
        Collection::Functions => node.registry.heard(),
        Collection::Models => node.models.heard(),
        Collection::Workflows => node.workflows.heard(),
    };
    let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
    Ok(Json(heard.reflects(Revision(revision), wait).await).into_response())
}

/// Waits until the other nodes of the cluster reflect a revision that this node has written, for the
/// configured time.
pub(crate) async fn await_others(node: &NodeState, of: Collection, revision: Revision) -> Visibility {
    let Some(cluster) = node.cluster.as_ref().filter(|cluster| !cluster.visible_wait().is_zero()) else {
        return Visibility::default();
    };
    let wait = cluster.visible_wait();
    let target = |_| format!("{VISIBLE_PATH}?of={of}&revision={revision}&wait_ms={}", wait.as_millis());
    let answers = cluster.ask_others_within::<bool>(wait, target).await;
    let visibility = split(cluster.node(), answers);
    if !visibility.not_visible_on.is_empty() {
        let nodes = &visibility.not_visible_on;
        tracing::warn!(%of, %revision, ?nodes, "nodes have not answered that they serve a change");
    }
    visibility
}

/// Splits the nodes by their answers; `None` from a node that has not answered.
fn split(own: NodeId, answers: Vec<(NodeId, Option<bool>)>) -> Visibility {
    let (visible, not_visible): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|(_, answer)| *answer == Some(true));
    let nodes = |answers: Vec<(NodeId, _)>| answers.into_iter().map(|(node, _)| node);
    let mut visible_on: Vec<NodeId> = std::iter::once(own).chain(nodes(visible)).collect();
    visible_on.sort_unstable();
    Visibility { visible_on, not_visible_on: nodes(not_visible).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_a_positive_answer_are_named() {
        let answers = vec![(NodeId(1), Some(true)), (NodeId(3), Some(false)), (NodeId(4), None)];
        let expected =
            Visibility { visible_on: vec![NodeId(1), NodeId(2)], not_visible_on: vec![NodeId(3), NodeId(4)] };
        assert_eq!(split(NodeId(2), answers), expected);
    }

    #[test]
    fn query_is_read_as_it_is_written() {
        for of in [Collection::Functions, Collection::Models, Collection::Workflows] {
            let uri: Uri = format!("{VISIBLE_PATH}?of={of}&revision=7&wait_ms=5").parse().unwrap();
            let Query(read) = Query::<VisibleQuery>::try_from_uri(&uri).unwrap();
            assert_eq!((read.of, read.revision, read.wait_ms), (of, 7, 5));
        }
    }
}
