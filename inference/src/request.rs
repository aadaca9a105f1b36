//! Requests to run a model, and their validation against the model's signature. Pure functions of
//! plain data.

use crate::error::InferenceError;
use crate::meter::Meter;
use crate::tensor::Tensor;
use crate::value::{DeviceTensor, Value};
use std::time::{Duration, Instant};
use weir_types::{Port, Shape, Signature};

/// The effective priority of a [`RunRequest`] with priority 0. Lower is more urgent.
pub const PRIORITY_DEFAULT: u32 = 100;

/// One call of a model, with inputs and outputs by name.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// Inputs by name, in any order.
    pub inputs: Vec<(String, Tensor)>,
    /// Inputs that other runs left on a device.
    pub on_device: Vec<(String, DeviceTensor)>,
    /// Requested outputs in the requested order; `None`: all outputs, in the model's order.
    pub outputs: Option<Vec<String>>,
    /// Requested outputs that may stay on the device while there is room: outputs that mostly other
    /// runs on this device will read.
    pub may_stay: Vec<String>,
    /// Time at which the run is abandoned.
    pub deadline: Option<Instant>,
    /// 1 is the most urgent; 0 is the default, [`PRIORITY_DEFAULT`].
    pub priority: u32,
    /// Counts the device time of the run; `None`: the model's own meter.
    pub meter: Option<Meter>,
}

/// Results of a run.
#[derive(Debug, Clone)]
pub struct Completion {
    /// Outputs in host memory, in the requested order.
    pub outputs: Vec<(String, Tensor)>,
    /// Outputs that stayed on the device.
    pub stayed: Vec<(String, DeviceTensor)>,
    /// Time that the request waited for the device.
    pub queue_time: Duration,
    /// Time that the device ran.
    pub run_time: Duration,
    /// The underlying run, for counters of runs. Of the requests answered by one batched run, only
    /// one carries it.
    pub execution: Option<Execution>,
}

/// One run of a model, and the requests that it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execution {
    /// Number of requests answered.
    pub requests: u32,
    /// Number of items in all requests.
    pub items: u32,
    /// Bytes of the inputs.
    pub input_bytes: u64,
    /// Bytes of the inputs that only padded shorter requests.
    pub padding_bytes: u64,
}

/// One validated call of a model, with tensors on the host or on a device. Positions refer to the
/// model's [`Signature`].
#[derive(Debug, Clone)]
pub struct PlacedJob {
    /// One tensor for every input, in the signature's order.
    pub inputs: Vec<Value>,
    /// Positions of the requested outputs, in the requested order, each at most once.
    pub outputs: Vec<usize>,
    /// Positions of the outputs that may stay on the device.
    pub may_stay: Vec<usize>,
}

/// One validated call of a model, with all tensors in host memory, which every backend accepts.
/// Positions refer to the model's [`Signature`].
#[derive(Debug, Clone)]
pub struct Job {
    /// One tensor for every input, in the signature's order.
    pub inputs: Vec<Tensor>,
    /// Positions of the requested outputs, in the requested order, each at most once.
    pub outputs: Vec<usize>,
}

impl Execution {
    /// The run of a single request.
    #[must_use]
    pub fn alone(inputs: &[(String, Tensor)]) -> Self {
        let tensors = || inputs.iter().map(|(_, tensor)| tensor);
        let input_bytes = tensors().map(|tensor| tensor.data().len() as u64).sum();
        Self { requests: 1, items: batch(tensors().map(Tensor::shape)), input_bytes, padding_bytes: 0 }
    }
}

impl RunRequest {
    /// Number of items: the first dimension of the first input that has one.
    #[must_use]
    pub fn batch(&self) -> u32 {
        let shapes = self.inputs.iter().map(|(_, tensor)| tensor.shape());
        batch(shapes.chain(self.on_device.iter().map(|(_, tensor)| tensor.shape())))
    }

