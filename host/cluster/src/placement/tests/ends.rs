//! Ends of calls that leave requests on the device.

use super::Fixture;
use weir_inference::ObservedRun;
use weir_scheduler::{DeviceUse, Event, Setup};
use weir_types::InvocationId;

const CALL: InvocationId = InvocationId(1);
const RUN: ObservedRun = ObservedRun { part_ns: 5_000_000, run_time_ns: 20_000_000, items: 4 };

/// Whether an end reports the device time of [`RUN`].
fn has_run(used: Option<DeviceUse>) -> bool {
    used.is_some_and(|used| (used.device_time_ns, used.batch_items) == (RUN.part_ns, RUN.items))
}

#[tokio::test]
async fn cancelled_call_is_charged_for_the_run_that_it_left_on_the_device() {
    let stage = Fixture::new(Setup::default());
    let call = stage.place(1).await;
    let [running, waiting] = [(); 2].map(|()| stage.request(1));
    running.started();
    drop(call);
    assert_eq!(stage.ends(), [], "the device still works for the call");
    waiting.over();
    assert_eq!(stage.ends(), []);
    running.ended(&RUN);
    running.over();
    let ends = stage.ends();
    assert!(matches!(ends[..], [Event::Cancelled { invocation: CALL, used }] if has_run(used)), "{ends:?}");
    drop((running, waiting));
    assert_eq!(stage.ends(), [], "the end is reported once");
}

#[tokio::test]
async fn answered_call_is_reported_at_once_unless_a_run_goes_on() {
    let stage = Fixture::new(Setup::default());
    for has_left in [false, true] {
        let call = stage.place(1).await;
        let request = stage.request(1);
        request.started();
        request.ended(&RUN);
        let left = has_left.then_some(request);
        call.ended(true);
        drop(call);
        let mut ends = stage.ends();
        assert_eq!(ends.is_empty(), has_left);
        drop(left);
        ends.extend(stage.ends());
        assert!(
            matches!(ends[..], [Event::Finished { invocation: CALL, used }] if has_run(used)),
            "{ends:?}"
        );
    }
}

#[tokio::test]
async fn lost_device_ends_the_wait_for_its_runs() {
    let stage = Fixture::new(Setup::default());
    let call = stage.place(1).await;
    let request = stage.request(1);
    request.started();
    drop(call);
    stage.lose_device();
    let ends = stage.ends();
    let [Event::Cancelled { used: Some(used), .. }] = ends[..] else { panic!("{ends:?}") };
    assert!(used.device_time_ns > 0, "the run so far is charged: {used:?}");
    request.ended(&RUN);
    request.over();
    assert_eq!(stage.ends(), []);
}
