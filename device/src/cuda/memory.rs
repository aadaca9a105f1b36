//! Memory of a device.
//!
//! ```text
//!   BlockPool      physical blocks of 2 MiB, up to a limit               [b0][b1][b2][b3]...
//!                          │ lent, and returned
//!   AddressRange   reserved addresses, blocks mapped where needed        |b2|b0|  |  |b1|  |
//!                          │                     │
//!   SlotMemory     memory of a slot's runs      tensor store, weights at places of a BlockMap
//! ```
//!
//! A block leaves a range when the range drops, when a slot's demand has fallen
//! ([`SlotMemory::settle`]), or when the last tensor in the block is dropped. It returns to the
//! pool, and from there to the driver, with [`BlockPool::trim`] or with the pool. A block that
//! another [`MemoryOwner`] used, or that comes from the driver, is filled with zeroes before its
//! next use. Another process can read the contents of exported blocks in place ([`ExportedMemory`],
//! [`Imported`]).

mod span;
pub use span::{MemoryOwner, Span};

mod allocation;
pub use allocation::Allocation;

mod block;
pub use block::BLOCK_BYTES;

mod capacity;
pub use capacity::MeasuredMemory;
mod pool;
pub use pool::{BlockPool, PoolUsage};

mod addresses;
mod cost;
pub use cost::{MappingCost, mapping_cost};
mod exported;
pub use exported::{ExportedMemory, Imported};
mod range;
pub use range::AddressRange;

mod demand;
pub use demand::DemandEstimate;

mod slot;
pub use slot::SlotMemory;

mod block_map;
pub use block_map::{BlockMap, BlockPlacement};
