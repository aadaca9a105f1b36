//! A whole model: what it takes to load, to run for the first time and again, and whether its answers are right.

use super::super::bound::Bound;
use super::super::device::Gpu;
use super::super::form::stored_for;
use super::super::program::Program;
use super::super::weights::Weights;
use super::bench::{BothWays, OWNER, in_slot, worst};
use super::{Check, CheckConfig, CheckFailure, Stage};
use crate::mapping::Mapping;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weir_graph::reference::{self, Tensor};
use weir_graph::{Model, TensorType, WeightData};
use weir_kernels::Cost;
use weir_types::{ElementType, Port, Precision, Shape};

/// What a dimension is that the file leaves open: the first one counts items, others are lengths.
const LENGTH: u32 = 16;

/// A model, what it is asked, and what the reference says.
struct Network {
    name: String,
    model: Model,
    inputs: Vec<Tensor>,
    shapes: Vec<Shape>,
    expected: Vec<Tensor>,
}

pub(super) fn check(
    gpu: &Arc<Gpu>,
    config: &CheckConfig,
    path: &Path,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    match Network::read(path) {
        Ok(network) => {
            Precision::ALL.into_iter().try_for_each(|precision| network.check(gpu, config, precision, tell))
        }
        Err(why) => {
            tell(Check::failed(Stage::Networks, name(path), why));
            Ok(())
        }
    }
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

impl Network {
    fn read(path: &Path) -> Result<Self, String> {
        let file = Mapping::of(path).map_err(|error| error.to_string())?;
        let model = Model::read(Bytes::from_owner(file)).map_err(|error| error.to_string())?;
        let inputs: Option<Vec<Tensor>> = model.signature().inputs.iter().map(made_up).collect();
        let inputs = inputs.ok_or("its inputs cannot be made up")?;
        let shapes: Option<Vec<Shape>> = inputs.iter().map(shape).collect();
        let shapes = shapes.ok_or("its inputs are too large")?;
        let graph = model.specialise(&shapes).map_err(|error| error.to_string())?;
        let weight = |index: u32| {
            let weight = model.weights().get(usize::try_from(index).ok()?)?;
            match &weight.data {
                WeightData::Bytes(bytes) => Tensor::from_bytes(weight.tensor.clone(), bytes),
                WeightData::Elsewhere(_) => None,
            }
        };
        let expected = reference::run(&graph, &inputs, &weight).map_err(|error| error.to_string())?;
        Ok(Self { name: name(path), model, inputs, shapes, expected })
    }

    fn check(
        &self,
        gpu: &Arc<Gpu>,
        config: &CheckConfig,
        precision: Precision,
        tell: &mut dyn FnMut(Check),
    ) -> Result<(), CheckFailure> {
        let name = format!("{}, {precision}", self.name);
        let compiled = stored_for(self.model.clone(), precision).map_err(|error| error.to_string());
        let compiled = compiled.and_then(|stored| {
            let program = Program::compile(&stored, &self.shapes, precision, &gpu.target);
            Ok((program.map_err(|error| error.to_string())?, stored))
        });
        let (program, stored) = match compiled {
            Ok(compiled) => compiled,
            Err(why) => {
                tell(Check::failed(Stage::Networks, name, why));
                return Ok(());
            }
        };
        let cost = program.launches.iter().fold(Cost::default(), |cost, launch| cost + launch.cost);
        let launches = program.launches.len();

        let began = Instant::now();
        let weights = Weights::load(gpu, &stored, Path::new(""))
            .map_err(|error| super::super::model::load_failure(&error))?;
        let load_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let weight_bytes = stored.weights().iter().map(|weight| weight.bytes() as u64).sum();
        tell(Check::passed(Stage::Networks, format!("{name}: load")).took(load_ns, weight_bytes, 0));

        let bound = Bound::new(gpu, program, &weights, OWNER)?;
        let BothWays { launched, captured } =
            in_slot(gpu, OWNER, &bound, &weights, &self.inputs, |ready| ready.both_ways(config.repeats))?;
        let run = Check::passed(Stage::Networks, format!("{name}: run, {launches} launches"));
        tell(run.took(launched.time_ns, cost.bytes, cost.flops));
        let repeated = Check::passed(Stage::Networks, format!("{name}: run again, as a graph"));
        let same = launched.outputs == captured.outputs;
        let detail = if same { String::new() } else { "the graph gives other answers".to_owned() };
        tell(Check { passed: same, detail, ..repeated.took(captured.time_ns, cost.bytes, cost.flops) });

        let error = launched.outputs.iter().zip(&self.expected).map(|(bytes, expected)| {
            let found = Tensor::from_bytes(expected.tensor().clone(), bytes);
            found.map_or(f64::INFINITY, |found| worst(&found.to_floats(), &expected.to_floats()))
        });
        let answers = Check::passed(Stage::Networks, format!("{name}: answers"));
        tell(answers.off_by(error.fold(0.0, f64::max), tolerance(precision)));
        Ok(())
    }
}

/// How far a network's answers may be off: rounding adds up over its layers.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 1e-3,
        Precision::Tf32 | Precision::Fp16 => 1e-2,
        Precision::Bf16 => 1e-1,
    }
}

/// An input of a shape that the model may take.
pub(super) fn made_up(port: &Port) -> Option<Tensor> {
    let size =
        |(axis, dim): (usize, &Option<u32>)| dim.unwrap_or(if axis == 0 { 1 } else { LENGTH }) as usize;
    let dims: Vec<usize> = port.shape.iter().enumerate().map(size).collect();
    let tensor = TensorType::new(port.datatype, dims).ok()?;
    let count = tensor.elements();
    Some(match port.datatype {
        ElementType::Fp32 | ElementType::Fp16 | ElementType::Bf16 | ElementType::Fp64 => {
            Tensor::floats(tensor, (0..count).map(|at| at as f32 / count as f32).collect())
        }
        // Masks say that everything is there; whatever else is whole is a small index.
        _ if port.name.contains("mask") => Tensor::integers(tensor, vec![1; count]),
        _ => Tensor::integers(tensor, (0..count).map(|at| (at % 2) as i64).collect()),
    })
}

fn shape(tensor: &Tensor) -> Option<Shape> {
    let dims: Option<Vec<u32>> = tensor.tensor().dims().iter().map(|dim| u32::try_from(*dim).ok()).collect();
    Shape::new(&dims?).ok()
}
