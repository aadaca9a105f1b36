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
mod resources;
mod sources;

use crate::parallel;
use crate::repo::Repo;
use crate::setup;
use anyhow::{Context as _, Result, ensure};
use cubin::CheckStamp;
use log::KernelUsage;
use ptxas::Ptxas;
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
    /// Only compare the checked-in PTX, machine code and table of resources with the sources
    #[arg(long)]
    check: bool,
    /// Files of `kernels/cuda/`, by name without the extension [default: all]
    modules: Vec<String>,
}

pub(crate) fn run(repo: &Repo, args: &KernelsArgs) -> Result<()> {
    if args.check {
        return check(repo, &args.modules);
    }
    let kernels = Kernels::open(repo, &args.modules)?;
    kernels.compile()?;
    kernels.assemble()
}

/// Fails if the PTX, the machine code or the table of resources differs from the sources' output.
/// Without a choice of modules, also fails if there are files of modules without a source.
pub(crate) fn check(repo: &Repo, modules: &[String]) -> Result<()> {
    let kernels = Kernels::open(repo, modules)?;
    if modules.is_empty() {
        kernels.check_leftovers()?;
    }
    kernels.check_ptx()?;
    kernels.check_cubins()
}

/// Kernel sources with their compiler and assembler.
struct Kernels {
    sources: Sources,
    ptxas: Ptxas,
    folder: PathBuf,
    /// Folder of stamps for the pairs of module and architecture that passed the check.
    stamps: PathBuf,
}

impl Kernels {
    /// Opens the modules in `only`, or all modules if it is empty.
    fn open(repo: &Repo, only: &[String]) -> Result<Self> {
        let folder = repo.root().join("kernels");
        let programs = setup::environment(repo, "nvrtc", &folder.join("requirements.txt"))?;
        let environment = programs.parent().unwrap_or(&programs);
        let stamps = repo.root().join("target/kernels");
        for folder in [&folder.join("ptx"), &folder.join("cubin"), &stamps] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let sources = Sources::open(&folder.join("cuda"), environment, only)?;
        Ok(Self { sources, ptxas: Ptxas::find(environment)?, folder, stamps })
    }

    /// Writes the PTX.
    fn compile(&self) -> Result<()> {
        let made = self.each(&FAMILIES, |module, family| {
            let ptx = self.sources.compile(module, family)?;
            write(&self.ptx_of(module, family), ptx.as_bytes())
        })?;
        println!("{} files of PTX, {} bytes", made.len(), made.iter().sum::<u64>());
        Ok(())
    }

    /// Writes the machine code and the table of resources.
    fn assemble(&self) -> Result<()> {
        let made = self.each(&ARCHITECTURES, |module, architecture| {
            let assembled = self.ptxas.assemble(&self.ptx_for(module, architecture)?, architecture)?;
            let packed = cubin::pack(&assembled.cubin)?;
            let bytes = write(&self.cubin_of(module, architecture), &packed)?;
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

    fn check_leftovers(&self) -> Result<()> {
        let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ptx = self.pairs(&FAMILIES).map(|(module, family)| name(&self.ptx_of(module, family)));
        leftovers::check(&self.folder.join("ptx"), &ptx.collect())?;
        let cubins = self.pairs(&ARCHITECTURES);
        let cubins = cubins.map(|(module, architecture)| name(&self.cubin_of(module, architecture)));
        leftovers::check(&self.folder.join("cubin"), &cubins.collect())
    }

    fn check_ptx(&self) -> Result<()> {
        let bytes = self.each(&FAMILIES, |module, family| {
            let file = self.ptx_of(module, family);
            let found = self.ptx(module, family)?;
            let same = sources::code(&found) == self.sources.compile(module, family)?;
            ensure!(same, "{} is not what its source makes: run `cargo xtask kernels`", file.display());
            Ok(found.len() as u64)
        })?;
        let bytes = bytes.iter().sum::<u64>();
        ensure!(bytes <= PTX_BYTES_MAX, "all PTX together has {bytes} bytes, over {PTX_BYTES_MAX}");
        println!("PTX is up to date");
        Ok(())
    }

    fn check_cubins(&self) -> Result<()> {
        let resources = ResourceTable::read(&self.table())?;
        let checked = self.each(&ARCHITECTURES, |module, architecture| {
            let ptx = self.ptx_for(module, architecture)?;
            let file = self.cubin_of(module, architecture);
            let packed = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let listed = resources.get(module, architecture);
            let stamp = CheckStamp::new(&self.stamps, module, architecture, (&ptx, &packed, &listed));
            if !stamp.is_current() {
                let assembled = self.ptxas.assemble(&ptx, architecture)?;
                let same = cubin::unpack(&packed)? == assembled.cubin;
                ensure!(same, "{} is not what its PTX makes: run `cargo xtask kernels`", file.display());
                ensure!(
                    listed == KernelUsage::sorted(assembled.usages),
                    "kernels/resources.tsv says something else of {module} on sm_{architecture} than ptxas: run `cargo xtask kernels`"
                );
                stamp.write()?;
            }
            Ok((packed.len() as u64, listed.len()))
        })?;
        let (bytes, kernels) = checked.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ensure!(bytes <= CUBIN_BYTES_MAX, "all machine code has {bytes} bytes, over {CUBIN_BYTES_MAX}");
        println!("{} files of machine code with {kernels} kernels are up to date", checked.len());
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

    fn ptx_of(&self, module: &str, family: u32) -> PathBuf {
        self.folder.join(format!("ptx/{module}_{family}.ptx"))
    }

    fn cubin_of(&self, module: &str, architecture: u32) -> PathBuf {
        self.folder.join(format!("cubin/{module}_{architecture}.cubin.xz"))
    }

    fn table(&self) -> PathBuf {
        self.folder.join("resources.tsv")
    }

    fn ptx(&self, module: &str, family: u32) -> Result<String> {
        let file = self.ptx_of(module, family);
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// PTX for the machine code of an architecture: of the newest family that is not newer.
    fn ptx_for(&self, module: &str, architecture: u32) -> Result<String> {
        let family = FAMILIES.into_iter().rfind(|family| *family <= architecture);
        self.ptx(module, family.context("no PTX is old enough for this architecture")?)
    }
}

/// Writes a file, and returns its length.
fn write(file: &Path, bytes: &[u8]) -> Result<u64> {
    std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(bytes.len() as u64)
}
