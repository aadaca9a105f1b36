//! Where an invocation runs, as the scheduler says.
use super::Invocation;
use crate::instance::Fault;
use crate::models::Models;
use std::sync::Arc;
use weir_types::ModelId;
pub(crate) struct Placements;
pub(crate) struct Placed;
impl Placements {
    pub(crate) fn start(_models: &Arc<Models>, _rt: tokio::runtime::Handle) -> Arc<Self> { Arc::new(Self) }
    #[expect(clippy::unused_async)]
    pub(crate) async fn place(&self, _i: &Invocation, _m: &Models) -> Result<Placed, Fault> { Ok(Placed) }
}
impl Placed { pub(crate) fn evict(&self) -> Vec<ModelId> { Vec::new() } }
