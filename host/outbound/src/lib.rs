//! Outbound requests of guests, and callbacks: the only code that connects to hosts on behalf of
//! tenants.
//!
//! Modules, in the order of a request: `grant` has the hosts that a manifest names; `resolve`
//! looks the host up once; `policy` decides about each address, by the `rule`s of the
//! `config`, the `class` of the address and the node's own `endpoints`; `connector`
//! connects to exactly an address that was permitted; `exchange` sends the request. A
//! `refusal` names the rule that refused, and the setting that permits the request.

mod grant;
pub use grant::is_granted;

mod refusal;
pub use refusal::{OutboundRefusal, RefusalReason, SendError};

mod class;

mod rule;
pub use rule::{Rule, RuleError};

mod config;
pub use config::{OutboundConfig, TenantOutbound};

mod endpoints;
pub use endpoints::StoreEndpoint;

mod policy;

mod resolve;
pub use resolve::{Resolve, Resolved};

mod exchange;
pub use exchange::{ConnectionDriver, Exchange};

mod connector;
pub use connector::{Connector, TenantConnector};
