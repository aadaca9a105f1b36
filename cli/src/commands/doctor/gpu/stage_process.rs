//! Stage process: holds the device. Its faults, crashes and hangs do not affect the other stages.

use super::message::{StageEvent, StageOrder, send};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use weir_device::cuda::{Devices, Search};
use weir_gpu_check::{CheckConfig, check};

/// Hidden subcommand that starts the process.
pub(crate) const STAGE_COMMAND: &str = "__check-gpu";

/// Main function of the process: receives the order over the socket on standard input, and sends
/// events.
pub(crate) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The doctor reports the exit status; this line adds the reason.
            let _ = writeln!(io::stderr(), "{STAGE_COMMAND}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let doctor = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut orders = BufReader::new(doctor.try_clone()?);
    let mut line = String::new();
    orders.read_line(&mut line)?;
    let StageOrder { stage, config } = serde_json::from_str(&line)?;
    end_with_doctor(orders)?;
    let search = Search::from_environment();
    let devices = match Devices::discover(&search) {
        Ok(devices) => devices,
        Err(unavailable) => return send(&doctor, &StageEvent::Unavailable(unavailable.to_string())),
    };
    let config = CheckConfig { search, ..config };
    let mut sent = Ok(());
    let ended = check(&devices, &config, stage, &mut |progress| {
        if sent.is_ok() {
            sent = send(&doctor, &StageEvent::Progress(progress));
        }
    });
    sent?;
    match ended {
        Ok(()) => send(&doctor, &StageEvent::Finished),
        Err(error) => send(&doctor, &StageEvent::Failed(error.to_string())),
    }
}

/// Kills this process when the doctor's end of the socket closes, which happens when the doctor
/// ends. SIGKILL instead of `exit`, because at `exit` the driver would wait for its kernels.
fn end_with_doctor(mut orders: BufReader<UnixStream>) -> io::Result<()> {
    let wait = move || {
        let _ = orders.read_to_end(&mut Vec::new());
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new().name("doctor".to_owned()).stack_size(64 << 10).spawn(wait)?;
    Ok(())
}
