//! Validation of a document on its own and against the kernels that it launches.

use crate::bounds::within;
use crate::buffers::{Buffers, Role, check_name};
use crate::document::{Bundle, GraphDocument, LaunchArgument, LaunchSpec};
use crate::error::KernelGraphError;
use crate::expression::Expression;
use crate::limits::{BLOCK_MAX, GRID_MAX, MEMORY_BYTES_MAX, SHARED_BYTES_MAX, STEPS_MAX, THREADS};
use crate::order::order;
use crate::ptx::{Parameter, Ptx};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_types::{Port, Shape, Signature};

/// Maximum number of sources of a graph.
const SOURCES_MAX: usize = 32;
/// Maximum number of launches of a graph; a repeated launch counts once.
const LAUNCHES_MAX: usize = 256;
/// Maximum number of arguments of a launch.
const ARGUMENTS_MAX: usize = 128;

/// Validated kernel graph, with the PTX of its kernels.
#[derive(Debug, Clone)]
pub struct KernelGraph {
    document: GraphDocument,
    /// Name and PTX of each source.
    modules: Vec<(String, String)>,
    pub(crate) buffers: Buffers,
    /// Launches in topological order: each launch comes after all launches that it waits for.
    pub(crate) launches: Vec<Checked>,
}

/// Validated launch, with names resolved to numbers.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub(crate) launch: LaunchSpec,
    pub(crate) module: usize,
    /// Numbers of the buffers that the launch reads and writes.
    pub(crate) reads: BTreeSet<usize>,
    pub(crate) writes: BTreeSet<usize>,
    /// Pairs (written buffer, read buffer): each repetition reads the first in place of the second.
    pub(crate) feed: Vec<(usize, usize)>,
    /// Maximum number of threads per block.
    pub(crate) threads_max: i128,
}

impl KernelGraph {
    /// Validates a graph whose sources are all PTX.
    pub fn new(bundle: Bundle) -> Result<Self, KernelGraphError> {
        let Bundle { graph: document, sources } = bundle;
        let (modules, kernels) = read(sources)?;
        for (what, is_empty) in [
            ("inputs", document.inputs.is_empty()),
            ("outputs", document.outputs.is_empty()),
            ("launches", document.launches.is_empty()),
        ] {
            if is_empty {
                return Err(KernelGraphError::None(what));
            }
        }
        let buffers = Buffers::from_document(&document)?;
        let names: Vec<&str> = document.launches.iter().map(|launch| launch.name.as_str()).collect();
        if names.len() > LAUNCHES_MAX {
            return Err(too_many("the graph", "launches", LAUNCHES_MAX, names.len()));
        }
        for (at, name) in names.iter().enumerate() {
            check_name("a launch", name)?;
            if names.iter().take(at).any(|before| before == name) {
                return Err(KernelGraphError::Duplicate { what: "launches", name: (*name).to_owned() });
            }
        }
        let checked =
            document.launches.iter().map(|launch| Checked::new(launch, &buffers, &modules, &kernels));
        let checked: Vec<Checked> = checked.collect::<Result<_, _>>()?;
        let order = order(&names, &waits(&buffers, &checked)?)?;
        let launches = order.into_iter().filter_map(|at| checked.get(at).cloned()).collect();
        let modules = modules.into_iter().map(|(name, text, _)| (name, text)).collect();
        let graph = Self { document, modules, buffers, launches };
        graph.check_sizes()?;
        Ok(graph)
    }

    /// Returns the document.
    #[must_use]
    pub fn document(&self) -> &GraphDocument {
        &self.document
    }

    /// Returns the name and PTX of each source. A launch's module is an index into this slice.
    #[must_use]
    pub fn modules(&self) -> &[(String, String)] {
        &self.modules
    }

    /// Returns the distinct kernels of a source that the graph launches.
    #[must_use]
    pub fn kernels(&self, module: usize) -> BTreeSet<&str> {
        let launches = self.launches.iter().filter(|launch| launch.module == module);
        launches.map(|launch| launch.launch.kernel.as_str()).collect()
    }

    /// Returns the bytes of all constants; [`Value::Constant`](crate::ArgumentValue::Constant) is
    /// an offset into this slice.
    #[must_use]
    pub fn constants(&self) -> &[u8] {
        &self.buffers.constants
    }

