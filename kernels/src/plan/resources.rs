//! Tests of the kernels' resource use, from the table in `resources.tsv`, against the limits of
//! devices and the assumptions of launches.
//!
//! `cargo xtask kernels --check` compares the table with NVIDIA's assembler.

use super::tile::{Tile, Units};
use crate::KernelModule;
use std::collections::{BTreeMap, BTreeSet};

/// Families of devices with PTX.
const FAMILIES: [u32; 2] = [75, 80];
/// Registers of a multiprocessor, on every architecture.
const REGISTERS: u32 = 64 << 10;
/// Granularity in which registers of a thread are allocated.
const REGISTER_STEP: u32 = 8;
/// Shared memory of a block, static and dynamic, without opting in to more.
const SHARED_BYTES: u32 = 48 << 10;

/// One kernel on one architecture.
#[derive(Debug)]
struct Row {
    module: KernelModule,
    kernel: String,
    architecture: u32,
    registers: u32,
    spill_bytes: u32,
    shared_bytes: u32,
}

/// Launch bounds of a kernel, from its PTX.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    threads_max: u32,
    blocks_min: u32,
}

/// The rows of the table.
fn rows() -> Vec<Row> {
    let mut lines = include_str!("../../resources.tsv").lines().filter(|line| !line.starts_with('#'));
    let columns = lines.next().unwrap().split('\t').skip(2);
    let architectures: Vec<u32> = columns.map(|name| name.replace('.', "").parse().unwrap()).collect();
    let mut rows = Vec::new();
    for line in lines {
        let cells: Vec<_> = line.split('\t').collect();
        let module = KernelModule::ALL.into_iter().find(|module| module.name() == cells[0]).unwrap();
        for (architecture, cell) in architectures.iter().zip(&cells[2..]) {
            if *cell == "-" {
                continue;
            }
            let figures: Vec<u32> = cell.split('/').map(|figure| figure.parse().unwrap()).collect();
            let [registers, spill_bytes, _stack_bytes, shared_bytes] = figures[..] else { panic!("{line}") };
            let architecture = *architecture;
            let kernel = cells[1].to_owned();
            rows.push(Row { module, kernel, architecture, registers, spill_bytes, shared_bytes });
        }
    }
    rows
}

/// Kernels of all modules by family of devices.
struct Compiled(BTreeMap<(KernelModule, u32), BTreeMap<String, Bounds>>);

impl Compiled {
    fn new() -> Self {
        let pairs = FAMILIES.into_iter().flat_map(|family| KernelModule::ALL.map(|module| (module, family)));
        Self(pairs.map(|(module, family)| ((module, family), entries(module, family))).collect())
    }

    /// Kernels of a module that an architecture runs.
    fn kernels(&self, module: KernelModule, architecture: u32) -> &BTreeMap<String, Bounds> {
        let family = FAMILIES.into_iter().rfind(|family| *family <= architecture).unwrap();
        &self.0[&(module, family)]
    }

    fn bounds(&self, row: &Row) -> Bounds {
        self.kernels(row.module, row.architecture)[&row.kernel]
    }
}

/// Kernels in the PTX of a module.
fn entries(module: KernelModule, family: u32) -> BTreeMap<String, Bounds> {
    let ptx = module.ptx(family).unwrap_or_default();
    let number_after = |text: &str, word: &str| -> Option<u32> {
        let rest = text.split_once(word)?.1.trim_start();
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let bounds = |entry: &str| {
        let head = entry.split('{').next().unwrap_or_default();
        let threads_max = number_after(head, ".maxntid").unwrap();
        Bounds { threads_max, blocks_min: number_after(head, ".minnctapersm").unwrap_or(1) }
    };
    let named = |entry: &str| (entry.split('(').next().unwrap().trim().to_owned(), bounds(entry));
    ptx.split(".visible .entry").skip(1).map(named).collect()
}

/// Tile that a kernel computes, if it is a tiled matrix product.
fn tile(kernel: &str) -> Option<Tile> {
    let tiles = Units::Plain.tiles(4);
    tiles.iter().find(|tile| kernel.ends_with(&format!("_{}", tile.name))).copied()
}

/// Largest shared memory of a block whose kernel opts in, from NVIDIA's table of compute
/// capabilities.
fn shared_bytes_max(architecture: u32) -> u32 {
    match architecture {
        75 => 64 << 10,
        80 => 163 << 10,
        86 | 120 => 99 << 10,
        90 | 100 => 227 << 10,
        other => panic!("how much shared memory has {other}?"),
    }
}

#[test]
fn table_lists_every_kernel_of_every_architecture() {
    let rows = rows();
    let compiled = Compiled::new();
    let architectures: BTreeSet<u32> = rows.iter().map(|row| row.architecture).collect();
    assert_eq!(architectures.into_iter().collect::<Vec<_>>(), [75, 80, 86, 90, 100, 120]);
    for architecture in [75, 80, 86, 90, 100, 120] {
        for module in KernelModule::ALL {
            let mine = rows.iter().filter(|row| row.module == module && row.architecture == architecture);
            let listed: Vec<_> = mine.map(|row| row.kernel.clone()).collect();
            let kernels: Vec<_> = compiled.kernels(module, architecture).keys().cloned().collect();
            assert_eq!(listed, kernels, "{module:?} for {architecture}");
        }
    }
}

#[test]
fn no_kernel_spills_registers() {
    let spilling: Vec<_> = rows().into_iter().filter(|row| row.spill_bytes > 0).collect();
    assert!(spilling.is_empty(), "{spilling:?}");
}

#[test]
fn blocks_fit_the_registers_of_a_multiprocessor() {
    let compiled = Compiled::new();
    for row in rows() {
        let Bounds { threads_max, blocks_min } = compiled.bounds(&row);
        let registers = row.registers.next_multiple_of(REGISTER_STEP) * threads_max * blocks_min;
        assert!(registers <= REGISTERS, "{row:?}: {blocks_min} blocks of {threads_max} threads");
    }
}

#[test]
fn tiles_fit_shared_memory_beside_static_variables() {
    let compiled = Compiled::new();
    let mut tiles = BTreeSet::new();
    for row in rows() {
        let Some(tile) = tile(&row.kernel) else { continue };
        assert_eq!(compiled.bounds(&row).threads_max, tile.threads, "{row:?}");
        let element_bytes = if row.kernel.contains("f16") { 2 } else { 4 };
        for dynamic_bytes in [true, false].map(|along_k| tile.shared_bytes(element_bytes, along_k)) {
            let bytes = row.shared_bytes + dynamic_bytes;
            // The launch opts in to more dynamic memory than the default; static memory does not
            // count towards that limit.
            assert!(dynamic_bytes > SHARED_BYTES || bytes <= SHARED_BYTES, "{row:?}: {bytes} bytes");
            assert!(bytes <= shared_bytes_max(row.architecture), "{row:?}: {bytes} bytes");
        }
        tiles.insert((row.module.name(), tile.name));
    }
    // Three sizes in each of four modules.
    assert_eq!(tiles.len(), 12, "{tiles:?}");
}
