//! The least time that a device allows, by its memory and its units: what is measured is told as a share of it.

use super::super::program::Step;
use weir_device::cuda::DeviceInfo;
use weir_kernels::{Cost, Module, Precision};

/// What a device does on paper (Williams, Waterman and Patterson's roofline, CACM 2009): bytes of its memory, and operations of its units.
pub(super) struct Floor {
    bytes_per_s: f64,
    /// Of a processor core's kind, and of the units for matrices.
    flops_per_s: f64,
    matrix_flops_per_s: f64,
}

impl Floor {
    /// Of products in a precision; none if the driver does not say, or the device is of a generation that is not known here.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
    pub(super) fn of(info: &DeviceInfo, precision: Precision) -> Option<Self> {
        let (float, matrix) = flops_per_clock(info.compute_capability, precision)?;
        let clocks_per_s = info.clock_hz as f64 * f64::from(info.multiprocessors);
        let is_told = info.clock_hz > 0 && info.memory_bytes_per_s > 0;
        is_told.then_some(Self {
            bytes_per_s: info.memory_bytes_per_s as f64,
            flops_per_s: clocks_per_s * float,
            matrix_flops_per_s: clocks_per_s * matrix,
        })
    }

    /// The least time for these steps one after the other, each with all it reads and writes in the device's memory, in nanoseconds.
    pub(super) fn time_ns(&self, steps: &[Step]) -> f64 {
        steps.iter().map(|step| self.step_ns(step)).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "as above")]
    fn step_ns(&self, step: &Step) -> f64 {
        let is_product = match step {
            Step::Launch(launch) => is_product(launch.kernel.module),
            Step::Product { .. } => true,
        };
        let flops_per_s = if is_product { self.matrix_flops_per_s } else { self.flops_per_s };
        let Cost { flops, bytes } = step.cost();
        1e9 * (flops as f64 / flops_per_s).max(bytes as f64 / self.bytes_per_s)
    }
}

/// Whether the units for matrices could do what its kernels do, whether or not they are used.
fn is_product(module: Module) -> bool {
    match module {
        Module::Gemm | Module::GemmTensor | Module::Conv | Module::ConvTensor | Module::Attention => true,
        Module::Copy
        | Module::Elementwise
        | Module::Picture
        | Module::Reduce
        | Module::Normalise
        | Module::Gather => false,
    }
}

/// Operations that a multiprocessor does in a clock, a multiplication and an addition being two: on fp32, and in products of dense matrices with factors of a
/// precision and sums of fp32. After the white papers of the generations, Turing to Blackwell.
fn flops_per_clock(compute_capability: (u32, u32), precision: Precision) -> Option<(f64, f64)> {
    let (float, tf32, half) = match compute_capability {
        // No units for tf32 and bf16.
        (7, 5) => (128.0, None, 1024.0),
        (8, 0) => (128.0, Some(1024.0), 2048.0),
        (8, _) => (256.0, Some(512.0), 1024.0),
        (9, _) => (256.0, Some(2048.0), 4096.0),
        (10, _) => (256.0, Some(4096.0), 8192.0),
        (12, _) => (256.0, Some(512.0), 1024.0),
        _ => return None,
    };
    let matrix = match precision {
        Precision::Fp32 => float,
        Precision::Tf32 => tf32.unwrap_or(float),
        Precision::Fp16 => half,
        Precision::Bf16 => tf32.map_or(float, |_| half),
    };
    Some((float, matrix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kernels::{Kernel, Launch};

    fn floor(precision: Precision) -> Floor {
        let (float, matrix) = flops_per_clock((9, 0), precision).unwrap();
        let clocks_per_s = 132.0 * 1.98e9;
        Floor {
            bytes_per_s: 4.8e12,
            flops_per_s: clocks_per_s * float,
            matrix_flops_per_s: clocks_per_s * matrix,
        }
    }

    fn step(module: Module, cost: Cost) -> Step {
        Step::Launch(Launch {
            kernel: Kernel { module, name: "k".into() },
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            arguments: Vec::new(),
            cost,
            chain: None,
        })
    }

    #[test]
    fn an_h200_does_what_its_maker_says() {
        let tflops = |precision| (floor(precision).matrix_flops_per_s / 1e12).round();
        assert_eq!(tflops(Precision::Fp32), 67.0);
        // At the clock of its cores; the maker counts those of the units for matrices at 1.83 GHz: 495 and 989.
        assert_eq!(tflops(Precision::Tf32), 535.0);
        assert_eq!(tflops(Precision::Fp16), 1071.0);
    }

    #[test]
    fn a_step_takes_what_takes_longer_and_steps_take_their_sum() {
        let floor = floor(Precision::Tf32);
        let moves = step(Module::Elementwise, Cost { flops: 1, bytes: 4_800_000 });
        assert_eq!(floor.time_ns(&[moves]).round(), 1000.0);
        let flops = 535_265_280;
        let computes = || step(Module::Conv, Cost { flops, bytes: 1 });
        assert_eq!(floor.time_ns(&[computes()]).round(), 1000.0);
        assert_eq!(floor.time_ns(&[computes(), computes()]).round(), 2000.0);
        let no_product = step(Module::Reduce, Cost { flops, bytes: 1 });
        assert_eq!(floor.time_ns(&[no_product]).round(), 8000.0);
    }

    #[test]
    fn what_a_device_has_no_units_for_is_done_by_its_cores() {
        assert_eq!(flops_per_clock((7, 5), Precision::Bf16), Some((128.0, 128.0)));
        assert_eq!(flops_per_clock((7, 5), Precision::Fp16), Some((128.0, 1024.0)));
        assert_eq!(flops_per_clock((6, 1), Precision::Fp32), None);
    }
}
