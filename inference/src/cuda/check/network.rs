//! A whole model: what it takes to load, to run for the first time and again, and whether its answers are right.

use super::super::bound::Bound;
use super::super::device::Gpu;
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
use weir_kernels::{Cost, Precision};
use weir_types::{ElementType, Port, Shape};

/// What a dimension is that the file leaves open: the first one counts items, others are lengths.
const LENGTH: u32 = 16;

pub(super) fn check(
    gpu: &Arc<Gpu>,
    config: &CheckConfig,
    path: &Path,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    let file = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{file}, {}", format!("{:?}", gpu.precision).to_lowercase());
    let read = Mapping::of(path).map_err(|error| error.to_string());
    let model = read.and_then(|file| Model::read(Bytes::from_owner(file)).map_err(|error| error.to_string()));
    let prepared = model.and_then(|model| {
        let inputs: Vec<Tensor> = model
            .signature()
            .inputs
            .iter()
            .map(made_up)
            .collect::<Option<_>>()
            .ok_or("its inputs cannot be made up")?;
        let shapes: Option<Vec<Shape>> = inputs.iter().map(shape).collect();
        let shapes = shapes.ok_or("its inputs are too large")?;
        let program = Program::compile(&model, &shapes, gpu.precision, &gpu.target)
            .map_err(|error| error.to_string())?;
        let graph = model.specialise(&shapes).map_err(|error| error.to_string())?;
        Ok((model, inputs, graph, program))
    });
    let (model, inputs, graph, program) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            tell(Check::failed(Stage::Networks, name, why));
            return Ok(());
        }
    };
    let cost = program.launches.iter().fold(Cost::default(), |cost, launch| cost + launch.cost);
    let launches = program.launches.len();

    let began = Instant::now();
    let weights = Weights::load(gpu, &model, Path::new(""))
        .map_err(|error| super::super::model::load_failure(&error))?;
    let load_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let weight_bytes = model.weights().iter().map(|weight| weight.tensor.bytes() as u64).sum();
    tell(Check::passed(Stage::Networks, format!("{name}: load")).took(load_ns, weight_bytes, 0));

    let bound = Bound::new(gpu, program, &weights, OWNER)?;
    let BothWays { launched, captured } =
        in_slot(gpu, OWNER, &bound, &weights, &inputs, |ready| ready.both_ways(config.repeats))?;
    let run = Check::passed(Stage::Networks, format!("{name}: run, {launches} launches"));
    tell(run.took(launched.time_ns, cost.bytes, cost.flops));
    let repeated = Check::passed(Stage::Networks, format!("{name}: run again, as a graph"));
    let same = launched.outputs == captured.outputs;
    let detail = if same { String::new() } else { "the graph gives other answers".to_owned() };
    tell(Check { passed: same, detail, ..repeated.took(captured.time_ns, cost.bytes, cost.flops) });

    let weight = |index: u32| {
        let weight = model.weights().get(usize::try_from(index).ok()?)?;
        match &weight.data {
            WeightData::Bytes(bytes) => Tensor::from_bytes(weight.tensor.clone(), bytes),
            WeightData::Elsewhere(_) => None,
        }
    };
    let what = format!("{name}: answers");
    let expected = match reference::run(&graph, &inputs, &weight) {
        Ok(expected) => expected,
        Err(why) => {
            tell(Check::failed(Stage::Networks, what, why));
            return Ok(());
        }
    };
    let error = launched.outputs.iter().zip(&expected).map(|(bytes, expected)| {
        let found = Tensor::from_bytes(expected.tensor().clone(), bytes);
        found.map_or(f64::INFINITY, |found| worst(&found.to_floats(), &expected.to_floats()))
    });
    let tolerance = if gpu.precision == Precision::Fp32 { 1e-3 } else { 1e-2 };
    tell(Check::passed(Stage::Networks, what).off_by(error.fold(0.0, f64::max), tolerance));
    Ok(())
}

/// An input of a shape that the model may take.
fn made_up(port: &Port) -> Option<Tensor> {
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
