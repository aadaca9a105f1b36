//! Prices of devices, memory and copies over time, and their integrals.

use super::Problem;

/// Prices by cell of time; 0 after the last cell.
#[derive(Debug, Clone)]
pub(super) struct Prices {
    pub(super) cell_s: f64,
    /// Price of a second on a device.
    pub(super) device: Vec<f64>,
    /// Price of a second of a device's whole memory.
    pub(super) memory: Vec<f64>,
    /// By model: price of a second of service by a copy.
    pub(super) copies: Vec<Vec<f64>>,
}

impl Prices {
    pub(super) fn zero(problem: &Problem) -> Self {
        let zeros = || vec![0.0; problem.cells];
        let copies = problem.models.iter().map(|_| zeros()).collect();
        Self { cell_s: problem.cell_s, device: zeros(), memory: zeros(), copies }
    }

    /// The charge for each device and its memory over the whole time.
    pub(super) fn charged_s(&self) -> f64 {
        self.cell_s * (self.device.iter().sum::<f64>() + self.memory.iter().sum::<f64>())
    }

    /// All prices, row by row.
    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        [&mut self.device, &mut self.memory].into_iter().chain(&mut self.copies)
    }
}

/// The integral of a price from time 0.
#[derive(Debug, Default)]
pub(super) struct Integral {
    cell_s: f64,
    /// At the start of each cell, and at the end of the last one.
    sums: Vec<f64>,
}

impl Integral {
    pub(super) fn set(&mut self, cell_s: f64, rates: impl Iterator<Item = f64>) {
        self.cell_s = cell_s;
        self.sums.clear();
        self.sums.push(0.0);
        let mut sum = 0.0;
        self.sums.extend(rates.map(|rate| {
            sum += rate * cell_s;
            sum
        }));
    }

    /// The value at the start of each cell, and at the end of the last one.
    pub(super) fn sums(&self) -> &[f64] {
        &self.sums
    }

    pub(super) fn at(&self, time_s: f64) -> f64 {
        let cell = (time_s / self.cell_s).max(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let index = cell as usize;
        match self.sums.get(index..index + 2) {
            Some(&[from, to]) => from + (to - from) * cell.fract(),
            _ => self.sums.last().copied().unwrap_or_default(),
        }
    }
}

/// The service of a request: from start to end, and for a miss, until its copy is evicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Service {
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    pub(super) evicted_at_s: Option<f64>,
}

/// The use of each priced constraint, by cell: devices taken, memory taken, and by model, services
/// less copies.
#[derive(Debug)]
pub(super) struct PriceUse {
    cell_s: f64,
    pub(super) device: Vec<f64>,
    pub(super) memory: Vec<f64>,
    pub(super) copies: Vec<Vec<f64>>,
}

impl PriceUse {
    pub(super) fn new(problem: &Problem) -> Self {
        let Prices { cell_s, device, memory, copies } = Prices::zero(problem);
        Self { cell_s, device, memory, copies }
    }

    pub(super) fn clear(&mut self) {
        self.device.fill(0.0);
        self.memory.fill(0.0);
        self.copies.iter_mut().for_each(|row| row.fill(0.0));
    }

    /// Adds a service of the model at index `model`, whose copies take `memory`.
    pub(super) fn add(&mut self, model: usize, memory: f64, service: Service) {
        let Service { start_s, end_s, evicted_at_s } = service;
        add(&mut self.device, self.cell_s, (start_s, end_s), 1.0);
        add(&mut self.copies[model], self.cell_s, (start_s, end_s), 1.0);
        if let Some(evicted_at_s) = evicted_at_s {
            add(&mut self.memory, self.cell_s, (start_s, evicted_at_s), memory);
            add(&mut self.copies[model], self.cell_s, (start_s, evicted_at_s), -1.0);
        }
    }

    /// All rows, in the order of [`Prices::rows_mut`].
    pub(super) fn rows(&self) -> impl Iterator<Item = &Vec<f64>> {
        [&self.device, &self.memory].into_iter().chain(&self.copies)
    }
}

/// Adds `amount` from one time to another, in parts of a cell.
fn add(cells: &mut [f64], cell_s: f64, (from_s, to_s): (f64, f64), amount: f64) {
    let first = (from_s / cell_s).max(0.0);
    let last = (to_s / cell_s).min(cells.len() as f64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let range = first as usize..last.ceil().max(0.0) as usize;
    for index in range {
        let start = index as f64;
        let part = last.min(start + 1.0) - first.max(start);
        cells[index] += amount * part.max(0.0);
    }
}
