//! Lower bound of a run's time from the device's memory bandwidth and arithmetic throughput.
//! Measured times are reported as a share of this bound.

use weir_cuda::executor::{ProgramStep, StepWork};
use weir_device::cuda::DeviceInfo;
use weir_kernels::{KernelModule, LaunchCost, Precision};

/// Theoretical peak rates of a device for the roofline model (Williams, Waterman and Patterson,
/// CACM 2009).
pub(crate) struct Floor {
    bytes_per_s: f64,
    /// Peak of the ordinary cores. `matrix_flops_per_s` is the peak of the tensor cores.
    flops_per_s: f64,
    matrix_flops_per_s: f64,
}

impl Floor {
    /// Returns the peak rates for products in a precision. `None` if the driver does not report the
    /// rates, or the generation of the device is unknown.
    #[expect(clippy::cast_precision_loss, reason = "a share does not need 16 significant digits")]
    pub(crate) fn for_device(info: &DeviceInfo, precision: Precision) -> Option<Self> {
        let (float, matrix) = flops_per_clock(info.compute_capability, precision)?;
        let clocks_per_s = info.clock_hz as f64 * f64::from(info.multiprocessors);
        let is_told = info.clock_hz > 0 && info.memory_bytes_per_s > 0;
        is_told.then_some(Self {
            bytes_per_s: info.memory_bytes_per_s as f64,
            flops_per_s: clocks_per_s * float,
            matrix_flops_per_s: clocks_per_s * matrix,
        })
    }

    /// Returns the minimum time in nanoseconds for these steps in sequence, if each step reads and
    /// writes all its data in device memory.
    pub(crate) fn time_ns(&self, steps: &[ProgramStep]) -> f64 {
        steps.iter().map(|step| self.step_ns(step)).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "a share does not need 16 significant digits")]
    fn step_ns(&self, step: &ProgramStep) -> f64 {
        let is_product = match &step.work {
            StepWork::Launch(launch) => is_product(launch.kernel.module),
            StepWork::Product { .. } => true,
        };
        let flops_per_s = if is_product { self.matrix_flops_per_s } else { self.flops_per_s };
        let LaunchCost { flops, bytes } = step.cost();
        1e9 * (flops as f64 / flops_per_s).max(bytes as f64 / self.bytes_per_s)
    }
}

/// Returns whether tensor cores could compute the module's kernels, even if the kernels do not use
/// them.
fn is_product(module: KernelModule) -> bool {
    match module {
        KernelModule::Gemm
        | KernelModule::GemmTensor
        | KernelModule::Conv
        | KernelModule::ConvTensor
        | KernelModule::Attention => true,
        KernelModule::Copy
        | KernelModule::Elementwise
        | KernelModule::Picture
        | KernelModule::Reduce
        | KernelModule::Normalise
        | KernelModule::Gather => false,
    }
}

/// Operations per clock of a multiprocessor, where a multiply-add counts as two: in fp32, and in
/// dense matrix products with factors of a precision and fp32 sums. Values are from the white
/// papers of the generations Turing to Blackwell.
fn flops_per_clock(compute_capability: (u32, u32), precision: Precision) -> Option<(f64, f64)> {
    let (float, tf32, half) = match compute_capability {
        // Turing has no tensor-core support for tf32 and bf16.
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

    fn step(module: KernelModule, cost: LaunchCost) -> ProgramStep {
        ProgramStep::from(Launch {
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
    fn h200_peak_rates_are_computed_from_core_clock() {
        let tflops = |precision| (floor(precision).matrix_flops_per_s / 1e12).round();
        assert_eq!(tflops(Precision::Fp32), 67.0);
        // These values use the clock of the cores. NVIDIA counts the tensor cores at 1.83 GHz: 495
        // and 989.
        assert_eq!(tflops(Precision::Tf32), 535.0);
        assert_eq!(tflops(Precision::Fp16), 1071.0);
    }

    #[test]
    fn step_time_is_the_longer_of_memory_and_compute() {
        let floor = floor(Precision::Tf32);
        let moves = step(KernelModule::Elementwise, LaunchCost { flops: 1, bytes: 4_800_000 });
        assert_eq!(floor.time_ns(&[moves]).round(), 1000.0);
        let flops = 535_265_280;
        let computes = || step(KernelModule::Conv, LaunchCost { flops, bytes: 1 });
        assert_eq!(floor.time_ns(&[computes()]).round(), 1000.0);
        assert_eq!(floor.time_ns(&[computes(), computes()]).round(), 2000.0);
        let no_product = step(KernelModule::Reduce, LaunchCost { flops, bytes: 1 });
        assert_eq!(floor.time_ns(&[no_product]).round(), 8000.0);
    }

    #[test]
    fn missing_tensor_core_support_uses_core_rates() {
        assert_eq!(flops_per_clock((7, 5), Precision::Bf16), Some((128.0, 128.0)));
        assert_eq!(flops_per_clock((7, 5), Precision::Fp16), Some((128.0, 1024.0)));
        assert_eq!(flops_per_clock((6, 1), Precision::Fp32), None);
    }
}