    /// Returns the inputs and outputs of the graph.
    #[must_use]
    pub fn signature(&self) -> Signature {
        let ports = |role: Role| -> Vec<Port> {
            let all = self.buffers.all.iter().filter(|buffer| buffer.role == role);
            let size = |size: &Expression| size.as_number().and_then(|size| u32::try_from(size).ok());
            all.map(|buffer| Port {
                name: buffer.name.clone(),
                datatype: buffer.datatype,
                shape: buffer.shape.iter().map(size).collect(),
            })
            .collect()
        };
        Signature { inputs: ports(Role::Input), outputs: ports(Role::Output) }
    }

    /// Checks all sizes that are known without inputs: every size if the inputs name no dimension,
    /// otherwise the sizes that depend on no dimension.
    fn check_sizes(&self) -> Result<(), KernelGraphError> {
        let known: BTreeSet<&str> = self
            .document
            .inputs
            .iter()
            .flat_map(|input| &input.shape)
            .filter_map(Expression::as_dimension)
            .collect();
        if known.is_empty() {
            let sizes =
                |port: &Port| -> Vec<u32> { port.shape.iter().map(|size| size.unwrap_or(0)).collect() };
            let shapes = self
                .signature()
                .inputs
                .iter()
                .map(|port| Shape::new(&sizes(port)))
                .collect::<Result<Vec<_>, _>>();
            let shapes = shapes.map_err(|error| KernelGraphError::Malformed(error.to_string()))?;
            self.plan(&shapes, MEMORY_BYTES_MAX)?;
            return Ok(());
        }
        // Most sizes are known only with the inputs of a run. Constant sizes, unknown dimensions
        // and expressions that are invalid for all inputs are rejected here.
        let check =
            |place: &dyn Fn() -> String, size: &Expression, what, min, max| -> Result<(), KernelGraphError> {
                if let Some(unknown) = size.dimensions().find(|name| !known.contains(name)) {
                    let error = crate::ExpressionError::UnknownDimension {
                        text: size.to_string(),
                        name: unknown.to_owned(),
                    };
                    return Err(KernelGraphError::Expression { place: place(), error });
                }
                match size.constant() {
                    Ok(Some(value)) => Ok(within(place, what, value, min, max).map(|_| ())?),
                    Ok(None) => Ok(()),
                    Err(error) => Err(KernelGraphError::Expression { place: place(), error }),
                }
            };
        for buffer in &self.buffers.all {
            for size in &buffer.shape {
                check(&|| format!("buffer {:?}", buffer.name), size, "a dimension", 0, i128::from(u32::MAX))?;
            }
        }
        for Checked { launch, threads_max, .. } in &self.launches {
            let place = || format!("launch {:?}", launch.name);
            for (size, max) in launch.grid.iter().zip(GRID_MAX) {
                check(&place, size, "grid", 1, max)?;
            }
            for (size, max) in launch.block.iter().zip(BLOCK_MAX) {
                check(&place, size, "block", 1, max)?;
            }
            let threads =
                launch.block.iter().map(|size| size.constant().ok().flatten()).product::<Option<i128>>();
            if let Some(threads) = threads {
                within(&place, THREADS, threads, 1, *threads_max)?;
            }
            check(&place, &launch.shared_bytes, "shared_bytes", 0, SHARED_BYTES_MAX)?;
            for (size, min, max) in launch.arguments.iter().filter_map(LaunchArgument::whole) {
                check(&place, size, "an argument", min, max)?;
            }
            if let Some(repeat) = &launch.repeat {
                check(&place, &repeat.times, "repeat.times", 1, STEPS_MAX as i128)?;
            }
        }
        Ok(())
    }
}

/// Kernel names of all sources, each with the index of its source.
type Kernels = HashMap<String, usize>;
type Modules = Vec<(String, String, Ptx)>;

