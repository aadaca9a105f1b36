//! Supergradient ascent of the bound over prices.

use super::Problem;
use super::least::LeastCosts;
use super::prices::{PriceUse, Prices};

/// Steps of the ascent after which the bound hardly rises.
pub const ASCENT_STEPS: u32 = 600;

/// First step of a price.
const STEP: f64 = 0.4;

/// Share of the earlier direction in a step.
const MOMENTUM: f64 = 0.7;

/// The best bound on the sum of latencies that was found in `steps` steps.
pub(super) fn climb(problem: &Problem, steps: u32) -> f64 {
    let mut prices = Prices::zero(problem);
    let mut used = PriceUse::new(problem);
    let mut costs = LeastCosts::default();
    let mut ascent = Ascent::new(problem);
    let mut best_s = problem.bound_s(&prices, &mut used, &mut costs);
    for step in 0..steps {
        ascent.step(problem, &mut prices, &used);
        if step >= steps / 2 {
            ascent.average(&mut prices);
        }
        best_s = best_s.max(problem.bound_s(&prices, &mut used, &mut costs));
    }
    if let Some(mean) = ascent.mean(problem) {
        best_s = best_s.max(problem.bound_s(&mean, &mut used, &mut costs));
    }
    best_s
}

/// Directions and step lengths by price: a price whose use varies more takes smaller steps.
struct Ascent {
    directions: Vec<Vec<f64>>,
    squares: Vec<Vec<f64>>,
    sums: Vec<Vec<f64>>,
    count: u32,
}

impl Ascent {
    fn new(problem: &Problem) -> Self {
        let rows = || vec![vec![0.0; problem.cells]; problem.models.len() + 2];
        Self { directions: rows(), squares: rows(), sums: rows(), count: 0 }
    }

    fn step(&mut self, problem: &Problem, prices: &mut Prices, used: &PriceUse) {
        let rows = prices.rows_mut().zip(used.rows()).zip(self.directions.iter_mut().zip(&mut self.squares));
        for (row, ((prices, used), (directions, squares))) in rows.enumerate() {
            // Devices and their memory have a limit; copies are their own.
            let limit = if row < 2 { problem.devices } else { 0.0 };
            let cells = prices.iter_mut().zip(used).zip(directions.iter_mut().zip(squares));
            for ((price, used), (direction, square)) in cells {
                let over = used - limit;
                *square += over * over;
                *direction = MOMENTUM * *direction + (1.0 - MOMENTUM) * over;
                if *square > 0.0 {
                    *price = (*price + STEP * *direction / square.sqrt()).max(0.0);
                }
            }
        }
    }

    fn average(&mut self, prices: &mut Prices) {
        self.count += 1;
        for (sums, row) in self.sums.iter_mut().zip(prices.rows_mut()) {
            sums.iter_mut().zip(row).for_each(|(sum, price)| *sum += *price);
        }
    }

    /// The mean of the prices given to [`average`](Self::average).
    fn mean(&self, problem: &Problem) -> Option<Prices> {
        let mut mean = Prices::zero(problem);
        for (row, sums) in mean.rows_mut().zip(&self.sums) {
            let count = f64::from(self.count);
            row.iter_mut().zip(sums).for_each(|(price, sum)| *price = sum / count);
        }
        (self.count > 0).then_some(mean)
    }
}
