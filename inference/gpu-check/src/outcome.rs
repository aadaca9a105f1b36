//! Results of the checks, in the form that is displayed and stored.

use crate::goal::Goal;
use crate::stage::Stage;
use crate::timer::MeasuredTime;
use serde::{Deserialize, Serialize};
use std::fmt;
use weir_cuda::executor::{BufferLocation, ProgramStep, StepWork};
use weir_device::OperatingPoint;

/// Implementation that computes an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationTier {
    /// Weir's own kernels.
    Own,
    /// cuBLASLt, NVIDIA's library for matrix products.
    CublasLt,
    /// Kernels that NVRTC compiles from chains of elementwise operations.
    Nvrtc,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Stage of the check.
    pub stage: Stage,
    /// Case of the stage, which `--case` can run again.
    pub case: Option<String>,
    /// Subject of the check.
    pub what: String,
    /// Tier that computed the result, if several tiers can.
    pub tier: Option<OperationTier>,
    /// Whether the result is right.
    pub passed: bool,
    /// Error of the worst element, relative to its magnitude or to 1, whichever is larger. For
    /// networks, relative to the largest element.
    pub error: Option<f64>,
    /// Maximum error that passes.
    pub tolerance: Option<f64>,
    /// Worst element, if the values are wrong.
    pub worst: Option<Mismatch>,
    /// Launches of the case, if the check failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchParameters>,
    /// Time, in nanoseconds.
    pub time_ns: Option<u64>,
    /// Clocks, power and PCIe link right after the measurement.
    pub clocks: Option<OperatingPoint>,
    /// Bytes moved per second.
    pub bytes_per_s: Option<f64>,
    /// Floating-point operations per second.
    pub flops_per_s: Option<f64>,
    /// Device memory in use, in bytes.
    pub memory_bytes: Option<u64>,
    /// Theoretical minimum time divided by the measured time: 1 is the theoretical peak. Values
    /// above 1 are possible, because the minimum ignores caches.
    pub share_of_floor: Option<f64>,
    /// Performance goal.
    pub goal: Option<Goal>,
    /// Explanation, or the reason of a failure.
    pub detail: String,
}

/// Element with a wrong value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Index of the output.
    pub output: usize,
    /// Index of the element in the output.
    pub index: usize,
    /// Expected value.
    #[serde(with = "number")]
    pub expected: f64,
    /// Actual value.
    #[serde(with = "number")]
    pub found: f64,
}

/// Parameters of one kernel launch. A product by cuBLASLt has only a name: the library chooses the
/// other parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchParameters {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of blocks along x, y and z.
    pub grid: [u32; 3],
    /// Number of threads per block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
}

impl fmt::Display for OperationTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::CublasLt => "cublaslt",
            Self::Nvrtc => "nvrtc",
        })
    }
}

impl Check {
    pub(crate) fn passed(stage: Stage, what: impl Into<String>) -> Self {
        Self {
            stage,
            case: None,
            what: what.into(),
            tier: None,
            passed: true,
            error: None,
            tolerance: None,
            worst: None,
            launches: Vec::new(),
            time_ns: None,
            clocks: None,
            bytes_per_s: None,
            flops_per_s: None,
            memory_bytes: None,
            share_of_floor: None,
            goal: None,
            detail: String::new(),
        }
    }

    /// Creates a failed check with the reason `why`.
    pub fn failed(stage: Stage, what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { passed: false, detail: why.to_string(), ..Self::passed(stage, what) }
    }

    /// Adds the error of the worst element. The check fails if the error exceeds `tolerance`.
    pub(crate) fn off_by(self, error: f64, tolerance: f64) -> Self {
        // A NaN fails every tolerance.
        let is_close = error <= tolerance;
        Self { passed: self.passed && is_close, error: Some(error), tolerance: Some(tolerance), ..self }
    }

    /// Adds the worst element if the check failed.
    pub(crate) fn with_worst(self, worst: Option<Mismatch>) -> Self {
        Self { worst: worst.filter(|_| !self.passed), ..self }
    }

    /// Fails with `detail` if an element differs.
    pub(crate) fn same(self, differs: Option<Mismatch>, detail: &str) -> Self {
        match differs {
            Some(_) => Self { passed: false, worst: differs, detail: detail.to_owned(), ..self },
            None => self,
        }
    }

    /// Adds the measured time, and the rates of the bytes and operations.
    #[expect(clippy::cast_precision_loss, reason = "rates do not need 16 significant digits")]
    pub(crate) fn took(self, measured: MeasuredTime, bytes: u64, flops: u64) -> Self {
        let MeasuredTime { time_ns, clocks } = measured;
        let rate = |count: u64| (count > 0 && time_ns > 0).then(|| count as f64 / (time_ns as f64 / 1e9));
        Self { time_ns: Some(time_ns), clocks, bytes_per_s: rate(bytes), flops_per_s: rate(flops), ..self }
    }

