use crate::support::{SEEDS, TestDevice, bytes_of, devices, floats_of, launch_fill, launch_scale_add};
use weir_device::cuda::{
    Allocation, CudaError, Event, KernelParameters, LaunchConfig, PinnedMemory, Priority, Stream,
};
use weir_fake_cuda::Fake;

#[test]
fn kernel_computes_on_copied_data() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let function = machine.kernel("weir_test_scale_add");
        let x = machine.allocate(4000);
        let y = machine.allocate(4000);
        let values: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        machine.stream.write(&bytes_of(&values), x.span()).unwrap();
        machine.stream.copy(x.span(), y.span()).unwrap();
        launch_scale_add(&machine.stream, &function, y.span(), x.span(), 0.5);
        let result = floats_of(&machine.read(y.span()));
        assert!(result.iter().zip(&values).all(|(result, value)| *result == value * 1.5), "seed {seed}");
    }
}

/// One stream writes and another reads. Returns whether the result was right.
fn hand_over(seed: u64, with_event: bool) -> bool {
    let machine = TestDevice::new(seed);
    let other = Stream::new(&machine.context, Priority::High).unwrap();
    let function = machine.kernel("weir_test_fill");
    let from = machine.allocate(4096);
    let to = machine.allocate(4096);
    launch_fill(&machine.stream, &function, from.span(), 7);
    let event = Event::new(&machine.context).unwrap();
    machine.stream.record(&event).unwrap();
    if with_event {
        other.wait(&event).unwrap();
    }
    other.copy(from.span(), to.span()).unwrap();
    other.synchronize().unwrap();
    let right = machine.read(to.span()).chunks(4).all(|word| word == 7_u32.to_ne_bytes());
    // A dropped stream still finishes its work: the memory must live until then.
    machine.stream.synchronize().unwrap();
    right
}

#[test]
fn streams_are_ordered_only_by_events() {
    assert!(SEEDS.into_iter().all(|seed| hand_over(seed, true)));
    assert!(
        !SEEDS.into_iter().all(|seed| hand_over(seed, false)),
        "the fake should show that an event is missing"
    );
}

#[test]
fn event_is_the_point_of_its_last_recording() {
    let machine = TestDevice::new(3);
    machine.fake.pause();
    let event = Event::new(&machine.context).unwrap();
    assert!(event.is_reached().unwrap(), "it was never recorded");
    let memory = machine.allocate(1024);
    machine.stream.fill(memory.span(), 1).unwrap();
    machine.stream.record(&event).unwrap();
    assert!(!event.is_reached().unwrap());
    assert!(!machine.stream.is_idle().unwrap());
    machine.fake.resume();
    event.synchronize().unwrap();
    assert!(event.is_reached().unwrap());
    machine.stream.synchronize().unwrap();
    assert!(machine.stream.is_idle().unwrap());
}

#[test]
fn events_measure_elapsed_time() {
    let machine = TestDevice::new(1);
    machine.fake.set("bus_bytes_per_s", 1_000_000_000);
    let memory = machine.allocate(1 << 20);
    let [start, end] = [(); 2].map(|()| Event::with_timing(&machine.context).unwrap());
    machine.stream.record(&start).unwrap();
    machine.stream.write(&vec![1; 1 << 20], memory.span()).unwrap();
    machine.stream.record(&end).unwrap();
    end.synchronize().unwrap();
    let ns = end.since_ns(&start).unwrap();
    assert!((1_000_000..1_100_000).contains(&ns), "{ns}");
}

#[test]
fn pinned_memory_is_read_when_the_stream_reaches_the_copy() {
    let machine = TestDevice::new(1);
    machine.fake.pause();
    let mut pinned = PinnedMemory::copy_of(&machine.context, &[1; 4096]).unwrap();
    let memory = machine.allocate(4096);
    // SAFETY: the memory is kept until the stream is done, and the copy has not begun when it is
    // written below: the fake is paused.
    unsafe { machine.stream.copy_from_host(pinned.as_slice().as_ptr(), memory.span()) }.unwrap();
    pinned.as_mut_slice().fill(2);
    machine.fake.resume();
    assert_eq!(machine.read(memory.span()), [2; 4096]);
}

#[test]
fn graph_repeats_the_recorded_work() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let fill = machine.kernel("weir_test_fill");
        let add = machine.kernel("weir_test_scale_add");
        let x = machine.allocate(1024);
        let y = machine.allocate(1024);
        let side = Stream::new(&machine.context, Priority::Normal).unwrap();
        let [fork, join] = [(); 2].map(|()| Event::new(&machine.context).unwrap());
        let graph = machine.stream.capture(|recording| {
            let stream = recording.stream();
            stream.record(&fork)?;
            side.wait(&fork)?;
            launch_fill(&side, &fill, x.span(), 1.0_f32.to_bits());
            launch_fill(stream, &fill, y.span(), 2.0_f32.to_bits());
            side.record(&join)?;
            stream.wait(&join)?;
            launch_scale_add(stream, &add, y.span(), x.span(), 10.0);
            Ok::<_, CudaError>(())
        });
        let graph = graph.unwrap();
        assert_eq!(graph.len().unwrap(), 3);
        assert_eq!(machine.fake.count("launches of weir_test_fill"), 2);
        let mut executable = graph.instantiate().unwrap();
        drop(graph);
        executable.upload(&machine.stream).unwrap();
        for _ in 0..3 {
            machine.stream.fill(y.span(), 0).unwrap();
            // SAFETY: functions and memory outlive the read below, which waits.
            unsafe { executable.launch(&machine.stream) }.unwrap();
            assert_eq!(floats_of(&machine.read(y.span())), [21.0; 256], "seed {seed}");
        }
    }
}

