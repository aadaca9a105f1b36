//! Connection pool of a worker: creates connections on demand, up to a limit. Each connection has
//! one user at a time.

use crate::MEMORY_BYTES_KEPT;
use crate::connection::{WorkerCallError, WorkerConnection};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::time::Duration;
use weir_inference::Interrupt;

/// Interval at which a caller that waits for a connection checks its interrupt. Waits are rare,
/// because there are more connections than concurrent runs.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Connection pool.
pub struct ConnectionPool {
    connections_max: usize,
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<WorkerConnection>,
    /// Number of connections, including connections in use.
    count: usize,
}

/// Connection in use, returned on drop.
pub struct PooledConnection<'a> {
    pool: &'a ConnectionPool,
    /// Present until the drop.
    connection: Option<WorkerConnection>,
}

impl ConnectionPool {
    /// Creates an empty pool of at most `connections_max` connections.
    #[must_use]
    pub fn new(connections_max: usize) -> Self {
        Self { connections_max, state: Mutex::default(), returned: Condvar::new() }
    }

    /// Takes an idle connection, the most recently used one first; otherwise creates a connection
    /// with `connect`. A connection with a pending reply is the last resort.
    pub fn take(
        &self,
        interrupt: &Interrupt,
        connect: impl FnOnce() -> io::Result<WorkerConnection>,
    ) -> Result<PooledConnection<'_>, WorkerCallError> {
        let mut state = self.state.lock();
        loop {
            let found = state.idle.iter().rposition(|connection| !connection.is_busy());
            let connection = match found {
                Some(place) => Some(state.idle.remove(place)),
                None if state.count < self.connections_max => {
                    state.count += 1;
                    drop(state);
                    // If `connect` fails, the drop decrements the count.
                    let mut pooled = PooledConnection { pool: self, connection: None };
                    pooled.connection = Some(connect()?);
                    return Ok(pooled);
                }
                None => state.idle.pop(),
            };
            if connection.is_some() {
                return Ok(PooledConnection { pool: self, connection });
            }
            if interrupt.reason().is_some() {
                return Err(WorkerCallError::Unwanted);
            }
            self.returned.wait_for(&mut state, LOOK_EVERY);
        }
    }
}

impl PooledConnection<'_> {
    /// Returns the connection, which is present until the drop.
    pub fn connection(&mut self) -> Result<&mut WorkerConnection, WorkerCallError> {
        let gone = || WorkerCallError::Ended(io::ErrorKind::NotConnected.into());
        self.connection.as_mut().ok_or_else(gone)
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let connection = self.connection.take();
        if let Some(connection) = &connection {
            connection.let_go_beyond(MEMORY_BYTES_KEPT);
        }
        let mut state = self.pool.state.lock();
        match connection {
            Some(connection) => state.idle.push(connection),
            None => state.count -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}