    /// Adds a performance goal.
    pub(crate) fn asked(self, goal: impl Into<Option<Goal>>) -> Self {
        Self { goal: goal.into(), ..self }
    }

    /// Adds the theoretical minimum time in nanoseconds, if known. Call it after `took`.
    #[expect(clippy::cast_precision_loss, reason = "a share does not need 16 significant digits")]
    pub(crate) fn beside(self, floor_ns: Option<f64>) -> Self {
        let time_ns = self.time_ns.filter(|time_ns| *time_ns > 0);
        let share = time_ns.zip(floor_ns).map(|(time_ns, floor_ns)| floor_ns / time_ns as f64);
        Self { share_of_floor: share, ..self }
    }
}

impl Mismatch {
    /// Returns the first byte that differs. If the lengths differ, the end of the shorter list
    /// counts as a difference.
    pub(crate) fn of_bytes(expected: &[u8], found: &[u8]) -> Option<Self> {
        let len = expected.len().max(found.len());
        let differs = |index: &usize| expected.get(*index) != found.get(*index);
        let index = if expected == found { None } else { (0..len).find(differs) }?;
        let byte = |bytes: &[u8]| bytes.get(index).map_or(f64::NAN, |byte| f64::from(*byte));
        Some(Self { output: 0, index, expected: byte(expected), found: byte(found) })
    }

    /// Returns the first byte of all outputs that differs.
    pub(crate) fn of_outputs(expected: &[Vec<u8>], found: &[Vec<u8>]) -> Option<Self> {
        (0..expected.len().max(found.len())).find_map(|output| {
            let differs = Self::of_bytes(output_bytes(expected, output), output_bytes(found, output))?;
            Some(Self { output, ..differs })
        })
    }
}

/// Returns the bytes of an output; empty if the output is missing.
fn output_bytes(outputs: &[Vec<u8>], output: usize) -> &[u8] {
    outputs.get(output).map_or(&[], Vec::as_slice)
}

impl LaunchParameters {
    /// Returns the parameters of the launches of these steps.
    pub(crate) fn of_steps(steps: &[ProgramStep]) -> Vec<Self> {
        let launch = |launch: &weir_kernels::Launch<BufferLocation>| Self {
            kernel: launch.kernel.name.to_string(),
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
        };
        let step = |step: &ProgramStep| match &step.work {
            StepWork::Launch(step) => launch(step),
            StepWork::Product { .. } => {
                Self { kernel: "cublasLtMatmul".to_owned(), grid: [0; 3], block: [0; 3], shared_bytes: 0 }
            }
        };
        steps.iter().map(step).collect()
    }
}

impl fmt::Display for LaunchParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, grid, block, shared_bytes } = self;
        write!(f, "{kernel} grid {grid:?} block {block:?} shared {shared_bytes} B")
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { output, index, expected, found } = self;
        write!(f, "output {output}, element {index}: {found} instead of {expected}")
    }
}

/// Serialises a number; infinities and NaN, which JSON lacks, become strings.
mod number {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Finite(f64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if number.is_finite() {
            serializer.serialize_f64(*number)
        } else {
            serializer.serialize_str(&number.to_string())
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Number::deserialize(deserializer)? {
            Number::Finite(number) => Ok(number),
            Number::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatch_of_nan_survives_json() {
        for found in [0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mismatch = Mismatch { output: 1, index: 7, expected: -2.0, found };
            let json = serde_json::to_string(&mismatch).unwrap();
            let back: Mismatch = serde_json::from_str(&json).unwrap();
            assert!(back.found.to_bits() == found.to_bits() && back.index == 7, "{json}");
        }
    }

    #[test]
    fn first_differing_byte_is_found() {
        assert_eq!(Mismatch::of_bytes(&[1, 2], &[1, 2]), None);
        let differs = Mismatch::of_bytes(&[1, 2, 3], &[1, 9, 8]).unwrap();
        assert_eq!((differs.index, differs.expected, differs.found), (1, 2.0, 9.0));
        let short = Mismatch::of_bytes(&[1, 2], &[1]).unwrap();
        assert!(short.index == 1 && short.expected == 2.0 && short.found.is_nan());
        let outputs = [vec![1], vec![2, 3]];
        assert_eq!(Mismatch::of_outputs(&outputs, &outputs), None);
        assert_eq!(Mismatch::of_outputs(&outputs, &[vec![1], vec![2, 4]]).map(|at| at.output), Some(1));
    }
}
