//! `cargo xtask kernels`.
//!
//! ```text
//!   kernels/cuda/*.cu
//!     ──NVRTC──► kernels/ptx/MODULE_FAMILY.ptx
//!       ──ptxas──► kernels/cubin/MODULE_ARCHITECTURE.cubin.xz, kernels/resources.tsv
//! ```

mod cubin;
mod leftovers;
mod log;
mod nvrtc;
mod ptxas;
mod record;
mod resources;
mod sources;

use crate::parallel;
use crate::repo::Repo;
use crate::setup;
use anyhow::{Context as _, Result, ensure};
use log::KernelUsage;
use nvrtc::NvrtcLibrary;
use ptxas::Ptxas;
use record::{CompilationRecord, Digests, digest};
use resources::ResourceTable;
use sources::Sources;
use std::path::{Path, PathBuf};

/// Architecture families to compile PTX for. Each also serves newer architectures.
const FAMILIES: [u32; 2] = [75, 80];
/// Architectures to assemble machine code for: compute capability 7.5 to 12.0. Devices of 8.9 run
/// the code of 8.6, which ptxas assembles to the same instructions.
const ARCHITECTURES: [u32; 6] = [75, 80, 86, 90, 100, 120];
/// Maximum number of concurrent compilations; each takes a few hundred megabytes.
const COMPILATIONS_MAX: usize = 8;
/// Maximum size of all PTX. The packed program contains about a sixth of it.
const PTX_BYTES_MAX: u64 = 16 << 20;
/// Maximum size of all compressed machine code.
const CUBIN_BYTES_MAX: u64 = 6 << 20;

/// Compile the kernels to the checked-in PTX and machine code, after a change of `kernels/cuda/`
#[derive(Debug, clap::Args)]
pub(crate) struct KernelsArgs {
    /// Compile, but only compare the results with the checked-in files
    #[arg(long)]
    check: bool,
    /// Files of `kernels/cuda/`, by name without the extension [default: all]
    modules: Vec<String>,
}

pub(crate) fn run(repo: &Repo, args: &KernelsArgs) -> Result<()> {
    if args.check {
        return compare(repo, &args.modules);
    }
    let kernels = Kernels::open(repo, &args.modules)?;
    let compilers = Compilers::open(repo)?;
    kernels.compile(&compilers.nvrtc)?;
    kernels.assemble(&compilers.ptxas)?;
    kernels.record()
}

/// Compiles all kernels, and fails if the PTX, the machine code or the table of resources differs
/// from the result. Takes minutes of processor time.
pub(crate) fn compare(repo: &Repo, modules: &[String]) -> Result<()> {
    let kernels = Kernels::open(repo, modules)?;
    let compilers = Compilers::open(repo)?;
    kernels.compare_ptx(&compilers.nvrtc)?;
    kernels.compare_cubins(&compilers.ptxas)?;
    kernels.check()
}

/// Fails if a source, a compiler's version, the PTX, the machine code or the table of resources
/// changed since the last `cargo xtask kernels`, or a file has no kernel. Compiles nothing.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    Kernels::open(repo, &[])?.check()
}

/// Installs the compilers. Returns the folder of their Python environment.
pub(crate) fn install(repo: &Repo) -> Result<PathBuf> {
    let programs = setup::environment(repo, "nvrtc", &repo.root().join("kernels/requirements.txt"))?;
    Ok(programs.parent().unwrap_or(&programs).to_owned())
}

struct Compilers {
    nvrtc: NvrtcLibrary,
    ptxas: Ptxas,
}

impl Compilers {
    fn open(repo: &Repo) -> Result<Self> {
        let environment = install(repo)?;
        Ok(Self { nvrtc: NvrtcLibrary::open(&environment)?, ptxas: Ptxas::find(&environment)? })
    }
}

/// Kernel sources and the files compiled from them.
struct Kernels {
    sources: Sources,
    folder: PathBuf,
    /// Whether these are all modules.
    is_all: bool,
}

