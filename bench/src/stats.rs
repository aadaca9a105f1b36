//! Order statistics of a few samples.

/// Median and range of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Computes the spread. Returns `None` without samples.
    pub(crate) fn from_samples(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        Some(Self { median: quantile(&samples, 0.5)?, min: *samples.first()?, max: *samples.last()? })
    }
}

/// The `q`-quantile of sorted samples, interpolated between neighbours.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quantiles_are_exact() {
        assert_eq!(Spread::from_samples([]), None);
        assert_eq!(Spread::from_samples([2.0]), Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(Spread::from_samples([9.0, 1.0, 4.0]), Some(Spread { median: 4.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::from_samples([4.0, 1.0]).map(|s| s.median), Some(2.5));
        assert_eq!(quantile(&[0.0, 1.0, 2.0, 3.0, 4.0], 0.9), Some(3.6));
    }
}
