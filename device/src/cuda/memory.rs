//! Memory of a device.
//!
//! ```text
//!   BlockPool      physical blocks of 2 MiB, as many as may be used       [b0][b1][b2][b3]...
//!                          │ lent, and given back
//!   AddressRange   reserved addresses, blocks mapped where needed         |b2|b0|  |  |b1|  |
//!                          │                     │
//!   SlotMemory     what a slot's runs work in    tensor store, weights at places that a BlockMap gives
//! ```
//!
//! What ends a block's stay in a range: the range is dropped; a slot's demand has fallen ([`SlotMemory::settle`]); the last tensor in the block is gone.
//! It goes to the pool, and from there to the driver with [`BlockPool::trim`] or the pool. Whoever gets a block that another [`Owner`] had, or that
//! comes from the driver, gets it filled with zeroes. What lies in some blocks of a range another process can read, where they are ([`Exported`], [`Imported`]).

mod span;
pub use span::{Owner, Span};

mod allocation;
pub use allocation::Allocation;

mod block;
pub use block::BLOCK_BYTES;

mod capacity;
pub use capacity::Measured;
mod pool;
pub use pool::{BlockPool, PoolUsage};

mod addresses;
mod cost;
pub use cost::{MappingCost, mapping_cost};
mod exported;
pub use exported::{Exported, Imported};
mod range;
pub use range::AddressRange;

mod demand;
pub use demand::Demand;

mod slot;
pub use slot::SlotMemory;

mod block_map;
pub use block_map::{BlockMap, Placement};
