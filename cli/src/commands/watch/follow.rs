//! Shows the log of a watched function.

use crate::client::Client;
use crate::commands::logs;
use crate::output::OutputSettings;
use crate::project::BuildStop;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use weir_types::Name;

/// Time between two attempts to read the log, for example while the node restarts.
const RETRY: Duration = Duration::from_secs(1);
/// Poll interval for the end of the watch between two attempts.
const POLL: Duration = Duration::from_millis(50);

/// Thread that prints the log of a function, from its first deployment to the end of the process:
/// a read of the log cannot be interrupted, and nothing waits for the thread.
pub(crate) struct LogFollower {
    client: Arc<Client>,
    output: OutputSettings,
    stop: BuildStop,
    followed: Mutex<Option<Name>>,
}

impl LogFollower {
    /// Creates a follower that ends at the latest with the next line after `stop`.
    pub(crate) fn new(client: Client, output: OutputSettings, stop: BuildStop) -> Self {
        Self { client: Arc::new(client), output, stop, followed: Mutex::new(None) }
    }

    /// Starts to follow the log of `name`, unless it is followed already.
    pub(super) fn start(&self, name: Name) {
        let mut followed = self.followed.lock();
        if followed.is_some() {
            return;
        }
        let client = self.client.clone();
        let output = self.output;
        let stop = self.stop.clone();
        let work = {
            let name = name.clone();
            move || follow(&client, &name, output, &stop)
        };
        match std::thread::Builder::new().name("logs".into()).spawn(work) {
            Ok(_) => *followed = Some(name),
            Err(error) => output.note(format_args!("cannot follow the log: {error}")),
        }
    }
}

fn follow(client: &Client, name: &Name, output: OutputSettings, stop: &BuildStop) {
    let mut is_reported = false;
    while !stop.is_stopped() {
        match logs::follow(client, name, output, || stop.is_stopped()) {
            Ok(()) => is_reported = false,
            Err(error) if !is_reported && !stop.is_stopped() => {
                output.note(format_args!("the log of {name} is interrupted: {error:#}"));
                is_reported = true;
            }
            Err(_) => {}
        }
        let mut waited = Duration::ZERO;
        while waited < RETRY && !stop.is_stopped() {
            std::thread::sleep(POLL);
            waited += POLL;
        }
    }
}