/// Records two independent fills and a sum on one stream. With `all`, the sum follows both fills.
/// Returns whether every run of the graph computed the sum.
fn sum_of_branches(seed: u64, all: bool) -> bool {
    let machine = TestDevice::new(seed);
    let fill = machine.kernel("weir_test_fill");
    let add = machine.kernel("weir_test_scale_add");
    let [x, y] = [machine.allocate(1024), machine.allocate(1024)];
    let graph = machine.stream.capture(|recording| {
        let stream = recording.stream();
        launch_fill(stream, &fill, x.span(), 1.0_f32.to_bits());
        let first = recording.last()?;
        recording.follow([])?;
        launch_fill(stream, &fill, y.span(), 2.0_f32.to_bits());
        let second = recording.last()?;
        recording.follow(if all { vec![&first, &second] } else { vec![&second] })?;
        launch_scale_add(stream, &add, y.span(), x.span(), 10.0);
        Ok::<_, CudaError>(())
    });
    let mut graph = graph.unwrap().instantiate().unwrap();
    let sums = [(); 8].map(|()| {
        [&x, &y].into_iter().for_each(|memory| machine.stream.fill(memory.span(), 0).unwrap());
        // SAFETY: functions and memory outlive the read below, which waits.
        unsafe { graph.launch(&machine.stream) }.unwrap();
        floats_of(&machine.read(y.span())) == [21.0; 256]
    });
    sums == [true; 8]
}

#[test]
fn branches_of_a_recording_are_ordered_only_by_what_they_follow() {
    assert!(SEEDS.into_iter().all(|seed| sum_of_branches(seed, true)));
    assert!(
        !SEEDS.into_iter().all(|seed| sum_of_branches(seed, false)),
        "the fake should show that the sum does not follow the first fill"
    );
}

#[test]
fn failed_recording_leaves_the_stream_usable() {
    let machine = TestDevice::new(1);
    let memory = machine.allocate(64);
    let failed = machine.stream.capture(|recording| {
        recording.stream().fill(memory.span(), 1)?;
        Err(CudaError::Invalid("enough".to_owned()))
    });
    assert_eq!(failed.unwrap_err(), CudaError::Invalid("enough".to_owned()));
    machine.stream.fill(memory.span(), 9).unwrap();
    assert_eq!(machine.read(memory.span()), [9; 64]);
}

#[test]
fn invalid_launch_is_refused_without_losing_the_context() {
    let machine = TestDevice::new(1);
    let function = machine.kernel("weir_test_fill");
    assert_eq!(function.attributes().unwrap().block_threads_max, 256);
    let memory = machine.allocate(4096);
    let mut parameters = KernelParameters::default();
    parameters.address(memory.span().address()).u32(1).u64(1024);
    for (grid, block) in [([1, 1, 1], [512, 1, 1]), ([0, 1, 1], [32, 1, 1]), ([1, 70_000, 1], [32, 1, 1])] {
        let launch = LaunchConfig { grid, block, shared_bytes: 0 };
        // SAFETY: as declared; nothing is launched.
        let error = unsafe { machine.stream.launch(&function, &launch, &parameters) }.unwrap_err();
        assert!(matches!(error, CudaError::Failed { .. }), "{error}");
    }
    launch_fill(&machine.stream, &function, memory.span(), 5);
    machine.stream.synchronize().unwrap();
    assert!(!machine.context.is_lost());
}

#[test]
fn devices_copy_to_each_other_but_do_not_share_kernels() {
    for seed in SEEDS {
        let fake = Fake::new(seed);
        fake.set("devices", 2);
        let other = devices(&fake).open(1).unwrap();
        let machine = TestDevice::from_fake(fake);
        let stream = Stream::new(&other, Priority::Normal).unwrap();
        let here = machine.allocate(4096);
        let there = Allocation::new(&other, 4096).unwrap();
        machine.stream.fill(here.span(), 5).unwrap();
        let written = Event::new(&machine.context).unwrap();
        machine.stream.record(&written).unwrap();
        stream.wait(&written).unwrap();
        stream.copy_from_device(&machine.stream, here.span(), there.span()).unwrap();
        let mut bytes = [0; 4096];
        stream.read(there.span(), &mut bytes).unwrap();
        assert_eq!(bytes, [5; 4096], "seed {seed}");
        // A span of the other device is invalid on this one, and its streams cannot run this
        // device's kernels.
        assert!(machine.stream.fill(there.span(), 1).is_err());
        let function = machine.kernel("weir_test_fill");
        // SAFETY: nothing is launched.
        let launched =
            unsafe { stream.launch(&function, &LaunchConfig::linear(1, 1), &KernelParameters::default()) };
        assert!(matches!(launched, Err(CudaError::Invalid(_))));
        assert!(!machine.context.is_lost());
        // Must drop before their fake driver.
        drop((there, stream, other));
    }
}

#[test]
fn refused_ptx_error_contains_the_compiler_log() {
    let machine = TestDevice::new(1);
    let error = weir_device::cuda::Module::load(&machine.context, b"this is no PTX").unwrap_err();
    assert!(error.to_string().contains("Missing .version"), "{error}");
    let module =
        weir_device::cuda::Module::load(&machine.context, weir_fake_cuda::TEST_KERNELS.as_bytes()).unwrap();
    let error = module.function("nobody").unwrap_err();
    assert!(error.to_string().contains("\"nobody\""), "{error}");
}
