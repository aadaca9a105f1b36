//! `cargo xtask kernels`.

mod log;
mod nvrtc;

use crate::repo::Repo;
use crate::setup;
use anyhow::{Context as _, Result, bail, ensure};
use log::Usage;
use nvrtc::{Nvrtc, Source};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Families of devices that there is PTX for: each also serves those after it.
const FAMILIES: [u32; 2] = [75, 80];
/// Devices that are compiled for to the end, to see what becomes of it.
const DEVICES: [u32; 3] = [75, 80, 90];
/// Registers of a thread above which too few threads fit a multiprocessor: two blocks of 128 threads, or one of 256, must.
const REGISTERS_MAX: u32 = 255;
/// All PTX together. A sixth of it is left when the program is packed.
const PTX_BYTES_MAX: u64 = 14 << 20;
/// The end of the names of files that use instructions which the first family has not.
const TENSOR: &str = "_tensor";
/// Those whose products and sums are not joined: what is compiled from the same sources at run time gives the same bits then.
const APART: [&str; 1] = ["elementwise"];
/// Compilations at once.
const WORKERS: usize = 2;

/// Compile the kernels to the PTX that is checked in, after a change of `kernels/cuda/`
#[derive(Debug, clap::Args)]
pub(crate) struct KernelsArgs {
    /// Only see whether it is up to date, and whether every kernel compiles for every device without spilling registers
    #[arg(long)]
    check: bool,
    /// Only these files of `kernels/cuda/`, by name without the ending
    modules: Vec<String>,
}

pub(crate) fn run(repo: &Repo, args: &KernelsArgs) -> Result<()> {
    if args.check {
        return check(repo, &args.modules);
    }
    let kernels = Kernels::open(repo, &args.modules)?;
    let folder = kernels.ptx();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let made = kernels.all(&FAMILIES, |kernels, module, family| {
        let ptx = kernels.compile_ptx(module, family)?;
        let file = kernels.ptx_of(module, family);
        std::fs::write(&file, &ptx).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(ptx.len())
    })?;
    println!("{} files of PTX, {} bytes, in {}", made.len(), made.iter().sum::<usize>(), repo.show(&folder));
    Ok(())
}

/// Fail where the PTX is not what the sources make, or a kernel does not compile as it should.
pub(crate) fn check(repo: &Repo, modules: &[String]) -> Result<()> {
    let kernels = Kernels::open(repo, modules)?;
    let bytes = kernels.all(&FAMILIES, |kernels, module, family| {
        let file = kernels.ptx_of(module, family);
        let found =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let same = code(&found) == kernels.compile_ptx(module, family)?;
        ensure!(same, "{} is not what its source makes: run `cargo xtask kernels`", file.display());
        Ok(found.len() as u64)
    })?;
    let bytes = bytes.iter().sum::<u64>();
    ensure!(bytes <= PTX_BYTES_MAX, "all PTX together has {bytes} bytes, over {PTX_BYTES_MAX}");
    let usages = kernels.all(&DEVICES, Kernels::usage)?;
    let all = usages.iter().flatten();
    let most = all.clone().max_by_key(|usage| usage.registers);
    if let Some(most) = most {
        println!(
            "{} kernels compiled; {} takes most registers, {}",
            all.count(),
            most.kernel,
            most.registers
        );
    }
    Ok(())
}

/// PTX without its comments: those name the version of the compiler, and count what it has compiled before.
fn code(ptx: &str) -> String {
    let lines = ptx.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).fold(String::new(), |code, line| code + line + "\n")
}

/// The sources, and what compiles them.
struct Kernels {
    folder: PathBuf,
    nvrtc: Nvrtc,
    /// Files of kernels by their names without the ending, and what they include.
    modules: Vec<String>,
    headers: Vec<Source>,
}

impl Kernels {
    /// Those of these names, or all.
    fn open(repo: &Repo, only: &[String]) -> Result<Self> {
        let folder = repo.root().join("kernels");
        let programs = setup::environment(repo, "nvrtc", &folder.join("requirements.txt"))?;
        let nvrtc = Nvrtc::open(programs.parent().unwrap_or(&programs))?;
        let (mut modules, mut headers) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(folder.join("cuda"))? {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("cu") if only.is_empty() || only.contains(&stem) => modules.push(stem),
                Some("cuh") => headers.push(Source::read(&path)?),
                _ => {}
            }
        }
        let missing = only.iter().find(|name| !modules.contains(name));
        ensure!(missing.is_none(), "there is no kernels/cuda/{}.cu", missing.cloned().unwrap_or_default());
        modules.sort();
        Ok(Self { folder, nvrtc, modules, headers })
    }

    fn ptx(&self) -> PathBuf {
        self.folder.join("ptx")
    }

    fn ptx_of(&self, module: &str, family: u32) -> PathBuf {
        self.ptx().join(format!("{module}_{family}.ptx"))
    }

    fn compile_ptx(&self, module: &str, family: u32) -> Result<String> {
        let architecture = format!("--gpu-architecture=compute_{family}");
        let ptx = self.nvrtc.ptx(&self.source(module)?, &self.headers, &options(module, &architecture))?;
        Ok(code(&ptx))
    }

    /// What each kernel of a module takes on a device.
    fn usage(&self, module: &str, device: u32) -> Result<Vec<Usage>> {
        let architecture = format!("--gpu-architecture=sm_{device}");
        let mut options = options(module, &architecture);
        options.push("--ptxas-options=-v");
        let said = self.nvrtc.cubin(&self.source(module)?, &self.headers, &options)?;
        let usages = log::usages(&said)?;
        ensure!(!usages.is_empty(), "{module}: the compiler says nothing of registers:\n{said}");
        for Usage { kernel, registers, spill_bytes } in &usages {
            ensure!(*spill_bytes == 0, "{kernel} spills {spill_bytes} bytes of registers on sm_{device}");
            ensure!(*registers <= REGISTERS_MAX, "{kernel} takes {registers} registers on sm_{device}");
        }
        Ok(usages)
    }

    fn source(&self, module: &str) -> Result<Source> {
        Source::read(&self.folder.join("cuda").join(module).with_extension("cu"))
    }

    /// Do `work` for every module on every one of `targets` that it is for.
    fn all<T: Send>(
        &self,
        targets: &[u32],
        work: impl Fn(&Self, &str, u32) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let pairs: Vec<_> = self
            .modules
            .iter()
            .flat_map(|module| targets.iter().map(move |target| (module, *target)))
            .filter(|(module, target)| *target > FAMILIES[0] || !module.ends_with(TENSOR))
            .collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some((module, target)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = work(self, module, *target);
                        done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(result);
                    }
                });
            }
        });
        let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for result in done {
            match result {
                Ok(one) => made.push(one),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
        if failed.is_empty() { Ok(made) } else { bail!("{}", failed.join("\n")) }
    }
}

/// How a module is compiled.
fn options<'a>(module: &str, architecture: &'a str) -> Vec<&'a str> {
    let mut options = vec![architecture, "--std=c++17"];
    options.extend(APART.contains(&module).then_some("--fmad=false"));
    options
}

impl Source {
    fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_left_out() {
        assert_eq!(code("// 12.4\n.version 8.4\n\n\t{ // callseq 7\n"), ".version 8.4\n\t{\n");
        assert_ne!(code(".version 8.4\n"), code(".version 8.5\n"));
    }
}
