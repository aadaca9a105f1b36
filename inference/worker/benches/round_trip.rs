//! Round trip of a message to a worker process that computes, without the computation: with threads
//! that sleep until they are woken, and with threads that poll for messages that are due.
//!
//! `cargo bench --package weir-worker --bench round_trip`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be set up has failed"
)]

use std::hint::spin_loop;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_inference::Interrupt;
use weir_worker::{Control, ControlMessage, Forecast, receive_control};

/// Argument with which this program is a worker.
const WORKER: &str = "__worker";
/// Repetitions of each measurement, and before it.
const REPEATS: usize = 2_000;
const WARM_UP: usize = 200;
/// Durations of the computation.
const COMPUTES: [Duration; 3] =
    [Duration::from_micros(250), Duration::from_micros(1_000), Duration::from_micros(4_000)];
/// Time limit that no measurement reaches.
const TIME_MAX: Duration = Duration::from_secs(60);

fn main() {
    if let Some(polls) = std::env::args().skip_while(|argument| argument != WORKER).nth(1) {
        return serve(polls == "true");
    }
    println!("{:36} {:>8} {:>8} {:>8}", "", "median", "p90", "p99");
    for computes in COMPUTES {
        for polls in [false, true] {
            let times = round_trips(computes, polls);
            let at = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1e6;
            let what = if polls { "polling" } else { "sleeping" };
            let what = format!("{what}, {} us of computation", computes.as_micros());
            println!("{what:36} {:8.1} {:8.1} {:8.1} us", at(50), at(90), at(99));
        }
    }
}

fn forecast(polls: bool) -> Forecast {
    if polls { Forecast::default() } else { Forecast::sleeping() }
}

/// Computes for the requested time, and replies with the time that it took.
fn serve(polls: bool) {
    let control: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let Some(ControlMessage::Connection(mut connection, _)) = receive_control(&control).unwrap() else {
        return;
    };
    let mut requests = forecast(polls);
    while let Some(computes) = connection.receive::<Duration>(&mut requests).unwrap() {
        let began = Instant::now();
        while began.elapsed() < computes {
            spin_loop();
        }
        connection.reply(&began.elapsed()).unwrap();
    }
}

/// Times of round trips without the computation, in order.
fn round_trips(computes: Duration, polls: bool) -> Vec<Duration> {
    let (control, theirs) = Control::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([WORKER, if polls { "true" } else { "false" }]).stdin(Stdio::from(theirs));
    let mut worker = command.spawn().unwrap();
    // The worker has its end of the socket alone, so that its death would be noticed.
    drop(command);
    let mut connection = control.connect(1 << 20, None).unwrap();
    let mut replies = forecast(polls);
    let mut round_trip = || {
        let began = Instant::now();
        let interrupt = Interrupt::default();
        let called = connection.call_expecting(&computes, &mut (), &mut replies, TIME_MAX, &interrupt);
        let computed: Duration = called.unwrap();
        began.elapsed().saturating_sub(computed)
    };
    let mut times: Vec<_> = (0..WARM_UP + REPEATS).map(|_| round_trip()).skip(WARM_UP).collect();
    drop((connection, control));
    worker.wait().unwrap();
    times.sort_unstable();
    times
}