    /// Adds inputs, on the host or on a device.
    pub fn give(&mut self, inputs: Vec<(String, Value)>) {
        for (name, value) in inputs {
            match value {
                Value::Host(tensor) => self.inputs.push((name, tensor)),
                Value::Device(tensor) => self.on_device.push((name, tensor)),
            }
        }
    }

    /// Checks the request against the model's inputs and outputs.
    pub(crate) fn check(self, signature: &Signature) -> Result<PlacedJob, InferenceError> {
        let outputs = wanted_outputs(self.outputs, signature)?;
        let is_at = |name: &String| signature.outputs.iter().position(|port| port.name == *name);
        let may_stay = self.may_stay.iter().filter_map(is_at).filter(|at| outputs.contains(at)).collect();
        let mut places: Vec<Option<Value>> = vec![None; signature.inputs.len()];
        let here = self.inputs.into_iter().map(|(name, tensor)| (name, Value::Host(tensor)));
        let there = self.on_device.into_iter().map(|(name, tensor)| (name, Value::Device(tensor)));
        for (name, tensor) in here.chain(there) {
            let known = places.iter_mut().zip(&signature.inputs).find(|(_, port)| port.name == name);
            let Some((place, port)) = known else {
                return Err(InferenceError::UnknownInput { name, expected: list(&signature.inputs) });
            };
            if place.is_some() {
                return Err(InferenceError::DuplicateInput(name));
            }
            check_input(port, &tensor)?;
            *place = Some(tensor);
        }
        let required = |(place, port): (Option<Value>, &Port)| {
            place.ok_or_else(|| InferenceError::MissingInput(port.clone()))
        };
        let inputs = places.into_iter().zip(&signature.inputs).map(required).collect::<Result<_, _>>()?;
        Ok(PlacedJob { inputs, outputs, may_stay })
    }
}

impl PlacedJob {
    /// Number of items: the first dimension of the first input that has one.
    pub(crate) fn batch(&self) -> u32 {
        batch(self.inputs.iter().map(Value::shape))
    }

    /// Bytes of all inputs.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(Value::bytes).sum()
    }

    /// The same job with all inputs in host memory and all outputs going there. Blocks if inputs
    /// must be copied from a device.
    pub(crate) fn to_host(&self) -> Result<Job, InferenceError> {
        let inputs = self.inputs.iter().map(Value::to_host).collect::<Result<_, _>>()?;
        Ok(Job { inputs, outputs: self.outputs.clone() })
    }
}

impl From<&Job> for PlacedJob {
    fn from(job: &Job) -> Self {
        let inputs = job.inputs.iter().cloned().map(Value::Host).collect();
        Self { inputs, outputs: job.outputs.clone(), may_stay: Vec::new() }
    }
}

impl Job {
    /// Number of items: the first dimension of the first input that has one.
    pub(crate) fn batch(&self) -> u32 {
        batch(self.inputs.iter().map(Tensor::shape))
    }
}

fn batch<'a>(mut shapes: impl Iterator<Item = &'a Shape>) -> u32 {
    shapes.find_map(|shape| shape.dimensions().first().copied()).unwrap_or(1)
}

fn wanted_outputs(wanted: Option<Vec<String>>, signature: &Signature) -> Result<Vec<usize>, InferenceError> {
    let Some(wanted) = wanted else { return Ok((0..signature.outputs.len()).collect()) };
    if wanted.is_empty() {
        return Err(InferenceError::NoOutputs);
    }
    let mut positions = Vec::with_capacity(wanted.len().min(signature.outputs.len()));
    for name in wanted {
        let Some(position) = signature.outputs.iter().position(|port| port.name == name) else {
            return Err(InferenceError::UnknownOutput { name, expected: list(&signature.outputs) });
        };
        if positions.contains(&position) {
            return Err(InferenceError::DuplicateOutput(name));
        }
        positions.push(position);
    }
    Ok(positions)
}

