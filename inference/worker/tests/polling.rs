//! Messages between a node and a worker whose threads poll: none is lost, and the end of the worker,
//! time limits and cancellations are noticed.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::hint::spin_loop;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};
use weir_inference::{Interrupt, StopReason};
use weir_worker::{
    Control, ControlMessage, Forecast, ServedConnection, WorkerCallError, WorkerConnection, receive_control,
};

/// Timeout that only a hang can reach.
const LONG: Duration = Duration::from_secs(60);
/// Duration of the regular runs.
const RUN: Duration = Duration::from_micros(300);

/// Connected ends of the node and the worker, and their control sockets.
fn pair() -> (WorkerConnection, ServedConnection, (Control, OwnedFd)) {
    let (control, theirs) = Control::pair().unwrap();
    let connection = control.connect(1 << 20, None).unwrap();
    let Some(ControlMessage::Connection(served, _)) = receive_control(&theirs).unwrap() else {
        unreachable!("the node has sent a connection");
    };
    (connection, served, (control, theirs))
}

/// Computes for about `time`.
fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        spin_loop();
    }
}

/// Answers `count` requests after regular runs, so that both ends expect the next message.
fn serve(served: &mut ServedConnection, requests: &mut Forecast, count: u32) {
    for _ in 0..count {
        let number: u32 = served.receive(requests).unwrap().unwrap();
        compute(RUN);
        served.reply(&number).unwrap();
    }
}

fn call(
    connection: &mut WorkerConnection,
    replies: &mut Forecast,
    number: u32,
    time_max: Duration,
    interrupt: &Interrupt,
) -> Result<u32, WorkerCallError> {
    connection.call_expecting(&number, &mut (), replies, time_max, interrupt)
}

#[test]
fn every_message_arrives_whenever_it_is_sent() {
    const MESSAGES: u32 = 4_000;
    let (mut connection, mut served, _control) = pair();
    // Mostly regular, so that both threads poll, with messages in all phases of a wait.
    let irregular = |number: u32| {
        let step = number.wrapping_mul(2_654_435_761) >> 20;
        Duration::from_micros(if number.is_multiple_of(3) { u64::from(step % 500) } else { 150 })
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut requests = Forecast::default();
            while let Some(number) = served.receive::<u32>(&mut requests).unwrap() {
                compute(irregular(number));
                served.reply(&number).unwrap();
            }
        });
        let mut replies = Forecast::default();
        for number in 0..MESSAGES {
            let called = call(&mut connection, &mut replies, number, LONG, &Interrupt::default());
            assert_eq!(called.unwrap(), number);
            compute(irregular(number + 1) / 4);
        }
        drop(connection);
    });
}

#[test]
fn end_of_the_worker_is_noticed_while_polling() {
    // The worker ends before, while and after its caller polls.
    for after in [Duration::ZERO, RUN / 2, RUN, RUN + Duration::from_micros(30), RUN * 3] {
        let (mut connection, mut served, _control) = pair();
        let worker = thread::spawn(move || {
            let mut requests = Forecast::default();
            serve(&mut served, &mut requests, 20);
            served.receive::<u32>(&mut requests).unwrap().unwrap();
            compute(after);
        });
        let mut replies = Forecast::default();
        for number in 0..20 {
            call(&mut connection, &mut replies, number, LONG, &Interrupt::default()).unwrap();
        }
        let called = call(&mut connection, &mut replies, 20, LONG, &Interrupt::default());
        assert!(matches!(called, Err(WorkerCallError::Ended(_))), "{called:?}");
        worker.join().unwrap();
    }
}

#[test]
fn end_of_the_node_is_noticed_while_polling() {
    let (mut connection, mut served, _control) = pair();
    let node = thread::spawn(move || {
        let mut replies = Forecast::default();
        for number in 0..20 {
            call(&mut connection, &mut replies, number, LONG, &Interrupt::default()).unwrap();
        }
    });
    let mut requests = Forecast::default();
    serve(&mut served, &mut requests, 20);
    assert_eq!(served.receive::<u32>(&mut requests).unwrap(), None);
    node.join().unwrap();
}

/// Calls until both ends expect the next message, and once more without a reply.
fn unanswered_call(time_max: Duration, interrupt: &Interrupt) -> Result<u32, WorkerCallError> {
    let (mut connection, mut served, _control) = pair();
    let worker = thread::spawn(move || {
        let mut requests = Forecast::default();
        serve(&mut served, &mut requests, 20);
        let unanswered: Option<u32> = served.receive(&mut requests).unwrap();
        assert_eq!(unanswered, Some(20));
        assert_eq!(served.receive::<u32>(&mut requests).unwrap(), None);
    });
    let mut replies = Forecast::default();
    for number in 0..20 {
        call(&mut connection, &mut replies, number, LONG, &Interrupt::default()).unwrap();
    }
    let waker = connection.waker();
    let _hook = interrupt.hook(move || waker.wake());
    let called = call(&mut connection, &mut replies, 20, time_max, interrupt);
    drop(connection);
    worker.join().unwrap();
    called
}

#[test]
fn time_limit_ends_a_wait_that_polls() {
    for time_max in [RUN / 2, RUN, RUN + Duration::from_micros(30), RUN * 3] {
        let called = unanswered_call(time_max, &Interrupt::default());
        assert!(matches!(called, Err(WorkerCallError::OverTime(limit)) if limit == time_max), "{called:?}");
    }
}

#[test]
fn cancellation_ends_a_wait_that_polls() {
    let interrupt = Interrupt::default();
    thread::scope(|scope| {
        // While the calls run, and so at some time before, while or after a thread polls.
        scope.spawn(|| {
            compute(RUN * 22);
            interrupt.fire(StopReason::Cancelled);
        });
        let called = unanswered_call(LONG, &interrupt);
        assert!(matches!(called, Err(WorkerCallError::Unwanted)), "{called:?}");
    });
}