impl Kernels {
    /// Opens the modules in `only`, or all modules if it is empty.
    fn open(repo: &Repo, only: &[String]) -> Result<Self> {
        let folder = repo.root().join("kernels");
        for folder in [folder.join("ptx"), folder.join("cubin")] {
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let sources = Sources::open(&folder.join("cuda"), only)?;
        Ok(Self { sources, folder, is_all: only.is_empty() })
    }

    /// Writes the PTX.
    fn compile(&self, nvrtc: &NvrtcLibrary) -> Result<()> {
        let made = self.each(&FAMILIES, |module, family| {
            let ptx = self.sources.compile(nvrtc, module, family)?;
            write(&self.folder.join(ptx_file(module, family)), ptx.as_bytes())
        })?;
        println!("{} files of PTX, {} bytes", made.len(), made.iter().sum::<u64>());
        Ok(())
    }

    /// Writes the machine code and the table of resources.
    fn assemble(&self, ptxas: &Ptxas) -> Result<()> {
        let made = self.each(&ARCHITECTURES, |module, architecture| {
            let assembled = ptxas.assemble(&self.ptx_for(module, architecture)?, architecture)?;
            let packed = cubin::pack(&assembled.cubin)?;
            let bytes = write(&self.folder.join(cubin_file(module, architecture)), &packed)?;
            Ok((module.to_owned(), architecture, assembled.usages, bytes))
        })?;
        let mut resources = ResourceTable::read_or_default(&self.table())?;
        resources.forget(self.sources.modules());
        for (module, architecture, usages, _) in &made {
            resources.set(module, *architecture, usages);
        }
        write(&self.table(), resources.to_string().as_bytes())?;
        let bytes = made.iter().map(|(.., bytes)| bytes).sum::<u64>();
        println!("{} files of machine code, {bytes} bytes", made.len());
        Ok(())
    }

    /// Writes the digests of the inputs and outputs of these modules into the record.
    fn record(&self) -> Result<()> {
        let digests = self.digests()?;
        let mut record = CompilationRecord::read_or_default(&self.record_file())?;
        if self.is_all {
            record.retain(|file| digests.iter().any(|(digested, _)| digested == file));
        }
        for (file, digests) in digests {
            record.set(file, digests);
        }
        write(&self.record_file(), record.to_string().as_bytes())?;
        Ok(())
    }

    /// Compares the sources, the files and the sizes with the record and the limits.
    fn check(&self) -> Result<()> {
        if self.is_all {
            self.check_leftovers()?;
        }
        let record = CompilationRecord::read(&self.record_file())?;
        let digests = self.digests()?;
        let failed: Vec<String> = digests
            .iter()
            .filter_map(|(file, found)| Some(record.check(file, found).err()?.to_string()))
            .collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        self.check_size("PTX", &FAMILIES, ptx_file, PTX_BYTES_MAX)?;
        self.check_size("machine code", &ARCHITECTURES, cubin_file, CUBIN_BYTES_MAX)?;
        println!("{} compiled files of kernels are up to date", digests.len());
        Ok(())
    }

    /// Digests of all compiled files and their inputs.
    fn digests(&self) -> Result<Vec<(String, Digests)>> {
        let tools = tool_versions();
        let mut digests = Vec::new();
        for (module, family) in self.pairs(&FAMILIES) {
            let inputs = self.sources.digest(module, family, &tools)?;
            let output = digest([self.ptx(module, family)?.as_bytes()]);
            digests.push((ptx_file(module, family), Digests { inputs, output }));
        }
        let resources = ResourceTable::read(&self.table())?;
        for (module, architecture) in self.pairs(&ARCHITECTURES) {
            let ptx = self.ptx_for(module, architecture)?;
            let inputs = digest([tools.as_str(), &architecture.to_string(), &ptx].map(str::as_bytes));
            let usages = format!("{:?}", resources.get(module, architecture));
            let output = digest([&self.packed_cubin(module, architecture)?[..], usages.as_bytes()]);
            digests.push((cubin_file(module, architecture), Digests { inputs, output }));
        }
        Ok(digests)
    }

    fn check_size(
        &self,
        what: &str,
        targets: &[u32],
        file: impl Fn(&str, u32) -> String,
        bytes_max: u64,
    ) -> Result<()> {
        let sizes = self.pairs(targets).map(|(module, target)| {
            let file = self.folder.join(file(module, target));
            let size = file.metadata().map(|metadata| metadata.len());
            size.with_context(|| format!("cannot look at {}", file.display()))
        });
        let bytes = sizes.sum::<Result<u64>>()?;
        ensure!(bytes <= bytes_max, "all {what} together has {bytes} bytes, over {bytes_max}");
        Ok(())
    }

    fn check_leftovers(&self) -> Result<()> {
        let ptx = self.pairs(&FAMILIES).map(|(module, family)| ptx_file(module, family));
        let cubins =
            self.pairs(&ARCHITECTURES).map(|(module, architecture)| cubin_file(module, architecture));
        let names = |files: &mut dyn Iterator<Item = String>| {
            files.filter_map(|file| Some(file.split_once('/')?.1.to_owned())).collect()
        };
        leftovers::check(&self.folder.join("ptx"), &names(&mut ptx.into_iter()))?;
        leftovers::check(&self.folder.join("cubin"), &names(&mut cubins.into_iter()))
    }

    fn compare_ptx(&self, nvrtc: &NvrtcLibrary) -> Result<()> {
        self.each(&FAMILIES, |module, family| {
            let same =
                sources::code(&self.ptx(module, family)?) == self.sources.compile(nvrtc, module, family)?;
            let file = ptx_file(module, family);
            ensure!(same, "kernels/{file} is not what its source makes: run `cargo xtask kernels`");
            Ok(())
        })?;
        println!("PTX is what its sources make");
        Ok(())
    }

    fn compare_cubins(&self, ptxas: &Ptxas) -> Result<()> {
        let resources = ResourceTable::read(&self.table())?;
        let compared = self.each(&ARCHITECTURES, |module, architecture| {
            let assembled = ptxas.assemble(&self.ptx_for(module, architecture)?, architecture)?;
            let same = cubin::unpack(&self.packed_cubin(module, architecture)?)? == assembled.cubin;
            let file = cubin_file(module, architecture);
            ensure!(same, "kernels/{file} is not what its PTX makes: run `cargo xtask kernels`");
            let usages = KernelUsage::sorted(assembled.usages);
            ensure!(
                resources.get(module, architecture) == usages,
                "kernels/resources.tsv says something else of {module} on sm_{architecture} than ptxas: run `cargo xtask kernels`"
            );
            Ok(usages.len())
        })?;
        let kernels = compared.iter().sum::<usize>();
        println!("{} files of machine code with {kernels} kernels are what their PTX makes", compared.len());
        Ok(())
    }

    /// Runs `work` for every pair of module and target.
    fn each<T: Send>(&self, targets: &[u32], work: impl Fn(&str, u32) -> Result<T> + Sync) -> Result<Vec<T>> {
        let pairs: Vec<_> = self.pairs(targets).collect();
        let workers = parallel::processors().min(COMPILATIONS_MAX);
        parallel::all(&pairs, workers, |(module, target)| work(module, *target))
    }

    /// Every module with every target, except for targets without the module's instructions.
    fn pairs<'a>(&'a self, targets: &'a [u32]) -> impl Iterator<Item = (&'a str, u32)> {
        let modules = self.sources.modules().iter();
        let pairs = modules.flat_map(|module| targets.iter().map(|target| (module.as_str(), *target)));
        pairs.filter(|(module, target)| sources::is_for(module, *target))
    }