fn check_input(port: &Port, tensor: &Value) -> Result<(), InferenceError> {
    if port.datatype != tensor.element_type() {
        return Err(InferenceError::WrongType { port: port.clone(), given: tensor.element_type() });
    }
    if !port.accepts(tensor.element_type(), tensor.shape()) {
        return Err(InferenceError::WrongShape { port: port.clone(), given: tensor.shape().clone() });
    }
    Ok(())
}

fn list(ports: &[Port]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_device::Arena;
    use weir_types::ElementType;

    fn port(name: &str, shape: &[Option<u32>]) -> Port {
        Port { name: name.into(), datatype: ElementType::Fp32, shape: shape.to_vec() }
    }

    fn tensor(element_type: ElementType, dimensions: &[u32]) -> Tensor {
        let shape = Shape::new(dimensions).unwrap();
        let len = shape.element_count() as usize * element_type.size_bytes().unwrap();
        Tensor::new(element_type, shape, Arena::new(1 << 20).buffer(len).unwrap().freeze()).unwrap()
    }

    fn check(inputs: Vec<(&str, Tensor)>, outputs: Option<&[&str]>) -> Result<Job, InferenceError> {
        let signature = Signature {
            inputs: vec![port("a", &[None, Some(2)]), port("b", &[Some(1)])],
            outputs: vec![port("x", &[None]), port("y", &[None])],
        };
        let inputs = inputs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        let outputs = outputs.map(|names| names.iter().map(ToString::to_string).collect());
        RunRequest { inputs, outputs, ..RunRequest::default() }.check(&signature)?.to_host()
    }

    #[test]
    fn inputs_accept_any_order_and_outputs_keep_requested_order() {
        let a = tensor(ElementType::Fp32, &[3, 2]);
        let b = tensor(ElementType::Fp32, &[1]);
        let job = check(vec![("b", b.clone()), ("a", a.clone())], Some(&["y", "x"])).unwrap();
        assert_eq!((job.inputs, job.outputs), (vec![a.clone(), b.clone()], vec![1, 0]));
        assert_eq!(check(vec![("a", a), ("b", b)], None).unwrap().outputs, vec![0, 1]);
    }

    #[test]
    fn each_invalid_request_has_its_own_error() {
        let a = tensor(ElementType::Fp32, &[3, 2]);
        let b = tensor(ElementType::Fp32, &[1]);
        let both = || vec![("a", a.clone()), ("b", b.clone())];
        let text = |result: Result<Job, InferenceError>| result.unwrap_err().to_string();

        let mut unknown = both();
        unknown.push(("c", a.clone()));
        assert_eq!(
            text(check(unknown, None)),
            r#"the model has no input "c"; its inputs are a: FP32[?, 2], b: FP32[1]"#
        );
        let mut twice = both();
        twice.push(("a", a.clone()));
        assert_eq!(text(check(twice, None)), r#"input "a" is given twice"#);
        assert_eq!(text(check(vec![("a", a.clone())], None)), "input b: FP32[1] is missing");
        let wrong_type = vec![("a", tensor(ElementType::Int64, &[3, 2])), ("b", b.clone())];
        assert_eq!(text(check(wrong_type, None)), "input a: FP32[?, 2] is given as INT64");
        for dimensions in [&[3, 3][..], &[2], &[3, 2, 1], &[]] {
            let wrong_shape = vec![("a", tensor(ElementType::Fp32, dimensions)), ("b", b.clone())];
            assert_eq!(
                text(check(wrong_shape, None)),
                format!("input a: FP32[?, 2] is given in shape {dimensions:?}")
            );
        }
        assert_eq!(
            text(check(both(), Some(&["z"]))),
            r#"the model has no output "z"; its outputs are x: FP32[?], y: FP32[?]"#
        );
        assert_eq!(text(check(both(), Some(&["x", "x"]))), r#"output "x" is wanted twice"#);
        assert!(matches!(check(both(), Some(&[])), Err(InferenceError::NoOutputs)));
    }
}