fn read(sources: BTreeMap<String, String>) -> Result<(Modules, Kernels), KernelGraphError> {
    if sources.is_empty() {
        return Err(KernelGraphError::None("sources"));
    }
    if sources.len() > SOURCES_MAX {
        return Err(too_many("the graph", "sources", SOURCES_MAX, sources.len()));
    }
    let mut modules = Modules::new();
    let mut kernels = Kernels::new();
    for (name, text) in sources {
        check_name("a source", &name)?;
        if !name.ends_with(".ptx") {
            return Err(KernelGraphError::Ending(name));
        }
        let ptx = Ptx::read(&text).map_err(|error| KernelGraphError::Ptx { name: name.clone(), error })?;
        for entry in &ptx.entries {
            if let Some(before) = kernels.insert(entry.name.clone(), modules.len()) {
                let first = modules.get(before).map(|(name, ..)| name.clone()).unwrap_or_default();
                return Err(KernelGraphError::TwoKernels { kernel: entry.name.clone(), first, second: name });
            }
        }
        modules.push((name, text, ptx));
    }
    Ok((modules, kernels))
}

impl Checked {
    fn new(
        launch: &LaunchSpec,
        buffers: &Buffers,
        modules: &Modules,
        kernels: &Kernels,
    ) -> Result<Self, KernelGraphError> {
        let name = || launch.name.clone();
        let module = kernels.get(&launch.kernel).copied();
        let entry = module.and_then(|module| modules.get(module)?.2.entry(&launch.kernel));
        let (Some(module), Some(entry)) = (module, entry) else {
            let mut have: Vec<_> = kernels.keys().map(String::as_str).collect();
            have.sort_unstable();
            let kernel = launch.kernel.clone();
            let have = have.join(", ");
            return Err(KernelGraphError::NoKernel { launch: name(), kernel, have });
        };
        for (what, sizes) in [("grid", &launch.grid), ("block", &launch.block)] {
            if !(1..=3).contains(&sizes.len()) {
                return Err(KernelGraphError::Dimensions { launch: name(), what, found: sizes.len() });
            }
        }
        let found = launch.arguments.len();
        let expected = entry.parameters.len();
        if found > ARGUMENTS_MAX {
            return Err(too_many(&format!("launch {:?}", launch.name), "arguments", ARGUMENTS_MAX, found));
        }
        if found != expected {
            return Err(KernelGraphError::ArgumentCount {
                launch: name(),
                kernel: launch.kernel.clone(),
                expected,
                found,
            });
        }
        let mut reads = BTreeSet::new();
        let mut writes = BTreeSet::new();
        for (position, (argument, parameter)) in (1..).zip(launch.arguments.iter().zip(&entry.parameters)) {
            if !takes(*parameter, argument) {
                let given = given(argument);
                let expected = taken(*parameter);
                return Err(KernelGraphError::ArgumentType { launch: name(), position, given, expected });
            }
            let (LaunchArgument::In(buffer) | LaunchArgument::Out(buffer)) = argument else { continue };
            let number = buffers.find(buffer).ok_or_else(|| KernelGraphError::NoBuffer {
                launch: name(),
                buffer: buffer.clone(),
                have: buffers.names(),
            })?;
            if matches!(argument, LaunchArgument::In(_)) {
                reads.insert(number);
                continue;
            }
            let what = match buffers.all.get(number).map(|buffer| buffer.role) {
                Some(Role::Input) => "an input",
                Some(Role::Constant(_)) => "a constant",
                _ => {
                    if !writes.insert(number) {
                        let buffer = buffer.clone();
                        let first = name();
                        let second = name();
                        return Err(KernelGraphError::TwoWriters { buffer, first, second });
                    }
                    continue;
                }
            };
            return Err(KernelGraphError::NotWritable { launch: name(), buffer: buffer.clone(), what });
        }
        let feed = feed(launch, buffers, &reads, &writes)?;
        let threads_max = entry.threads_max.map_or(BLOCK_MAX[0], i128::from);
        let threads_max = threads_max.min(BLOCK_MAX[0]);
        Ok(Self { launch: launch.clone(), module, reads, writes, feed, threads_max })
    }
}