    fn table(&self) -> PathBuf {
        self.folder.join("resources.tsv")
    }

    fn record_file(&self) -> PathBuf {
        self.folder.join("compiled.tsv")
    }

    fn packed_cubin(&self, module: &str, architecture: u32) -> Result<Vec<u8>> {
        let file = self.folder.join(cubin_file(module, architecture));
        std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    fn ptx(&self, module: &str, family: u32) -> Result<String> {
        let file = self.folder.join(ptx_file(module, family));
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// PTX for the machine code of an architecture: of the newest family that is not newer.
    fn ptx_for(&self, module: &str, architecture: u32) -> Result<String> {
        let family = FAMILIES.into_iter().rfind(|family| *family <= architecture);
        self.ptx(module, family.context("no PTX is old enough for this architecture")?)
    }
}

/// File of a module's PTX, relative to `kernels/`.
fn ptx_file(module: &str, family: u32) -> String {
    format!("ptx/{module}_{family}.ptx")
}

/// File of a module's machine code, relative to `kernels/`.
fn cubin_file(module: &str, architecture: u32) -> String {
    format!("cubin/{module}_{architecture}.cubin.xz")
}

/// The pinned versions of the compiler and the assembler, a line each.
fn tool_versions() -> String {
    let lines = include_str!("../../kernels/requirements.txt").lines();
    let pins = lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    pins.filter(|pin| pin.contains("==")).fold(String::new(), |pins, pin| pins + pin + "\n")
}

/// Writes a file, and returns its length.
fn write(file: &Path, bytes: &[u8]) -> Result<u64> {
    std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(bytes.len() as u64)
}