fn feed(
    launch: &LaunchSpec,
    buffers: &Buffers,
    reads: &BTreeSet<usize>,
    writes: &BTreeSet<usize>,
) -> Result<Vec<(usize, usize)>, KernelGraphError> {
    let wrong = |why: String| KernelGraphError::Feed { launch: launch.name.clone(), why };
    let mut feed: Vec<(usize, usize)> = Vec::new();
    for (from, to) in launch.repeat.iter().flat_map(|repeat| &repeat.feed) {
        let written = buffers.find(from).filter(|number| writes.contains(number));
        let written = written.ok_or_else(|| wrong(format!("the launch does not write {from:?}")))?;
        let read = buffers.find(to).filter(|number| reads.contains(number));
        let read = read.ok_or_else(|| wrong(format!("the launch does not read {to:?}")))?;
        if feed.iter().any(|(_, other)| *other == read) {
            return Err(wrong(format!("{to:?} is fed twice")));
        }
        if buffers.all.get(written).map(|buffer| buffer.datatype)
            != buffers.all.get(read).map(|buffer| buffer.datatype)
        {
            return Err(wrong(format!("{from:?} and {to:?} have other elements")));
        }
        feed.push((written, read));
    }
    Ok(feed)
}

/// Dependencies of each launch: the writers of the buffers that it reads.
///
/// Every output and temporary must have exactly one writer. Every buffer except an output must have
/// a reader.
fn waits(buffers: &Buffers, launches: &[Checked]) -> Result<Vec<BTreeSet<usize>>, KernelGraphError> {
    let mut writer: HashMap<usize, usize> = HashMap::new();
    for (at, launch) in launches.iter().enumerate() {
        for buffer in &launch.writes {
            if let Some(first) = writer.insert(*buffer, at) {
                let name =
                    |at: usize| launches.get(at).map(|launch| launch.launch.name.clone()).unwrap_or_default();
                let buffer = buffers.all.get(*buffer).map(|buffer| buffer.name.clone()).unwrap_or_default();
                return Err(KernelGraphError::TwoWriters { buffer, first: name(first), second: name(at) });
            }
        }
    }
    for (number, buffer) in buffers.all.iter().enumerate() {
        let is_written = writer.contains_key(&number);
        let is_read = launches.iter().any(|launch| launch.reads.contains(&number));
        if matches!(buffer.role, Role::Output | Role::Temporary) && !is_written {
            return Err(KernelGraphError::NeverWritten(buffer.name.clone()));
        }
        if buffer.role != Role::Output && !is_read {
            return Err(KernelGraphError::NeverRead(buffer.name.clone()));
        }
    }
    let writers =
        |launch: &Checked| launch.reads.iter().filter_map(|buffer| writer.get(buffer).copied()).collect();
    Ok(launches.iter().map(writers).collect())
}

fn takes(parameter: Parameter, argument: &LaunchArgument) -> bool {
    match argument {
        LaunchArgument::In(_) | LaunchArgument::Out(_) | LaunchArgument::I64(_) | LaunchArgument::U64(_) => {
            parameter == Parameter::Integer64
        }
        LaunchArgument::I32(_) | LaunchArgument::U32(_) => parameter == Parameter::Integer32,
        LaunchArgument::F32(_) => parameter == Parameter::Float32,
        LaunchArgument::F64(_) => parameter == Parameter::Float64,
    }
}

fn given(argument: &LaunchArgument) -> &'static str {
    match argument {
        LaunchArgument::In(_) => "a buffer (in)",
        LaunchArgument::Out(_) => "a buffer (out)",
        LaunchArgument::I32(_) => "an i32",
        LaunchArgument::U32(_) => "a u32",
        LaunchArgument::I64(_) => "an i64",
        LaunchArgument::U64(_) => "a u64",
        LaunchArgument::F32(_) => "an f32",
        LaunchArgument::F64(_) => "an f64",
    }
}

fn taken(parameter: Parameter) -> &'static str {
    match parameter {
        Parameter::Integer32 => "an i32 or u32",
        Parameter::Integer64 => "a buffer, an i64 or a u64",
        Parameter::Float32 => "an f32",
        Parameter::Float64 => "an f64",
        Parameter::Other => {
            "something that a launch cannot give: parameters are pointers and numbers of 32 or 64 bits"
        }
    }
}

fn too_many(place: &str, what: &'static str, max: usize, found: usize) -> KernelGraphError {
    KernelGraphError::TooMany { place: place.to_owned(), what, max, found }
}
